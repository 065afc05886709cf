/* Everything the page shows is in its address. Pure; tested without a browser. */
export const PREFIX = {
  main: "",
  first: "c.",
  second: "c.",
  difference: "c.",
  image: "i.",
  precomputed: "p.",
};
// Version 2 says that layers count from 1. Links without a version were written from 1 as well (since the page's first day), so
// nothing is converted; a newer page that counts otherwise must raise the number and convert here.
const LINK_VERSION = "2";

/** The version last, and only where there is anything to version. */
export function stamped(q) {
  q.delete("v");
  if (q.toString()) q.set("v", LINK_VERSION);
  return q;
}

const OWN = {
  why: ["word", "foil", "plain", "rule"],
  embeddings: ["a", "b", "documents"],
  compare: ["mode", "other_model", "other_method", "other_text", "other_options", "agree"],
  image: ["picture", "vision", "vision_method"],
  precomputed: ["store", "split", "search", "id", "store_method"],
};
const MARKS = { compare: "c.", image: "i.", precomputed: "p." };

/** Of an address only what this tab reads: what other tabs left there is no part of the view. */
export function ofTab(q, tab) {
  const owner = (key) =>
    Object.keys(OWN).find((name) => OWN[name].includes(key)) ||
    Object.keys(MARKS).find((name) => key.startsWith(MARKS[name]));
  for (const key of [...q.keys()]) if (![undefined, tab].includes(owner(key))) q.delete(key);
  return q;
}

/** An address with some entries changed; an empty one is taken out. */
export function merged(search, entries) {
  const q = new URLSearchParams(search);
  for (const [key, value] of Object.entries(entries)) {
    if (value === "" || value === null || value === undefined) q.delete(key);
    else q.set(key, value);
  }
  return stamped(q);
}

/** A widget's options as they stand in the address; what is as it starts is left out. */
export function entries(name, payload, state, defaults) {
  const out = {};
  const before = PREFIX[name];
  for (const key of Object.keys(defaults)) {
    const value = state[key];
    const start = key === "view" && payload.image ? "image" : defaults[key];
    const usual =
      String(value) === String(start) ||
      (key === "layer" && value === payload.layers[payload.depth - 1]) ||
      (key === "pin" && value === payload.pin);
    out[before + key] = usual ? "" : key === "pin" && value === "" ? "none" : value;
  }
  if (state.pin === "" && payload.pin !== "") out[before + "pin"] = "none";
  return out;
}

/** The options a link gives a widget. */
export function fromLink(name, search, defaults) {
  const q = new URLSearchParams(search);
  const before = PREFIX[name];
  const found = Object.keys(defaults).filter((key) => q.has(before + key));
  return Object.fromEntries(found.map((key) => [key, q.get(before + key)]));
}
