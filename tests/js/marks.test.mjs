// Which number the arrow keys lead to in a drawing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { nextIn } from "../../ctxmix_hf/viz/js/marks.js";

const RIGHT = [1, 0];
const LEFT = [-1, 0];
const DOWN = [0, 1];
const UP = [0, -1];

test("in a matrix the next cell of the row or of the column", () => {
  const cells = [];
  for (let row = 0; row < 3; row++)
    for (let col = 0; col < 4; col++) cells.push({ x: 60 * col, y: 17 * row });
  const from = (at, step) => nextIn(cells, at, step);
  assert.deepEqual([from(5, RIGHT), from(5, LEFT), from(5, DOWN), from(5, UP)], [6, 4, 9, 1]);
  assert.deepEqual([from(3, RIGHT), from(0, LEFT), from(8, DOWN), from(0, UP)], [-1, -1, -1, -1]);
});
