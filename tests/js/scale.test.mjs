// Numbers on their way, what a state shows of them, and where its colours end.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  hue,
  inkOn,
  luminance,
  MAPS,
  palette,
  shade,
  veil,
  veiled,
} from "../../ctxmix_hf/viz/js/colours.js";
import { DEFAULTS, Model } from "../../ctxmix_hf/viz/js/model.js";
import { extreme, halves, number, product, shares } from "../../ctxmix_hf/viz/js/numbers.js";

/** Half floats in base64, of values that have an exact one. */
function packed(values) {
  const words = values.map((v) => {
    if (!v) return 0;
    const e = Math.floor(Math.log2(Math.abs(v)));
    return (v < 0 ? 0x8000 : 0) | ((e + 15) << 10) | Math.round((Math.abs(v) / 2 ** e - 1) * 1024);
  });
  return btoa(words.map((w) => String.fromCharCode(w & 255, w >> 8)).join(""));
}
const one = [0.5, 0.25, 0.25, 0.125, 0.75, 0.125, 0.25, 0.25, 0.5];
const two = [0.25, 0.5, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25];
const payload = {
  tokens: ["[CLS]", "ca", "##t"],
  words: ["[CLS]", "cat"],
  groups: [[0], [1, 2]],
  special: [true, false, false],
  depth: 2,
  maps: { layer: { data: packed([...one, ...two]), scale: [1, 1] }, input: { shares: false } },
};
const state = (over) => ({ ...DEFAULTS, ...over });

test("half floats come back", () => {
  assert.deepEqual(Array.from(halves(packed([1, -0.5, 0, 0.0625]))), [1, -0.5, 0, 0.0625]);
});

test("a rollout is the product of its layers", () => {
  const made = new Model(payload);
  assert.deepEqual(Array.from(made.raw("input", 1)), Array.from(product(two, one, 3)));
  const rows = Array.from(shares([2, 2, 1, 3], 2));
  assert.deepEqual(rows, [0.5, 0.5, 0.25, 0.75]);
});

test("words: sources are added up, targets averaged, hiding changes no value", () => {
  const made = new Model(payload);
  assert.deepEqual(Array.from(made.matrix(state({}), "layer", 0)), [0.5, 0.5, 0.1875, 0.8125]);
  assert.deepEqual(Array.from(made.matrix(state({ specials: 0 }), "layer", 0)), [0.8125]);
  assert.deepEqual(made.even(state({}), 1), [1 / 3, 2 / 3]);
});

test("a text of nothing but special tokens is shown all the same", () => {
  const made = new Model({ ...payload, special: [true, true, true] });
  assert.equal(made.groups(state({ specials: 0 })).length, 2);
});

test("a token's own part is left out of the scale unless it is asked for", () => {
  const made = new Model(payload);
  assert.equal(made.top(state({ unit: "piece" }), "layer", 0), 0.25);
  assert.equal(made.top(state({ unit: "piece", diagonal: 1 }), "layer", 0), 0.75);
});

test("heads of a layer", () => {
  const heads = { count: 2, data: packed([...one, ...two, ...two, ...one]), scale: [1, 1, 1, 1] };
  const made = new Model({ ...payload, heads });
  assert.deepEqual(Array.from(made.head(state({ unit: "piece" }), 1, 0)), two);
});

test("layers by number, from the end, and none", () => {
  const made = new Model({ ...payload, layers: [3, 4] });
  assert.deepEqual(
    [3, -1, 1].map((l) => made.layer(l)),
    [3, 4, undefined],
  );
});

test("colours: lightness never turns back, zero of a signed scale is neutral", () => {
  for (const name of MAPS) {
    for (const dark of [false, true]) {
      const table = palette(name, false, dark);
      const at = (k) => luminance(Array.from(table.subarray(3 * k, 3 * k + 3)));
      const way = Math.sign(at(255) - at(0));
      for (let k = 8; k < 256; k += 8)
        assert.ok(way * (at(k) - at(k - 8)) > -0.005, `${name} ${k}`);
    }
  }
  const [r, g, b] = shade(palette("blues", true, false), 0, 1, true);
  assert.ok(Math.max(r, g, b) - Math.min(r, g, b) < 8 && r > 240);
});

test("text on any colour of any scale has a contrast of 4.5 to 1", () => {
  for (const name of MAPS) {
    for (const [signed, dark] of [
      [false, false],
      [false, true],
      [true, false],
      [true, true],
    ]) {
      const table = palette(name, signed, dark);
      for (let k = 0; k < 256; k++) {
        const light = luminance(Array.from(table.subarray(3 * k, 3 * k + 3)));
        const ink = inkOn(Array.from(table.subarray(3 * k, 3 * k + 3))) === "#000" ? 0 : 1;
        const contrast = (Math.max(light, ink) + 0.05) / (Math.min(light, ink) + 0.05);
        assert.ok(contrast >= 4.5, `${name} ${k}: ${contrast}`);
      }
    }
  }
});

test("numbers as people read them", () => {
  assert.deepEqual([0, 0.12345, 123.456, 2e-6].map(number), [
    "0.0000",
    "0.1235",
    "123.5",
    "2.00e-6",
  ]);
  assert.equal(extreme([-3, NaN, 2, Infinity]), 3);
});

test("over a picture one hue grows with the value, and the legend is the same on a middle grey", () => {
  for (const name of MAPS) {
    const colour = hue(name, false);
    const table = veiled(colour);
    for (const [value, top] of [
      [0, 2],
      [0.5, 2],
      [1, 2],
      [2, 2],
    ]) {
      const share = veil(value, top);
      assert.ok(Math.abs(share - (0.85 * value) / top) < 1e-9); // linear
      const seen = colour.map((c) => 128 * (1 - share) + c * share);
      shade(table, value, top, false).forEach((c, k) => assert.ok(Math.abs(c - seen[k]) <= 1));
    }
  }
  assert.deepEqual([veil(3, 2), veil(-1, 2)], [0.85, 0]);
});
