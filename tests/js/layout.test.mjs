// Where things stand: nothing wider than its box, labels that never touch, headers that stay.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as layout from "../../ctxmix_hf/viz/js/layout.js";

const { cellAt, column, pitch, plan, rightToLeft, seen, shownRow, thinned, toName, wrapped } =
  layout;
const VIEWS = ["map", "layers", "paths"];
const SIZES = [5, 20, 60, 200];
const made = (view, n, room, over = {}) =>
  plan({ view, n, depth: 6, heads: 8, widest: 90, room, ...over });

test("the canvas is never wider than its box, whatever is drawn", () => {
  for (const view of [...VIEWS, "heads"]) {
    for (const n of SIZES) {
      for (const room of [300, 366, 800, 1200]) {
        for (const zoom of [1, 4]) {
          const g = seen(made(view, n, room, { zoom }), room, 700);
          assert.ok(g.seenWidth <= room && g.seenHeight <= 700, `${view} ${n} ${room}`);
          assert.ok(g.cw >= (view === "heads" ? 0.3 : 4));
        }
      }
    }
  }
});

test("labels: all where there is room, fewer where not, and none touches another", () => {
  assert.equal(thinned(20, 30, 12).length, 20);
  for (const n of SIZES) {
    const g = made("map", n, 800);
    for (const kept of [[], [3], [3, 4], [n - 1, 0]]) {
      const shown = thinned(n, g.cw, pitch(g.slope, g.size), kept);
      for (let k = 1; k < shown.length; k++) {
        const apart = (shown[k] - shown[k - 1]) * g.cw * Math.sin(g.slope);
        assert.ok(apart >= g.size, `${n}: ${apart} < ${g.size}`);
      }
      if (kept.length) assert.ok(shown.includes(kept[0])); // what is chosen is always named
    }
  }
});

test("scrolled, the cells move and the headers stay", () => {
  const whole = made("map", 200, 366);
  const g = seen(whole, 366, 600, { x: 100, y: 50 });
  assert.deepEqual([g.sx, g.sy], [100, 50]);
  assert.equal(cellAt(g, g.x + 1, g.y + 1).col, Math.floor(101 / g.cw));
  assert.equal(cellAt(g, g.x + 1, g.y + 1).row, Math.floor(51 / g.ch));
  assert.equal(cellAt(g, g.x - 3, g.y + 1).col, undefined); // a row's label, wherever the cells are
  assert.equal(cellAt(g, g.x + 1, g.y - 3), null); // the header
  assert.equal(seen(whole, 366, 600, { x: 1e6, y: 0 }).sx, whole.width - 366);
});

test("a row that is chosen is brought into sight", () => {
  const g = seen(made("map", 200, 800), 800, 400, { x: 0, y: 0 });
  const room = 400 - g.y - g.foot;
  assert.equal(shownRow(g, 0), 0);
  assert.equal(shownRow(g, 150), 151 * g.ch - room);
});

test("zoom makes cells larger and never smaller than they were", () => {
  const [once, thrice] = [1, 3].map((zoom) => made("map", 60, 800, { zoom }));
  assert.equal(thrice.cw, 3 * once.cw);
});

test("the head under the pointer", () => {
  const g = seen(made("heads", 10, 800), 800, 2000);
  const { x, y } = g.tiles[5];
  assert.deepEqual(cellAt(g, x + 2.5 * g.cw, y + 3.5 * g.ch), { head: 5, row: 3, col: 2 });
  assert.equal(cellAt(g, x + g.tile + 3, y), null);
  const turned = seen(made("heads", 10, 800, { mirrored: true }), 800, 2000);
  assert.deepEqual(cellAt(turned, x + 2.5 * g.cw, y + 3.5 * g.ch), { head: 5, row: 3, col: 7 });
});

test("text from right to left keeps its order", () => {
  assert.equal(rightToLeft("[CLS] שלום עולם"), true);
  assert.equal(rightToLeft("(123) مرحبا"), true);
  assert.equal(rightToLeft("hello שלום"), false);
  const g = seen(made("map", 4, 800, { mirrored: true }), 800, 700);
  assert.deepEqual(
    [0, 3].map((j) => column(g, j)),
    [3, 0],
  );
  assert.equal(cellAt(g, g.x + 1, g.y + 1).col, 3);
});

test("sixty words are all named where there is a page's width", () => {
  const g = made("map", 60, 800);
  assert.ok(g.size >= 9);
  assert.equal(thinned(60, g.ch, 1.1 * g.size).length, 60);
  assert.equal(thinned(60, g.cw, pitch(g.slope, g.size)).length, 60);
});

test("of many labels the targets and the strongest sources are named first", () => {
  const value = Array.from({ length: 63 }, (_, j) =>
    j === 40 ? 9 : j === 41 ? 8 : j === 7 ? 5 : 1,
  );
  assert.deepEqual(toName([13], value, 3), [13, 40, 41, 7]);
  assert.deepEqual(toName([40], value, 2), [40, 41, 7]); // a target is no source of itself
  assert.deepEqual(toName([], [0, -3, 0, 2], 3), [1, 3]); // of a difference by size, and nothing is nobody
  const g = made("paths", 63, 366);
  const shown = thinned(63, g.cw, pitch(g.slope, 11), toName([13], value));
  for (const j of [13, 40, 7]) assert.ok(shown.includes(j), `${j} of ${shown}`);
  assert.ok(!shown.includes(41)); // beside a stronger one there is no room
});

test("a note is as many lines as its box needs", () => {
  const said =
    "The 24 strongest paths from the input to the target: 55 % of the whole. Width is contribution.";
  for (const room of [240, 326, 800]) {
    const lines = wrapped(said, room, 11);
    assert.equal(lines.join(" "), said);
    assert.ok(lines.length <= 3 && lines.every((line) => line.length * 6 <= room), `${room}`);
  }
  assert.equal(wrapped(said, 800, 11).length, 1);
});

test("tiles of heads leave room for the names of rows and columns", () => {
  for (const room of [300, 366, 800]) {
    const g = seen(made("heads", 10, room), room, 4000);
    assert.ok(g.left >= 30 && g.tiles[0].x === g.left);
    const low = Math.max(...g.tiles.map((t) => t.y + g.tile));
    assert.ok(low + g.left <= g.height - g.foot && g.width <= room);
  }
});
