// The signals of a pool as small multiples on one time axis: one line a server, those that matter in front.
/* global uPlot */
import { clock, dayAndClock, setText } from "./times.js";
import { Series } from "./series.js";

const SYMBOLS = { interference: "▲", overload: "■", all_slow: "◆", unknown: "?" };
const WORDS = { interference: "interference", overload: "overload", all_slow: "all slow", unknown: "unknown" };
const RELOAD_EVERY_MS = 30_000;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const digits = (value) => (value === 0 ? "0" : value >= 9.95 ? Math.round(value).toLocaleString() : value.toPrecision(2));
const SIGNALS = [
  { key: "rt_p95_ms", title: "p95 of response time", unit: (v) => (v >= 9995 ? `${(v / 1000).toFixed(1)} s` : `${digits(v)} ms`) },
  { key: "rps", title: "Requests per second", unit: (v) => `${digits(v)}/s` },
  { key: "weight", title: "Weight", unit: (v) => `${Math.round(v)}`, stepped: true },
  { key: "cpu", title: "CPU", unit: (v) => `${Math.round(100 * v)} %` },
  { key: "run_delay_per_cpu_s", title: "Run delay per CPU second", unit: (v) => `${digits(v)} s` },
  { key: "steal", title: "Steal", unit: (v) => `${Math.round(100 * v)} %` },
  { key: "cpi", title: "Cycles per instruction, or per load of the probe", unit: (v) => (v === 0 ? "0" : v.toPrecision(3)) },
];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Episodes behind the lines: a tinted band with the state's symbol and the node's name.
function drawSpans(plot, spans) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `600 ${11 * dpr}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  for (const span of spans) {
    const from = Math.max(bbox.left, plot.valToPos(span.since_unix_s, "x", true));
    const width = Math.max(2, plot.valToPos(span.last_unix_s, "x", true) - from);
    ctx.fillStyle = colour(`${span.state}-soft`);
    ctx.fillRect(from, bbox.top, width, bbox.height);
    ctx.fillStyle = colour(span.state);
    ctx.fillRect(from, bbox.top, width, 3 * dpr);
    const words = `${SYMBOLS[span.state]} ${span.node} ${WORDS[span.state]}`;
    const fits = ctx.measureText(words).width + 8 * dpr < width ? words : SYMBOLS[span.state];
    ctx.fillText(fits, from + 4 * dpr, bbox.top + bbox.height - 3 * dpr);
  }
  ctx.restore();
}

// Weight changes in front: a dashed line (dotted where nothing was applied) with `100 → 0`.
function drawMarks(plot, marks, labelled) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.font = `600 ${11 * dpr}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  ctx.lineWidth = 1.5 * dpr;
  let free = bbox.left;
  for (const mark of marks) {
    const x = plot.valToPos(mark.time_unix_s, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour("accent");
    ctx.setLineDash(mark.applied ? [5 * dpr, 3 * dpr] : [1 * dpr, 4 * dpr]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (!labelled) continue;
    const text = mark.applied ? `${mark.node} ${mark.before} → ${mark.after}` : `${mark.node} would be ${mark.after}`;
    const width = ctx.measureText(text).width;
    const left = x + width + 8 * dpr > bbox.left + bbox.width ? x - width - 4 * dpr : x + 4 * dpr;
    if (left < free) continue;
    free = left + width + 6 * dpr;
    ctx.fillStyle = colour("accent");
    ctx.fillText(text, left, bbox.top + 4 * dpr);
  }
  ctx.restore();
}

class Figure {
  constructor(stack, signal, last) {
    this.stack = stack;
    this.signal = signal;
    this.last = last;
    this.element = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = signal.title;
    this.readout = document.createElement("span");
    this.readout.className = "readout";
    caption.append(name, this.readout);
    this.canvas = document.createElement("div");
    this.canvas.className = "canvas";
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${signal.title} of each server over time; the table has the present values`);
    this.element.append(caption, this.canvas);
  }

  data() {
    const { series, nodes } = this.stack;
    return [series.times, ...nodes.map((node) => series.column(node, this.signal.key))];
  }

  build() {
    this.plot?.destroy();
    const { nodes, focus } = this.stack;
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const paths = this.signal.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const line = (node) => {
      const place = focus.indexOf(node);
      const front = place >= 0;
      const stroke = front ? colour(place === 0 ? "p95" : "accent") : colour("p50");
      return { stroke, width: front ? 2 : 1, dash: front ? DASHES[place % DASHES.length] : [], alpha: front ? 1 : 0.55, points: { show: false }, paths };
    };
    const days = this.stack.lastS > 2 * 86400;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.canvas.clientWidth),
        height: this.last ? 144 : 120,
        padding: [4, 6, this.last ? 0 : 7, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "signals" }, points: { show: false } },
        scales: { x: { time: true }, y: { range: (_, __, most) => [0, (this.signal.stepped ? 1.4 : 1.08) * Math.max(most ?? 0, 1e-6)] } },
        series: [{}, ...nodes.map(line)],
        axes: [
          { ...axis, show: this.last, space: 70, size: 24, incrs: [60, 120, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800, 1209600], values: (_, splits) => splits.map((second) => (days ? dayAndClock(second).split(",")[0] : clock(second).slice(0, 5))) },
          { ...axis, size: 58, space: 30, values: (_, splits) => splits.map((value) => this.signal.unit(value)) },
        ],
        hooks: {
          drawClear: [(plot) => drawSpans(plot, this.stack.series.spansOf(nodes))],
          draw: [(plot) => drawMarks(plot, this.stack.series.marksOf(nodes), this.signal.stepped)],
          setCursor: [() => this.read()],
        },
      },
      this.data(),
      this.canvas,
    );
    this.read();
  }

  // The values under the cursor of the servers in front; without one the last.
  read() {
    const { series, focus, nodes } = this.stack;
    const under = this.plot?.cursor.idx;
    const slot = under ?? series.times.length - 1;
    const named = focus.length > 0 ? focus.slice(0, 3) : nodes.slice(0, 3);
    const values = named.map((node) => {
      const value = series.column(node, this.signal.key)[slot];
      return `${node} ${value == null ? "–" : this.signal.unit(value)}`;
    });
    const text = `${under == null ? "" : `${clock(series.times[slot])} · `}${values.join(" · ")}`;
    setText(this.readout, text);
  }
}

export class Stack {
  constructor(section) {
    this.section = section;
    this.series = new Series();
    this.lastS = Number(section.dataset.last);
    this.live = section.dataset.live === "1";
    this.parent = section.querySelector(".figures");
    this.loading = section.querySelector(".loading");
    this.select = section.querySelector(".focus");
    this.figures = [];
    this.nodes = [];
    this.focus = [];
    this.urgent = [];
    this.select?.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.figures.forEach((f) => f.plot?.setSize({ width: Math.max(200, f.canvas.clientWidth), height: f.last ? 144 : 120 }))).observe(this.parent);
    for (const look of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(look).addEventListener("change", () => this.figures.forEach((f) => f.build()));
    }
    if (!this.live && !section.dataset.until) setInterval(() => this.load(this.requested), RELOAD_EVERY_MS);
  }

  async load(nodes = []) {
    this.requested = nodes;
    const query = new URLSearchParams({ last_s: this.lastS, step_s: this.section.dataset.step });
    if (this.section.dataset.until) query.set("until_unix_s", this.section.dataset.until);
    for (const node of nodes) query.append("node", node);
    try {
      const answer = await fetch(`${this.section.dataset.history}?${query}`);
      if (!answer.ok) throw new Error(`${answer.status}`);
      const series = new Series();
      series.merge(await answer.json());
      this.series = series;
      this.draw();
    } catch (error) {
      this.loading.hidden = false;
      this.loading.textContent = `The series cannot be loaded (${error.message}); reload the page to try again.`;
    }
  }

  // From each event: the last seconds, and who is not calm.
  update(tail, rows) {
    this.urgent = rows.filter((row) => row.state !== "calm").map((row) => row.node);
    if (!this.live || this.series.times.length === 0) return;
    this.series.merge(tail);
    this.draw();
  }

  draw() {
    const nodes = Object.keys(this.series.nodes).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const chosen = this.section.dataset.focus || this.select?.value;
    const focus = (chosen ? [chosen] : this.urgent).filter((node) => nodes.includes(node));
    const ordered = [...nodes.filter((node) => !focus.includes(node)), ...focus];
    const shown = SIGNALS.filter((signal) => this.series.has(signal.key));
    this.loading.hidden = shown.length > 0;
    if (shown.length === 0) this.loading.textContent = "Nothing was measured in this time.";
    const same = ordered.join() === this.nodes.join() && focus.join() === this.focus.join() && shown.length === this.figures.length;
    this.nodes = ordered;
    this.focus = focus;
    if (same) {
      for (const figure of this.figures) {
        figure.plot.setData(figure.data());
        figure.read();
      }
      return;
    }
    for (const figure of this.figures) figure.plot?.destroy();
    this.figures = shown.map((signal, place) => new Figure(this, signal, place === shown.length - 1));
    this.parent.replaceChildren(...this.figures.map((figure) => figure.element));
    for (const figure of this.figures) figure.build();
  }
}
