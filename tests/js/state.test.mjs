// One state, one picture: the page's requests, its address and its comparison's numbers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { entries, fromLink, merged, ofTab } from "../../ctxmix_hf/demo/js/address.js";
import { readOptions, writeOptions } from "../../ctxmix_hf/demo/js/options.js";
import { spearman } from "../../ctxmix_hf/demo/js/ranks.js";
import { agrees, Requests, same } from "../../ctxmix_hf/demo/js/requests.js";
import { DEFAULTS } from "../../ctxmix_hf/viz/js/model.js";

const old = { model: "m", method: "alti", text: "old", pair: "", options: "" };
const asked = { ...old, text: "new" };

test("typed, asked for, answered", () => {
  let now = 0;
  const r = new Requests(() => now);
  assert.equal(r.stands(old, old), "fresh");
  assert.equal(r.stands(old, asked), "stale");
  const serial = r.ask("main");
  now = 2500;
  assert.equal(r.waited("main"), 2);
  assert.equal(r.stands(old, asked), "pending");
  assert.equal(r.late("main", serial), false);
  assert.equal(r.stands(asked, asked), "fresh");
  assert.equal(r.waited("main"), 0);
});

test("an answer that was overtaken is dropped, in whatever order they come", () => {
  const r = new Requests();
  const [one, two] = [r.ask("main"), r.ask("main")];
  assert.deepEqual(
    [r.late("main", one), r.late("main", two), r.late("main", one)],
    [true, false, true],
  );
  assert.equal(r.dropped, 2);
});

test("so it is everywhere, and each part of the page counts for itself", () => {
  const r = new Requests();
  const [one, two] = [r.ask("why"), r.ask("why")];
  assert.deepEqual(
    [r.late("why", one), r.late("why", two), r.late("why", one)],
    [true, false, true],
  );
  assert.equal(r.late("similarity", r.ask("similarity")), false);
});

test("the same request twice has one number until it is answered", () => {
  const r = new Requests();
  const serial = r.ask("why", "a");
  assert.equal(r.ask("why", "a"), serial);
  assert.notEqual(r.ask("why", "b"), serial);
  r.late("why", "2");
  assert.equal(r.ask("why", "b"), "3");
});

test("a part of the page waits for its own answer, and for the map's", () => {
  const r = new Requests();
  assert.equal(r.waits("why"), "");
  const serial = r.ask("why");
  assert.equal(r.waits("why"), "why");
  r.late("why", serial);
  assert.equal(r.waits("why"), "");
  r.ask("main");
  assert.equal(r.waits("why"), "main");
  assert.equal(r.waits("image"), ""); // which has nothing to do with it
});

test("an answer agrees with fields that say what it says they said", () => {
  const fields = { model: "m", text: "new" };
  const field = (id) => (id in fields ? fields[id] : null);
  assert.equal(agrees({ model: "m", text: "new", "not-there": "x" }, field), true);
  assert.equal(agrees({ model: "m", text: "old" }, field), false);
  assert.equal(agrees(undefined, field), true);
});

test("what was stopped does not come back", () => {
  const r = new Requests();
  const serial = r.ask("main");
  assert.equal(r.stop("main"), `main:${serial}`);
  assert.equal(r.stands(old, old), "fresh");
  assert.equal(r.late("main", serial), true);
  assert.equal(r.halted, true); // and nothing follows it
  r.ask("main");
  assert.equal(r.halted, false);
});

test("how far it is is no answer yet", () => {
  const r = new Requests();
  const serial = r.ask("agreement");
  const progress = { done: 1, of: 3, said: "1 of 3 methods" };
  assert.equal(r.late("agreement", serial, progress), false);
  assert.deepEqual([r.said.agreement, r.waits("agreement")], [progress, "agreement"]);
  assert.equal(r.late("agreement", serial), false);
  assert.deepEqual([r.said.agreement, r.waits("agreement")], [null, ""]);
});

test("what a link asked for is waited for until it is there, or was stopped", () => {
  let now = 0;
  const r = new Requests(() => now);
  r.open("why");
  now = 1200;
  assert.deepEqual([r.waits("why"), r.waited("why")], ["why", 1]);
  assert.equal(r.late("why", ""), false);
  r.settle("why");
  assert.equal(r.waits("why"), "");
  r.open("why");
  assert.equal(r.stop("why"), "why:0");
  assert.equal(r.waits("why"), "");
  assert.equal(r.late("why", ""), true);
});

test("an error leaves the fields asking for something else", () => {
  const r = new Requests();
  r.late("main", r.ask("main"));
  assert.equal(r.stands(old, { ...old, model: "refused" }), "stale");
});

test("options are part of what is asked", () => {
  assert.equal(same(old, { ...old, options: "norm=2" }), false);
  assert.equal(same({ text: "a" }, { text: "a", pair: "" }), true);
});

test("the address holds what is not as it starts, and reopens it", () => {
  const payload = { layers: [1, 2, 3], depth: 3, pin: "2" };
  const state = { ...DEFAULTS, layer: 2, cmap: "magma", pin: "" };
  const held = merged("?text=a%20b&layer=9", entries("main", payload, state, DEFAULTS));
  assert.equal(held.toString(), "text=a+b&layer=2&cmap=magma&pin=none&v=2");
  assert.deepEqual(fromLink("main", held, DEFAULTS), { layer: "2", cmap: "magma", pin: "none" });
  const bare = entries("main", payload, { ...DEFAULTS, layer: 3, pin: "2" }, DEFAULTS);
  assert.equal(merged("", bare).toString(), "");
  assert.deepEqual(fromLink("image", "?i.layer=3&layer=1", DEFAULTS), { layer: "3" });
});

test("a method's settings as text, without what is as it starts", () => {
  const known = [
    { name: "distance", start: "cosine" },
    { name: "per_head", start: "0" },
  ];
  const chosen = readOptions("distance=euclidean, per_head=0, gone=1");
  assert.equal(writeOptions(chosen, known), "distance=euclidean");
});

test("rank correlation, with ties", () => {
  assert.equal(spearman([1, 2, 3], [10, 20, 30]), 1);
  assert.equal(spearman([1, 2, 3], [3, 2, 1]), -1);
  assert.ok(Math.abs(spearman([1, 2, 2, 4], [1, 2, 3, 4]) - 0.9486832980505138) < 1e-12);
  assert.ok(Number.isNaN(spearman([1, 1], [1, 2])));
});

test("a link holds what its tab reads, not what other tabs left in the address", () => {
  const q = () => new URLSearchParams("tab=why&text=t&word=are&mode=x&c.layer=2&id=3&layer=4&v=2");
  assert.equal(ofTab(q(), "why").toString(), "tab=why&text=t&word=are&layer=4&v=2");
  assert.equal(ofTab(q(), "compare").toString(), "tab=why&text=t&mode=x&c.layer=2&layer=4&v=2");
});
