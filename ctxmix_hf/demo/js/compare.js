/* The two sides of a comparison and their difference: the same targets, layer and options in all three. */
import { spearman } from "./ranks.js";

export const SIDES = ["first", "second", "difference"];

/** Positions in a state's pin. */
const pinned = (pin) =>
  String(pin)
    .split(".")
    .filter((x) => x !== "" && x !== "none")
    .map(Number);

export class Comparison {
  /** widgets: by name; linked: the link's target, once; changed: hears (payload, state) when the view changed. */
  constructor(widgets, linked, changed) {
    this.widgets = widgets;
    this.linked = linked;
    this.changed = changed;
    this.busy = false;
  }

  /** The three, once they belong to one request. */
  trio() {
    const all = SIDES.map((name) => this.widgets[name]);
    const asked = (w) => JSON.stringify(w.p.query);
    return all.every((w) => w && all[2] && asked(w) === asked(all[2])) ? all : null;
  }

  /** All three have arrived: the link's target, or the one of the map. */
  together() {
    const all = this.trio();
    const main = this.widgets.main;
    if (!all) return;
    const gap = all[2];
    const state = gap.state();
    if (this.linked !== null) state.pin = this.linked;
    else if (main && main.p.text === all[0].p.text && main.pins.length) {
      const words = main.pins.map((pin) => main.p.groups.findIndex((g) => g.includes(pin)));
      const places = words.map((at) => gap.p.pairs.findIndex((p) => p[0] === at));
      state.pin = [...new Set(places.filter((at) => at >= 0))].join(".");
    }
    this.linked = null;
    gap.pins = pinned(state.pin).filter((at) => at < gap.p.pairs.length);
    gap.redraw();
    this.follow("difference", gap.state());
  }

  /** One of the three changed: so do the others. */
  follow(from, state) {
    const all = this.trio();
    if (this.busy || !all) return;
    const [first, , gap] = all;
    const pairs = gap.p.pairs;
    const side = SIDES.indexOf(from);
    const pins = pinned(state.pin);
    const chosen =
      side === 2
        ? pins
        : pins.map((pin) => pairs.findIndex((p) => p[side] === pin)).filter((at) => at >= 0);
    const at = all[side].model.place(state.layer); // models of different depth show one layer each: then the places agree, not the numbers
    this.busy = true;
    all.forEach((w, k) => {
      if (k === side) return;
      w.pins = chosen.map((place) => (k === 2 ? place : pairs[place][k]));
      const { specials, diagonal, k: paths, zoom } = state;
      const change = { specials, diagonal, k: paths, zoom };
      change.layer = w.model.layers[Math.min(at, w.model.depth - 1)];
      change.norm = w.model.signed && state.norm === "row" ? "none" : state.norm;
      if (side !== 2) change.cmap = state.cmap;
      if (!(["paths", "heads"].includes(state.view) && w.model.signed)) change.view = state.view;
      if (w.model.scopes.includes(state.scope)) change.scope = state.scope;
      w.set(change);
    });
    this.busy = false;
    this.level(all);
    this.correlation(all, chosen);
    // with "row" and the paths only the sides know them: take the options from the first side
    const view = { ...first.state(), layer: gap.s.layer, pin: chosen.join(".") };
    this.changed({ ...gap.p, query: { ...gap.p.query, tab: "compare" } }, view);
  }

  /** Both sides end their colours at the same value, where they count in the same unit: rows of the same sum. */
  level([first, second]) {
    const sides = [first, second];
    const sums = sides.map(({ model: m, s }) => {
      const rows = m.raw(m.scopes.includes(s.scope) ? s.scope : m.scopes[0], m.place(s.layer));
      return rows.slice(0, m.n).reduce((sum, v) => sum + v, 0);
    });
    const same =
      first.s.norm === second.s.norm &&
      (first.s.norm !== "none" || Math.abs(sums[0] - sums[1]) < 0.02 * Math.max(...sums));
    const top = same ? Math.max(...sides.map((w) => w.largest())) : 0;
    for (const w of sides) {
      w.least = top;
      w.redraw();
    }
  }

  correlation([first, second, gap], chosen) {
    const place = document.querySelector("#rank-correlation");
    if (!place) return;
    place.setAttribute("role", "status");
    place.setAttribute("aria-live", "polite");
    place.dataset.value = "";
    place.textContent =
      "Choose a target in one of the maps to see the rank correlation of its rows.";
    if (!chosen.length) return;
    const pairs = gap.p.pairs;
    const sum = (w, side) => {
      const raw = w.model.raw(w.s.scope, w.model.place(w.s.layer));
      const from = (target, p) => raw[pairs[target][side] * w.model.n + p[side]];
      return pairs.map((p) => chosen.reduce((all, target) => all + from(target, p), 0));
    };
    const value = spearman(sum(first, 0), sum(second, 1));
    const names = chosen.map((at) => `“${gap.p.tokens[at]}”`).join(" + ");
    const said = isNaN(value) ? "undefined, one row is constant" : value.toFixed(3);
    place.textContent = `Rank correlation (Spearman) of the rows of ${names}: ${said}`;
    place.dataset.value = value;
  }

  /** The target chosen in the comparison (or in the map) as a token of the text, for the server. */
  target() {
    const { main, first } = this.widgets;
    const last = (w) => (w && w.pins.length ? w.pins[w.pins.length - 1] : null);
    const word = last(first);
    const one =
      first && main && first.p.text === main.p.text && first.model.n === main.p.groups.length;
    return word !== null && one ? main.p.groups[word][0] : last(main) || 0;
  }
}
