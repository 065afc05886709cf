/* The widget around the canvas: sentence, controls, keyboard, exports. Needs canvas.js before it. */
(function (global) {
  "use strict";
  const cm = global.ctxmix;
  if (!cm || cm.mount) return;
  const { Model, CanvasPen, SvgPen, palette, isDark, number, extreme, DEFAULTS } = cm;
  const NUMBERS = ["layer", "specials", "diagonal", "k"];
  const make = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
  const apart = (s) => (/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u202a-\u202e]/.test(s) ? `\u2068${s}\u2069` : s); // right-to-left words keep to themselves
  const short = (s, n) => { const a = Array.from(s); return a.length > n ? a.slice(0, n - 1).join("") + "…" : s; };

  class Widget {
    constructor(root, payload, state, onchange) {
      this.root = root; this.model = new Model(payload); this.p = payload; this.onchange = onchange || (() => {});
      const first = { ...(payload.state || {}) };
      if (payload.version < 2 && first.layer >= 0) first.layer = Number(first.layer) + 1; // a page saved when states counted from 0
      this.s = this.clean({ ...DEFAULTS, view: payload.image ? "image" : "map", pin: payload.pin || "", ...first, ...(state || {}) });
      this.hover = null; this.build(); this.redraw();
      this.watchTheme();
    }
    clean(s) {
      for (const key of NUMBERS) s[key] = Number(s[key]) || 0;
      const all = this.model.layers, last = all[all.length - 1], found = this.model.layer(s.layer);
      this.wrong = found === undefined ? `Layer ${s.layer} does not exist (${all[0]} to ${last}): this is layer ${last}.` : "";
      s.layer = found === undefined ? last : found;
      if (!this.model.scopes.includes(s.scope)) s.scope = this.model.scopes[0];
      if (!["map", "layers", "paths", "image"].includes(s.view) || (s.view === "paths" && !this.p.maps.layer) || (s.view === "image" && !this.p.image)) s.view = "map";
      if (!["word", "piece"].includes(s.unit)) s.unit = "word";
      if (!["none", "row", "max"].includes(s.norm)) s.norm = "none";
      if (!["all", "layer"].includes(s.range)) s.range = "all";
      if (!cm.MAPS.includes(s.cmap)) s.cmap = "blues";
      this.pins = String(s.pin).split(/[,.]/).filter((x) => x !== "").map(Number).filter((i) => Number.isInteger(i) && i >= 0 && i < this.model.n);
      return s;
    }
    set(change) {
      Object.assign(this.s, change);
      if (change.layer !== undefined) this.wrong = "";
      if (change.specials !== undefined || change.unit !== undefined) this.hover = null;
      this.redraw(); this.onchange(this.state());
    }
    state() {
      const out = {};
      for (const key of Object.keys(DEFAULTS)) out[key] = this.s[key];
      out.pin = this.pins.join(".");
      return out;
    }
    // ---- controls -------------------------------------------------------------------------------------------
    build() {
      const r = this.root; r.textContent = ""; r.classList.add("cmx");
      this.title = make("div", "cmx-title"); this.finding = make("p", "cmx-finding"); this.sentence = make("div", "cmx-sentence"); this.bar = make("div", "cmx-bar");
      this.sentence.setAttribute("dir", "auto"); this.sentence.setAttribute("role", "group");
      this.sentence.setAttribute("aria-label", "The sentence: press a token to make it the target; arrows walk; its sources are coloured");
      this.stage = make("div", "cmx-stage"); this.canvas = make("canvas"); this.stage.append(this.canvas);
      this.readout = make("div", "cmx-readout"); this.status = make("div", "cmx-status"); this.note = make("div", "cmx-note");
      this.status.setAttribute("aria-live", "polite"); this.status.setAttribute("role", "status");
      this.canvas.tabIndex = 0; this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", "Context mixing heatmap. Up and down choose the target row, left and right the layer, Shift with up or down adds rows, Escape clears.");
      this.finding.setAttribute("dir", "auto");
      this.panel = make("div", "cmx-bar cmx-options"); this.panel.hidden = true;
      r.append(this.title, this.finding, this.sentence, this.bar, this.panel, this.stage, this.readout, this.status, this.note);
      this.controls(); this.listen();
    }
    controls() {
      const p = this.p;
      this.inputs = {};
      const views = [["map", "Map"], ["layers", "Layers × tokens"]];
      if (p.maps.layer && !this.model.signed) views.push(["paths", "Paths"]);
      if (p.image) views.unshift(["image", "Picture"]);
      const group = make("div", "cmx-tabs"); group.setAttribute("role", "group"); group.setAttribute("aria-label", "View");
      this.viewButtons = views.map(([id, name]) => { const b = make("button", "", name); b.type = "button"; b.dataset.view = id; b.onclick = () => this.set({ view: id }); group.append(b); return b; });
      this.bar.append(group); this.layerControl();
      if (this.model.scopes.length > 1) this.select("scope", "Contributions", [["input", p.maps.input.label || "from the input"], ["layer", "within the layer"]]);
      if (p.groups.length < p.tokens.length) this.select("unit", "Tokens", [["word", "words"], ["piece", "sub-words"]]);
      this.select("norm", "Scale", this.model.signed ? [["none", "values"], ["max", "÷ largest"]] : [["none", "values"], ["row", "÷ row sum"], ["max", "÷ largest"]]);
      if (this.model.depth > 1) this.select("range", "Colour range", [["all", "same for all layers"], ["layer", "each layer its own"]]);
      if (!this.model.signed) this.select("cmap", "Colours", cm.MAPS.map((m) => [m, m]));
      if (p.special.some(Boolean)) this.check("specials", "special tokens");
      this.check("diagonal", "own token in colour");
      this.several = make("input"); this.several.type = "checkbox"; const label = make("label", "cmx-check"); label.title = "Choose several targets and see their sum"; label.append(this.several, "add rows (Σ)"); this.panel.append(label);
      this.range("k", "Paths", 4, 80);
      const save = make("div", "cmx-tabs");
      for (const kind of ["PNG", "SVG"]) { const b = make("button", "", kind); b.type = "button"; b.title = `Save this picture as ${kind}`; b.setAttribute("aria-label", b.title); b.onclick = () => this.save(kind); save.append(b); }
      this.panel.append(save);
      this.more = make("button", "cmx-play", "Options"); this.more.type = "button"; this.more.onclick = () => this.unfold(this.panel.hidden); this.bar.append(this.more); this.unfold(false);
    }
    unfold(open) { this.panel.hidden = !open; this.more.setAttribute("aria-expanded", String(open)); }
    field(text, control, bar) { const l = make("label", "cmx-field"); l.append(make("span", "", text), control); (bar || this.panel).append(l); return l; }
    select(key, text, options) {
      const e = make("select"); e.dataset.key = key;
      for (const [v, name] of options) { const o = make("option", "", name); o.value = v; e.append(o); }
      e.onchange = () => this.set({ [key]: e.value }); this.inputs[key] = e; this.field(text, e);
    }
    check(key, text) {
      const e = make("input"); e.type = "checkbox"; e.dataset.key = key; e.onchange = () => this.set({ [key]: e.checked ? 1 : 0 });
      const l = make("label", "cmx-check"); l.append(e, text); this.inputs[key] = e; this.panel.append(l);
    }
    range(key, text, low, high) {
      const e = make("input"); e.type = "range"; e.min = low; e.max = high; e.dataset.key = key; e.oninput = () => this.set({ [key]: Number(e.value) });
      const box = make("span", "cmx-layer"); this.edgeText = make("output"); box.append(e, this.edgeText);
      this.inputs[key] = e; this.pathField = this.field(text, box, this.bar);
    }
    layerControl() {
      const box = make("span", "cmx-layer"), e = make("input"), all = this.model.layers; e.type = "range"; e.min = all[0]; e.max = all[all.length - 1]; e.dataset.key = "layer";
      e.setAttribute("aria-label", "Layer"); e.oninput = () => this.set({ layer: Number(e.value) });
      this.play = make("button", "cmx-play", "▶"); this.play.type = "button"; this.play.setAttribute("aria-label", "Play through the layers"); this.play.onclick = () => this.toggle();
      this.layerText = make("output"); box.append(this.play, e, this.layerText); this.inputs.layer = e; this.field("Layer", box, this.bar);
    }
    toggle() {
      if (this.timer) { clearInterval(this.timer); this.timer = null; } else {
        if (this.s.layer === this.step(1)) this.set({ layer: this.model.layers[0] });
        this.timer = setInterval(() => {
          if (!this.root.isConnected || this.s.layer === this.step(1)) { clearInterval(this.timer); this.timer = null; this.face(); } else this.set({ layer: this.step(1) });
        }, 700);
      }
      this.face();
    }
    step(by) { const all = this.model.layers; return all[Math.max(0, Math.min(all.length - 1, this.model.place(this.s.layer) + by))]; }
    face() { this.play.textContent = this.timer ? "❚❚" : "▶"; this.play.setAttribute("aria-pressed", String(!!this.timer)); }
    // ---- pins -----------------------------------------------------------------------------------------------
    rowOf(pin) { return this.groups.findIndex((g) => g.includes(pin)); }
    rows() { return [...new Set(this.pins.map((p) => this.rowOf(p)).filter((i) => i >= 0))]; }
    pin(row, add) {
      const place = this.groups[row][0], same = this.pins.some((p) => this.groups[row].includes(p));
      if (add) this.pins = same ? this.pins.filter((p) => !this.groups[row].includes(p)) : [...this.pins, place];
      else this.pins = same && this.rows().length === 1 ? [] : [place];
      this.set({});
    }
    listen() {
      const c = this.canvas, at = (e) => { const b = c.getBoundingClientRect(); return this.hit(e.clientX - b.left, e.clientY - b.top); };
      c.onmousemove = (e) => { const h = at(e); if (JSON.stringify(h) !== JSON.stringify(this.hover)) { this.hover = h; this.paint(); } };
      c.onmouseleave = () => { this.hover = null; this.paint(); };
      c.onclick = (e) => { const h = at(e); if (h && h.row !== undefined) this.pin(h.row, e.shiftKey || e.ctrlKey || e.metaKey || this.several.checked); };
      c.onkeydown = (e) => this.key(e);
    }
    key(e) {
      const rows = this.rows(), last = rows.length ? rows[rows.length - 1] : -1, m = this.groups.length, step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (step) { const next = (last + step + m) % m; if (e.shiftKey && rows.length) { if (!rows.includes(next)) this.pins.push(this.groups[next][0]); } else this.pins = [this.groups[next][0]]; this.set({}); }
      else if (e.key === "ArrowRight") this.set({ layer: this.step(1) });
      else if (e.key === "ArrowLeft") this.set({ layer: this.step(-1) });
      else if (e.key === "Home") { this.pins = [this.groups[0][0]]; this.set({}); }
      else if (e.key === "End") { this.pins = [this.groups[m - 1][0]]; this.set({}); }
      else if (e.key === "Escape") { this.pins = []; this.set({}); }
      else if (e.key === " ") this.toggle();
      else return;
      e.preventDefault();
    }
    watchTheme() {
      const again = () => { if (this.root.isConnected) this.redraw(); };
      this.observer = new MutationObserver(again); this.observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
      if (global.matchMedia) global.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
      let width = 0;
      new ResizeObserver(() => { const w = this.root.clientWidth; if (w && Math.abs(w - width) > 3) { width = w; this.redraw(); } }).observe(this.root);
    }
    // ---- what is shown --------------------------------------------------------------------------------------
    redraw() {
      const t0 = performance.now(), s = this.s, m = this.model;
      this.dark = isDark(); this.root.classList.toggle("cmx-dark", this.dark);
      this.groups = m.groups(s); this.labels = this.groups.map((g) => m.label(g, s));
      this.matrix = m.matrix(s, s.scope, m.place(s.layer)); this.table = palette(s.view === "image" && s.cmap === "blues" ? "heat" : s.cmap, m.signed, this.dark);
      const n = this.groups.length, chosen = this.rows();
      this.row = chosen.length ? m.sum(s, this.matrix, chosen, n) : null;
      this.stack = s.view === "layers" ? Array.from({ length: m.depth }, (_, l) => m.sum(s, m.matrix(s, s.scope, l), chosen.length ? chosen : [0], n)) : null;
      this.top = this.scale(); this.sync(); this.colourSentence(); this.paint(); this.describe();
      const asked = this.p.query || {};
      Object.assign(this.canvas.dataset, { text: asked.text || this.p.text || "", model: asked.model || this.p.model || "", method: asked.method || this.p.method || "", layer: s.layer });
      Object.assign(this.root.dataset, { layer: s.layer, scope: s.scope, view: s.view, pins: this.pins.join("."), rows: n, ready: String((Number(this.root.dataset.ready) || 0) + 1), drawMs: (performance.now() - t0).toFixed(2) });
    }
    sync() {
      const s = this.s;
      for (const [key, e] of Object.entries(this.inputs)) { if (e.type === "checkbox") e.checked = !!s[key]; else e.value = s[key]; }
      for (const b of this.viewButtons) b.setAttribute("aria-pressed", String(b.dataset.view === s.view));
      this.layerText.textContent = `${s.layer} / ${this.model.layers[this.model.depth - 1]}`; this.edgeText.textContent = s.k; this.pathField.style.display = s.view === "paths" ? "" : "none";
      this.title.textContent = `${this.p.title}, ${this.where()}`;
      const notes = this.wrong ? [this.wrong] : [];
      if (!s.specials) notes.push("Special tokens are hidden from the picture only: they were part of the computation, and no value changes.");
      if (!s.diagonal) notes.push("A token's contribution to itself is outlined and left out of the colours.");
      if ((this.p.unknown || []).some(Boolean)) notes.push("Words marked [UNK] are not in the model's vocabulary: the model saw [UNK] there.");
      if (s.norm === "row" && !this.model.signed) notes.push("Each row is divided by its sum over all tokens.");
      if (s.norm === "max") notes.push("Values are divided by the map's largest one.");
      for (const extra of this.p.notes || []) notes.push(extra);
      this.note.textContent = notes.join(" ");
    }
    scale() { // where the colours end: one value for sentence, map and legend, the same for all layers unless each is to have its own
      const s = this.s, m = this.model, n = this.groups.length, chosen = this.rows(), every = Array.from({ length: m.depth }, (_, l) => l);
      const others = (row) => extreme(Array.from(row).map((v, j) => (!s.diagonal && chosen.includes(j) ? 0 : v)));
      const layers = s.range === "layer" && s.view !== "layers" ? [m.place(s.layer)] : every;
      if (s.view === "image") return Math.max(...layers.map((l) => others(m.sum(s, m.matrix(s, s.scope, l), chosen.length ? chosen : [0], n)))) || 1;
      const shown = [this.row, ...(this.stack || [])].filter(Boolean).map(others); // sums of several rows may be more
      return Math.max(...layers.map((l) => m.top(s, s.scope, l)), ...shown) || 1;
    }
    shade(v, top) {
      const at = this.model.signed ? 127.5 + (127.5 * v) / top : (255 * v) / top, k = 3 * Math.max(0, Math.min(255, Math.round(at)));
      return [this.table[k], this.table[k + 1], this.table[k + 2]];
    }
    ink() { return this.dark ? { text: "#d7dce3", dim: "#9aa3af", back: "#0f1319", mark: "#ffb454", own: "#7d8896" } : { text: "#1f2733", dim: "#5b6675", back: "#ffffff", mark: "#c2410c", own: "#7d8896" }; }
    colourSentence() {
      const box = this.sentence, s = this.s, chosen = this.rows(), focused = document.activeElement, kept = box.contains(focused) ? Number(focused.dataset.row) : -1;
      const values = this.row, top = this.top;
      box.textContent = "";
      const stop = kept >= 0 ? kept : chosen.length ? chosen[0] : 0; // one stop for Tab, arrows within
      this.groups.forEach((g, i) => {
        if (s.view === "image" && g[0] >= this.p.image.offset) return; // the picture itself shows these
        if (this.p.second && i && g[0] >= this.p.second && this.groups[i - 1][0] < this.p.second) box.append(make("span", "cmx-break"));
        const t = make("button", "cmx-token", this.labels[i].replace(/^##/, "")); t.type = "button"; t.dataset.row = i; t.tabIndex = i === stop ? 0 : -1; t.onkeydown = (e) => this.walk(e, t);
        if (s.unit === "piece" && i && this.p.word_of && this.p.word_of[g[0]] !== null && this.p.word_of[g[0]] === this.p.word_of[g[0] - 1]) t.classList.add("cmx-joined");
        if (chosen.includes(i)) t.classList.add("cmx-target");
        t.setAttribute("aria-pressed", String(chosen.includes(i)));
        if (g.some((at) => (this.p.unknown || [])[at])) { t.classList.add("cmx-unknown"); t.title = `${this.labels[i]}: not in the vocabulary, the model saw [UNK]`; }
        if (values && !s.diagonal && chosen.includes(i)) { t.classList.add("cmx-own"); t.dataset.value = values[i]; t.title = `${this.labels[i]}, the target: ${number(values[i])} is its own`; }
        else if (values) {
          const [r, gg, b] = this.shade(values[i], top), light = 0.299 * r + 0.587 * gg + 0.114 * b;
          t.style.background = `rgb(${r},${gg},${b})`; t.style.color = light > 140 ? "#111" : "#fff"; t.dataset.value = values[i]; t.title = t.title || `${this.labels[i]}: ${number(values[i])}`;
        }
        t.onclick = (e) => this.pin(i, e.shiftKey || e.ctrlKey || e.metaKey || this.several.checked); box.append(t);
        if (i === kept) t.focus({ preventScroll: true });
      });
    }
    walk(e, t) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key], all = Array.from(this.sentence.querySelectorAll(".cmx-token")), next = all[all.indexOf(t) + step];
      if (!step || !next) return;
      t.tabIndex = -1; next.tabIndex = 0; next.focus(); e.preventDefault();
    }
    where() { // which layer, and from where: as titles say it everywhere
      const within = this.s.scope === "layer" || /^within/.test((this.p.maps.input || {}).label || "");
      return within ? `within layer ${this.s.layer}` : `layer ${this.s.layer}, from the input`;
    }
    said() { // the finding of this picture
      const s = this.s, m = this.model, chosen = this.rows(), all = m.layers, plain = { ...s, norm: "none" };
      if (!chosen.length) return "";
      const row = m.sum(plain, m.matrix(plain, s.scope, m.place(s.layer)), chosen, this.groups.length), names = this.labels.map((name, i) => (this.p.image && this.groups[i][0] >= this.p.image.offset ? `patch ${name}` : apart(name)));
      const whole = this.pins.length ? chosen.reduce((sum, i) => { const raw = m.raw(s.scope, m.place(s.layer)), g = this.groups[i]; for (const t of g) for (let j = 0; j < m.n; j++) sum += raw[t * m.n + j] / g.length; return sum; }, 0) : 1;
      const within = s.scope === "layer" || /^within/.test((this.p.maps.input || {}).label || "");
      const means = [this.p.name || this.p.method, cm.finding.reach({ within, layer: s.layer, first: all[0], last: all[all.length - 1] })].filter(Boolean).join(", ");
      return cm.finding.sentence({ names, row, own: chosen, whole, isSigned: m.signed, targets: chosen.map((i) => names[i]), means });
    }
    describe() {
      this.finding.textContent = this.said();
      const chosen = this.rows(), names = chosen.map((i) => `“${apart(this.labels[i])}”`).join(" + ");
      if (!chosen.length) { this.status.textContent = this.s.view === "image" ? "No target chosen: click a patch to see where its representation comes from." : "No target chosen: click a row (or a word above) to see where its representation comes from."; return; }
      const order = Array.from(this.row.keys()).sort((a, b) => Math.abs(this.row[b]) - Math.abs(this.row[a])).slice(0, 5);
      const rest = chosen.length > 1 ? " (sum of rows)" : "";
      this.status.textContent = `Target ${names}${rest}, ${this.where()}: ${order.map((j) => `${apart(this.labels[j])} ${number(this.row[j])}`).join(", ")}`;
    }
    hit(x, y) {
      const g = this.geometry;
      if (!g) return null;
      const col = Math.floor((x - g.x) / g.cw), row = Math.floor((y - g.y) / g.ch);
      if (this.s.view === "image") { const cell = row * g.cols + col; return col >= 0 && col < g.cols && row >= 0 && row < g.rows ? { row: cell + g.offset, col: cell + g.offset } : null; }
      if (row < 0 || row >= g.rows || col >= g.cols) return null;
      if (this.s.view === "map") return { row, col: col < 0 ? undefined : col };
      return col < 0 ? null : this.s.view === "paths" ? { row: col, edge: this.edgeAt(x, y) } : { at: row, col };
    }
    edgeAt(x, y) { // the path under the pointer: the curve of draw.js, a Bezier with level tangents, by its x at this height
      const g = this.geometry, l = Math.ceil(g.depth - (y - g.y) / g.gap) - 1, below = g.y + (g.depth - l) * g.gap, f = (below - y) / g.gap;
      let best = null, near = 7;
      for (const e of cm.paths(this).edges) {
        if (e.l !== l) continue;
        let low = 0, high = 1; // the curve's parameter at this height
        for (let k = 0; k < 20; k++) { const t = (low + high) / 2, h = 1.5 * t * (1 - t) + t * t * t; if (h < f) low = t; else high = t; }
        const t = low, mix = 3 * t * t - 2 * t * t * t, at = g.x + (e.j + 0.5 + (e.i - e.j) * mix) * g.cw, off = Math.abs(at - x);
        if (off < near) { near = off; best = { l: e.l, i: e.i, j: e.j }; }
      }
      return best;
    }
    tell() {
      const h = this.hover, n = this.groups.length, L = this.labels.map(apart);
      this.readout.dataset.value = "";
      if (h && h.edge) {
        const e = cm.paths(this).edges.find((one) => one.l === h.edge.l && one.i === h.edge.i && one.j === h.edge.j);
        if (e) { this.readout.textContent = `layer ${this.model.layers[e.l]}: ${L[e.j]} → ${L[e.i]}: ${number(e.v)} of the whole on the paths shown`; this.readout.dataset.value = e.v; return; }
      }
      if (!h || h.col === undefined) { this.readout.textContent = h && h.row !== undefined ? `target ${L[h.row]}` : " "; return; }
      let value, words;
      if (this.s.view === "layers") { const l = this.model.depth - 1 - h.at; value = this.stack[l][h.col]; words = `layer ${this.model.layers[l]}: ${L[h.col]} → target`; }
      else if (this.s.view === "image") { value = this.row ? this.row[h.col] : NaN; words = `patch ${L[h.col]} → target`; }
      else { value = this.matrix[h.row * n + h.col]; words = `${L[h.col]} → ${L[h.row]}`; }
      const pieces = this.s.unit === "word" ? this.groups[h.col].length : 1;
      this.readout.textContent = `${words}: ${number(value)}`; this.readout.dataset.value = value;
      if (pieces > 1) this.readout.append(` (${pieces} pieces, ${number(value / pieces)} each)`);
    }
    paint() {
      if (!this.root.clientWidth && this.root.isConnected && this.geometry) { this.tell(); return; }
      const plan = this.plan(Math.max(240, (this.stage.clientWidth || this.root.clientWidth - 26) - 2));
      const pen = new CanvasPen(this.canvas, plan.width, plan.height, Math.max(1, global.devicePixelRatio || 1));
      cm.draw(this, pen, plan); this.geometry = plan; this.tell();
    }
    plan(room) { return cm.plan(this, room); }
    // not what is asked for: dimmed, and while the answer is on its way with a spinner
    stale(is, pending) {
      this.root.classList.toggle("cmx-stale", is); this.root.classList.toggle("cmx-pending", is && pending);
      this.canvas.setAttribute("aria-busy", String(is));
    }
    save(kind) {
      const parts = ["ctxmix", this.canvas.dataset.model.split("/").pop(), this.p.method, `layer${this.s.layer}`, short(this.canvas.dataset.text, 40)];
      const name = parts.filter(Boolean).join("-").replace(/[^\p{L}\p{N}.-]+/gu, "_").replace(/_+$/, ""), plan = this.geometry, link = make("a");
      this.hover = null;
      const give = (blob) => { link.href = URL.createObjectURL(blob); link.download = `${name}.${kind.toLowerCase()}`; document.body.append(link); link.click(); link.remove(); setTimeout(() => URL.revokeObjectURL(link.href), 5000); };
      if (kind === "SVG") { const pen = new SvgPen(plan.width, plan.height); cm.draw(this, pen, plan); give(new Blob([pen.toString()], { type: "image/svg+xml" })); return; }
      const sheet = make("canvas"); cm.draw(this, new CanvasPen(sheet, plan.width, plan.height, 3), plan); sheet.toBlob(give);
    }
  }
  cm.short = short; cm.make = make; cm.Widget = Widget;
  cm.mount = (root, payload, state, onchange) => { const w = new Widget(root, payload, state, onchange); root.ctxmix = w; cm.widgets.push(w); cm.widgets = cm.widgets.filter((x) => x.root.isConnected); return w; };
})(window);
