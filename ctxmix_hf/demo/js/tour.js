/* A tour in four steps on the opening example: rows, columns, layers, and what a method leaves out. */
const about = (name) => {
  const row = [...document.querySelectorAll("#method-info dt")].find(
    (dt) => dt.textContent === name,
  );
  return row ? row.nextElementSibling.textContent : "";
};

const STEPS = [
  {
    title: "A row is a target",
    at: ".cmx-sentence",
    says: (w) =>
      `Each row of the map is a token whose representation was made. Now it is ${w.labels[w.rows()[0]] || "none"}: click another word to see its row.`,
  },
  {
    title: "A column is a source",
    at: ".cmx-stage",
    says: () =>
      "Each column is a token that something was taken from. The darker the cell, the more the row's target took from it; the outlined cell is what it kept of itself.",
    starts: (w) => w.set({ view: "map" }),
  },
  {
    title: "Layers mix further",
    at: ".cmx-layer",
    says: (w) =>
      `This is layer ${w.s.layer} of ${w.model.layers[w.model.depth - 1]}, counted from the input: what one layer has mixed, the next mixes again. Move the slider, or press left and right on the map.`,
    starts: (w) => w.set({ layer: w.model.layers[0] }),
  },
  {
    title: "A method leaves something out",
    at: "",
    says: (w) =>
      `${w.p.name} covers: ${about("covers") || "see its page"}. It leaves out: ${about("leaves out") || "nothing it knows of"}. Another method can give another answer: compare them before you believe one.`,
    starts: (w) => w.set({ layer: w.model.layers[w.model.depth - 1] }),
  },
];

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
  const end = () => {
    if (marked) marked.classList.remove("ctxmix-toured");
    box.remove();
    if (before && before.isConnected) before.focus();
  };
  const go = (to) => {
    if (to >= STEPS.length) return end();
    const now = window.ctxmixSpace.widgets.main || w;
    const step = STEPS[Math.max(0, to)];
    at = Math.max(0, to);
    if (step.starts) step.starts(now);
    if (marked) marked.classList.remove("ctxmix-toured");
    marked = step.at ? now.root.querySelector(step.at) : document.querySelector("#method-info");
    if (marked) marked.classList.add("ctxmix-toured");
    title.textContent = `${at + 1} of ${STEPS.length}: ${step.title}`;
    text.textContent = step.says(now);
    back.disabled = at === 0;
    next.textContent = at === STEPS.length - 1 ? "Done" : "Next";
    return next.focus();
  };
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
  document.body.append(box);
  go(0);
}
