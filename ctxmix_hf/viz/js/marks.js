/* Numbers of drawings without scripts of their own (ledgers, similarities): what a pointer's tooltip says is said
   to a finger and to the keyboard too. A drawing's marks are what has a title; its box is one stop for Tab. */

const BOXES = ".cmx-wide, .cmx-words";
const NEAR = 14; // how far from a thin line a finger may be

const middle = (e) => {
  const { left, top, width, height } = e.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2 };
};

/** Which cell lies next in a direction, by the middles of all: in its row or column first. Pure. */
export function nextIn(middles, at, [dx, dy]) {
  let best = -1;
  let least = Infinity;
  middles.forEach(({ x, y }, k) => {
    const along = (x - middles[at].x) * dx + (y - middles[at].y) * dy;
    const across = Math.abs((x - middles[at].x) * dy) + Math.abs((y - middles[at].y) * dx);
    const far = along + 4 * across;
    if (k !== at && along > 1 && far < least) [best, least] = [k, far];
  });
  return best;
}

/** In the order of the keys: cells as they stand, lines from the widest to the thinnest. */
function marks(box) {
  const all = [...box.querySelectorAll("svg title")].map((title) => title.parentNode);
  const found = all.length ? all : [...box.querySelectorAll("[title]")];
  const width = (e) => (e.tagName === "path" ? Number(e.getAttribute("stroke-width")) : 0);
  return found.sort((a, b) => width(b) - width(a));
}

/** What a mark says: its title, and the word where the title is a number alone. */
function said(mark) {
  const title = mark.querySelector("title");
  return title ? title.textContent : `${mark.textContent}: ${mark.getAttribute("title")}`;
}

function choose(box, mark) {
  for (const e of box.querySelectorAll(".cmx-at")) e.classList.remove("cmx-at");
  mark.classList.add("cmx-at");
  let line = box.nextElementSibling;
  if (!line || !line.matches(".cmx-said")) {
    line = document.createElement("p");
    line.className = "cmx-said";
    line.setAttribute("role", "status");
    box.after(line);
  }
  line.textContent = said(mark);
}

/** The line nearest to a finger, where it hit none. */
function nearest(box, x, y) {
  let [best, least] = [null, NEAR];
  for (const path of box.querySelectorAll("path:has(> title)")) {
    const at = path.getScreenCTM();
    const length = path.getTotalLength();
    for (let k = 0; k <= 40; k++) {
      const p = path.getPointAtLength((k / 40) * length).matrixTransform(at);
      const far = Math.hypot(p.x - x, p.y - y);
      if (far < least) [best, least] = [path, far];
    }
  }
  return best;
}

function tap(e) {
  const box = e.target.closest && e.target.closest(BOXES);
  if (!box) return;
  const mark =
    marks(box).find((one) => one.contains(e.target)) || nearest(box, e.clientX, e.clientY);
  if (mark) choose(box, mark);
}

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function key(e) {
  const box = e.target;
  if (!box.matches || !box.matches(BOXES) || e.altKey || e.ctrlKey || e.metaKey) return;
  const all = marks(box);
  const step = STEPS[e.key];
  const end = { Home: 0, End: all.length - 1 }[e.key];
  if (!all.length || (!step && end === undefined)) return;
  const at = all.findIndex((mark) => mark.classList.contains("cmx-at"));
  let to = end ?? 0;
  if (step && at >= 0) {
    const turned = getComputedStyle(box).direction === "rtl" ? -1 : 1; // right-to-left words
    const cells = all[at].tagName === "rect";
    to = cells ? nextIn(all.map(middle), at, step) : at + turned * step[0] + step[1];
  }
  e.preventDefault();
  if (!all[to]) return;
  choose(box, all[to]);
  const [inner, outer] = [all[to], box].map((one) => one.getBoundingClientRect());
  if (inner.left < outer.left || inner.right > outer.right)
    box.scrollLeft += inner.left - outer.left - outer.width / 2;
}

const STYLE = `.cmx-said{margin:2px 0;font-size:13px;font-variant-numeric:tabular-nums}
.cmx-wide rect.cmx-at,.cmx-wide .cmx-at rect{stroke:#c2410c;stroke-width:2px}
.cmx-wide path.cmx-at{stroke-opacity:1}.cmx-wide svg:has(path.cmx-at) path:not(.cmx-at){opacity:.25}
.cmx-wide text.cmx-at{font-weight:700;text-decoration:underline}
.cmx-words .cmx-at{outline:2px solid #c2410c}`;

/** Once for a page, whatever is drawn on it. */
export function marked() {
  if (window.ctxmixMarks) return;
  window.ctxmixMarks = true;
  const look = document.createElement("style");
  look.textContent = STYLE;
  document.head.append(look);
  document.addEventListener("click", tap);
  document.addEventListener("keydown", key);
}
