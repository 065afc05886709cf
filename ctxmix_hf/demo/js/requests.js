/* One state, one picture: every request has a number, and an answer that was overtaken is dropped. Pure; tested without a browser. */
export const ASKED = ["model", "method", "text", "pair", "options", "part"];

/** Do two requests ask for the same picture? A field that is missing says nothing. */
export const same = (a, b) => ASKED.every((key) => (a[key] || "") === (b[key] || ""));

/** Do the page's fields still say what an answer says they said? A field that is not there says nothing. */
export const agrees = (said, field) =>
  Object.entries(said || {}).every(([id, value]) => [null, value].includes(field(id)));

/** What is computed after the map when the map's fields change, and so waits for it. */
const AFTER = ["why", "similarity", "ranking", "compare"];

export class Requests {
  constructor(now = Date.now) {
    this.now = now;
    this.serials = {}; // by slot: the number of the last request
    this.keys = {}; // by slot: what was asked for last
    this.shown = {}; // by slot: the number of the answer that stands there
    this.since = {}; // by slot: when it was asked for
    this.opening = {}; // by slot: a link's answer, which has no number, is on its way
    this.said = {}; // by slot: how far the server says it is
    this.dropped = 0;
    this.halted = false; // the map was stopped: nothing follows it
  }

  /** A new request; its number goes with it and comes back with the answer. The same one again, while it is
      on its way (Gradio may say twice that a field changed), keeps its number. */
  ask(slot, key = "") {
    if (slot === "main") this.halted = false;
    if (key && this.keys[slot] === key && this.numbered(slot)) return String(this.serials[slot]);
    this.keys[slot] = key;
    this.serials[slot] = (this.serials[slot] || 0) + 1;
    this.since[slot] = this.now();
    delete this.said[slot];
    return String(this.serials[slot]);
  }

  /** A link asked the server for this part of the page. */
  open(slot) {
    this.opening[slot] = true;
    this.since[slot] = this.now();
  }

  /** Is this answer overtaken by a newer request? `more`: the server says how far it is, the answer is yet to come. */
  late(slot, serial, more = null) {
    const number = Number(serial || 0);
    if (number < (this.serials[slot] || 0)) {
      this.dropped += 1;
      return true;
    }
    this.said[slot] = more;
    if (more) return false;
    this.shown[slot] = number;
    return false;
  }

  /** What a link asked for has come. */
  settle(slot) {
    delete this.opening[slot];
  }

  /** Nobody waits for this any more (it was stopped, or belongs to another picture now): its answer, if it comes, is late. */
  overtake(slot) {
    this.serials[slot] = (this.serials[slot] || 0) + 1;
    this.shown[slot] = this.serials[slot];
    this.keys[slot] = "";
    delete this.opening[slot];
    delete this.said[slot];
  }

  /** The same, because somebody said so; what the server is to stop: a part of the page, and up to which request. */
  stop(slot) {
    const until = `${slot}:${this.serials[slot] || 0}`;
    this.overtake(slot);
    if (slot === "main") this.halted = true;
    return until;
  }

  numbered(slot) {
    return (this.serials[slot] || 0) > (this.shown[slot] || 0);
  }

  /** Is an answer on its way: to this part of the page itself? */
  own(slot) {
    return this.numbered(slot) || !!this.opening[slot];
  }

  /** What has to be answered before this part of the page is: itself, the map that comes before it, or nothing. */
  waits(slot) {
    if (this.own(slot)) return slot;
    return AFTER.includes(slot) && this.own("main") ? "main" : "";
  }

  /** Whole seconds this has been waited for. */
  waited(slot) {
    return this.own(slot) ? Math.floor((this.now() - this.since[slot]) / 1000) : 0;
  }

  /** How the picture of `shown` stands to the fields: "fresh", "stale" (typed, not asked for) or "pending". */
  stands(shown, fields) {
    if (this.own("main")) return "pending";
    return same(shown || {}, fields) ? "fresh" : "stale";
  }
}
