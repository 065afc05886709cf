/* A tour in four steps on the opening example: rows, columns, layers, and what a method leaves out. */
const about = (name) => {
  const row = [...document.querySelectorAll("#method-info dt")].find(
    (dt) => dt.textContent === name,
  );
  return row ? row.nextElementSibling.textContent : "";
};

const target = (w) => w.rows()[0] ?? 0;

/** The source a row took most from, itself apart. */
function strongest(w) {
  const n = w.groups.length;
  const row = Array.from(w.matrix.slice(target(w) * n, (target(w) + 1) * n));
  row[target(w)] = -Infinity;
  return row.indexOf(Math.max(...row));
}

/** Do colours grow darker or lighter with the value? That hangs on the theme and on the colours chosen. */
const towards = (w) => {
  const light = (v) => w.shade(v).reduce((sum, c) => sum + c, 0);
  return light(w.top) < light(0) ? "darker" : "lighter";
};

/** A mark over a part of the canvas: it scrolls with the cells. */
function spot(w, { x, y, width, height }) {
  const mark = document.createElement("div");
  mark.className = "ctxmix-spot";
  Object.assign(mark.style, {
    left: `${x}px`,
    top: `${y}px`,
    width: `${width}px`,
    height: `${height}px`,
  });
  w.stage.append(mark);
  return mark;
}

function rowSpot(w) {
  const g = w.geometry;
  return spot(w, { x: 0, y: g.y + target(w) * g.ch, width: g.seenWidth, height: g.ch });
}

function columnSpot(w) {
  const g = w.geometry;
  const at = g.mirrored ? g.cols - 1 - strongest(w) : strongest(w);
  const room = Math.max(g.y, window.innerHeight - 330); // the box stands beside it
  return spot(w, {
    x: g.x + at * g.cw,
    y: 0,
    width: g.cw,
    height: Math.min(g.y + g.rows * g.ch, room),
  });
}

const STEPS = [
  {
    title: "A row is a target",
    at: rowSpot,
    says: (w) =>
      `Each row of the map is a token whose representation was made. The marked one is ${w.labels[target(w)]}: click another row, or a word of the sentence, to make that the target.`,
    starts: (w) => w.set({ view: "map" }),
  },
  {
    title: "A column is a source",
    at: columnSpot,
    says: (w) =>
      `Each column is a token that something was taken from, here ${w.labels[strongest(w)]}. The ${towards(w)} the cell, the more the row's target took from it; the outlined cell is what it kept of itself.`,
    starts: (w) => w.set({ view: "map" }),
  },
  {
    title: "Layers mix further",
    at: (w) => w.root.querySelector(".cmx-layer"),
    says: (w) =>
      `This is layer ${w.s.layer} of ${w.model.layers[w.model.depth - 1]}, counted from the input: what one layer has mixed, the next mixes again. Move the slider, or press left and right on the map.`,
    starts: (w) => w.set({ layer: w.model.layers[0] }),
  },
  {
    title: "A method leaves something out",
    at: () => document.querySelector("#method-info"),
    says: (w) =>
      `${w.p.name} covers: ${about("covers") || "see its page"}. It leaves out: ${about("leaves out") || "nothing it knows of"}. Another method can give another answer: compare them before you believe one.`,
    starts: (w) => w.set({ layer: w.model.layers[w.model.depth - 1] }),
  },
];

const GAP = 12;

/** Where the box stands beside the mark, in the window and not over it; null where there is no such place. */
export function beside(mark, box, room) {
  const [right, low] = [room.width - box.width - GAP, room.height - box.height - GAP];
  const within = (at, most) => Math.max(GAP, Math.min(at, most));
  const places = [
    [right, low],
    [within(mark.left, right), mark.bottom + GAP],
    [within(mark.left, right), mark.top - GAP - box.height],
    [mark.right + GAP, within(mark.top, low)],
    [mark.left - GAP - box.width, within(mark.top, low)],
  ];
  const fits = ([x, y]) =>
    x >= 0 &&
    y >= 0 &&
    x + box.width <= room.width &&
    y + box.height <= room.height &&
    (x >= mark.right ||
      x + box.width <= mark.left ||
      y >= mark.bottom ||
      y + box.height <= mark.top);
  return places.find(fits) || null;
}

/** Brings the mark into sight, and puts the box where it hides nothing of it. */
function stand(box, marked) {
  for (const block of ["nearest", "start", "end"]) {
    marked.scrollIntoView({ block, inline: "nearest" });
    const room = { width: document.documentElement.clientWidth, height: window.innerHeight };
    const mark = marked.getBoundingClientRect();
    const found = beside(mark, box.getBoundingClientRect(), room);
    if (!found) continue;
    Object.assign(box.style, { left: `${found[0]}px`, top: `${found[1]}px` });
    Object.assign(box.style, { right: "auto", bottom: "auto" });
    return;
  }
}

/** Step by step beside the widget; Escape or Skip ends it, arrows walk, the focus goes back to where it was. */
export function tour(w) {
  const old = document.querySelector("#tour");
  if (old || !w) return;
  const before = document.activeElement;
  const box = document.createElement("div");
  const title = document.createElement("h2");
  const text = document.createElement("p");
  const row = document.createElement("div");
  let marked = null;
  let at = 0;
  const button = (name, does) => {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = name;
    b.onclick = does;
    row.append(b);
    return b;
  };
  const unmark = () => {
    if (!marked) return;
    marked.classList.remove("ctxmix-toured");
    if (marked.classList.contains("ctxmix-spot")) marked.remove();
  };
  const end = () => {
    unmark();
    box.remove();
    window.removeEventListener("resize", again);
    if (before && before.isConnected) before.focus();
  };
  const go = (to) => {
    if (to >= STEPS.length) return end();
    const now = window.ctxmixSpace.widgets.main || w;
    const step = STEPS[Math.max(0, to)];
    at = Math.max(0, to);
    if (step.starts) step.starts(now);
    unmark();
    marked = step.at(now);
    if (marked) marked.classList.add("ctxmix-toured");
    title.textContent = `${at + 1} of ${STEPS.length}: ${step.title}`;
    text.textContent = step.says(now);
    back.disabled = at === 0;
    next.textContent = at === STEPS.length - 1 ? "Done" : "Next";
    if (marked) stand(box, marked);
    return next.focus({ preventScroll: true });
  };
  const again = () => go(at);
  box.id = "tour";
  box.setAttribute("role", "dialog");
  box.setAttribute("aria-labelledby", "tour-title");
  box.setAttribute("aria-describedby", "tour-text");
  title.id = "tour-title";
  text.id = "tour-text";
  button("Skip", end);
  const back = button("Back", () => go(at - 1));
  const next = button("Next", () => go(at + 1));
  box.append(title, text, row);
  box.onkeydown = (e) => {
    const does = { Escape: end, ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1) }[e.key];
    if (!does) return;
    e.preventDefault();
    does();
  };
  window.addEventListener("resize", again);
  document.body.append(box);
  go(0);
}
