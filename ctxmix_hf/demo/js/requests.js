/* One state, one picture: every request has a number, and an answer that was overtaken is dropped. Pure; tested without a browser. */
export const ASKED = ["model", "method", "text", "pair", "options", "part"];

/** Do two requests ask for the same picture? A field that is missing says nothing. */
export const same = (a, b) => ASKED.every((key) => (a[key] || "") === (b[key] || ""));

/** Do the page's fields still say what an answer says they said? A field that is not there says nothing. */
export const agrees = (said, field) =>
  Object.entries(said || {}).every(([id, value]) => [null, value].includes(field(id)));

export class Requests {
  constructor(now = Date.now) {
    this.now = now;
    this.serials = {}; // by slot: the number of the last request
    this.keys = {}; // by slot: what was asked for last
    this.shown = {}; // by slot: the number of the answer that stands there
    this.dropped = 0;
    this.wanted = null; // what the map is being computed for
  }

  /** A new request; its number goes with it and comes back with the answer. The same one again, while it is
      on its way (Gradio may say twice that a field changed), keeps its number. */
  ask(slot, asked = null, key = "") {
    const again =
      key && this.keys[slot] === key && (this.serials[slot] || 0) > (this.shown[slot] || 0);
    if (again) return String(this.serials[slot]);
    this.keys[slot] = key;
    this.serials[slot] = (this.serials[slot] || 0) + 1;
    if (slot === "main") {
      this.wanted = asked;
      this.since = this.now();
    }
    return String(this.serials[slot]);
  }

  /** Is this answer overtaken by a newer request? */
  late(slot, serial) {
    const number = Number(serial || 0);
    if (number < (this.serials[slot] || 0)) {
      this.dropped += 1;
      return true;
    }
    this.shown[slot] = number;
    return false;
  }

  /** What was asked for this slot belongs to another picture now: its answer, if it comes, is late. */
  overtake(slot) {
    this.serials[slot] = (this.serials[slot] || 0) + 1;
    this.shown[slot] = this.serials[slot];
    this.keys[slot] = "";
  }

  answered() {
    this.wanted = null;
  }

  /** Nobody waits for the map any more: its answer, if it comes, is late. */
  cancel() {
    this.serials.main = (this.serials.main || 0) + 1;
    this.keys.main = "";
    this.wanted = null;
  }

  /** Whole seconds the map has been waited for. */
  waited() {
    return this.wanted ? Math.floor((this.now() - this.since) / 1000) : 0;
  }

  /** Is an answer for this part of the page on its way? What follows the map waits for the map first. */
  waits(slot) {
    return !!this.wanted || (this.serials[slot] || 0) > (this.shown[slot] || 0);
  }

  /** How the picture of `shown` stands to the fields: "fresh", "stale" (typed, not asked for) or "pending". */
  stands(shown, fields, opening = false) {
    if (this.wanted || opening) return "pending";
    return same(shown || {}, fields) ? "fresh" : "stale";
  }
}
