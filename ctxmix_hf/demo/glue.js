/* The page around the widgets: keeps the view in the address, the two sides of a comparison together. */
(function (global) {
  "use strict";
  const cm = global.ctxmix;
  const space = (global.ctxmixSpace = { widgets: {}, first: true });
  const KEYS = Object.keys(cm.DEFAULTS);
  const query = () => new URLSearchParams(location.search);

  function fromAddress() {
    const q = query(), state = {};
    for (const key of KEYS) if (q.has(key)) state[key] = key === "layer" ? Number(q.get(key)) - 1 : q.get(key);
    return state;
  }
  function address(payload, state) {
    const q = query();
    for (const [key, value] of Object.entries(payload.query || {})) q.set(key, value);
    for (const key of KEYS) { const value = key === "layer" ? state.layer + 1 : state[key]; if (String(value) === String(cm.DEFAULTS[key]) || (key === "layer" && state.layer === payload.depth - 1) || (key === "pin" && state.pin === payload.pin)) q.delete(key); else q.set(key, value); }
    return "?" + q.toString();
  }
  const toAddress = (payload, state) => history.replaceState(null, "", address(payload, state));
  space.link = () => { const w = space.widgets.main; return w ? location.origin + location.pathname + address(w.p, w.state()) : location.href; };
  space.show = (host, name, payload) => {
    if (!payload || !payload.tokens) { host.textContent = ""; delete space.widgets[name]; return; }
    const before = space.widgets[name];
    let state = {};
    if (before) { state = before.state(); delete state.pin; if (before.model.depth !== payload.depth) delete state.layer; if (payload.image || before.p.image) delete state.view; }
    else if (name === "main" && space.first) state = fromAddress();
    // a link asks for another map than the page starts with: leave the address alone until that one arrives
    const asked = query(), waiting = name === "main" && !space.waited && ["model", "method", "text"].some((k) => asked.has(k) && asked.get(k) !== (payload.query || {})[k]);
    if (name === "main" && before && space.waited === "once") state = fromAddress();
    const change = (now) => { if (name === "main") toAddress(payload, now); else if (name !== "precomputed" && name !== "image") pair(name, now); };
    const w = cm.mount(host, payload, state, change);
    space.widgets[name] = w;
    if (waiting) { space.waited = "once"; return; }
    if (name === "main") {
      if (!space.first || space.waited || asked.has("text")) toAddress(payload, w.state());
      space.first = false; if (space.waited) space.waited = "done"; else space.waited = "never";
    }
    if (["first", "second", "difference"].includes(name)) pair(name, w.state());
  };
  // the main widget's target, for the server
  space.pin = () => { const w = space.widgets.main; return w && w.pins.length ? w.pins[w.pins.length - 1] : 0; };

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
  // the same target, layer and options on both sides and in the difference; their rank correlation below
  function pair(from, state) {
    const { first, second, difference } = space.widgets;
    if (space.busy || !first || !second || !difference || !difference.p.pairs) return;
    space.busy = true;
    const pairs = difference.p.pairs, side = { first: 0, second: 1 }[from], pin = Number(String(state.pin).split(".")[0]);
    const at = state.pin === "" ? -1 : from === "difference" ? pin : pairs.findIndex((p) => p[side] === pin);
    for (const [name, w] of [["first", first], ["second", second], ["difference", difference]]) {
      if (name === from) continue;
      w.pins = at < 0 ? [] : [name === "difference" ? at : pairs[at][name === "first" ? 0 : 1]];
      w.set({ layer: state.layer, specials: state.specials, diagonal: state.diagonal, ...(state.view === "map" || state.view === "layers" ? { view: state.view } : {}), ...(w.model.scopes.includes(state.scope) ? { scope: state.scope } : {}) });
    }
    space.busy = false;
    const place = document.querySelector("#rank-correlation"), q = query();
    if (!place) return;
    place.dataset.value = "";
    if (at < 0) { place.textContent = "Choose a target in one of the maps to see the rank correlation of its rows."; return; }
    const n = first.model.n, m = second.model.n, a = first.model.raw(first.s.scope, first.s.layer), b = second.model.raw(second.s.scope, second.s.layer), [i, j] = pairs[at];
    const value = space.spearman(pairs.map((p) => a[i * n + p[0]]), pairs.map((p) => b[j * m + p[1]]));
    place.textContent = `Rank correlation (Spearman) of the rows of “${difference.p.tokens[at]}”: ${isNaN(value) ? "undefined" : value.toFixed(3)}`;
    place.dataset.value = value;
    for (const [key, v] of Object.entries(difference.p.query || {})) q.set(key, v);
    history.replaceState(null, "", "?" + q.toString());
  }
})(window);
