/* The five views, drawn on any pen. `w` is the widget: its labels, matrix, chosen rows and state. */
import { veil } from "./colours.js";
import { percent } from "./finding.js";
import { column, FOOT, pitch, thinned, toName, wrapped } from "./layout.js";
import { number } from "./numbers.js";
import { strongest } from "./paths.js";

export const short = (s, n) => {
  const all = Array.from(s);
  return all.length > n ? all.slice(0, n - 1).join("") + "…" : s;
};
export const shortened = (w) => w.labels.map((s) => short(s, 16));

export function draw(w, pen, g) {
  const ink = w.ink();
  const views = {
    map: drawMap,
    layers: drawLayers,
    paths: drawPaths,
    image: drawImage,
    heads: drawHeads,
  };
  pen.rect(0, 0, g.seenWidth, g.seenHeight, ink.back);
  if (g.whole) {
    pen.clipped(0, 0, g.seenWidth, g.seenHeight - FOOT, () =>
      pen.moved(-g.sx, -g.sy, () => views[g.view](w, pen, g, ink)),
    );
  } else views[g.view](w, pen, g, ink);
  if (g.view === "paths") {
    wrapped(pathNote(w), g.seenWidth - 8, 11).forEach((line, k) =>
      pen.text(line, 4, g.seenHeight - FOOT + 10 + 13 * k, { size: 11, color: ink.dim }),
    );
  } else legend(w, pen, g, ink);
}

/** Cells, with headers that stay where they are while the cells are scrolled under them. */
function sheet(w, pen, g, { cells, over, rows }) {
  const [wide, high] = [g.seenWidth - g.x, g.seenHeight - g.y - FOOT];
  pen.clipped(g.x - 1, g.y - 1, wide + 1, high + 2, () => pen.moved(-g.sx, -g.sy, cells));
  pen.clipped(g.x - 7, 0, wide + 7, g.y, () => pen.moved(-g.sx, 0, over));
  pen.clipped(0, g.y - 5, g.x, high + 10, () => pen.moved(0, -g.sy, rows));
}

function heat(w, pen, g, ink, value) {
  const bytes = new Uint8ClampedArray(4 * g.rows * g.cols);
  for (let i = 0; i < g.rows; i++) {
    for (let j = 0; j < g.cols; j++) {
      const v = value(i, j);
      if (v !== null) bytes.set([...w.shade(v), 255], 4 * (i * g.cols + column(g, j)));
    }
  }
  pen.cells(g.x, g.y, g.cw, g.ch, g.rows, g.cols, bytes);
  if (g.cw < 9) return;
  for (let i = 0; i <= g.rows; i++) {
    pen.rect(g.x, g.y + i * g.ch - 0.5, g.cols * g.cw, 1, ink.back);
  }
  for (let j = 0; j <= g.cols; j++) {
    pen.rect(g.x + j * g.cw - 0.5, g.y, 1, g.rows * g.ch, ink.back);
  }
}

/** A token's own cell: an outline, not a colour. */
function outline(pen, g, ink, i, j) {
  const x = g.x + column(g, j) * g.cw + 2;
  if (g.cw >= 6) pen.frame(x, g.y + i * g.ch + 2, g.cw - 4, g.ch - 4, ink.own, 1);
}

/** What the chosen rows took from others: the largest are named where there is no room for all. */
const named = (w) => (w.row || []).map((v, j) => (w.rows().includes(j) ? 0 : v));

function columns(w, pen, g, ink, marked) {
  const labels = shortened(w);
  const hot = w.hover ? w.hover.col : undefined;
  const kept = [hot, ...toName(w.rows(), named(w), 3)].filter((j) => j !== undefined);
  for (const j of thinned(labels.length, g.cw, pitch(g.slope, g.size), kept)) {
    const lit = j === hot;
    pen.text(labels[j], g.x + (column(g, j) + 0.5) * g.cw, g.y - 6, {
      size: g.size,
      color: lit ? ink.mark : ink.text,
      bold: lit || marked.includes(j),
      turn: -g.slope,
    });
  }
}

function drawMap(w, pen, g, ink) {
  const n = g.cols;
  const chosen = w.rows();
  const labels = shortened(w);
  const hot = w.hover ? w.hover.row : undefined;
  const cells = () => {
    heat(w, pen, g, ink, (i, j) => (i === j && !w.s.diagonal ? null : w.matrix[i * n + j]));
    if (!w.s.diagonal) for (let i = 0; i < n; i++) outline(pen, g, ink, i, i);
    const cut = w.p.second ? w.groups.findIndex((x) => x[0] >= w.p.second) : -1; // the second sentence
    if (cut > 0) {
      const across = g.mirrored ? n - cut : cut;
      pen.rect(g.x, g.y + cut * g.ch - 1, n * g.cw, 2, ink.dim);
      pen.rect(g.x + across * g.cw - 1, g.y, 2, n * g.ch, ink.dim);
    }
    for (const i of chosen) pen.frame(g.x, g.y + i * g.ch, n * g.cw, g.ch, ink.mark, 2);
    if (w.hover && w.hover.col !== undefined) {
      const x = g.x + column(g, w.hover.col) * g.cw;
      pen.frame(x, g.y + w.hover.row * g.ch, g.cw, g.ch, ink.mark, 1.5);
    }
  };
  const rows = () => {
    const kept = [hot, ...chosen].filter((i) => i !== undefined);
    for (const i of thinned(labels.length, g.ch, 1.1 * g.size, kept)) {
      const on = chosen.includes(i) || i === hot;
      pen.text(short(labels[i], Math.ceil(g.x / 6)), g.x - 6, g.y + (i + 0.5) * g.ch, {
        size: g.size,
        align: "right",
        bold: on,
        color: on ? ink.mark : ink.text,
      });
    }
  };
  sheet(w, pen, g, { cells, over: () => columns(w, pen, g, ink, []), rows });
  if (g.x < 44) return;
  const look = { size: 10, color: ink.dim, align: "right" };
  pen.text(g.mirrored ? "← source" : "source →", g.x - 6, g.y - 22, look);
  pen.text("target ↓", g.x - 6, g.y - 9, look);
}

function drawLayers(w, pen, g, ink) {
  const chosen = w.rows();
  const own = (j) => !w.s.diagonal && chosen.includes(j);
  const cells = () => {
    heat(w, pen, g, ink, (i, j) => (own(j) ? null : w.stack[g.rows - 1 - i][j]));
    if (!w.s.diagonal) {
      for (let i = 0; i < g.rows; i++) for (const j of chosen) outline(pen, g, ink, i, j);
    }
    if (w.hover && w.hover.at !== undefined) {
      const x = g.x + column(g, w.hover.col) * g.cw;
      pen.frame(x, g.y + w.hover.at * g.ch, g.cw, g.ch, ink.mark, 1.5);
    }
  };
  const rows = () => {
    for (let i = 0; i < g.rows; i++) {
      const number = w.model.layers[g.rows - 1 - i];
      const on = number === w.s.layer;
      const look = { size: 11, align: "right", color: on ? ink.mark : ink.text, bold: on };
      pen.text(`layer ${number}`, g.x - 6, g.y + (i + 0.5) * g.ch, look);
    }
  };
  sheet(w, pen, g, { cells, over: () => columns(w, pen, g, ink, chosen), rows });
}

/** Whole paths from the input to the target, by what each carries; rows are shares. */
export function pathsOf(w) {
  const rows = w.rows();
  const { layer, unit, specials, k } = w.s;
  const key = JSON.stringify([layer, unit, specials, k, rows]);
  if (!w.found || w.found.key !== key) {
    const depth = w.model.place(layer) + 1;
    const layers = Array.from({ length: depth }, (_, l) =>
      w.model.matrix({ ...w.s, norm: "row" }, "layer", l),
    );
    w.found = { key, ...strongest(layers, w.groups.length, rows.length ? rows : [0], k) };
  }
  return w.found;
}

function pathNote(w) {
  const { share, paths } = pathsOf(w);
  return `The ${paths} strongest paths from the input to the target: ${percent(share)} of the whole. Width is contribution.`;
}

export const sameEdge = (a, b) => !!a && !!b && a.l === b.l && a.i === b.i && a.j === b.j;

function drawPaths(w, pen, g, ink) {
  const { edges } = pathsOf(w);
  const y = (l) => g.y + (g.depth - l) * g.gap;
  const x = (j) => g.x + (column(g, j) + 0.5) * g.cw;
  const top = edges.length ? edges[0].v : 1;
  const lit = new Set();
  const chosen = w.rows();
  const first = w.model.layers[0];
  for (let l = 0; l <= g.depth; l++) {
    const name = l
      ? `layer ${w.model.layers[l - 1]}`
      : first === 1
        ? "input"
        : `layer ${first - 1}`;
    pen.text(name, g.x - 8, y(l), { size: 11, align: "right", color: ink.dim });
  }
  for (const e of edges.slice().reverse()) {
    const hot = sameEdge(w.hover && w.hover.edge, e);
    const colour = hot ? ink.mark : w.dark ? "#6db8ea" : "#135aa3";
    const [wide, alpha] = [0.8 + (7 * e.v) / top, 0.3 + (0.65 * e.v) / top];
    pen.line(x(e.i), y(e.l + 1), x(e.j), y(e.l), colour, wide, alpha);
    lit.add(`${e.l + 1}.${e.i}`).add(`${e.l}.${e.j}`);
  }
  for (let l = 0; l <= g.depth; l++) {
    for (let j = 0; j < g.cols; j++) {
      const on = lit.has(`${l}.${j}`);
      const r = on ? 3 : 1.2;
      pen.rect(x(j) - r, y(l) - r, 2 * r, 2 * r, on ? ink.mark : ink.dim);
    }
  }
  const labels = shortened(w);
  const given = new Float64Array(labels.length);
  for (const e of edges) if (e.l === 0) given[e.j] += e.v;
  for (const j of thinned(labels.length, g.cw, pitch(g.slope, 11), toName(chosen, given))) {
    const on = given[j] > 0;
    const color = chosen.includes(j) ? ink.mark : on ? ink.text : ink.dim;
    pen.text(labels[j], x(j), y(0) + 12, {
      size: 11,
      align: "right",
      turn: -g.slope,
      bold: on,
      color,
    });
  }
}

/** Names beside the tiles that stand outside: rows of the first ones, columns of the last ones. */
function outer(w, pen, g, ink, head) {
  const chosen = w.rows();
  const kept = toName(chosen, named(w), 3);
  const room = Math.ceil(g.left / 6);
  const look = { size: 10, align: "right" };
  for (const j of thinned(g.cols, g.cw, 11, kept)) {
    const said = short(w.labels[j], room);
    const at = {
      ...look,
      bold: chosen.includes(j),
      color: chosen.includes(j) ? ink.mark : ink.text,
    };
    if (head % g.across === 0) pen.text(said, g.x - 6, g.y + (j + 0.5) * g.ch, at);
    if (head + g.across < g.tiles.length) continue;
    const x = g.x + (column(g, j) + 0.5) * g.cw;
    pen.text(said, x, g.y + g.tile + 5, { ...at, turn: -Math.PI / 2 });
  }
}

function drawHeads(w, pen, g, ink) {
  const n = g.cols;
  const layer = w.model.place(w.s.layer);
  g.tiles.forEach((tile, head) => {
    const at = { ...g, ...tile };
    const m = w.model.head(w.s, layer, head);
    pen.text(`head ${head}`, tile.x, tile.y - 9, { size: 11, color: ink.dim });
    heat(w, pen, at, ink, (i, j) => (i === j && !w.s.diagonal ? null : m[i * n + j]));
    if (!w.s.diagonal) for (let i = 0; i < n; i++) outline(pen, at, ink, i, i);
    outer(w, pen, at, ink, head);
    pen.frame(tile.x, tile.y, g.tile, g.tile, ink.own, 0.5);
    for (const i of w.rows()) pen.frame(tile.x, tile.y + i * g.ch, g.tile, g.ch, ink.mark, 1.5);
    if (w.hover && w.hover.head === head) {
      pen.frame(
        tile.x + column(g, w.hover.col) * g.cw,
        tile.y + w.hover.row * g.ch,
        g.cw,
        g.ch,
        ink.mark,
        1.5,
      );
    }
  });
}

function drawImage(w, pen, g, ink) {
  if (w.picture) pen.picture(w.picture, 0, 0, g.cols * g.cw, g.rows * g.ch);
  else if (!w.loading) {
    w.loading = new Image();
    w.loading.onload = () => {
      w.picture = w.loading;
      w.paint();
    };
    w.loading.src = w.p.image.src;
  }
  const chosen = w.rows();
  for (let i = 0; i < g.rows; i++) {
    for (let j = 0; j < g.cols; j++) {
      const at = g.offset + i * g.cols + j;
      const [x, y] = [j * g.cw, i * g.ch];
      if (w.row && (w.s.diagonal || !chosen.includes(at))) {
        const alpha = veil(w.row[at], w.top).toFixed(3);
        pen.rect(x, y, g.cw, g.ch, `rgba(${w.hue.join()},${alpha})`);
      }
      if (chosen.includes(at) || (w.hover && w.hover.col === at)) {
        pen.frame(x + 1, y + 1, g.cw - 2, g.ch - 2, ink.mark, 2);
      }
    }
  }
}

function legend(w, pen, g, ink) {
  const wide = Math.min(230, g.seenWidth - 20);
  const x = Math.max(4, Math.min(g.x, g.seenWidth - wide - 8));
  const y = g.seenHeight - 30;
  const low = w.model.signed ? -w.top : 0;
  for (let i = 0; i < 60; i++) {
    const c = w.shade(low + ((i + 0.5) / 60) * (w.top - low));
    pen.rect(x + (i * wide) / 60, y, wide / 60 + 0.5, 9, `rgb(${c.join()})`);
  }
  pen.frame(x, y, wide, 9, ink.dim, 0.5);
  const look = { size: 11, color: ink.dim };
  const means = w.s.diagonal ? "contribution" : "contribution of others";
  pen.text(w.model.signed ? number(low) : "0", x, y + 19, look);
  pen.text(w.model.signed ? w.p.legend || "difference" : means, x + wide / 2, y + 19, {
    ...look,
    align: "center",
  });
  pen.text(number(w.top), x + wide, y + 19, { ...look, align: "right" });
}

/** A picture that is saved says what it is: the sentence, and model, method and layer. */
export function caption(w, pen, lines, width) {
  const ink = w.ink();
  const room = Math.max(20, Math.floor(width / 6.2));
  pen.rect(0, 0, width, 18 * lines.length + 8, ink.back);
  lines.forEach((line, k) =>
    pen.text(short(line, room), 4, 14 + 18 * k, {
      size: k ? 11 : 13,
      bold: !k,
      color: k ? ink.dim : ink.text,
    }),
  );
}
