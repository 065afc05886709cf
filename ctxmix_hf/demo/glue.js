/* The page around the widgets: keeps every view in the address, and the two sides of a comparison together. */
(function (global) {
  "use strict";
  const cm = global.ctxmix;
  const space = (global.ctxmixSpace = { widgets: {}, used: {} });
  const KEYS = Object.keys(cm.DEFAULTS), SIDES = ["first", "second", "difference"];
  const PREFIX = { main: "", first: "c.", second: "c.", difference: "c.", image: "i.", precomputed: "p." };
  const query = () => new URLSearchParams(location.search);
  const initial = query(); // what the link asked for
  const current = () => query().get("tab") || "map";

  // ---- the address ----------------------------------------------------------------------------------------------
  function merged(entries) {
    const q = query();
    for (const [key, value] of Object.entries(entries)) if (value === "" || value === null || value === undefined) q.delete(key); else q.set(key, value);
    return q;
  }
  space.put = (entries) => { const text = merged(entries).toString(); history.replaceState(null, "", text ? "?" + text : location.pathname); };
  // The page opens on the map and goes to the link's tab when the server has answered; until then the address stays.
  const TABS = { compare: () => space.widgets.difference, embeddings: () => document.querySelector("#similarity b"), image: () => space.arrived, precomputed: () => space.widgets.precomputed };
  space.tab = (name) => {
    const linked = initial.get("tab");
    if (linked === name || !TABS[linked]) space.arrived = true;
    if (space.arrived) space.put({ tab: name === "map" ? "" : name });
    return name;
  };
  space.opening = (name) => (initial.get("tab") === name && !TABS[name]() ? "link" : name); // the server is filling this tab
  // a widget's options as they stand in the address; what is as it starts is left out
  function entries(name, payload, state) {
    const out = {}, before = PREFIX[name], first = payload.image ? "image" : cm.DEFAULTS.view;
    for (const key of KEYS) {
      const value = key === "layer" ? state.layer + 1 : state[key], start = key === "view" ? first : cm.DEFAULTS[key];
      const usual = String(value) === String(start) || (key === "layer" && state.layer === payload.depth - 1) || (key === "pin" && state.pin === payload.pin);
      out[before + key] = usual ? "" : key === "pin" && value === "" ? "none" : value;
    }
    if (state.pin === "" && payload.pin !== "") out[before + "pin"] = "none";
    return out;
  }
  function fromLink(name) {
    const state = {}, before = PREFIX[name];
    for (const key of KEYS) if (initial.has(before + key)) { const value = initial.get(before + key); state[key] = key === "layer" ? Number(value) - 1 : value; }
    return state;
  }
  const write = (name, payload, state) => space.put({ ...(payload.query || {}), ...entries(name, payload, state) });
  space.asked = () => { // the whole view, also what nobody has touched yet
    const main = space.widgets.main;
    if (!main) return query().toString();
    const q = merged(current() === "map" ? { ...main.p.query, ...entries("main", main.p, main.state()) } : {});
    for (const [key, value] of Object.entries(main.p.query || {})) if (!q.has(key) && value !== "") q.set(key, value);
    return q.toString();
  };
  space.link = () => {
    const box = document.querySelector("#share-link textarea, #share-link input"); // its label names the copy button instead
    if (box) box.setAttribute("aria-label", "Link to this view");
    return location.origin + location.pathname + "?" + space.asked();
  };

  // ---- widgets --------------------------------------------------------------------------------------------------
  space.show = (host, name, payload) => {
    if (!payload || !payload.tokens) { host.textContent = ""; delete space.widgets[name]; return; }
    const before = space.widgets[name];
    // a link asks for another map than the page starts with: leave the address alone until that one arrives
    const other = ["model", "method", "text", "pair"].some((k) => initial.has(k) && initial.get(k) !== (payload.query || {})[k]);
    const waiting = name === "main" && !before && other, fresh = !space.used[name] && !waiting;
    let state = {};
    if (fresh) state = fromLink(name);
    else if (before) { state = before.state(); delete state.pin; if (before.model.depth !== payload.depth) delete state.layer; if (payload.image || before.p.image) delete state.view; }
    if (SIDES.includes(name)) delete state.pin;
    const w = (space.widgets[name] = cm.mount(host, payload, state, (now) => { if (SIDES.includes(name)) pair(name, now); else write(name, payload, now); }));
    if (waiting) return;
    space.used[name] = true;
    if (SIDES.includes(name)) together();
    else if (!(name === "main" && fresh && !other && !initial.has("text"))) write(name, payload, w.state());
  };

  // ---- comparison -----------------------------------------------------------------------------------------------
  function trio() {
    const all = SIDES.map((name) => space.widgets[name]), [, , gap] = all;
    return all.every((w) => w && JSON.stringify(w.p.query) === JSON.stringify(gap && gap.p.query)) ? all : null;
  }
  // all three have arrived: the link's target, or the one of the map
  function together() {
    const all = trio(), main = space.widgets.main;
    if (!all) return;
    const gap = all[2], state = gap.state();
    if (!space.paired && initial.has("c.pin")) state.pin = initial.get("c.pin");
    else if (main && main.p.text === all[0].p.text && main.pins.length) {
      const words = main.pins.map((pin) => main.p.groups.findIndex((g) => g.includes(pin)));
      state.pin = [...new Set(words.map((at) => gap.p.pairs.findIndex((p) => p[0] === at)).filter((at) => at >= 0))].join(".");
    }
    space.paired = true;
    gap.pins = String(state.pin).split(".").filter((x) => x !== "" && x !== "none").map(Number).filter((at) => at < gap.p.pairs.length);
    gap.redraw(); pair("difference", gap.state());
  }
  function ranks(values) {
    const order = Array.from(values.keys()).sort((a, b) => values[a] - values[b]), out = new Array(values.length);
    for (let i = 0; i < order.length; ) { let j = i; while (j < order.length && values[order[j]] === values[order[i]]) j++; for (let k = i; k < j; k++) out[order[k]] = (i + j + 1) / 2; i = j; }
    return out;
  }
  space.spearman = (a, b) => {
    const x = ranks(a), y = ranks(b), mean = (x.length + 1) / 2;
    let xy = 0, xx = 0, yy = 0;
    for (let i = 0; i < x.length; i++) { xy += (x[i] - mean) * (y[i] - mean); xx += (x[i] - mean) ** 2; yy += (y[i] - mean) ** 2; }
    return xy / Math.sqrt(xx * yy);
  };
  // the same targets, layer and options on both sides and in the difference; their rank correlation below
  function pair(from, state) {
    const all = trio();
    if (space.busy || !all) return;
    const [first, second, gap] = all, pairs = gap.p.pairs, side = SIDES.indexOf(from);
    const pins = String(state.pin).split(".").filter((x) => x !== "").map(Number);
    const chosen = side === 2 ? pins : pins.map((pin) => pairs.findIndex((p) => p[side] === pin)).filter((at) => at >= 0);
    space.busy = true;
    all.forEach((w, k) => {
      if (k === side) return;
      w.pins = chosen.map((at) => (k === 2 ? at : pairs[at][k]));
      const norm = w.model.signed && state.norm === "row" ? "none" : state.norm;
      const view = state.view === "paths" && w.model.signed ? {} : { view: state.view };
      w.set({ layer: Math.min(state.layer, w.model.depth - 1), specials: state.specials, diagonal: state.diagonal, norm, k: state.k, ...(side === 2 ? {} : { cmap: state.cmap }), ...view, ...(w.model.scopes.includes(state.scope) ? { scope: state.scope } : {}) });
    });
    space.busy = false;
    correlation(first, second, gap, chosen);
    // with "row" and the paths only the sides know them: take the options from the first side
    write("difference", { ...gap.p, query: { ...gap.p.query, tab: "compare" } }, { ...first.state(), pin: chosen.join(".") });
  }
  function correlation(first, second, gap, chosen) {
    const place = document.querySelector("#rank-correlation"), pairs = gap.p.pairs;
    if (!place) return;
    place.dataset.value = "";
    if (!chosen.length) { place.textContent = "Choose a target in one of the maps to see the rank correlation of its rows."; return; }
    const sum = (w, side) => { const raw = w.model.raw(w.s.scope, w.s.layer); return pairs.map((p) => chosen.reduce((all, at) => all + raw[pairs[at][side] * w.model.n + p[side]], 0)); };
    const value = space.spearman(sum(first, 0), sum(second, 1)), names = chosen.map((at) => `“${gap.p.tokens[at]}”`).join(" + ");
    place.textContent = `Rank correlation (Spearman) of the rows of ${names}: ${isNaN(value) ? "undefined, one row is constant" : value.toFixed(3)}`;
    place.dataset.value = value;
  }
  // the target chosen in the comparison (or in the map) as a token of the text, for the server
  space.agree = () => {
    const { main, first } = space.widgets, last = (w) => (w && w.pins.length ? w.pins[w.pins.length - 1] : null);
    const word = last(first), same = first && main && first.p.text === main.p.text && first.model.n === main.p.groups.length;
    const target = word !== null && same ? main.p.groups[word][0] : last(main) || 0;
    space.put({ agree: target });
    return target;
  };
})(window);
