// What is drawn on a plot's canvas beside its lines.
import { MARK_ROW_PX, MARKS_TOP_PX } from "./scale.js";

const SYMBOLS = { interference: "▲", slow: "△", errors: "✕", overload: "■", all_slow: "◆", unknown: "?" };
const WORDS = { interference: "interference", slow: "slow", errors: "errors", overload: "overload", all_slow: "all slow", unknown: "unknown" };
const FONT_PX = 11;
const NAME_ROW_PX = 13;
const MOST_NAME_PX = 110;
const MOST_NAMED_MARKS = 6;

const font = (weight, scale = 1) => `${weight} ${FONT_PX * scale}px system-ui, sans-serif`;

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Episodes behind the lines: a tinted band, `labelled` with the state's symbol and the node's name.
export function drawSpans(plot, spans, labelled) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = font(600, dpr);
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  for (const span of spans) {
    const from = Math.max(bbox.left, plot.valToPos(span.since_unix_s, "x", true));
    const width = Math.max(2, plot.valToPos(span.last_unix_s, "x", true) - from);
    ctx.fillStyle = colour(`${span.state}-soft`);
    ctx.fillRect(from, bbox.top, width, bbox.height);
    ctx.fillStyle = colour(span.state);
    ctx.fillRect(from, bbox.top, width, 3 * dpr);
    if (!labelled) continue;
    const words = `${SYMBOLS[span.state]} ${span.node} ${WORDS[span.state]}`;
    const fits = ctx.measureText(words).width + 8 * dpr < width ? words : SYMBOLS[span.state];
    ctx.fillText(fits, from + 4 * dpr, bbox.top + bbox.height - 3 * dpr);
  }
  ctx.restore();
}

// Weight changes in front: a dashed line (dotted where nothing was applied), the newest with `100 → 0` in one of `rows`
// of text.
export function drawMarks(plot, marks, rows) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.font = font(600, dpr);
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  ctx.lineWidth = 1.5 * dpr;
  const free = Array(rows).fill(bbox.left);
  const places = marks.map((mark) => ({ mark, x: plot.valToPos(mark.time_unix_s, "x", true) }));
  const seen = places.filter(({ x }) => x >= bbox.left && x <= bbox.left + bbox.width).sort((a, b) => a.x - b.x);
  for (const [index, { mark, x }] of seen.entries()) {
    ctx.strokeStyle = colour("accent");
    ctx.setLineDash(mark.applied ? [5 * dpr, 3 * dpr] : [1 * dpr, 4 * dpr]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (index < seen.length - MOST_NAMED_MARKS) continue;
    const text = mark.applied ? `${mark.node} ${mark.before} → ${mark.after}` : `${mark.node} would be ${mark.after}`;
    const width = ctx.measureText(text).width;
    const left = x + width + 8 * dpr > bbox.left + bbox.width ? x - width - 4 * dpr : x + 4 * dpr;
    const row = free.findIndex((from) => left >= from);
    if (row < 0) continue;
    free[row] = left + width + 6 * dpr;
    ctx.fillStyle = colour("accent");
    ctx.fillText(text, left, bbox.top + (MARKS_TOP_PX + MARK_ROW_PX * row) * dpr);
  }
  ctx.restore();
}

// What is above the axis: a wedge at its upper edge in the server's colour, with name and value where there is room.
export function drawCuts(plot, cuts, unit) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.font = font(600, dpr);
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  let free = bbox.left;
  for (const cut of cuts) {
    const [from, to] = [cut.from, cut.to].map((time) => plot.valToPos(time, "x", true));
    if (to < bbox.left || from > bbox.left + bbox.width) continue;
    ctx.fillStyle = colour(cut.colour);
    ctx.beginPath();
    ctx.moveTo((from + to) / 2, bbox.top - 1 * dpr);
    ctx.lineTo(to + 4 * dpr, bbox.top + 7 * dpr);
    ctx.lineTo(from - 4 * dpr, bbox.top + 7 * dpr);
    ctx.fill();
    const text = `${cut.node} ${unit(cut.most)}`;
    const width = ctx.measureText(text).width;
    const right = to + 7 * dpr + width < bbox.left + bbox.width;
    const left = right ? to + 7 * dpr : from - width - 7 * dpr;
    if (left < free) continue;
    free = left + width + 6 * dpr;
    ctx.fillText(text, left, bbox.top);
  }
  ctx.restore();
}

// The width that the servers' names need beside the right ends of their lines, in CSS pixels.
export function roomForNames(names) {
  const { ctx } = roomForNames;
  ctx.font = font(600);
  return Math.min(MOST_NAME_PX, Math.max(0, ...names.map((name) => ctx.measureText(name).width)) + 8);
}
roomForNames.ctx = document.createElement("canvas").getContext("2d");

// Each server's name at the end of its line, in its colour; names whose lines end together stand below each other.
// `ends`: node, colour and last value of each.
export function drawNames(plot, ends) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  const row = NAME_ROW_PX * dpr;
  const places = ends
    .map((end) => ({ ...end, y: plot.valToPos(Math.min(end.value, plot.scales.y.max), "y", true) }))
    .sort((a, b) => a.y - b.y);
  const lowest = bbox.top + bbox.height - row / 2;
  places.forEach((place, i) => { place.y = Math.max(place.y, i > 0 ? places[i - 1].y + row : bbox.top + row / 2); });
  for (let i = places.length - 1; i >= 0; i -= 1) places[i].y = Math.min(places[i].y, i < places.length - 1 ? places[i + 1].y - row : lowest);
  ctx.save();
  ctx.font = font(600, dpr);
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { node, colour: name, y } of places) {
    ctx.fillStyle = colour(name);
    ctx.fillText(node, bbox.left + bbox.width + 5 * dpr, y, (MOST_NAME_PX - 6) * dpr);
  }
  ctx.restore();
}

// The target that users' response times should stay below.
export function drawTarget(plot, target, text) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  const y = plot.valToPos(target, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("muted");
  ctx.lineWidth = dpr;
  ctx.setLineDash([6 * dpr, 4 * dpr]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = font(400, dpr);
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.fillText(text, bbox.left + 4 * dpr, y - 2 * dpr);
  ctx.restore();
}
