// The finding in words and the strongest paths, without a browser: `node --test tests/js`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";

globalThis.ctxmix = {};
for (const name of ["finding", "paths"]) {
  vm.runInThisContext(readFileSync(new URL(`../../ctxmix_hf/viz/${name}.js`, import.meta.url), "utf8"));
}
const { sentence, times, reach } = globalThis.ctxmix.finding;
const said = (over) =>
  sentence({ names: ["keys", "cabinet", "[MASK]"], row: [0.23, 0.115, 0.655], own: [2], whole: 1, isSigned: false, targets: ["[MASK]"], means: "ALTI, all six layers", ...over });

test("a row in words", () => {
  assert.equal(said({}), "[MASK] took 23 % from keys, twice as much as from cabinet; 66 % is its own (ALTI, all six layers).");
  assert.equal(said({ row: [0, 0, 1] }), "[MASK] took nothing from other tokens (ALTI, all six layers).");
  assert.equal(said({ row: [2.3, 0, 7.7], whole: 10 }), "[MASK] took 23 % from keys, and nothing from any other token; 77 % is its own (ALTI, all six layers).");
  assert.equal(said({ targets: [] }), "");
});

test("a difference has two sides", () => {
  assert.equal(said({ row: [0.12, -0.05, 0], isSigned: true }), "On the second side [MASK] took more from keys (+0.12), less from cabinet (−0.050) (ALTI, all six layers).");
});

test("how many times as much", () => {
  assert.deepEqual([1.02, 1.5, 2.05, 2.97, 7.4, 31].map(times), ["as much as", "1.5 times as much as", "twice as much as", "three times as much as", "7.4 times as much as", "thirty-one"].map((words, k) => (k === 5 ? "31 times as much as" : words)));
});

test("which layers", () => {
  assert.equal(reach({ within: false, layer: 6, first: 1, last: 6 }), "all six layers");
  assert.equal(reach({ within: false, layer: 3, first: 1, last: 6 }), "layers 1 to 3");
  assert.equal(reach({ within: true, layer: 3, first: 1, last: 6 }), "within layer 3");
});

/** All paths by hand, for comparison. */
function every(layers, n, start) {
  let found = [{ v: 1, nodes: [start] }];
  for (let l = layers.length - 1; l >= 0; l--) found = found.flatMap(({ v, nodes }) => Array.from({ length: n }, (_, j) => ({ v: v * layers[l][nodes.at(-1) * n + j], nodes: [...nodes, j] })));
  return found.sort((a, b) => b.v - a.v);
}

test("the strongest paths are whole, the strongest, and their share is stated", () => {
  const n = 4, k = 5;
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const layers = Array.from({ length: 3 }, () => { const m = Float32Array.from({ length: n * n }, random); for (let i = 0; i < n; i++) { const sum = m.slice(i * n, i * n + n).reduce((a, b) => a + b); for (let j = 0; j < n; j++) m[i * n + j] /= sum; } return m; });
  const best = every(layers, n, 2).slice(0, k), { edges, share, paths } = globalThis.ctxmix.strongest(layers, n, [2], k);
  assert.equal(paths, k);
  assert.ok(Math.abs(share - best.reduce((sum, path) => sum + path.v, 0)) < 1e-9);
  const wanted = new Set(best.flatMap(({ nodes }) => nodes.slice(1).map((j, at) => `${2 - at}.${nodes[at]}.${j}`)));
  assert.deepEqual(new Set(edges.map((e) => `${e.l}.${e.i}.${e.j}`)), wanted);
  for (const l of [0, 1, 2]) assert.ok(Math.abs(edges.filter((e) => e.l === l).reduce((sum, e) => sum + e.v, 0) - share) < 1e-9);
});
