/* Layout and drawing of the four views on any pen. Needs canvas.js; used by widget.js. */
(function (global) {
  "use strict";
  const cm = global.ctxmix;
  if (!cm || cm.draw) return;
  const FOOT = 46, SIZE = 12;
  const ruler = document.createElement("canvas").getContext("2d");
  const widthOf = (s) => { ruler.font = `600 ${SIZE}px ui-sans-serif, system-ui, sans-serif`; return ruler.measureText(s).width; };
  const shown = (w) => w.labels.map((s) => cm.short(s, 16));

  cm.plan = (w, room) => {
    const view = w.s.view, labels = shown(w), wide = Math.min(120, Math.max(24, ...labels.map(widthOf)) + 8), n = labels.length, depth = w.model.depth;
    if (view === "image") return imagePlan(w, room);
    const left = view === "map" ? wide : 58, steep = (room - left) / n < 15, slope = steep ? Math.PI / 2 : 0.9;
    const head = Math.sin(slope) * wide + 12, over = steep ? 6 : Math.cos(slope) * wide;
    const cw = Math.max(4, Math.min(view === "map" ? (n > 24 ? 30 : 38) : 52, (room - left - over) / n));
    const ch = view === "map" ? cw : view === "layers" ? Math.min(30, Math.max(16, cw)) : 56;
    const rows = view === "map" ? n : view === "layers" ? depth : depth + 1;
    return { view, x: left, y: view === "paths" ? 14 : head, cw, ch, rows: view === "paths" ? 1 : rows, cols: n, slope, steep, depth,
      width: Math.ceil(left + n * cw + over), height: Math.ceil((view === "paths" ? 14 + depth * ch + 12 + head : head + rows * ch) + FOOT), ...(view === "paths" ? { rows: 1, ch: depth * ch + 12 + head, gap: ch } : {}) };
  };
  function imagePlan(w, room) {
    const [rows, cols] = w.p.image.grid, side = Math.min(room, 520), cw = side / cols, ch = (side * (w.p.image.ratio || rows / cols)) / rows;
    return { view: "image", x: 0, y: 0, cw, ch, rows, cols, offset: w.p.image.offset, width: side, height: Math.ceil(rows * ch + FOOT) };
  }

  cm.draw = (w, pen, g) => {
    const ink = w.ink(), top = w.top;
    pen.rect(0, 0, g.width, g.height, ink.back);
    ({ map: drawMap, layers: drawLayers, paths: drawPaths, image: drawImage })[g.view](w, pen, g, ink, top);
    if (g.view !== "paths") legend(w, pen, g, ink, top); else pen.text(pathNote(w), 4, g.height - 20, { size: 11, color: ink.dim });
  };
  function heat(w, pen, g, ink, value, top) {
    const bytes = new Uint8ClampedArray(4 * g.rows * g.cols);
    for (let i = 0; i < g.rows; i++) for (let j = 0; j < g.cols; j++) {
      const v = value(i, j), k = 4 * (i * g.cols + j);
      if (v === null) continue;
      const c = w.shade(v, top); bytes[k] = c[0]; bytes[k + 1] = c[1]; bytes[k + 2] = c[2]; bytes[k + 3] = 255;
    }
    pen.cells(g.x, g.y, g.cw, g.ch, g.rows, g.cols, bytes);
    if (g.cw < 9) return;
    for (let i = 0; i <= g.rows; i++) pen.rect(g.x, g.y + i * g.ch - 0.5, g.cols * g.cw, 1, ink.back);
    for (let j = 0; j <= g.cols; j++) pen.rect(g.x + j * g.cw - 0.5, g.y, 1, g.rows * g.ch, ink.back);
  }
  function columns(w, pen, g, ink, y, marked) {
    const labels = shown(w), every = Math.max(1, Math.ceil(11 / g.cw)), hot = w.hover && w.hover.col;
    labels.forEach((s, j) => {
      const lit = j === hot;
      if (j % every && !lit && !marked.includes(j)) return;
      if (every > 1 && !lit && hot !== undefined && hot !== null && Math.abs(j - hot) < every) return;
      pen.text(s, g.x + (j + 0.5) * g.cw, y, { size: Math.min(SIZE, Math.max(9, g.cw)), color: lit ? ink.mark : ink.text, bold: lit || marked.includes(j), turn: -g.slope });
    });
  }
  function drawMap(w, pen, g, ink, top) {
    const n = g.cols, chosen = w.rows(), labels = shown(w), every = Math.max(1, Math.ceil(11 / g.ch)), hot = w.hover ? w.hover.row : undefined;
    heat(w, pen, g, ink, (i, j) => (i === j && !w.s.diagonal ? null : w.matrix[i * n + j]), top);
    if (!w.s.diagonal && g.cw >= 6) for (let i = 0; i < n; i++) pen.frame(g.x + i * g.cw + 2, g.y + i * g.ch + 2, g.cw - 4, g.ch - 4, ink.own, 1);
    columns(w, pen, g, ink, g.y - 6, []);
    corner(w, pen, g, ink);
    const cut = w.p.second ? w.groups.findIndex((x) => x[0] >= w.p.second) : -1; // where the second sentence begins
    if (cut > 0) { pen.rect(g.x, g.y + cut * g.ch - 1, n * g.cw, 2, ink.dim); pen.rect(g.x + cut * g.cw - 1, g.y, 2, n * g.ch, ink.dim); }
    labels.forEach((s, i) => {
      const on = chosen.includes(i), lit = i === hot;
      if (i % every && !on && !lit) return;
      if (every > 1 && !on && !lit && [...chosen, hot].some((c) => c !== undefined && Math.abs(c - i) < every)) return;
      pen.text(s, g.x - 6, g.y + (i + 0.5) * g.ch, { size: Math.min(SIZE, Math.max(9, g.ch)), align: "right", bold: on || lit, color: on || lit ? ink.mark : ink.text });
    });
    for (const i of chosen) pen.frame(g.x, g.y + i * g.ch, n * g.cw, g.ch, ink.mark, 2);
    if (w.hover && w.hover.col !== undefined) pen.frame(g.x + w.hover.col * g.cw, g.y + w.hover.row * g.ch, g.cw, g.ch, ink.mark, 1.5);
  }
  function corner(w, pen, g, ink) { // which way to read it
    if (g.x < 44) return;
    pen.text("source →", g.x - 6, g.y - 22, { size: 10, color: ink.dim, align: "right" });
    pen.text("target ↓", g.x - 6, g.y - 9, { size: 10, color: ink.dim, align: "right" });
  }
  function drawLayers(w, pen, g, ink, top) {
    const chosen = w.rows();
    heat(w, pen, g, ink, (i, j) => (!w.s.diagonal && chosen.includes(j) ? null : w.stack[g.rows - 1 - i][j]), top);
    if (!w.s.diagonal && g.cw >= 6) for (let i = 0; i < g.rows; i++) for (const j of chosen) pen.frame(g.x + j * g.cw + 2, g.y + i * g.ch + 2, g.cw - 4, g.ch - 4, ink.own, 1);
    columns(w, pen, g, ink, g.y - 6, chosen);
    for (let i = 0; i < g.rows; i++) { const l = g.rows - 1 - i; const on = w.model.layers[l] === w.s.layer; pen.text(`layer ${w.model.layers[l]}`, g.x - 6, g.y + (i + 0.5) * g.ch, { size: 11, align: "right", color: on ? ink.mark : ink.text, bold: on }); }
    if (w.hover && w.hover.at !== undefined) pen.frame(g.x + w.hover.col * g.cw, g.y + w.hover.at * g.ch, g.cw, g.ch, ink.mark, 1.5);
  }
  // whole paths from the input to the target, by what each carries; rows are shares
  cm.paths = (w) => {
    const rows = w.rows(), last = w.model.place(w.s.layer), key = JSON.stringify([w.s.layer, w.s.unit, w.s.specials, w.s.k, rows]);
    if (!w.found || w.found.key !== key) {
      const layers = Array.from({ length: last + 1 }, (_, l) => w.model.matrix({ ...w.s, norm: "row" }, "layer", l));
      w.found = { key, ...cm.strongest(layers, w.groups.length, rows.length ? rows : [0], w.s.k) };
    }
    return w.found;
  };
  const pathNote = (w) => { const { share, paths } = cm.paths(w); return `The ${paths} strongest paths from the input to the target: ${cm.finding.percent(share)} of the whole. Width is contribution.`; };
  function drawPaths(w, pen, g, ink) {
    const { edges } = cm.paths(w), y = (l) => g.y + (g.depth - l) * g.gap, x = (j) => g.x + (j + 0.5) * g.cw, top = edges.length ? edges[0].v : 1, lit = new Set(), chosen = w.rows();
    for (let l = 0; l <= g.depth; l++) pen.text(l ? `layer ${w.model.layers[l - 1]}` : w.model.layers[0] === 1 ? "input" : `layer ${w.model.layers[0] - 1}`, g.x - 8, y(l), { size: 11, align: "right", color: ink.dim });
    const hot = w.hover && w.hover.edge;
    for (const e of edges.slice().reverse()) { pen.line(x(e.i), y(e.l + 1), x(e.j), y(e.l), hot && hot.l === e.l && hot.i === e.i && hot.j === e.j ? ink.mark : w.dark ? "#6db8ea" : "#135aa3", 0.8 + (7 * e.v) / top, 0.3 + (0.65 * e.v) / top); lit.add(`${e.l + 1}.${e.i}`); lit.add(`${e.l}.${e.j}`); }
    for (let l = 0; l <= g.depth; l++) for (let j = 0; j < g.cols; j++) { const on = lit.has(`${l}.${j}`), r = on ? 3 : 1.2; pen.rect(x(j) - r, y(l) - r, 2 * r, 2 * r, on ? ink.mark : ink.dim); }
    const labels = shown(w), every = Math.max(1, Math.ceil(11 / g.cw));
    labels.forEach((s, j) => { if (j % every === 0 || lit.has(`0.${j}`)) pen.text(s, x(j), y(0) + 12, { size: 11, align: "right", turn: -g.slope, bold: lit.has(`0.${j}`), color: chosen.includes(j) ? ink.mark : lit.has(`0.${j}`) ? ink.text : ink.dim }); });
  }
  function drawImage(w, pen, g, ink, top) {
    if (w.picture) pen.picture(w.picture, 0, 0, g.cols * g.cw, g.rows * g.ch);
    else if (!w.loading) { w.loading = new Image(); w.loading.onload = () => { w.picture = w.loading; w.paint(); }; w.loading.src = w.p.image.src; }
    for (let i = 0; i < g.rows; i++) for (let j = 0; j < g.cols; j++) {
      const at = g.offset + i * g.cols + j;
      if (w.row && (w.s.diagonal || !w.rows().includes(at))) { const c = w.shade(w.row[at], top); pen.rect(j * g.cw, i * g.ch, g.cw, g.ch, `rgba(${c[0]},${c[1]},${c[2]},${(0.85 * Math.sqrt(Math.min(1, Math.abs(w.row[at]) / top))).toFixed(3)})`); }
      if (w.rows().includes(at) || (w.hover && w.hover.col === at)) pen.frame(j * g.cw + 1, i * g.ch + 1, g.cw - 2, g.ch - 2, ink.mark, 2);
    }
  }
  function legend(w, pen, g, ink, top) {
    const wide = Math.min(230, g.width - 20), x = Math.max(4, Math.min(g.x, g.width - wide - 8)), y = g.height - 30, low = w.model.signed ? -top : 0;
    for (let i = 0; i < 60; i++) { const c = w.shade(low + ((i + 0.5) / 60) * (top - low), top); pen.rect(x + (i * wide) / 60, y, wide / 60 + 0.5, 9, `rgb(${c[0]},${c[1]},${c[2]})`); }
    pen.frame(x, y, wide, 9, ink.dim, 0.5);
    pen.text(w.model.signed ? cm.number(low) : "0", x, y + 19, { size: 11, color: ink.dim });
    pen.text(w.model.signed ? (w.p.legend || "difference") : (w.s.diagonal ? "contribution" : "contribution of others"), x + wide / 2, y + 19, { size: 11, color: ink.dim, align: "center" });
    pen.text(cm.number(top), x + wide, y + 19, { size: 11, color: ink.dim, align: "right" });
  }
})(window);
