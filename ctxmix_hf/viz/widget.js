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
      this.s = this.clean({ ...DEFAULTS, view: payload.image ? "image" : "map", pin: payload.pin || "", ...(payload.state || {}), ...(state || {}) });
      this.hover = null; this.build(); this.redraw();
      this.watchTheme();
    }
    clean(s) {
      for (const key of NUMBERS) s[key] = Number(s[key]) || 0;
      const d = this.model.depth;
      s.layer = s.layer < 0 ? d - 1 : Math.min(d - 1, s.layer);
      if (!this.model.scopes.includes(s.scope)) s.scope = this.model.scopes[0];
      if (!["map", "layers", "paths", "image"].includes(s.view) || (s.view === "paths" && !this.p.maps.layer) || (s.view === "image" && !this.p.image)) s.view = "map";
      if (!["word", "piece"].includes(s.unit)) s.unit = "word";
      if (!["none", "row", "max"].includes(s.norm)) s.norm = "none";
      if (!cm.MAPS.includes(s.cmap)) s.cmap = "blues";
      this.pins = String(s.pin).split(/[,.]/).filter((x) => x !== "").map(Number).filter((i) => Number.isInteger(i) && i >= 0 && i < this.model.n);
      return s;
    }
    set(change) {
      Object.assign(this.s, change);
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
      this.title = make("div", "cmx-title"); this.sentence = make("div", "cmx-sentence"); this.bar = make("div", "cmx-bar");
      this.sentence.setAttribute("dir", "auto"); this.sentence.setAttribute("role", "group");
      this.sentence.setAttribute("aria-label", "The sentence: press a token to make it the target; arrows walk; its sources are coloured");
      this.stage = make("div", "cmx-stage"); this.canvas = make("canvas"); this.stage.append(this.canvas);
      this.readout = make("div", "cmx-readout"); this.status = make("div", "cmx-status"); this.note = make("div", "cmx-note");
      this.status.setAttribute("aria-live", "polite"); this.status.setAttribute("role", "status");
      this.canvas.tabIndex = 0; this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", "Context mixing heatmap. Up and down choose the target row, left and right the layer, Shift with up or down adds rows, Escape clears.");
      r.append(this.title, this.sentence, this.bar, this.status, this.stage, this.readout, this.note);
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
      this.bar.append(group);
      if (this.model.scopes.length > 1) this.select("scope", "Contributions", [["input", p.maps.input.label || "from the input"], ["layer", "within the layer"]]);
      this.layerControl();
      if (p.groups.length < p.tokens.length) this.select("unit", "Tokens", [["word", "words"], ["piece", "sub-words"]]);
      this.select("norm", "Scale", this.model.signed ? [["none", "values"], ["max", "÷ largest"]] : [["none", "values"], ["row", "÷ row sum"], ["max", "÷ largest"]]);
      if (!this.model.signed) this.select("cmap", "Colours", cm.MAPS.map((m) => [m, m]));
      if (p.special.some(Boolean)) this.check("specials", "special tokens");
      this.check("diagonal", "own token");
      this.several = make("input"); this.several.type = "checkbox"; const label = make("label", "cmx-check"); label.title = "Choose several targets and see their sum"; label.append(this.several, "add rows (Σ)"); this.bar.append(label);
      this.range("k", "Edges", 4, 80);
      const save = make("div", "cmx-tabs");
      for (const kind of ["PNG", "SVG"]) { const b = make("button", "", kind); b.type = "button"; b.title = `Save this picture as ${kind}`; b.setAttribute("aria-label", b.title); b.onclick = () => this.save(kind); save.append(b); }
      this.bar.append(save);
    }
    field(text, control) { const l = make("label", "cmx-field"); l.append(make("span", "", text), control); this.bar.append(l); return l; }
    select(key, text, options) {
      const e = make("select"); e.dataset.key = key;
      for (const [v, name] of options) { const o = make("option", "", name); o.value = v; e.append(o); }
      e.onchange = () => this.set({ [key]: e.value }); this.inputs[key] = e; this.field(text, e);
    }
    check(key, text) {
      const e = make("input"); e.type = "checkbox"; e.dataset.key = key; e.onchange = () => this.set({ [key]: e.checked ? 1 : 0 });
      const l = make("label", "cmx-check"); l.append(e, text); this.inputs[key] = e; this.bar.append(l);
    }
    range(key, text, low, high) {
      const e = make("input"); e.type = "range"; e.min = low; e.max = high; e.dataset.key = key; e.oninput = () => this.set({ [key]: Number(e.value) });
      const box = make("span", "cmx-layer"); this.edgeText = make("output"); box.append(e, this.edgeText);
      this.inputs[key] = e; this.pathField = this.field(text, box);
    }
    layerControl() {
      const box = make("span", "cmx-layer"), e = make("input"); e.type = "range"; e.min = 1; e.max = this.model.depth; e.dataset.key = "layer";
      e.setAttribute("aria-label", "Layer"); e.oninput = () => this.set({ layer: Number(e.value) - 1 });
      this.play = make("button", "cmx-play", "▶"); this.play.type = "button"; this.play.setAttribute("aria-label", "Play through the layers"); this.play.onclick = () => this.toggle();
      this.layerText = make("output"); box.append(this.play, e, this.layerText); this.inputs.layer = e; this.field("Layer", box);
    }
    toggle() {
      if (this.timer) { clearInterval(this.timer); this.timer = null; } else {
        if (this.s.layer === this.model.depth - 1) this.set({ layer: 0 });
        this.timer = setInterval(() => {
          if (!this.root.isConnected || this.s.layer >= this.model.depth - 1) { clearInterval(this.timer); this.timer = null; this.face(); } else this.set({ layer: this.s.layer + 1 });
        }, 700);
      }
      this.face();
    }
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
      else if (e.key === "ArrowRight") this.set({ layer: Math.min(this.model.depth - 1, this.s.layer + 1) });
      else if (e.key === "ArrowLeft") this.set({ layer: Math.max(0, this.s.layer - 1) });
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
      this.matrix = m.matrix(s, s.scope, s.layer); this.table = palette(s.cmap, m.signed, this.dark);
      const n = this.groups.length, chosen = this.rows();
      this.row = chosen.length ? m.sum(s, this.matrix, chosen, n) : null;
      this.stack = s.view === "layers" ? Array.from({ length: m.depth }, (_, l) => m.sum(s, m.matrix(s, s.scope, l), chosen.length ? chosen : [0], n)) : null;
      this.sync(); this.colourSentence(); this.paint(); this.describe();
      Object.assign(this.root.dataset, { layer: s.layer + 1, scope: s.scope, view: s.view, pins: this.pins.join("."), rows: n, ready: String((Number(this.root.dataset.ready) || 0) + 1), drawMs: (performance.now() - t0).toFixed(2) });
    }
    sync() {
      const s = this.s;
      for (const [key, e] of Object.entries(this.inputs)) { if (e.type === "checkbox") e.checked = !!s[key]; else e.value = key === "layer" ? s.layer + 1 : s[key]; }
      for (const b of this.viewButtons) b.setAttribute("aria-pressed", String(b.dataset.view === s.view));
      this.layerText.textContent = `${s.layer + 1} / ${this.model.depth}`; this.edgeText.textContent = s.k; this.pathField.style.display = s.view === "paths" ? "" : "none";
      this.title.textContent = this.p.title;
      const notes = [];
      if (!s.specials) notes.push("Special tokens are hidden from the picture only: they were part of the computation, and no value changes.");
      if (!s.diagonal) notes.push("Each token's contribution to itself is left blank.");
      if (s.norm === "row" && !this.model.signed) notes.push("Each row is divided by its sum over all tokens.");
      if (s.norm === "max") notes.push("Values are divided by the map's largest one.");
      for (const extra of this.p.notes || []) notes.push(extra);
      this.note.textContent = notes.join(" ");
    }
    scale() { // the largest value that is drawn
      const n = this.groups.length, chosen = this.s.diagonal ? [] : this.rows(), others = (row) => Array.from(row).map((v, j) => (chosen.includes(j) ? 0 : v));
      if (this.s.view === "layers") return extreme(this.stack.flatMap(others)) || 1;
      if (this.s.view === "image" && this.row) return extreme(others(this.row)) || 1;
      return extreme(this.s.diagonal ? this.matrix : this.matrix.map((v, k) => (this.s.view !== "map" || Math.floor(k / n) !== k % n ? v : 0))) || 1;
    }
    shade(v, top) {
      const at = this.model.signed ? 127.5 + (127.5 * v) / top : (255 * v) / top, k = 3 * Math.max(0, Math.min(255, Math.round(at)));
      return [this.table[k], this.table[k + 1], this.table[k + 2]];
    }
    ink() { return this.dark ? { text: "#d7dce3", dim: "#9aa3af", back: "#0f1319", mark: "#ffb454" } : { text: "#1f2733", dim: "#5b6675", back: "#ffffff", mark: "#c2410c" }; }
    colourSentence() {
      const box = this.sentence, s = this.s, chosen = this.rows(), focused = document.activeElement, kept = box.contains(focused) ? Number(focused.dataset.row) : -1;
      const values = this.row, top = values ? extreme(values.map((v, j) => (!s.diagonal && chosen.includes(j) ? 0 : v))) || 1 : 1;
      box.textContent = "";
      const stop = kept >= 0 ? kept : chosen.length ? chosen[0] : 0; // one stop for Tab, arrows within
      this.groups.forEach((g, i) => {
        if (s.view === "image" && g[0] >= this.p.image.offset) return; // the picture itself shows these
        if (this.p.second && i && g[0] >= this.p.second && this.groups[i - 1][0] < this.p.second) box.append(make("span", "cmx-break"));
        const t = make("button", "cmx-token", this.labels[i].replace(/^##/, "")); t.type = "button"; t.dataset.row = i; t.tabIndex = i === stop ? 0 : -1; t.onkeydown = (e) => this.walk(e, t);
        if (s.unit === "piece" && i && this.p.word_of && this.p.word_of[g[0]] !== null && this.p.word_of[g[0]] === this.p.word_of[g[0] - 1]) t.classList.add("cmx-joined");
        if (chosen.includes(i)) t.classList.add("cmx-target");
        t.setAttribute("aria-pressed", String(chosen.includes(i)));
        if (values) {
          const [r, gg, b] = this.shade(values[i], top), light = 0.299 * r + 0.587 * gg + 0.114 * b;
          t.style.background = `rgb(${r},${gg},${b})`; t.style.color = light > 140 ? "#111" : "#fff"; t.dataset.value = values[i]; t.title = `${this.labels[i]}: ${number(values[i])}`;
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
    describe() {
      const chosen = this.rows(), names = chosen.map((i) => `“${apart(this.labels[i])}”`).join(" + ");
      if (!chosen.length) { this.status.textContent = this.s.view === "image" ? "No target chosen: click a patch to see where its representation comes from." : "No target chosen: click a row (or a word above) to see where its representation comes from."; return; }
      const order = Array.from(this.row.keys()).sort((a, b) => Math.abs(this.row[b]) - Math.abs(this.row[a])).slice(0, 5);
      const where = this.s.scope === "input" ? `layer ${this.s.layer + 1}, from the input` : `within layer ${this.s.layer + 1}`;
      const rest = chosen.length > 1 ? " (sum of rows)" : "";
      this.status.textContent = `Target ${names}${rest}, ${where}: ${order.map((j) => `${apart(this.labels[j])} ${number(this.row[j])}`).join(", ")}`;
    }
    hit(x, y) {
      const g = this.geometry;
      if (!g) return null;
      const col = Math.floor((x - g.x) / g.cw), row = Math.floor((y - g.y) / g.ch);
      if (this.s.view === "image") { const cell = row * g.cols + col; return col >= 0 && col < g.cols && row >= 0 && row < g.rows ? { row: cell + g.offset, col: cell + g.offset } : null; }
      if (row < 0 || row >= g.rows || col >= g.cols) return null;
      if (this.s.view === "map") return { row, col: col < 0 ? undefined : col };
      return col < 0 ? null : this.s.view === "paths" ? { row: col } : { at: row, col };
    }
    tell() {
      const h = this.hover, n = this.groups.length, L = this.labels.map(apart);
      this.readout.dataset.value = "";
      if (!h || h.col === undefined) { this.readout.textContent = h && h.row !== undefined ? `target ${L[h.row]}` : " "; return; }
      let value, words;
      if (this.s.view === "layers") { const l = this.model.depth - 1 - h.at; value = this.stack[l][h.col]; words = `layer ${l + 1}: ${L[h.col]} → target`; }
      else if (this.s.view === "image") { value = this.row ? this.row[h.col] : NaN; words = `patch ${L[h.col]} → target`; }
      else { value = this.matrix[h.row * n + h.col]; words = `${L[h.col]} → ${L[h.row]}`; }
      this.readout.textContent = `${words}: ${number(value)}`; this.readout.dataset.value = value;
    }
    paint() {
      if (!this.root.clientWidth && this.root.isConnected && this.geometry) { this.tell(); return; }
      const plan = this.plan(Math.max(280, this.root.clientWidth - 2));
      const pen = new CanvasPen(this.canvas, plan.width, plan.height, Math.max(1, global.devicePixelRatio || 1));
      cm.draw(this, pen, plan); this.geometry = plan; this.tell();
    }
    plan(room) { return cm.plan(this, room); }
    save(kind) {
      const name = `ctxmix-${this.p.method}-layer${this.s.layer + 1}`.replace(/[^\w.-]+/g, "_"), plan = this.geometry, link = make("a");
      this.hover = null;
      const give = (blob) => { link.href = URL.createObjectURL(blob); link.download = `${name}.${kind.toLowerCase()}`; document.body.append(link); link.click(); link.remove(); setTimeout(() => URL.revokeObjectURL(link.href), 5000); };
      if (kind === "SVG") { const pen = new SvgPen(plan.width, plan.height); cm.draw(this, pen, plan); give(new Blob([pen.toString()], { type: "image/svg+xml" })); return; }
      const sheet = make("canvas"); cm.draw(this, new CanvasPen(sheet, plan.width, plan.height, 3), plan); sheet.toBlob(give);
    }
  }
  cm.short = short; cm.make = make; cm.Widget = Widget;
  cm.mount = (root, payload, state, onchange) => { const w = new Widget(root, payload, state, onchange); root.ctxmix = w; cm.widgets.push(w); cm.widgets = cm.widgets.filter((x) => x.root.isConnected); return w; };
})(window);
