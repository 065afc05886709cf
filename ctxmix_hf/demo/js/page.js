/* The page around the widgets: puts answers where they belong and keeps every view in the address. */
import { entries, fromLink, merged, ofTab, stamped } from "./address.js";
import { Comparison, SIDES } from "./compare.js";
import { settings, type } from "./options.js";
import { agrees, ASKED, Requests } from "./requests.js";
import { tour } from "./tour.js";
import { wait } from "./waits.js";

const cm = window.ctxmix;
const initial = new URLSearchParams(location.search); // what the link asked for
const widgets = {};
const used = {}; // widgets that have shown something: the link's options are spent
const last = {}; // by widget: the last payload
const panels = {}; // by name: the place of the server's own HTML, and the fields it belongs to
const places = {}; // by slot: where its picture stands
const html = {}; // what belongs where; made, and escaped, by panels.py
const requests = new Requests();
const linked = initial.has("c.pin") ? initial.get("c.pin") : null;
const comparison = new Comparison(widgets, linked, (payload, state) =>
  write("difference", payload, state),
);
const space = {
  widgets,
  requests,
  methods: {}, // by label, as the list shows them
  options: {}, // by method: what can be set
  reasons: [], // model, text, and what "Why this output?" asks of that example: a word, and one it is set against
  get dropped() {
    return requests.dropped;
  },
};

// ---- the address ----
const current = () => new URLSearchParams(location.search).get("tab") || "map";

/** A step is something Back undoes. */
space.put = (changed, step) => {
  const text = merged(location.search, changed).toString();
  const to = text ? "?" + text : location.pathname;
  const moved = text !== new URLSearchParams(location.search).toString();
  if (step && moved) history.pushState(null, "", to);
  else history.replaceState(null, "", to);
};
window.addEventListener("popstate", () => location.reload()); // the address holds the whole view

const write = (name, payload, state, step) =>
  space.put({ ...(payload.query || {}), ...entries(name, payload, state, cm.DEFAULTS) }, step);

// The page opens on the map and goes to the link's tab when the server has answered; until then the address stays.
const FILLED = {
  compare: () => "compare" in requests.shown,
  why: () => "why" in requests.shown,
  embeddings: () => "ranking" in requests.shown,
  image: () => "image" in requests.shown,
  precomputed: () => "precomputed" in requests.shown,
};
let arrived = false;
space.tab = (name) => {
  const to = initial.get("tab");
  if (to === name || !FILLED[to]) arrived = true;
  if (arrived) space.put({ tab: name === "map" ? "" : name });
  document.body.dataset.tab = name;
  return name;
};

/** "link" while the server is filling this tab because a link asked for it, "shown" where nothing is to be done. */
space.opening = (name, slot) => {
  if (initial.get("tab") === name && !FILLED[name]()) return "link";
  const said = saidBy(slot);
  return said && agrees(said, field) ? "shown" : name;
};

/** The whole view, also what nobody has touched yet. */
space.asked = () => {
  const main = widgets.main;
  if (!main) return merged(location.search, {}).toString();
  const state = entries("main", main.p, main.state(), cm.DEFAULTS);
  const q = merged(location.search, current() === "map" ? { ...main.p.query, ...state } : {});
  for (const [key, value] of Object.entries(main.p.query || {})) {
    if (!q.has(key) && value !== "") q.set(key, value);
  }
  q.delete("embed");
  return stamped(ofTab(q, current())).toString();
};

space.link = () => {
  const box = document.querySelector("#share-link textarea, #share-link input"); // its label names the copy button instead
  if (box) box.setAttribute("aria-label", "Link to this view");
  return location.origin + location.pathname + "?" + space.asked();
};

/** The view of the open tab's map as it is now, also where it is as it starts: what a file of it follows. */
space.view = () => {
  const shows = { map: "main", compare: "difference", image: "image", precomputed: "precomputed" };
  const w = widgets[shows[current()]];
  return w ? JSON.stringify({ ...w.state(), pin: w.pins.join(".") }) : "{}";
};

// ---- one state, one picture ----
space.ask = (slot, ...fields) => {
  const number = requests.ask(slot, fields.length ? JSON.stringify(fields) : "");
  refresh();
  return number;
};

/** Files of the view are asked for, and are there. */
space.prepare = () => {
  space.ask("files");
  return space.asked();
};
space.prepared = () => {
  requests.overtake("files");
  refresh();
};

/** Is this tab, which is open, to be filled again after the map? Not where the map was stopped. */
space.follows = (tab, open) => open === tab && !requests.halted;

/** Stop what this part of the page waits for, here and on the server. */
function stop(slot) {
  space.stopped = requests.stop(slot);
  refresh();
  const button = document.querySelector("#stop");
  if (button) button.click();
}

/** Beside the picture of a slot: what it waits for, and how long it has. */
function line(slot, waits) {
  const host = places[slot];
  const awaited = waits ? requests.waits(slot) : "";
  const how = { after: requests.waited(awaited), progress: requests.said[awaited] };
  if (host) wait(host, slot, awaited, how, stop);
}

/** The fields of a link: each is filled unless it was changed meanwhile, and none if what they are for was asked for. */
space.fill = (told, ids) => {
  const groups = Object.entries(JSON.parse(told || "{}"));
  const open = groups.filter(([slot]) => !requests.serials[slot]).map(([, fields]) => fields);
  const found = Object.assign({}, ...open);
  return ids.map((id) => {
    const [value, before] = found[id] || [];
    return [null, before].includes(field(id)) ? value : undefined;
  });
};

/** The map's request: its fields, and its number. */
space.main = (given) => {
  const now = given.map((value) => value || "");
  const shown = (widgets.main && widgets.main.p.query) || {};
  if (now[2].trim() !== shown.text) now[5] = "";
  return [...now, space.ask("main", ...now)];
};

/** The field of the part says what is shown; it is nobody's to type in. */
function settle(part) {
  const box = document.querySelector("#part :is(textarea, input)");
  if (!box || box.value === part) return;
  box.value = part;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Of a long text: a paragraph by its words, or all paragraphs again. */
function partOf(main) {
  const host = document.querySelector("#part-box");
  const { part } = main.p;
  const key = JSON.stringify([part, main.pins]);
  if (!host || host.dataset.shown === key) return;
  host.dataset.shown = key;
  host.textContent = "";
  if (!part) return;
  const rows = main.p.special.map((special, i) => (special ? -1 : i)).filter((i) => i >= 0);
  const at = rows.indexOf(main.pins[0]);
  const say = (text, to) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.onclick = () => type("#part :is(textarea, input)", to);
    host.append(button);
  };
  if (part.shown) say(`All ${part.unit}s`, "");
  else if (at >= 0) say(`Words of this ${part.unit}`, String(at + 1));
  const long = `A long text: rows and columns are its ${part.unit}s. Choose one to see its words.`;
  host.append(part.shown ? `${part.unit} ${part.shown} by its words` : long);
}

/** What a field of the page says; null where there is none, nothing where none of several is chosen. */
function field(name) {
  const box = document.querySelector(`#${name} :is(textarea, input:not([type="radio"]))`);
  if (box) return box.value.trim();
  const choices = [...document.querySelectorAll(`#${name} input[type="radio"]`)];
  const chosen = choices.find((choice) => choice.checked);
  return choices.length ? (chosen ? chosen.value : "") : null;
}

const slotOf = (name) => (SIDES.includes(name) ? "compare" : name);

/** The fields that the picture in a slot belongs to; null while there is none. */
function saidBy(slot) {
  const shown = panels[slot] || last[slot === "compare" ? "difference" : slot];
  return (shown && shown.fields) || null;
}

/** The word to explain and the one it is set against: an example's go with the example. */
space.reason = (model, text, word, foil) => {
  const mine = space.reasons.find((row) => row[0] === model && row[1] === text.trim());
  const an = !word || space.reasons.some((row) => row[2] === word && row[3] === foil);
  if (!an) return [word, foil];
  return mine ? mine.slice(2) : ["", ""];
};

/** What the fields say, which Gradio may change without an event; a label that is half typed says nothing. */
function fields() {
  const shown = (widgets.main && widgets.main.p.query) || {};
  const method = space.methods[field("method")];
  const now = {
    model: field("model"),
    method,
    text: field("text"),
    pair: field("pair"),
    options: field("options"),
    part: field("text") === shown.text ? field("part") : "", // a part of another text is none of this one
  };
  for (const key of ASKED)
    if (now[key] === null || now[key] === undefined) now[key] = shown[key] || "";
  return now;
}

/** A row that scrolls fades out on the side where there is more of it. */
function fades() {
  for (const row of document.querySelectorAll('#tabs [role="tablist"], #examples')) {
    const rest = row.scrollWidth - row.clientWidth - row.scrollLeft;
    row.classList.toggle("ctxmix-more", rest > 2);
    row.classList.toggle("ctxmix-before", row.scrollLeft > 2);
  }
}

const middle = (e) => e.getBoundingClientRect().left + e.getBoundingClientRect().width / 2;

/** One stop for Tab in the list of tabs, arrows within, as lists of tabs have it; Enter does what Show does. */
function stops() {
  for (const tab of document.querySelectorAll('#tabs [role="tab"]')) {
    const at = tab.getAttribute("aria-selected") === "true" ? 0 : -1;
    if (tab.tabIndex === at) continue;
    tab.tabIndex = at;
    const list = tab.closest('[role="tablist"]'); // on a phone it scrolls: the open one is in sight
    if (at === 0) list.scrollLeft += middle(tab) - middle(list);
  }
  const code = document.querySelector("#snippet .cm-scroller"); // it scrolls, so keys must reach it
  if (code && code.tabIndex !== 0) code.tabIndex = 0;
  const show = document.querySelector("#show");
  if (show && show.tabIndex !== -1) show.tabIndex = -1;
}

function walk(e) {
  // an open list that scrolls would be a stop of its own, and is gone as soon as it is reached
  if (e.key === "Tab")
    for (const list of document.querySelectorAll('ul[id$="-options"]')) list.tabIndex = -1;
  const tab = e.target.closest && e.target.closest('#tabs [role="tab"]');
  const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!tab || !step) return;
  const all = [...tab.closest('[role="tablist"]').querySelectorAll('[role="tab"]')];
  const next = all[(all.indexOf(tab) + step + all.length) % all.length];
  e.preventDefault();
  e.stopPropagation();
  next.click();
  next.focus();
}

function refresh() {
  stops();
  fades();
  const main = widgets.main;
  if (field("pair")) document.body.classList.add("ctxmix-pair");
  Object.keys(html).forEach(fill); // a place may come later than what belongs there
  const now = fields();
  settings(space, now, "#method-options", "#options");
  const other = { method: space.methods[field("other-method")], options: field("other-options") };
  if (field("mode") === "two methods" && other.method)
    settings(space, other, "#other-method-options", "#other-options");
  else clear("#other-method-options");
  others();
  places.files = document.querySelector("#files-button");
  line("files", requests.own("files"));
  if (!main) return;
  partOf(main);
  const stands = requests.stands(main.p.query, now);
  main.stale(stands !== "fresh", stands === "pending");
  line("main", stands === "pending");
  const beside = document.querySelector("#beside");
  if (beside) beside.classList.toggle("ctxmix-stale", stands !== "fresh");
}

function clear(place) {
  const host = document.querySelector(place);
  if (host && host.firstChild) {
    host.textContent = "";
    delete host.dataset.shown;
  }
}

/** Everywhere but on the map: what is not what the fields say is dimmed, and turns while its answer is on its way. */
function others() {
  for (const [name, w] of Object.entries(widgets)) {
    if (name === "main") continue;
    const slot = slotOf(name);
    const stale = !agrees(w.p.fields, field);
    const waits = !!requests.waits(slot) && (stale || slot === "image"); // one upload is like the other
    w.stale(stale || waits, waits);
    if (name === slot || name === "first") line(slot, waits);
  }
  for (const slot of ["compare", "image", "precomputed"])
    if (!widgets[slot === "compare" ? "first" : slot]) line(slot, requests.own(slot)); // nothing is there yet
  for (const [name, { host, fields: said }] of Object.entries(panels)) {
    const stale = !agrees(said, field);
    const waits = !!requests.waits(name) && (stale || !host.firstChild);
    host.setAttribute("aria-busy", String(stale || waits));
    host.classList.toggle("ctxmix-stale", stale && !!host.firstChild);
    host.classList.toggle("ctxmix-pending", waits);
    line(name, waits);
  }
}

function click(e) {
  const at = (selector) => e.target.closest && e.target.closest(selector);
  if (at("#pair-button")) {
    document.body.classList.add("ctxmix-pair");
    const box = document.querySelector("#pair textarea");
    if (box) box.focus();
  }
  if (at("#tour-button")) {
    const map = document.querySelector('#tabs [role="tab"]'); // the tour is on the map
    if (map && map.getAttribute("aria-selected") !== "true") map.click();
    tour(widgets.main);
  }
}

function place(id, made, query) {
  if (made !== undefined) html[id] = { made, query: query || {} };
  fill(id);
}

function fill(id) {
  const host = document.getElementById(id);
  if (!host || !html[id] || host.ctxmix === html[id]) return;
  host.ctxmix = html[id];
  host.innerHTML = html[id].made;
  host.dataset.text = html[id].query.text || "";
}

// ---- widgets ----
const MESSAGES = {
  main: "message",
  compare: "compare-message",
  image: "image-message",
  precomputed: "store-message",
};
space.show = (host, name, payload) => {
  if (!SIDES.includes(name) || name === "first") places[slotOf(name)] = host;
  if (!payload) {
    if (!last[name]) host.textContent = "";
    return;
  }
  if (requests.late(slotOf(name), payload.serial)) {
    if (!host.firstChild && last[name]) mount(host, name, last[name]);
    return;
  }
  place(MESSAGES[slotOf(name)], payload.error || "");
  if (name === "main") place("method-info", payload.info);
  if (payload.error) {
    requests.settle(slotOf(name));
    if (!host.firstChild && last[name]) mount(host, name, last[name]);
    refresh();
    return;
  }
  if (!payload.tokens) {
    host.textContent = "";
    delete widgets[name];
    return;
  }
  if (again(widgets[name], payload) && widgets[name].root === host) {
    refresh();
    return;
  }
  if (name === "main") {
    settle((payload.query || {}).part || "");
    place("prediction", payload.prediction, payload.query);
    if (payload.serial) forget();
  }
  last[name] = payload;
  requests.settle(slotOf(name));
  mount(host, name, payload);
  refresh();
};

/** The scores and the agreement belonged to the text before. */
function forget() {
  for (const name of ["scores-panel", "agreement"]) {
    requests.overtake(name);
    if (panels[name]) panels[name].host.textContent = "";
  }
  space.put({ scores: "", agree: "" });
}

/** A panel of the server's own HTML, with the request it belongs to. */
space.panel = (host, name, value) => {
  panels[name] = { fields: null, ...panels[name], host };
  places[name] = host;
  if (!value || requests.late(name, value.serial, value.progress)) return;
  if (!value.progress) {
    requests.settle(name);
    host.innerHTML = value.html || "";
    panels[name].fields = value.fields;
  }
  refresh();
};

/** Gradio may hand over the same value again, or a field that was left ask for it again: what was chosen in it
    since then stays, and so does the keyboard's place. */
const again = (before, payload) =>
  before &&
  JSON.stringify({ ...before.p, serial: "" }) === JSON.stringify({ ...payload, serial: "" });

/** What of the last view a new picture keeps: all of it where it is the answer to the same question. */
function kept(before, payload) {
  const state = before.state();
  if (JSON.stringify(before.p.query) === JSON.stringify(payload.query)) return state;
  delete state.pin;
  if (String(before.model.layers) !== String(payload.layers)) delete state.layer;
  if (payload.image || before.p.image) delete state.view;
  return state;
}

function mount(host, name, payload) {
  const before = widgets[name];
  // a link asks for another map than the page starts with: leave the address alone until that one arrives
  const asked = payload.query || {};
  const other = ASKED.some((key) => initial.has(key) && initial.get(key) !== (asked[key] || ""));
  const early = name === "main" && !before && other;
  const fresh = !used[name] && !early;
  const side = SIDES.includes(name);
  if (early) requests.open("main"); // the server is at it
  const state = fresh ? fromLink(name, initial, cm.DEFAULTS) : before ? kept(before, payload) : {};
  if (side) delete state.pin;
  const changed = (now) => (side ? comparison.follow(name, now) : write(name, payload, now));
  widgets[name] = cm.mount(host, payload, state, changed);
  if (before && !before.panel.hidden) widgets[name].unfold(true);
  if (early) return;
  used[name] = true;
  const opening = name === "main" && fresh && !other && !initial.has("text"); // the address stays bare
  if (side) comparison.together();
  else if (!opening) write(name, payload, widgets[name].state(), !!payload.serial);
}

space.agree = () => {
  const target = comparison.target();
  space.put({ agree: target });
  return target;
};

const OPENED = {
  why: ["why"],
  embeddings: ["similarity", "ranking"],
  compare: ["compare", ...(initial.get("agree") ? ["agreement"] : [])],
  image: ["image"],
  precomputed: ["precomputed"],
};
for (const slot of OPENED[initial.get("tab")] || []) requests.open(slot);
if (initial.get("scores")) requests.open("scores-panel");
if (initial.get("embed") === "1") document.body.classList.add("ctxmix-embed");
window.ctxmixSpace = space;
document.addEventListener("input", refresh, true);
document.addEventListener("click", click);
document.addEventListener("keydown", walk, true);
document.addEventListener("scroll", fades, true);
setInterval(refresh, 200);
