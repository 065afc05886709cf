/* The page around the widgets: keeps every view in the address, and the two sides of a comparison together. */
(function (global) {
  "use strict";
  const cm = global.ctxmix;
  if (initialEmbed()) document.body.classList.add("ctxmix-embed");
  function initialEmbed() { return new URLSearchParams(location.search).get("embed") === "1"; }
  if (global.ctxmixSpace) return;
  const space = (global.ctxmixSpace = { widgets: {}, used: {}, serials: {}, shown: {}, last: {}, dropped: 0, methods: {} });
  const KEYS = Object.keys(cm.DEFAULTS), SIDES = ["first", "second", "difference"];
  const PREFIX = { main: "", first: "c.", second: "c.", difference: "c.", image: "i.", precomputed: "p." };
  // Version 2 says that layers count from 1. Links without a version were written from 1 as well (since the page's first day), so
  // nothing is converted; a newer page that counts otherwise must raise the number and convert here.
  const LINK_VERSION = "2";
  const query = () => new URLSearchParams(location.search);
  const initial = query(); // what the link asked for
  const current = () => query().get("tab") || "map";

  // ---- the address ----------------------------------------------------------------------------------------------
  const stamped = (q) => { q.delete("v"); if (q.toString()) q.set("v", LINK_VERSION); return q; };
  function merged(entries) {
    const q = query();
    for (const [key, value] of Object.entries(entries)) if (value === "" || value === null || value === undefined) q.delete(key); else q.set(key, value);
    return stamped(q);
  }
  space.put = (entries, step) => { // a step is something Back undoes
    const text = merged(entries).toString(), to = text ? "?" + text : location.pathname;
    if (step && text !== query().toString()) history.pushState(null, "", to); else history.replaceState(null, "", to);
  };
  global.addEventListener("popstate", () => location.reload()); // the address holds the whole view
  // The page opens on the map and goes to the link's tab when the server has answered; until then the address stays.
  const TABS = { compare: () => space.widgets.difference, why: () => "why" in space.shown, embeddings: () => "similarity" in space.shown, image: () => "image" in space.shown, precomputed: () => space.widgets.precomputed };
  space.tab = (name) => {
    const linked = initial.get("tab");
    if (linked === name || !TABS[linked]) space.arrived = true;
    if (space.arrived) space.put({ tab: name === "map" ? "" : name });
    document.body.dataset.tab = name;
    return name;
  };
  space.opening = (name) => (initial.get("tab") === name && !TABS[name]() ? "link" : name === "image" && "image" in space.shown ? "shown" : name); // the server is filling this tab
  // a widget's options as they stand in the address; what is as it starts is left out
  function entries(name, payload, state) {
    const out = {}, before = PREFIX[name], first = payload.image ? "image" : cm.DEFAULTS.view;
    for (const key of KEYS) {
      const value = state[key], start = key === "view" ? first : cm.DEFAULTS[key];
      const usual = String(value) === String(start) || (key === "layer" && state.layer === payload.layers[payload.depth - 1]) || (key === "pin" && state.pin === payload.pin);
      out[before + key] = usual ? "" : key === "pin" && value === "" ? "none" : value;
    }
    if (state.pin === "" && payload.pin !== "") out[before + "pin"] = "none";
    return out;
  }
  function fromLink(name) {
    const state = {}, before = PREFIX[name];
    for (const key of KEYS) if (initial.has(before + key)) state[key] = initial.get(before + key);
    return state;
  }
  const write = (name, payload, state, step) => space.put({ ...(payload.query || {}), ...entries(name, payload, state) }, step);
  space.asked = () => { // the whole view, also what nobody has touched yet
    const main = space.widgets.main;
    if (!main) return merged({}).toString();
    const q = merged(current() === "map" ? { ...main.p.query, ...entries("main", main.p, main.state()) } : {});
    for (const [key, value] of Object.entries(main.p.query || {})) if (!q.has(key) && value !== "") q.set(key, value);
    return stamped(q).toString();
  };
  space.link = () => {
    const box = document.querySelector("#share-link textarea, #share-link input"); // its label names the copy button instead
    if (box) box.setAttribute("aria-label", "Link to this view");
    return location.origin + location.pathname + "?" + space.asked();
  };

  // ---- one state, one picture -------------------------------------------------------------------------------------
  const html = {}; // what belongs where; made, and escaped, by panels.py
  // Every request gets a number, and its answer brings it back: an answer that is older than what stands there, or for the map than
  // what was asked last, is dropped.
  space.ask = (slot, ...fields) => {
    space.serials[slot] = (space.serials[slot] || 0) + 1;
    if (slot === "main") { space.wanted = { model: fields[0], method: fields[1], text: String(fields[2] || "").trim(), pair: String(fields[3] || "").trim() }; space.since = Date.now(); refresh(); }
    return String(space.serials[slot]);
  };
  const serial = (payload) => Number((payload && payload.serial) || 0);
  function late(slot, payload) {
    const bound = slot === "main" ? space.serials.main || 0 : space.shown[slot] || 0;
    if (serial(payload) < bound) { space.dropped += 1; return true; }
    space.shown[slot] = serial(payload);
    return false;
  }
  const field = (name) => { const box = document.querySelector(`#${name} textarea, #${name} input`); return box ? box.value.trim() : null; };
  const same = (a, b) => ["model", "method", "text", "pair"].every((key) => (a[key] || "") === (b[key] || ""));
  // what the fields say, which Gradio may change without an event; a label that is half typed says nothing
  function fields() {
    const shown = (space.widgets.main && space.widgets.main.p.query) || {}, method = space.methods[field("method")];
    const now = { model: field("model"), method, text: field("text"), pair: field("pair") };
    for (const key of Object.keys(now)) if (now[key] === null || now[key] === undefined) now[key] = shown[key] || "";
    return now;
  }
  function refresh() {
    const main = space.widgets.main, pending = !!space.wanted, pair = document.querySelector("#pair"), second = field("pair");
    if (pair && second) document.body.classList.add("ctxmix-pair");
    const line = document.querySelector("#pending"), seconds = pending ? Math.floor((Date.now() - space.since) / 1000) : 0;
    if (line) {
      line.hidden = seconds < 1;
      if (seconds >= 1) line.querySelector("span").textContent = `Computing, ${seconds} s`;
    }
    Object.keys(html).forEach(fill); // a place may come later than what belongs there
    if (!main) return;
    const stale = pending || space.waiting || !same(main.p.query || {}, fields());
    main.stale(stale, pending || !!space.waiting);
    const beside = document.querySelector("#beside");
    if (beside) beside.classList.toggle("ctxmix-stale", stale);
  }
  setInterval(refresh, 200);
  document.addEventListener("input", refresh, true);
  document.addEventListener("click", (e) => {
    if (e.target.closest && e.target.closest("#pair-button")) { document.body.classList.add("ctxmix-pair"); const box = document.querySelector("#pair textarea"); if (box) box.focus(); }
    if (e.target.closest && e.target.closest("#pending button")) { space.wanted = null; space.serials.main = (space.serials.main || 0) + 1; refresh(); const stop = document.querySelector("#stop"); if (stop) stop.click(); }
  });
  function place(id, made, query) { if (made !== undefined) html[id] = { made, query: query || {} }; fill(id); }
  function fill(id) { const host = document.getElementById(id); if (host && html[id] && host.ctxmix !== html[id]) { host.ctxmix = html[id]; host.innerHTML = html[id].made; host.dataset.text = html[id].query.text || ""; } }

  // ---- widgets --------------------------------------------------------------------------------------------------
  space.show = (host, name, payload) => {
    if (!payload) { if (!space.last[name]) host.textContent = ""; return; }
    const slot = SIDES.includes(name) ? `compare ${name}` : name;
    if (late(slot, payload)) { if (!host.firstChild && space.last[name]) mount(host, name, space.last[name]); return; }
    if (name === "main") { space.wanted = null; place("message", payload.error || ""); place("method-info", payload.info); }
    if (payload.error) { space.waiting = false; refresh(); return; }
    if (!payload.tokens) { host.textContent = ""; delete space.widgets[name]; return; }
    if (name === "main") { place("prediction", payload.prediction, payload.query); if (payload.serial) { const old = document.querySelector("#scores-panel .ctxmix-host"); if (old) old.textContent = ""; space.forget(); } }
    space.last[name] = payload;
    mount(host, name, payload);
    refresh();
  };
  space.forget = () => space.put({ scores: "", agree: "" }); // they belong to the text before
  space.panel = (host, name, value) => { // a panel of the server's own HTML, with the number of its request
    if (!value || late(name, value)) return;
    host.innerHTML = value.html || "";
    host.removeAttribute("aria-busy");
  };
  function mount(host, name, payload) {
    const before = space.widgets[name];
    // a link asks for another map than the page starts with: leave the address alone until that one arrives
    const other = ["model", "method", "text", "pair"].some((k) => initial.has(k) && initial.get(k) !== (payload.query || {})[k]);
    const waiting = name === "main" && !before && other, fresh = !space.used[name] && !waiting;
    let state = {};
    if (name === "main") space.waiting = waiting;
    if (fresh) state = fromLink(name);
    else if (before) { state = before.state(); delete state.pin; if (String(before.model.layers) !== String(payload.layers)) delete state.layer; if (payload.image || before.p.image) delete state.view; }
    if (SIDES.includes(name)) delete state.pin;
    const open = before && !before.panel.hidden;
    const w = (space.widgets[name] = cm.mount(host, payload, state, (now) => { if (SIDES.includes(name)) pair(name, now); else write(name, payload, now); }));
    if (open) w.unfold(true);
    if (waiting) return;
    space.used[name] = true;
    if (SIDES.includes(name)) together();
    else if (!(name === "main" && fresh && !other && !initial.has("text"))) write(name, payload, w.state(), !!payload.serial);
  }

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
    const at = all[side].model.place(state.layer); // models of different depth show one layer each: then the places agree, not the numbers
    space.busy = true;
    all.forEach((w, k) => {
      if (k === side) return;
      w.pins = chosen.map((at) => (k === 2 ? at : pairs[at][k]));
      const norm = w.model.signed && state.norm === "row" ? "none" : state.norm;
      const view = state.view === "paths" && w.model.signed ? {} : { view: state.view };
      w.set({ layer: w.model.layers[Math.min(at, w.model.depth - 1)], specials: state.specials, diagonal: state.diagonal, norm, k: state.k, ...(side === 2 ? {} : { cmap: state.cmap }), ...view, ...(w.model.scopes.includes(state.scope) ? { scope: state.scope } : {}) });
    });
    space.busy = false;
    correlation(first, second, gap, chosen);
    // with "row" and the paths only the sides know them: take the options from the first side
    write("difference", { ...gap.p, query: { ...gap.p.query, tab: "compare" } }, { ...first.state(), layer: gap.s.layer, pin: chosen.join(".") });
  }
  function correlation(first, second, gap, chosen) {
    const place = document.querySelector("#rank-correlation"), pairs = gap.p.pairs;
    if (!place) return;
    place.dataset.value = "";
    if (!chosen.length) { place.textContent = "Choose a target in one of the maps to see the rank correlation of its rows."; return; }
    const sum = (w, side) => { const raw = w.model.raw(w.s.scope, w.model.place(w.s.layer)); return pairs.map((p) => chosen.reduce((all, at) => all + raw[pairs[at][side] * w.model.n + p[side]], 0)); };
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
