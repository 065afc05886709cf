/* The widget around the canvas: sentence, keyboard, what is said and saved. */
import { hue, inkOn, inks, isDark, MAPS, palette, shade, veiled } from "./colours.js";
import { controls, make } from "./controls.js";
import { caption, draw, pathsOf, sameEdge, short, shortened } from "./draw.js";
import { headPhrases, phrases, reach } from "./finding.js";
import { cellAt, column, plan, rightToLeft, seen, shownRow } from "./layout.js";
import { DEFAULTS, Model } from "./model.js";
import { extreme, number } from "./numbers.js";
import { CanvasPen, SvgPen } from "./pens.js";

const NUMBERS = ["layer", "specials", "diagonal", "k", "zoom", "even"];
const CHOICES = {
  unit: ["word", "piece"],
  norm: ["none", "row", "max"],
  range: ["all", "layer"],
  cmap: MAPS,
};
const apart = (s) => (rightToLeft(s) ? `\u2068${s}\u2069` : s); // right-to-left words keep to themselves
const KEYS =
  "Up and down choose the target row, left and right the layer, Shift with up or down adds rows, " +
  "plus and minus zoom, Space plays through the layers, Escape clears.";

let ruler;
function widthOf(text) {
  ruler = ruler || document.createElement("canvas").getContext("2d");
  ruler.font = "600 12px ui-sans-serif, system-ui, sans-serif";
  return ruler.measureText(text).width;
}

export class Widget {
  constructor(root, payload, state, onchange) {
    this.root = root;
    this.model = new Model(payload);
    this.p = payload;
    this.onchange = onchange || (() => {});
    this.rtl = rightToLeft(payload.text);
    const first = { ...(payload.state || {}) };
    if (payload.version < 2 && first.layer >= 0) first.layer = Number(first.layer) + 1; // a page saved when states counted from 0
    const start = { ...DEFAULTS, view: payload.image ? "image" : "map", pin: payload.pin || "" };
    this.s = this.clean({ ...start, ...first, ...(state || {}) });
    this.hover = null;
    this.build();
    this.redraw();
    this.watchTheme();
  }

  clean(s) {
    for (const key of NUMBERS) s[key] = Number(s[key]) || 0;
    const all = this.model.layers;
    const last = all[all.length - 1];
    const found = this.model.layer(s.layer);
    this.wrong =
      found === undefined
        ? `Layer ${s.layer} does not exist (${all[0]} to ${last}): this is layer ${last}.`
        : "";
    s.layer = found === undefined ? last : found;
    s.zoom = Math.max(1, Math.min(4, Math.round(s.zoom)));
    if (!this.model.scopes.includes(s.scope)) s.scope = this.model.scopes[0];
    const { maps, image } = this.p;
    const there = { map: true, layers: true, paths: maps.layer, image, heads: this.model.heads };
    if (!there[s.view]) s.view = "map";
    for (const [key, known] of Object.entries(CHOICES))
      if (!known.includes(s[key])) s[key] = known[0];
    this.pins = String(s.pin)
      .split(/[,.]/)
      .filter((x) => x !== "")
      .map(Number)
      .filter((i) => Number.isInteger(i) && i >= 0 && i < this.model.n);
    return s;
  }

  set(change) {
    Object.assign(this.s, change);
    if (change.layer !== undefined) this.wrong = "";
    if (["specials", "unit", "view"].some((key) => change[key] !== undefined)) this.hover = null;
    this.redraw();
    this.onchange(this.state());
  }

  state() {
    const out = {};
    for (const key of Object.keys(DEFAULTS)) out[key] = this.s[key];
    out.pin = this.pins.join(".");
    return out;
  }

  build() {
    const r = this.root;
    const part = (name, tag = "div") => (this[name] = make(tag, `cmx-${name}`));
    r.textContent = "";
    r.classList.add("cmx");
    this.panel = make("div", "cmx-bar cmx-options");
    this.panel.hidden = true;
    // the picture before its controls for Tab; canvas.css shows them above it
    r.append(part("title"), part("finding", "p"), part("stage"), part("sentence"), part("bar"));
    r.append(this.panel, part("readout"), part("status"), part("note"));
    this.finding.setAttribute("dir", "auto");
    this.sentence.setAttribute("dir", this.rtl ? "rtl" : "ltr");
    this.sentence.setAttribute("role", "group");
    this.sentence.setAttribute(
      "aria-label",
      "The sentence: press a token to make it the target; arrows walk; its sources are coloured",
    );
    this.space = make("div", "cmx-space");
    this.canvas = make("canvas");
    this.space.append(this.canvas);
    this.stage.append(this.space);
    this.status.setAttribute("aria-live", "polite");
    this.status.setAttribute("role", "status");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `Context mixing heatmap. ${KEYS}`);
    controls(this);
    this.listen();
  }

  unfold(open) {
    this.panel.hidden = !open;
    this.more.setAttribute("aria-expanded", String(open));
  }

  zoom(by) {
    this.set({ zoom: Math.max(1, Math.min(4, this.s.zoom + by)) });
  }

  toggle() {
    const stop = () => {
      clearInterval(this.timer);
      this.timer = null;
    };
    if (this.timer) stop();
    else {
      if (this.s.layer === this.step(1)) this.set({ layer: this.model.layers[0] });
      this.timer = setInterval(() => {
        if (this.root.isConnected && this.s.layer !== this.step(1))
          this.set({ layer: this.step(1) });
        else {
          stop();
          this.face();
        }
      }, 700);
    }
    this.face();
  }

  step(by) {
    const all = this.model.layers;
    return all[Math.max(0, Math.min(all.length - 1, this.model.place(this.s.layer) + by))];
  }

  face() {
    this.play.textContent = this.timer ? "❚❚" : "▶";
    this.play.setAttribute("aria-pressed", String(!!this.timer));
  }

  // ---- targets ----
  rowOf(pin) {
    return this.groups.findIndex((g) => g.includes(pin));
  }

  rows() {
    return [...new Set(this.pins.map((p) => this.rowOf(p)).filter((i) => i >= 0))];
  }

  pin(row, add) {
    const group = this.groups[row];
    const same = this.pins.some((p) => group.includes(p));
    if (add)
      this.pins = same ? this.pins.filter((p) => !group.includes(p)) : [...this.pins, group[0]];
    else this.pins = same && this.rows().length === 1 ? [] : [group[0]];
    this.set({});
  }

  adds(e) {
    return e.shiftKey || e.ctrlKey || e.metaKey || this.several.checked;
  }

  listen() {
    const c = this.canvas;
    const at = (e) => {
      const box = c.getBoundingClientRect();
      return this.hit(e.clientX - box.left, e.clientY - box.top);
    };
    c.onmousemove = (e) => {
      const h = at(e);
      if (JSON.stringify(h) === JSON.stringify(this.hover)) return;
      this.hover = h;
      this.paint();
    };
    c.onmouseleave = () => {
      this.hover = null;
      this.paint();
    };
    c.onclick = (e) => {
      const h = at(e);
      if (h && h.row !== undefined) this.pin(h.row, this.adds(e));
    };
    c.onkeydown = (e) => this.key(e);
    this.stage.onscroll = () => requestAnimationFrame(() => this.paint());
  }

  key(e) {
    const rows = this.rows();
    const m = this.groups.length;
    const go = (row) => {
      const place = this.groups[row][0];
      if (e.shiftKey && rows.length) {
        if (!rows.includes(row)) this.pins.push(place);
      } else this.pins = [place];
      this.set({});
      if (this.s.view === "map") this.stage.scrollTop = shownRow(this.geometry, row);
    };
    const last = rows.length ? rows[rows.length - 1] : -1;
    const does = {
      ArrowDown: () => go((last + 1) % m),
      ArrowUp: () => go((Math.max(last, 0) - 1 + m) % m),
      ArrowRight: () => this.set({ layer: this.step(1) }),
      ArrowLeft: () => this.set({ layer: this.step(-1) }),
      Home: () => go(0),
      End: () => go(m - 1),
      "+": () => this.zoom(1),
      "-": () => this.zoom(-1),
      " ": () => this.toggle(),
      Escape: () => {
        this.pins = [];
        this.set({});
      },
    }[e.key];
    if (!does || e.altKey || e.ctrlKey || e.metaKey) return;
    does();
    e.preventDefault();
  }

  watchTheme() {
    const again = () => this.root.isConnected && this.redraw();
    this.observer = new MutationObserver(again);
    this.observer.observe(document.body, {
      attributes: true,
      attributeFilter: ["class", "data-jp-theme-light"],
    });
    if (window.matchMedia)
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    let width = 0;
    new ResizeObserver(() => {
      const now = this.root.clientWidth;
      if (!now || Math.abs(now - width) <= 3) return;
      width = now;
      this.redraw();
    }).observe(this.root);
  }

  // ---- what is shown ----
  redraw() {
    const t0 = performance.now();
    const { s, model: m } = this;
    this.dark = isDark();
    this.root.classList.toggle("cmx-dark", this.dark);
    this.groups = m.groups(s);
    this.labels = this.groups.map((g) => m.label(g, s));
    this.matrix = m.matrix(s, this.scope(), m.place(s.layer));
    this.hue = hue(s.cmap, this.dark);
    this.table = s.view === "image" ? veiled(this.hue) : palette(s.cmap, m.signed, this.dark);
    const n = this.groups.length;
    const chosen = this.rows();
    this.row = chosen.length ? m.sum(this.matrix, chosen, n) : null;
    this.stack =
      s.view === "layers"
        ? m.layers.map((_, l) =>
            m.sum(m.matrix(s, this.scope(), l), chosen.length ? chosen : [0], n),
          )
        : null;
    this.top = this.scale();
    this.sync();
    this.colourSentence();
    this.paint();
    this.remark();
    this.describe();
    const asked = this.p.shows || this.p.query || {}; // of two maps each shows its own
    Object.assign(this.canvas.dataset, {
      text: asked.text || this.p.text || "",
      model: asked.model || this.p.model || "",
      method: asked.method || this.p.method || "",
      layer: s.layer,
    });
    Object.assign(this.root.dataset, {
      layer: s.layer,
      scope: s.scope,
      view: s.view,
      pins: this.pins.join("."),
      rows: n,
      ready: String((Number(this.root.dataset.ready) || 0) + 1),
      drawMs: (performance.now() - t0).toFixed(2),
    });
  }

  sync() {
    const { s, p } = this;
    for (const [key, e] of Object.entries(this.inputs)) {
      if (e.type === "checkbox") e.checked = !!s[key];
      else e.value = s[key];
    }
    for (const b of this.viewButtons)
      b.setAttribute("aria-pressed", String(b.dataset.view === s.view));
    this.layerText.textContent = `${s.layer} / ${this.model.layers[this.model.depth - 1]}`;
    this.edgeText.textContent = s.k;
    this.pathField.style.display = s.view === "paths" ? "" : "none";
    this.zoomField.style.display =
      s.view === "image" || (this.groups.length <= 24 && s.zoom === 1) ? "none" : "";
    this.title.textContent = `${p.title}, ${this.where()}`;
  }

  /** Under the picture, as it is drawn now: what it leaves out and how it counts. */
  remark() {
    const { s, p } = this;
    const notes = [
      this.wrong,
      !s.specials &&
        "Special tokens are hidden from the picture only: they were part of the computation, and no value changes.",
      !s.diagonal &&
        `A token's contribution to itself is ${this.geometry.cw >= 6 || s.view === "image" ? "outlined and " : ""}left out of the colours.`,
      (p.unknown || []).some(Boolean) &&
        "Words marked [UNK] are not in the model's vocabulary: the model saw [UNK] there.",
      s.norm === "row" && !this.model.signed && "Each row is divided by its sum over all tokens.",
      s.norm === "max" && "Values are divided by the map's largest one.",
      s.view === "heads" &&
        "Each head within this layer, on one scale; heads are counted from 0, as in the library.",
      s.even && "All-equal: what a source would give if every piece of the text gave the same.",
      ...(p.notes || []),
    ];
    this.note.textContent = notes.filter(Boolean).join(" ");
  }

  /** Where the colours end: one value for sentence, map and legend; beside another map, for both of them. */
  scale() {
    return Math.max(this.largest(), this.least || 0);
  }

  /** The largest value of this picture, the same for all layers unless each is to have its own. */
  largest() {
    const { s, model: m } = this;
    const n = this.groups.length;
    const chosen = this.rows();
    const others = (row) => extreme(row.map((v, j) => (!s.diagonal && chosen.includes(j) ? 0 : v)));
    const every = m.layers.map((_, l) => l);
    const layers = s.range === "layer" && s.view !== "layers" ? [m.place(s.layer)] : every;
    if (s.view === "heads") {
      const off = (matrix) =>
        extreme(s.diagonal ? matrix : matrix.filter((_, k) => Math.floor(k / n) !== k % n));
      const all = layers.flatMap((l) =>
        Array.from({ length: m.heads }, (_, h) => off(m.head(s, l, h))),
      );
      return Math.max(...all) || 1;
    }
    if (s.view === "image") {
      const rows = layers.map((l) =>
        m.sum(m.matrix(s, this.scope(), l), chosen.length ? chosen : [0], n),
      );
      return Math.max(...rows.map(others)) || 1;
    }
    const shown = [this.row, ...(this.stack || [])].filter(Boolean).map(others); // sums of several rows may be more
    return Math.max(...layers.map((l) => m.top(s, this.scope(), l)), ...shown) || 1;
  }

  shade(v) {
    return shade(this.table, v, this.top, this.model.signed);
  }

  ink() {
    return inks(this.dark);
  }

  colourSentence() {
    const { sentence: box, s, p, row: values } = this;
    const chosen = this.rows();
    const focused = document.activeElement;
    const kept = box.contains(focused) ? Number(focused.dataset.row) : -1;
    const stop = kept >= 0 ? kept : chosen.length ? chosen[0] : 0; // one stop for Tab, arrows within
    box.textContent = "";
    this.groups.forEach((g, i) => {
      if (s.view === "image" && g[0] >= p.image.offset) return; // the picture itself shows these
      if (p.second && i && g[0] >= p.second && this.groups[i - 1][0] < p.second)
        box.append(make("span", "cmx-break"));
      const t = make("button", "cmx-token", this.labels[i].replace(/^##/, ""));
      const word = p.word_of ? p.word_of[g[0]] : null;
      t.type = "button";
      t.dataset.row = i;
      t.tabIndex = i === stop ? 0 : -1;
      t.onkeydown = (e) => this.walk(e, t);
      t.onclick = (e) => this.pin(i, this.adds(e));
      if (s.unit === "piece" && i && word !== null && word === p.word_of[g[0] - 1])
        t.classList.add("cmx-joined");
      t.classList.toggle("cmx-target", chosen.includes(i));
      t.setAttribute("aria-pressed", String(chosen.includes(i)));
      if (g.some((at) => (p.unknown || [])[at])) {
        t.classList.add("cmx-unknown");
        t.title = `${this.labels[i]}: not in the vocabulary, the model saw [UNK]`;
      }
      if (values && !s.diagonal && chosen.includes(i)) {
        t.classList.add("cmx-own");
        t.title = `${this.labels[i]}, the target: ${number(values[i])} is its own`;
      } else if (values) {
        const colour = this.shade(values[i]);
        t.style.background = `rgb(${colour.join()})`;
        t.style.color = inkOn(colour);
        t.title = t.title || `${this.labels[i]}: ${number(values[i])}`;
      }
      if (values) t.dataset.value = values[i];
      box.append(t);
      if (i === kept) t.focus({ preventScroll: true });
    });
    // a long sentence scrolls: what is meant is in sight
    const at = box.querySelector(kept >= 0 ? `[data-row="${kept}"]` : ".cmx-target");
    if (at && box.scrollHeight > box.clientHeight)
      box.scrollTop =
        at.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
  }

  walk(e, t) {
    const step = { ArrowRight: this.rtl ? -1 : 1, ArrowLeft: this.rtl ? 1 : -1 }[e.key];
    const all = Array.from(this.sentence.querySelectorAll(".cmx-token"));
    const next = all[all.indexOf(t) + step];
    if (!step || !next) return;
    t.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    e.preventDefault();
  }

  /** Heads are seen within their layer, and so is all that is said beside them. */
  scope() {
    return this.s.view === "heads" ? "layer" : this.s.scope;
  }

  within() {
    return this.scope() === "layer" || /^within/.test((this.p.maps.input || {}).label || "");
  }

  /** Which layer, and from where: as titles say it everywhere. */
  where() {
    return this.within() ? `within layer ${this.s.layer}` : `layer ${this.s.layer}, from the input`;
  }

  /** Everything the chosen rows took, hidden tokens included: in the layer, or in one of its heads. */
  whole(raw = this.model.raw(this.scope(), this.model.place(this.s.layer))) {
    const n = this.model.n;
    let sum = 0;
    for (const i of this.rows()) {
      const g = this.groups[i];
      for (const t of g) for (let j = 0; j < n; j++) sum += raw[t * n + j] / g.length;
    }
    return sum;
  }

  /** The finding of this picture, in parts. */
  said() {
    const { s, model: m, p } = this;
    const chosen = this.rows();
    if (!chosen.length) return [];
    const plain = { ...s, norm: "none" };
    const row = m.sum(m.matrix(plain, this.scope(), m.place(s.layer)), chosen, this.groups.length);
    const patch = (i) => p.image && this.groups[i][0] >= p.image.offset;
    const names = this.labels.map((name, i) => (patch(i) ? `patch ${name}` : apart(name)));
    const span = {
      within: this.within(),
      layer: s.layer,
      first: m.layers[0],
      last: m.layers[m.depth - 1],
    };
    const means = [p.name || p.method, reach(span)].filter(Boolean).join(", ");
    const targets = chosen.map((i) => names[i]);
    if (s.view === "heads") {
      const heads = Array.from({ length: m.heads }, (_, h) => m.rawHead(m.place(s.layer), h));
      const rows = heads.map((raw) => m.sum(m.joined(plain, raw), chosen, this.groups.length));
      const wholes = heads.map((raw) => this.whole(raw));
      return headPhrases({ names, rows, wholes, own: chosen, targets, means });
    }
    const even = s.even ? m.even(s, 1) : null;
    return phrases({
      names,
      row,
      own: chosen,
      whole: this.whole(),
      isSigned: m.signed,
      targets,
      means,
      even,
    });
  }

  describe() {
    const said = this.said().map((part) => (part.word ? make("em", "", part.word) : part));
    this.finding.replaceChildren(...said);
    const chosen = this.rows();
    if (!chosen.length) {
      const what = this.s.view === "image" ? "click a patch" : "click a row (or a word above)";
      this.status.textContent = `No target chosen: ${what} to see where its representation comes from.`;
      return;
    }
    const names = chosen.map((i) => `“${apart(this.labels[i])}”`).join(" + ");
    const order = Array.from(this.row.keys()).sort(
      (a, b) => Math.abs(this.row[b]) - Math.abs(this.row[a]),
    );
    const most = order.slice(0, 5).map((j) => `${apart(this.labels[j])} ${number(this.row[j])}`);
    const rest = chosen.length > 1 ? " (sum of rows)" : "";
    this.status.textContent = `Target ${names}${rest}, ${this.where()}: ${most.join(", ")}`;
  }

  hit(x, y) {
    const g = this.geometry;
    const at = g && cellAt(g, x, y);
    if (!at) return null;
    if (g.view === "image") {
      if (at.col === undefined) return null;
      const cell = at.row * g.cols + at.col + g.offset;
      return { row: cell, col: cell };
    }
    if (g.view === "map" || g.view === "heads") return at;
    if (at.col === undefined) return null;
    return g.view === "paths"
      ? { row: at.col, edge: this.edgeAt(x + g.sx, y + g.sy) }
      : { at: at.row, col: at.col };
  }

  /** The path under the pointer: the curve of draw.js, a Bezier with level tangents, by its x at this height. */
  edgeAt(x, y) {
    const g = this.geometry;
    const l = Math.ceil(g.depth - (y - g.y) / g.gap) - 1;
    const below = g.y + (g.depth - l) * g.gap;
    const f = (below - y) / g.gap;
    let best = null;
    let near = 7;
    for (const e of pathsOf(this).edges) {
      if (e.l !== l) continue;
      let [low, high] = [0, 1]; // the curve's parameter at this height
      for (let k = 0; k < 20; k++) {
        const t = (low + high) / 2;
        if (1.5 * t * (1 - t) + t * t * t < f) low = t;
        else high = t;
      }
      const mix = 3 * low * low - 2 * low * low * low;
      const [from, to] = [column(g, e.j), column(g, e.i)];
      const off = Math.abs(g.x + (from + 0.5 + (to - from) * mix) * g.cw - x);
      if (off < near) {
        near = off;
        best = { l: e.l, i: e.i, j: e.j };
      }
    }
    return best;
  }

  /** The value under the pointer. */
  tell() {
    const [value, words] = this.pointed();
    const h = this.hover;
    this.readout.dataset.value = value === undefined ? "" : value;
    this.readout.textContent = value === undefined ? words : `${words}: ${number(value)}`;
    if (value === undefined || !h || h.edge) return;
    const pieces = this.s.unit === "word" ? this.groups[h.col].length : 1;
    if (pieces > 1) this.readout.append(` (${pieces} pieces, ${number(value / pieces)} each)`);
    if (this.s.even && h.row !== undefined) {
      const row = this.matrix.subarray(
        h.row * this.groups.length,
        (h.row + 1) * this.groups.length,
      );
      const whole = this.s.specials ? row.reduce((a, b) => a + b, 0) : NaN;
      if (isFinite(whole))
        this.readout.append(`, all-equal ${number(this.model.even(this.s, whole)[h.col])}`);
    }
  }

  pointed() {
    const h = this.hover;
    const n = this.groups.length;
    const name = (i) => apart(this.labels[i]);
    if (h && h.edge) {
      const e = pathsOf(this).edges.find((one) => sameEdge(one, h.edge));
      if (e) {
        const way = `layer ${this.model.layers[e.l]}: ${name(e.j)} → ${name(e.i)}`;
        return [e.v, `${way}, of the whole on the paths shown`];
      }
    }
    if (!h || h.col === undefined)
      return [undefined, h && h.row !== undefined ? `target ${name(h.row)}` : " "];
    if (h.head !== undefined) {
      const m = this.model.head(this.s, this.model.place(this.s.layer), h.head);
      return [m[h.row * n + h.col], `head ${h.head}: ${name(h.col)} → ${name(h.row)}`];
    }
    if (this.s.view === "layers") {
      const l = this.model.depth - 1 - h.at;
      return [this.stack[l][h.col], `layer ${this.model.layers[l]}: ${name(h.col)} → target`];
    }
    if (this.s.view === "image")
      return [this.row ? this.row[h.col] : NaN, `patch ${name(h.col)} → target`];
    return [this.matrix[h.row * n + h.col], `${name(h.col)} → ${name(h.row)}`];
  }

  plan(room) {
    return plan({
      view: this.s.view,
      n: this.groups.length,
      depth: this.model.depth,
      heads: this.model.heads,
      widest: Math.max(...shortened(this).map(widthOf)),
      room,
      zoom: this.s.zoom,
      image: this.p.image,
      mirrored: this.rtl,
    });
  }

  /** The part of the picture that its box shows: the box scrolls over the whole of it, the canvas stays and is drawn again. */
  paint() {
    if (!this.root.clientWidth && this.root.isConnected && this.geometry) {
      this.tell();
      return;
    }
    const box = this.stage;
    const room = Math.max(240, (box.offsetWidth || this.root.clientWidth - 26) - 2);
    const tall = Math.max(360, Math.min(760, 0.8 * window.screen.availHeight || 760));
    let g = this.plan(room);
    if (g.height > tall) g = this.plan(room - 16); // a bar to scroll with stands beside it
    const high = Math.min(g.height, tall);
    box.style.maxHeight = `${high + (g.width > room ? 16 : 0)}px`;
    this.space.style.width = `${g.width}px`;
    this.space.style.height = `${g.height}px`;
    const [wide, deep] = [box.clientWidth || room, box.clientHeight || high]; // without the bars, where they take room
    this.geometry = seen(g, Math.min(room, wide), Math.min(g.height, deep), {
      x: box.scrollLeft,
      y: box.scrollTop,
    });
    const { seenWidth, seenHeight } = this.geometry;
    const pen = new CanvasPen(
      this.canvas,
      seenWidth,
      seenHeight,
      Math.max(1, window.devicePixelRatio || 1),
    );
    draw(this, pen, this.geometry);
    this.tell();
  }

  /** Not what is asked for: dimmed, and while the answer is on its way with a spinner. */
  stale(is, pending) {
    this.root.classList.toggle("cmx-stale", is);
    this.root.classList.toggle("cmx-pending", is && pending);
    this.canvas.setAttribute("aria-busy", String(is));
  }

  /** What a file of this view is called. */
  fileName() {
    const { text, model } = this.canvas.dataset;
    const said = [model.split("/").pop(), this.p.method, `layer${this.s.layer}`, short(text, 40)];
    return ["ctxmix", ...said.filter(Boolean)]
      .join("-")
      .replace(/[^\p{L}\p{N}.-]+/gu, "_")
      .replace(/[_.]+$/, "");
  }

  /** The sentence, then model, method and layer. */
  captions() {
    const { text, model } = this.canvas.dataset;
    const method = this.p.name || this.p.method;
    const about = [model.split("/").pop(), method, this.where()].filter(Boolean).join(" · ");
    return [text, about, this.finding.textContent].filter(Boolean);
  }

  save(kind) {
    const link = make("a");
    const hover = this.hover;
    const lines = this.captions();
    const head = 18 * lines.length + 10;
    const whole = this.plan(Math.max(480, this.geometry.seenWidth)); // all of it, also what is scrolled away
    const g = seen(whole, whole.width, whole.height);
    const width = Math.max(g.width, 420);
    this.hover = null;
    const drawn = (pen) => {
      pen.rect(0, 0, width, g.height + head, this.ink().back);
      caption(this, pen, lines, width);
      pen.moved(0, head, () => draw(this, pen, g));
      return pen;
    };
    const give = (blob) => {
      link.href = URL.createObjectURL(blob);
      link.download = `${this.fileName()}.${kind.toLowerCase()}`;
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(link.href), 5000);
    };
    if (kind === "SVG")
      give(
        new Blob([drawn(new SvgPen(width, g.height + head)).toString()], { type: "image/svg+xml" }),
      );
    else {
      const sheet = make("canvas");
      drawn(new CanvasPen(sheet, width, g.height + head, 3));
      sheet.toBlob(give);
    }
    this.hover = hover;
  }
}
