// The finding in words and the strongest paths.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  content,
  headPhrases,
  littleWords,
  phrases,
  reach,
  sentence,
  times,
} from "../../ctxmix_hf/viz/js/finding.js";
import { strongest } from "../../ctxmix_hf/viz/js/paths.js";

const means = "ALTI, all six layers";
const said = (over) =>
  sentence({
    names: ["keys", "cabinet", "[MASK]"],
    row: [0.23, 0.115, 0.655],
    own: [2],
    whole: 1,
    isSigned: false,
    targets: ["[MASK]"],
    means,
    ...over,
  });

test("a row in words", () => {
  assert.equal(
    said({}),
    `[MASK] took 23 % from keys, twice as much as from cabinet; 66 % is its own (${means}).`,
  );
  assert.equal(said({ row: [0, 0, 1] }), `[MASK] took nothing from other tokens (${means}).`);
  assert.equal(
    said({ row: [2.3, 0, 7.7], whole: 10 }),
    `[MASK] took 23 % from keys, and nothing from any other token; 77 % is its own (${means}).`,
  );
  assert.equal(said({ targets: [] }), "");
});

test("words are set off from the prose, whatever they are", () => {
  const parts = phrases({
    names: ["<b>", "twice", "[MASK]"],
    row: [0.2, 0.1, 0.7],
    own: [2],
    whole: 1,
    targets: ["[MASK]"],
    means,
  });
  const words = parts.filter((part) => part.word).map((part) => part.word);
  assert.deepEqual(words, ["[MASK]", "<b>", "twice"]);
  assert.ok(parts.every((part) => part.word || typeof part === "string"));
});

test("the first source is set against a word with content, where there is one", () => {
  const names = ["books", "about", ".", "[SEP]", "old", "[MASK]"];
  const row = [0.3, 0.16, 0.15, 0.14, 0.1, 0.15];
  assert.match(said({ names, row, own: [5] }), /from books, three times as much as from old;/);
  const none = said({ names: ["keys", "the", "."], row: [0.4, 0.2, 0.4], own: [2] });
  assert.match(none, /40 % from keys, twice as much as from the;/); // else against what comes next
  assert.match(said({ names: [".", "keys", "[MASK]"] }), /took 23 % from “.”, twice as much/);
  const zero = said({ names: ["keys", "the", "cat", "."], row: [0.4, 0.2, 0, 0.4], own: [3] });
  assert.match(zero, /from the;/);
  const kinds = { Keys: true, The: false, "[MASK]": false, "</s>": false, ",": false, 42: true };
  for (const [name, is] of Object.entries(kinds)) assert.equal(content(name), is, name);
  assert.equal(content("not"), true);
  assert.equal(content("ספר"), true);
});

test("a long word beside what it would get if all pieces gave the same", () => {
  assert.match(said({ even: [0.5, 0.25, 0.25] }), /23 % from keys \(all-equal: 50 %\), twice/);
});

test("a difference has two sides", () => {
  assert.equal(
    said({ row: [0.12, -0.05, 0], isSigned: true }),
    `On the second side [MASK] took more from keys (+0.12), less from cabinet (−0.050) (${means}).`,
  );
});

test("how many times as much", () => {
  const words = ["as much", "1.5 times as much", "twice as much", "three times as much"];
  const wanted = [...words, "7.4 times as much", "31 times as much"].map((w) => `${w} as`);
  assert.deepEqual([1.02, 1.5, 2.05, 2.97, 7.4, 31].map(times), wanted);
});

test("which layers", () => {
  const span = { within: false, first: 1, last: 6 };
  assert.equal(reach({ ...span, layer: 6 }), "all six layers");
  assert.equal(reach({ ...span, layer: 3 }), "layers 1 to 3");
  assert.equal(reach({ ...span, layer: 2, last: 2 }), "both layers");
  assert.equal(reach({ ...span, within: true, layer: 3 }), "within layer 3");
});

/** All paths by hand, for comparison. */
function every(layers, n, start) {
  let found = [{ v: 1, nodes: [start] }];
  for (let l = layers.length - 1; l >= 0; l--) {
    const next = ({ v, nodes }, j) => ({
      v: v * layers[l][nodes.at(-1) * n + j],
      nodes: [...nodes, j],
    });
    found = found.flatMap((path) => Array.from({ length: n }, (_, j) => next(path, j)));
  }
  return found.sort((a, b) => b.v - a.v);
}

test("the strongest paths are whole, the strongest, and their share is stated", () => {
  const [n, k] = [4, 5];
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const layers = Array.from({ length: 3 }, () => {
    const m = Float32Array.from({ length: n * n }, random);
    for (let i = 0; i < n; i++) {
      const sum = m.slice(i * n, i * n + n).reduce((a, b) => a + b);
      for (let j = 0; j < n; j++) m[i * n + j] /= sum;
    }
    return m;
  });
  const best = every(layers, n, 2).slice(0, k);
  const { edges, share, paths } = strongest(layers, n, [2], k);
  const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9);
  assert.equal(paths, k);
  near(
    share,
    best.reduce((sum, path) => sum + path.v, 0),
  );
  const ways = ({ nodes }) => nodes.slice(1).map((j, at) => `${2 - at}.${nodes[at]}.${j}`);
  assert.deepEqual(new Set(edges.map((e) => `${e.l}.${e.i}.${e.j}`)), new Set(best.flatMap(ways)));
  for (const l of [0, 1, 2]) {
    near(
      edges.filter((e) => e.l === l).reduce((sum, e) => sum + e.v, 0),
      share,
    );
  }
});

test("the little words of the text's own language are passed over", () => {
  const texts = {
    // what stands beside the first source: a little word with more, then a word with content
    German: ["Die", "Schlüssel", "zu", "dem", "Schrank", "[MASK]", "alt", "."],
    French: ["Les", "clés", "de", "l", "armoire", "[MASK]", "vieilles", "."],
    Hebrew: ["המפתחות", "מפתחות", "של", "על", "הארון", "[MASK]", "ישנים", "."],
    Arabic: ["هذه", "مفاتيح", "في", "من", "الخزانة", "[MASK]", "قديمة", "."],
    Russian: ["Это", "ключи", "от", "с", "шкаф", "[MASK]", "старые", "."],
  };
  const row = [0.05, 0.3, 0.2, 0.16, 0.1, 0.1, 0.04, 0.05];
  for (const [language, names] of Object.entries(texts)) {
    const made = said({ names, row, own: [5] });
    assert.ok(made.includes(`three times as much as from ${names[4]};`), `${language}: ${made}`);
  }
  // a word that is little in one language only: German "die", English "die"
  assert.equal(content("die", littleWords(["They", "die", "of", "the", "cold"])), true);
  assert.equal(content("die", littleWords(["Die", "Frau", "und", "die", "Katze"])), false);
  assert.equal(content("die", littleWords(["die", "Katze"])), false);
  assert.equal(littleWords(["agglutinatív", "szó"]).size, 0); // a language without a list: none is passed over
  const apart = (word) => `\u2068${word}\u2069`; // as right-to-left words stand in a sentence
  assert.equal(content(apart("של"), littleWords(["ספר", "של"].map(apart))), false);
});

test("all heads of a layer in words", () => {
  const heads = (rows, over) =>
    headPhrases({
      names: ["keys", "cabinet", "[MASK]"],
      rows,
      wholes: rows.map(() => 1),
      own: [2],
      targets: ["[MASK]"],
      means: "Attention, within layer 3",
      ...over,
    })
      .map((part) => part.word ?? part)
      .join("");
  const rows = [
    [0.1, 0.3, 0.6],
    [0.5, 0.2, 0.3],
    [0.25, 0.1, 0.65],
  ];
  const after = "(Attention, within layer 3).";
  assert.equal(
    heads(rows),
    `In head 1 [MASK] took 50 % from keys, twice as much as in head 2; two of three heads take most from it ${after}`,
  );
  assert.match(heads(rows, { wholes: [1, 5, 1] }), /^In head 0 .* 30 % from cabinet, three times/);
  assert.match(
    heads(rows.slice(0, 2)),
    /five times as much as in head 0; no other head takes most/,
  );
  assert.equal(
    heads(rows.slice(1, 2)),
    `In head 1 [MASK] took 50 % from keys ${after}`.replace("1", "0"),
  );
  assert.match(heads([[0, 0, 1]]), /took nothing from other tokens in any head/);
  assert.match(heads([rows[1], [0, 1, 0]], { targets: [] }), /^$/);
});
