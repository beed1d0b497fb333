// The axes of the plots: pure functions, run by Node.js alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cutRuns, highest, MARK_ROW_PX, MARKS_TOP_PX, milliseconds, percent, plain, roomForMarks, seconds } from "../../web/static/js/scale.js";

const calm = (length, level = 4) => Array.from({ length }, (_, place) => level + (place % 3));

test("one spike does not flatten the axis", () => {
  const spiked = calm(300);
  spiked[150] = 97_000;
  assert.equal(highest([calm(300), spiked]), 6);
  assert.deepEqual(cutRuns(spiked, 6), [{ first: 150, last: 150, most: 97_000 }]);
});

test("what lasts three steps is drawn whole, however rare it is", () => {
  const beside = calm(300);
  for (const place of [200, 201, 202]) beside[place] = 120;
  assert.equal(highest([calm(300), calm(300), beside]), 120);
});

test("the texts of changes stand above the highest line", () => {
  for (const height of [38, 58, 82, 109]) {
    const { rows, factor } = roomForMarks(height);
    assert.ok(rows >= 1);
    const line = height * (1 - 1 / factor);
    assert.ok(line >= MARKS_TOP_PX + rows * MARK_ROW_PX, `${height} pixels: the line is ${line} below the top`);
    assert.ok(line < 0.6 * height, `${height} pixels: the lines have room`);
  }
});

test("values that go up and down by themselves are not cut", () => {
  const restless = Array.from({ length: 300 }, (_, place) => (place % 7 === 0 ? 40 : 5));
  assert.equal(highest([restless]), 40);
});

test("a little above is not worth a cut, and nothing is not zero height", () => {
  assert.equal(highest([[...calm(100), 24]]), 24);
  assert.equal(highest([[...calm(100), 25]]), 6);
  assert.equal(highest([[4, 4, 4, 400]]), 400, "of a few values none is usual");
  assert.equal(highest([[0, 0, 0]]), 1);
  assert.equal(highest([[null, null]]), 1);
  assert.equal(highest([]), 1);
  assert.equal(highest([[0, 0, 0, 0.9]]), 0.9, "where all else is zero there is nothing to flatten");
});

test("a run above the axis is one, over what was not measured too", () => {
  assert.deepEqual(cutRuns([1, 9, null, 12, 1, 8], 5), [{ first: 1, last: 3, most: 12 }, { first: 5, last: 5, most: 8 }]);
});

test("values read as people write them", () => {
  const read = [0, 0.85, 12, 999.4, 999.6, 1200, 100_000, 3_400_000].map((value) => plain(value));
  assert.deepEqual(read, ["0", "0.85", "12", "999", "1 k", "1.2 k", "100 k", "3.4 M"]);
  assert.deepEqual([0, 3.25, 1234].map((value) => plain(value, "/s")), ["0/s", "3.25/s", "1.23 k/s"]);
  assert.deepEqual([0, 0.4, 62, 999.6, 1200, 97_000, 3_600_000].map(milliseconds), ["0", "0.4 ms", "62 ms", "1 s", "1.2 s", "97 s", "3,600 s"]);
  assert.deepEqual([0, 0.0012, 14.2].map(seconds), ["0", "1.2 ms", "14.2 s"]);
  assert.deepEqual([0, 0.5, 1].map(percent), ["0%", "50%", "100%"]);
  for (let power = -12; power < 16; power += 1) assert.doesNotMatch(`${plain(3 * 10 ** power)}${milliseconds(3 * 10 ** power)}`, /e[+-]/);
});
