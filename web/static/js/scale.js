// How high an axis goes, and how its values read.
const LASTS_STEPS = 3;
const USUAL_SHARE = 0.98;
const WORTH_CUTTING = 4;
export const MARKS_TOP_PX = 4;
export const MARK_ROW_PX = 13;
const LEAST_FOR_TWO_PX = 75;
const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

const known = (values) => values.filter((value) => value != null);
const rounded = (value) => String(Number(value.toPrecision(3)));

// The highest level that one server kept for three values in a row.
function lasting(values) {
  const found = known(values);
  let most = 0;
  for (let end = LASTS_STEPS; end <= found.length; end += 1) most = Math.max(most, Math.min(...found.slice(end - LASTS_STEPS, end)));
  return most;
}

// The axis reaches what lasted and what is usual; a spike beyond four times that is cut, so that the rest can be read.
// `columns` are the servers' values; the answer is the highest value that is drawn whole.
export function highest(columns) {
  const all = known(columns.flat()).sort((a, b) => a - b);
  const most = all.at(-1) ?? 0;
  const usual = all[Math.ceil(USUAL_SHARE * all.length) - 1] ?? 0;
  const reached = Math.max(usual, ...columns.map(lasting));
  return reached > 0 && most > WORTH_CUTTING * reached ? reached : most || 1;
}

// How many rows of marks' texts a plot so high has above its highest line, and how much higher its axis reaches for them.
export function roomForMarks(heightPx) {
  const rows = heightPx < LEAST_FOR_TWO_PX ? 1 : 2;
  const roomPx = MARKS_TOP_PX + rows * MARK_ROW_PX + MARKS_TOP_PX;
  return { rows, factor: heightPx / Math.max(1, heightPx - roomPx) };
}

// What is above the axis, by server: each run of values once, with its highest. `places` are those of its first and last.
export function cutRuns(values, above) {
  const runs = [];
  let open = null;
  values.forEach((value, place) => {
    if (value == null) return;
    if (value <= above) open = null;
    else if (open) Object.assign(open, { last: place, most: Math.max(open.most, value) });
    else runs.push((open = { first: place, last: place, most: value }));
  });
  return runs;
}

// Three digits and a size: 0.85, 950, 1.2 k, 100 k, 3.4 M. Never 1.00e+5.
export function plain(value, unit = "") {
  const [size, letter] = SIZES.find(([least]) => Math.abs(value) >= 0.9995 * least) ?? [1, ""];
  const shown = Math.abs(value) < 0.01 ? Number(value.toFixed(3)) : value;
  return `${rounded(shown / size)}${letter && ` ${letter}`}${unit}`;
}

// 0.4 ms, 62 ms, 1.2 s, 97 s.
export function milliseconds(value) {
  if (Math.abs(value) < 0.0005) return "0";
  return Math.abs(value) < 999.5 ? `${rounded(value)} ms` : `${Number((value / 1000).toPrecision(3)).toLocaleString("en")} s`;
}

export const seconds = (value) => milliseconds(1000 * value);
export const percent = (value) => `${Math.round(100 * value)}%`;
