// One response-time plot a server, all on the same scale: what is slow looks slow beside the others.
/* global uPlot */
import { clock } from "./times.js";

const HEIGHT = 190;
const MOST_PLOTS = 24;
const QUIET_S = 4;
const SYMBOLS = { interference: "▲", overload: "■", all_slow: "◆", unknown: "?" };
const WORDS = { interference: "interference", overload: "overload", all_slow: "all slow", unknown: "unknown" };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function milliseconds(value) {
  if (value == null) return "–";
  return value < 9.95 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}

// States behind the lines: a tinted band with the state's symbol and word at its top.
function drawSpans(plot, spans) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  for (const span of spans) {
    const from = Math.max(bbox.left, plot.valToPos(span.since_unix_s, "x", true));
    const width = Math.max(2, plot.valToPos(span.last_unix_s, "x", true) - from);
    ctx.fillStyle = colour(`${span.state}-soft`);
    ctx.fillRect(from, bbox.top, width, bbox.height);
    ctx.fillStyle = colour(span.state);
    ctx.fillRect(from, bbox.top, width, 3 * devicePixelRatio);
    const words = `${SYMBOLS[span.state]} ${WORDS[span.state]}`;
    const fits = ctx.measureText(words).width + 8 * devicePixelRatio < width ? words : SYMBOLS[span.state];
    ctx.fillText(fits, from + 4 * devicePixelRatio, bbox.top + bbox.height - 4 * devicePixelRatio);
  }
  ctx.restore();
}

// Weight changes in front: a dashed line (dotted in observe mode) with `100 → 0`, placed where it can be read.
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.font = `600 ${11 * dpr}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.lineWidth = 1.5 * dpr;
  let free = [bbox.left, bbox.left];
  for (const mark of marks) {
    const x = plot.valToPos(mark.time_unix_s, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour("accent");
    ctx.setLineDash(mark.applied ? [5 * dpr, 3 * dpr] : [1 * dpr, 4 * dpr]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const text = mark.applied ? `${mark.before} → ${mark.after}` : `would be ${mark.after}`;
    const width = ctx.measureText(text).width;
    const left = x + width + 8 * dpr > bbox.left + bbox.width ? x - width - 4 * dpr : x + 4 * dpr;
    const line = free.findIndex((end) => left >= end);
    if (line < 0) continue;
    free[line] = left + width + 6 * dpr;
    ctx.fillStyle = colour("accent");
    ctx.fillText(text, left, bbox.top + (6 + 15 * line) * dpr);
  }
  ctx.restore();
}

class NodePlot {
  constructor(parent, node, series, limits) {
    this.node = node;
    this.series = series;
    this.limits = limits;
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = node;
    this.readout = document.createElement("span");
    this.readout.className = "readout";
    caption.append(name, this.readout);
    this.canvas = document.createElement("div");
    this.canvas.className = "canvas";
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Response time of ${node} over the last minutes; the table has its present values`);
    this.figure.append(caption, this.canvas);
    parent.append(this.figure);
    this.build();
  }

  build() {
    this.plot?.destroy();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot(
      {
        width: Math.max(200, this.canvas.clientWidth),
        height: HEIGHT,
        padding: [6, 4, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "plots" }, points: { show: false } },
        scales: {
          ms: { range: () => [0, this.limits.ms] },
          weight: { range: () => [0, this.limits.weight] },
        },
        series: [
          {},
          { scale: "ms", stroke: colour("p50"), width: 1.25, points: { show: false } },
          { scale: "ms", stroke: colour("p95"), width: 2, points: { show: false } },
          {
            scale: "weight", stroke: colour("accent"), width: 1.25, fill: colour("accent-soft"), points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
          },
        ],
        axes: [
          { ...axis, space: 70, values: (_, splits) => splits.map((second) => clock(second).slice(0, 5)), incrs: [60, 120, 300, 600], size: 26 },
          { ...axis, scale: "ms", size: 52, space: 34, values: (_, splits) => splits.map((value) => `${value} ms`) },
          { ...axis, scale: "weight", side: 1, size: 34, space: 60, grid: { show: false }, values: (_, splits) => splits.map(String), stroke: colour("accent") },
        ],
        hooks: {
          drawClear: [(plot) => drawSpans(plot, this.series.spansOf(this.node))],
          draw: [(plot) => drawMarks(plot, this.series.marksOf(this.node))],
          setCursor: [() => this.read()],
        },
      },
      this.series.columns(this.node),
      this.canvas,
    );
    this.read();
  }

  update() {
    this.plot.setData(this.series.columns(this.node));
    this.read();
  }

  resize() {
    this.plot.setSize({ width: Math.max(200, this.canvas.clientWidth), height: HEIGHT });
  }

  // The values under the cursor; without one those of the last seconds.
  read() {
    if (!this.plot) return;
    const [seconds, p50, p95, weight] = this.plot.data;
    const under = this.plot.cursor.idx;
    const last = p95.findLastIndex((value) => value != null);
    const slot = under ?? last;
    let text = `p95 ${milliseconds(p95[slot])} · median ${milliseconds(p50[slot])}`;
    if (under != null) {
      text = `${clock(seconds[slot])} · ${text}${weight[slot] == null ? "" : ` · weight ${weight[slot]}`}`;
    } else if (last < seconds.length - QUIET_S) {
      text = this.series.hears(this.node, QUIET_S) ? "no requests now" : "no data now";
    }
    if (this.readout.textContent !== text) this.readout.textContent = text;
  }
}

export class Plots {
  constructor(section, series) {
    this.box = section.querySelector(".plots");
    this.parent = section.querySelector(".figures");
    this.more = section.querySelector(".more");
    this.series = series;
    this.limits = { ms: 10, weight: 100 };
    this.plots = new Map();
    new ResizeObserver(() => this.plots.forEach((plot) => plot.resize())).observe(this.parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plots.forEach((plot) => plot.build()));
  }

  // `rows`: the table's rows, whose order the plots follow; if there are too many, those that are not calm go first.
  update(rows) {
    const heard = this.series.nodes();
    const all = rows.filter((row) => heard.has(row.node));
    const urgent = [...all.filter((row) => row.state !== "calm"), ...all.filter((row) => row.state === "calm")];
    const drawn = new Set(urgent.slice(0, MOST_PLOTS).map((row) => row.node));
    const nodes = all.map((row) => row.node).filter((node) => drawn.has(node));
    this.box.hidden = nodes.length === 0;
    this.more.hidden = all.length <= MOST_PLOTS;
    this.more.textContent = `${nodes.length} of ${all.length} servers are drawn, those that are not calm first.`;
    this.setLimits(nodes);
    for (const [node, plot] of this.plots) {
      if (nodes.includes(node)) continue;
      plot.plot.destroy();
      plot.figure.remove();
      this.plots.delete(node);
    }
    for (const node of nodes) {
      const plot = this.plots.get(node);
      if (plot) plot.update();
      else this.plots.set(node, new NodePlot(this.parent, node, this.series, this.limits));
    }
    const figures = nodes.map((node) => this.plots.get(node).figure);
    if (figures.some((figure, place) => this.parent.children[place] !== figure)) this.parent.append(...figures);
  }

  // The same scale for all servers, so that they can be compared by eye.
  setLimits(nodes) {
    const columns = nodes.map((node) => this.series.columns(node));
    const most = (slot) => Math.max(0, ...columns.flatMap((column) => column[slot].filter((value) => value != null)));
    this.limits.ms = Math.max(10, 1.08 * Math.max(most(1), most(2)));
    this.limits.weight = Math.max(1, 1.02 * most(3));
  }
}
