/* What is shown for a state: maps of tokens or words, of a layer, from the input or within it, of all heads or one. */
import { decode, extreme, product, shares } from "./numbers.js";

// A state's layer is its number (1 to L, -1 the last), as in every call, link and title; `raw` and `matrix` take its place, from 0.
export const DEFAULTS = {
  view: "map",
  scope: "input",
  layer: -1,
  unit: "word",
  specials: 1,
  diagonal: 0,
  norm: "none",
  range: "all",
  cmap: "blues",
  pin: "",
  k: 24,
  zoom: 1,
  even: 0,
};

export class Model {
  constructor(p) {
    this.p = p;
    this.n = p.tokens.length;
    this.depth = p.depth;
    this.signed = !!p.signed;
    this.blocks = {};
    this.tops = {};
    for (const scope of ["layer", "input"]) {
      if (p.maps[scope] && p.maps[scope].data) {
        this.blocks[scope] = decode(p.maps[scope], p.depth, this.n);
      }
    }
    this.scopes = ["input", "layer"].filter((s) => p.maps[s]);
    this.layers = p.layers || Array.from({ length: p.depth }, (_, l) => l + 1);
    this.heads = p.heads ? p.heads.count : 0;
    if (this.heads) this.byHead = decode(p.heads, p.depth * this.heads, this.n);
  }

  place(layer) {
    return this.layers.indexOf(layer);
  }

  /** The layer that is meant by a number, also counted from the end; undefined where there is none. */
  layer(asked) {
    return asked < 0 ? this.layers[this.depth + asked] : this.layers.find((l) => l === asked);
  }

  raw(scope, layer) {
    if (!this.blocks[scope]) this.blocks[scope] = [];
    const cache = this.blocks[scope];
    if (!cache[layer]) {
      // rollout: this layer times everything below it
      const own = this.raw("layer", layer);
      const turned = this.p.maps.input.shares ? shares(own, this.n) : own;
      cache[layer] = layer === 0 ? turned : product(turned, this.raw("input", layer - 1), this.n);
    }
    return cache[layer];
  }

  groups(s) {
    const all = s.unit === "word" ? this.p.groups : this.p.tokens.map((_, i) => [i]);
    const kept = s.specials ? all : all.filter((g) => !this.p.special[g[0]]);
    return kept.length ? kept : all; // a text of nothing but special tokens shows them
  }

  label(group, s) {
    return s.unit === "word" ? this.p.words[this.p.groups.indexOf(group)] : this.p.tokens[group[0]];
  }

  /** The largest value of a layer that is drawn in colour: without `diagonal` a token's contribution to itself is not. */
  top(s, scope, layer) {
    const key = [scope, layer, s.unit, s.specials, s.norm, s.diagonal].join();
    if (this.tops[key] === undefined) {
      const m = this.matrix(s, scope, layer);
      const n = Math.round(Math.sqrt(m.length));
      this.tops[key] = extreme(s.diagonal ? m : m.filter((_, k) => Math.floor(k / n) !== k % n));
    }
    return this.tops[key];
  }

  matrix(s, scope, layer) {
    return this.joined(s, this.raw(scope, layer));
  }

  /** One head of a layer, within that layer. */
  head(s, layer, head) {
    return this.joined(s, this.rawHead(layer, head));
  }

  rawHead(layer, head) {
    return this.byHead[layer * this.heads + head];
  }

  /** Tokens to words: sources summed, targets averaged; hiding changes no value. */
  joined(s, raw) {
    const groups = this.groups(s);
    const m = groups.length;
    const n = this.n;
    const out = new Float32Array(m * m);
    for (let a = 0; a < m; a++) {
      let whole = 0;
      for (const i of groups[a]) for (let j = 0; j < n; j++) whole += raw[i * n + j];
      const by = s.norm === "row" && whole && !this.signed ? whole : groups[a].length;
      for (let b = 0; b < m; b++) {
        let sum = 0;
        for (const i of groups[a]) for (const j of groups[b]) sum += raw[i * n + j];
        out[a * m + b] = sum / by;
      }
    }
    if (s.norm === "max") {
      const top = extreme(out) || 1;
      for (let k = 0; k < out.length; k++) out[k] /= top;
    }
    return out;
  }

  /** What each source would give if all pieces gave the same: the row's sum shared out by number of pieces. */
  even(s, whole) {
    return this.groups(s).map((g) => (whole * g.length) / this.n);
  }

  /** The rows of several targets added up. */
  sum(matrix, rows, m) {
    const out = new Float32Array(m);
    for (const i of rows) for (let j = 0; j < m; j++) out[j] += matrix[i * m + j];
    return out;
  }
}
