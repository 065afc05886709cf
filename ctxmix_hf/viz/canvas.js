/* ctxmix canvas heatmap: notebook, standalone HTML and Space share this file. No dependencies, nothing fetched. */
(function (global) {
  "use strict";
  if (global.ctxmix && global.ctxmix.version >= 2) return;

  // ---- colour maps: stops of RGB, interpolated linearly; all monotone in lightness, safe for the colour-blind ----
  const MAPS = {
    blues: { light: ["f7fafd", "d3e3f3", "94c0e2", "4391c9", "135aa3", "062a5e"], dark: ["14181f", "17334f", "1f5d8f", "3b91c9", "8cc8ea", "f1fbff"] },
    cividis: ["00204d", "31446b", "666970", "958f78", "cbba69", "ffea46"],
    viridis: ["440154", "414487", "2a788e", "22a884", "7ad151", "fde725"],
    magma: ["000004", "3b0f70", "8c2981", "de4968", "fe9f6d", "fcfdbf"],
    greys: { light: ["ffffff", "d9d9d9", "a6a6a6", "737373", "404040", "000000"], dark: ["14181f", "3a3f47", "6b7078", "9a9ea5", "cfd2d6", "ffffff"] },
  };
  const SIGNED = { light: ["8a3d00", "d9781e", "f6c08a", "f7f7f7", "9cc7e4", "2f7fbc", "0a3d73"], dark: ["ffc285", "d9822b", "7a4516", "14181f", "1b4f7d", "4a9bd6", "c3e6ff"] };
  const HEAT = ["fff7ec", "fdd49e", "fc8d59", "d7301f", "7f0000"]; // over a picture, where blue would be lost
  const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  function palette(name, signed, dark) {
    const entry = signed ? SIGNED : name === "heat" ? HEAT : MAPS[name] || MAPS.blues;
    const stops = (Array.isArray(entry) ? entry : entry[dark ? "dark" : "light"]).map(rgb);
    const table = new Uint8Array(256 * 3);
    for (let i = 0; i < 256; i++) {
      const at = (i / 255) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at)), f = at - k;
      for (let c = 0; c < 3; c++) table[3 * i + c] = Math.round(stops[k][c] * (1 - f) + stops[k + 1][c] * f);
    }
    return table;
  }
  const isDark = () => {
    const body = document.body;
    if (body.classList.contains("dark") || body.classList.contains("vscode-dark") || body.dataset.jpThemeLight === "false") return true;
    if (body.classList.contains("vscode-light") || body.dataset.jpThemeLight === "true" || document.querySelector(".gradio-container")) return false;
    return global.matchMedia && global.matchMedia("(prefers-color-scheme: dark)").matches;
  };

  // ---- numbers ------------------------------------------------------------------------------------------------
  function halves(base64) {
    const raw = atob(base64), n = raw.length / 2, out = new Float32Array(n);
    for (let i = 0; i < n; i++) {
      const h = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8), e = (h >> 10) & 31, m = h & 1023;
      const v = e === 0 ? m * 5.960464477539063e-8 : e === 31 ? (m ? NaN : Infinity) : (1 + m / 1024) * Math.pow(2, e - 15);
      out[i] = h & 0x8000 ? -v : v;
    }
    return out;
  }
  function decode(block, depth, size) {
    const flat = halves(block.data), layers = [], step = size * size;
    for (let l = 0; l < depth; l++) layers.push(flat.subarray(l * step, (l + 1) * step).map((v) => v * block.scale[l]));
    return layers;
  }
  function shares(matrix, n) {
    const out = new Float32Array(matrix);
    for (let i = 0; i < n; i++) {
      let sum = 0;
      for (let j = 0; j < n; j++) sum += out[i * n + j];
      if (sum) for (let j = 0; j < n; j++) out[i * n + j] /= sum;
    }
    return out;
  }
  function product(a, b, n) {
    const out = new Float32Array(n * n);
    for (let i = 0; i < n; i++) for (let k = 0; k < n; k++) {
      const f = a[i * n + k];
      if (f) for (let j = 0; j < n; j++) out[i * n + j] += f * b[k * n + j];
    }
    return out;
  }
  const number = (v) => {
    if (!isFinite(v)) return String(v);
    const size = Math.abs(v);
    return size !== 0 && (size >= 1e5 || size < 1e-4) ? v.toExponential(2) : v.toFixed(size >= 100 ? 1 : 4);
  };

  // ---- pens: the same picture on a canvas or as SVG -----------------------------------------------------------
  const FONT = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "Noto Color Emoji", sans-serif';
  class CanvasPen {
    constructor(canvas, width, height, ratio) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.width = width + "px"; canvas.style.height = height + "px";
      this.c = canvas.getContext("2d"); this.c.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    rect(x, y, w, h, fill) { this.c.fillStyle = fill; this.c.fillRect(x, y, w, h); }
    frame(x, y, w, h, stroke, width) { this.c.strokeStyle = stroke; this.c.lineWidth = width; this.c.strokeRect(x, y, w, h); }
    line(x1, y1, x2, y2, stroke, width, alpha) {
      const c = this.c; c.globalAlpha = alpha; c.strokeStyle = stroke; c.lineWidth = width; c.lineCap = "round";
      c.beginPath(); c.moveTo(x1, y1); c.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2); c.stroke(); c.globalAlpha = 1;
    }
    text(s, x, y, o) {
      const c = this.c; c.save(); c.translate(x, y); if (o.turn) c.rotate(o.turn);
      c.font = `${o.bold ? "600 " : ""}${o.size}px ${FONT}`; c.fillStyle = o.color; c.textAlign = o.align || "left"; c.textBaseline = "middle";
      c.fillText(s, 0, 0); c.restore();
    }
    cells(x, y, cw, ch, rows, cols, bytes) {
      const off = document.createElement("canvas"); off.width = cols; off.height = rows;
      const image = new ImageData(bytes, cols, rows); off.getContext("2d").putImageData(image, 0, 0);
      this.c.imageSmoothingEnabled = false; this.c.drawImage(off, x, y, cols * cw, rows * ch);
    }
    picture(image, x, y, w, h) { this.c.drawImage(image, x, y, w, h); }
  }
  const escape = (s) => String(s).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b-\u001f]/g, "\ufffd");
  class SvgPen {
    constructor(width, height) { this.w = width; this.h = height; this.parts = []; }
    rect(x, y, w, h, fill) { this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="${fill}"/>`); }
    frame(x, y, w, h, stroke, width) { this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="none" stroke="${stroke}" stroke-width="${width}"/>`); }
    line(x1, y1, x2, y2, stroke, width, alpha) {
      const m = (y1 + y2) / 2;
      this.parts.push(`<path d="M${x1} ${y1}C${x1} ${m} ${x2} ${m} ${x2} ${y2}" fill="none" stroke="${stroke}" stroke-width="${width}" stroke-opacity="${alpha}" stroke-linecap="round"/>`);
    }
    text(s, x, y, o) {
      const anchor = { left: "start", right: "end", center: "middle" }[o.align || "left"], turn = o.turn ? ` rotate(${(o.turn * 180) / Math.PI})` : "";
      this.parts.push(`<text transform="translate(${x} ${y})${turn}" font-size="${o.size}" fill="${o.color}" text-anchor="${anchor}" dominant-baseline="central"${o.bold ? ' font-weight="600"' : ""}>${escape(s)}</text>`);
    }
    cells(x, y, cw, ch, rows, cols, b) {
      for (let i = 0; i < rows; i++) for (let j = 0; j < cols; j++) {
        const k = 4 * (i * cols + j);
        if (b[k + 3]) this.rect(+(x + j * cw).toFixed(2), +(y + i * ch).toFixed(2), +cw.toFixed(2), +ch.toFixed(2), `rgb(${b[k]},${b[k + 1]},${b[k + 2]})`);
      }
    }
    picture(image, x, y, w, h) { this.parts.push(`<image href="${escape(image.src)}" x="${x}" y="${y}" width="${w}" height="${h}" preserveAspectRatio="none"/>`); }
    toString() { return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.w}" height="${this.h}" viewBox="0 0 ${this.w} ${this.h}" font-family='${FONT}'>${this.parts.join("")}</svg>`; }
  }

  // ---- model: what is shown for a state -----------------------------------------------------------------------
  // A state's layer is its number (1 to L, -1 the last), as in every call, link and title; `raw` and `matrix` take its place, from 0.
  const DEFAULTS = { view: "map", scope: "input", layer: -1, unit: "word", specials: 1, diagonal: 0, norm: "none", range: "all", cmap: "blues", pin: "", k: 24 };
  class Model {
    constructor(p) {
      this.p = p; this.n = p.tokens.length; this.depth = p.depth; this.blocks = {}; this.tops = {}; this.signed = !!p.signed;
      for (const scope of ["layer", "input"]) if (p.maps[scope] && p.maps[scope].data) this.blocks[scope] = decode(p.maps[scope], p.depth, this.n);
      this.scopes = ["input", "layer"].filter((s) => p.maps[s]);
      this.layers = p.layers || Array.from({ length: p.depth }, (_, l) => l + 1);
    }
    place(layer) { return this.layers.indexOf(layer); }
    layer(asked) { return asked < 0 ? this.layers[this.depth + asked] : this.layers.find((l) => l === asked); } // undefined: there is none
    raw(scope, layer) {
      if (!this.blocks[scope]) this.blocks[scope] = [];
      const cache = this.blocks[scope];
      if (!cache[layer]) { // rollout: this layer times everything below it
        const turn = (l) => (this.p.maps.input.shares ? shares(this.raw("layer", l), this.n) : this.raw("layer", l));
        cache[layer] = layer === 0 ? turn(0) : product(turn(layer), this.raw("input", layer - 1), this.n);
      }
      return cache[layer];
    }
    groups(s) {
      const all = s.unit === "word" ? this.p.groups : this.p.tokens.map((_, i) => [i]);
      const kept = s.specials ? all : all.filter((g) => !this.p.special[g[0]]);
      return kept.length ? kept : all; // a text of nothing but special tokens shows them
    }
    // the largest value of a layer that is drawn in colour: without `diagonal` a token's contribution to itself is not
    top(s, scope, layer) {
      const key = [scope, layer, s.unit, s.specials, s.norm, s.diagonal].join();
      if (this.tops[key] === undefined) {
        const m = this.matrix(s, scope, layer), n = Math.round(Math.sqrt(m.length));
        let top = 0;
        for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) { const v = Math.abs(m[i * n + j]); if (v > top && isFinite(v) && (s.diagonal || i !== j)) top = v; }
        this.tops[key] = top;
      }
      return this.tops[key];
    }
    label(group, s) {
      if (s.unit === "word") return this.p.words[this.p.groups.indexOf(group)];
      return this.p.tokens[group[0]];
    }
    matrix(s, scope, layer) { // sources summed, targets averaged; hiding changes no value
      const raw = this.raw(scope, layer), groups = this.groups(s), m = groups.length, out = new Float32Array(m * m), n = this.n;
      for (let a = 0; a < m; a++) {
        let sum = 0, whole = 0;
        for (const i of groups[a]) for (let j = 0; j < n; j++) whole += raw[i * n + j];
        for (let b = 0; b < m; b++) {
          sum = 0;
          for (const i of groups[a]) for (const j of groups[b]) sum += raw[i * n + j];
          out[a * m + b] = s.norm === "row" && whole && !this.signed ? sum / whole : sum / groups[a].length;
        }
      }
      if (s.norm === "max") { const top = extreme(out) || 1; for (let k = 0; k < out.length; k++) out[k] /= top; }
      return out;
    }
    sum(s, matrix, rows, m) {
      const out = new Float32Array(m);
      for (const i of rows) for (let j = 0; j < m; j++) out[j] += matrix[i * m + j];
      return out;
    }
  }
  function extreme(values) { let top = 0; for (const v of values) { const a = Math.abs(v); if (a > top && isFinite(a)) top = a; } return top; }
  global.ctxmix = { version: 2, widgets: [], Model, CanvasPen, SvgPen, palette, isDark, number, extreme, DEFAULTS, MAPS: Object.keys(MAPS), escape };
})(window);
