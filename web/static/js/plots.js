// The signals of a pool as small multiples on one time axis: one line a server, in the server's colour.
/* global uPlot */
import { cutRuns, highest, milliseconds, percent, plain, seconds } from "./scale.js";
import { Series } from "./series.js";
import { clock, dayAndClock, setText } from "./times.js";

const SYMBOLS = { interference: "▲", slow: "△", errors: "✕", overload: "■", all_slow: "◆", unknown: "?" };
const WORDS = { interference: "interference", slow: "slow", errors: "errors", overload: "overload", all_slow: "all slow", unknown: "unknown" };
const RELOAD_EVERY_MS = 30_000;
const TAIL_EVERY_MS = 5_000;
const TAIL_STEPS = 6;
const COLOURS = 8;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]]; // for the servers beyond the colours
const ROOM_ABOVE = 1.12;
const NARROW = matchMedia("(max-width: 820px)");
const SIGNALS = [
  { key: "rt_p95_ms", title: "p95 of response time", unit: milliseconds, first: true },
  { key: "weight", title: "Weight", unit: (value) => `${Math.round(value)}`, stepped: true, first: true },
  { key: "rps", title: "Requests per second", unit: (value) => plain(value, "/s"), first: true },
  { key: "errors_per_s", title: "Errors per second", unit: (value) => plain(value, "/s") },
  { key: "cpu", title: "CPU", unit: percent },
  { key: "run_delay_per_cpu_s", title: "Run delay per CPU second", unit: seconds },
  { key: "steal", title: "Steal", unit: percent },
  { key: "cpi", title: "Cycles per instruction, or per load of the probe", unit: plain },
];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
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
  const free = [bbox.left, bbox.left]; // of each of two rows of text
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
    const row = free.findIndex((from) => left >= from);
    if (row < 0) continue;
    free[row] = left + width + 6 * dpr;
    ctx.fillStyle = colour("accent");
    ctx.fillText(text, left, bbox.top + (4 + 13 * row) * dpr);
  }
  ctx.restore();
}

// What is above the axis: a wedge at its upper edge in the server's colour, with name and value where there is room.
function drawCuts(plot, cuts, unit) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.font = `600 ${11 * dpr}px system-ui, sans-serif`;
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
    this.cut = document.createElement("span");
    this.cut.className = "cut";
    caption.append(name, this.cut, this.readout);
    this.canvas = document.createElement("div");
    this.canvas.className = "canvas";
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${signal.title} of each server over time; the table has the present values`);
    this.element.append(caption, this.canvas);
  }

  data() {
    const { series, nodes } = this.stack;
    const columns = nodes.map((node) => series.column(node, this.signal.key));
    this.top = this.signal.stepped ? Math.max(1, ...columns.flat()) : highest(columns);
    return [series.times, ...columns];
  }

  // The runs that the axis cuts.
  cuts() {
    const { series, nodes } = this.stack;
    const above = this.top * ROOM_ABOVE;
    return nodes
      .flatMap((node) => cutRuns(series.column(node, this.signal.key), above).map((run) => ({ ...run, node })))
      .map(({ first, last, most, node }) => ({ node, most, from: series.times[first], to: series.times[last], colour: this.stack.lookOf(node).colour }))
      .sort((a, b) => a.from - b.from);
  }

  get height() {
    return this.last ? 144 : 120;
  }

  build() {
    this.plot?.destroy();
    const { nodes, focus } = this.stack;
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const paths = this.signal.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const line = (node) => {
      const look = this.stack.lookOf(node);
      const front = focus.includes(node);
      return { stroke: colour(look.colour), width: front ? 2.5 : 1.25, dash: look.dash, alpha: front || focus.length === 0 ? 1 : 0.7, points: { show: false }, paths };
    };
    const data = this.data();
    const days = this.stack.lastS > 2 * 86400;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.canvas.clientWidth),
        height: this.height,
        padding: [4, 6, this.last ? 0 : 7, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "signals" }, points: { show: false } },
        scales: { x: { time: true }, y: { range: () => [0, (this.signal.stepped ? 1.4 : ROOM_ABOVE) * this.top] } },
        series: [{}, ...nodes.map(line)],
        axes: [
          { ...axis, show: this.last, space: 70, size: 24, incrs: [60, 120, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800, 1209600], values: (_, splits) => splits.map((second) => (days ? dayAndClock(second).split(",")[0] : clock(second).slice(0, 5))) },
          { ...axis, size: 58, space: 30, values: (_, splits) => splits.map((value) => this.signal.unit(value)) },
        ],
        hooks: {
          drawClear: [(plot) => drawSpans(plot, this.stack.series.spansOf(nodes))],
          draw: [
            (plot) => drawMarks(plot, this.stack.series.marksOf(nodes), this.signal.stepped),
            (plot) => drawCuts(plot, this.cuts(), this.signal.unit),
          ],
          setCursor: [() => this.read()],
        },
      },
      data,
      this.canvas,
    );
    this.read();
  }

  // The values under the cursor of the servers in front; without one the last.
  read() {
    const { series, focus, nodes } = this.stack;
    const most = this.cuts().reduce((a, b) => (a && a.most >= b.most ? a : b), null);
    setText(this.cut, most ? `▲ above the axis: ${most.node} ${this.signal.unit(most.most)}` : "");
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
    this.keys = section.dataset.signals?.split(" ");
    this.parent = section.querySelector(".figures");
    this.loading = section.querySelector(".loading");
    this.select = section.querySelector(".focus");
    this.legend = section.querySelector(".legend");
    this.more = section.querySelector(".more-signals");
    this.figures = [];
    this.nodes = [];
    this.names = [];
    this.focus = [];
    this.urgent = [];
    this.drawn = section.dataset.nodes?.split(" ") ?? [];
    this.select?.addEventListener("change", () => this.draw());
    this.more?.addEventListener("click", () => { this.all = true; this.draw(); });
    new ResizeObserver(() => this.figures.forEach((f) => f.plot?.setSize({ width: Math.max(200, f.canvas.clientWidth), height: f.height }))).observe(this.parent);
    for (const look of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(look).addEventListener("change", () => this.figures.forEach((f) => f.build()));
    }
    this.tailS = TAIL_STEPS * Number(section.dataset.step);
    this.byTails = section.dataset.tails === "1";
    this.loadedMs = -Infinity;
    this.near = !this.byTails; // to the visible part of the page
    if (this.byTails) new IntersectionObserver(([entry]) => { this.near = entry.isIntersecting; this.renew(); }, { rootMargin: "100%" }).observe(section);
    this.told = document.body.dataset.events === undefined; // of the pool, by an event
    if (!this.live && !section.dataset.until) setInterval(() => this.renew(), this.byTails ? TAIL_EVERY_MS : RELOAD_EVERY_MS);
  }

  // A server's colour and dash, by its place among all that are drawn.
  lookOf(node) {
    const place = this.names.indexOf(node);
    return { colour: `server-${place % COLOURS}`, dash: DASHES[Math.floor(place / COLOURS) % DASHES.length] };
  }

  // Only the last steps, where those before are there.
  renew() {
    if (document.hidden || !this.near || !this.told) return;
    const recent = this.byTails && performance.now() - this.loadedMs < (this.tailS * 1000) / 2;
    this.load(recent ? this.tailS : this.lastS);
  }

  async load(lastS = this.lastS) {
    const query = new URLSearchParams({ last_s: lastS, step_s: this.section.dataset.step });
    if (this.section.dataset.until) query.set("until_unix_s", this.section.dataset.until);
    for (const node of this.drawn) query.append("node", node);
    try {
      const answer = await fetch(`${this.section.dataset.history}?${query}`);
      if (!answer.ok) throw new Error(`${answer.status}`);
      const found = await answer.json();
      if (lastS === this.lastS) this.series = new Series();
      this.series.merge(found);
      this.loadedMs = performance.now();
      this.draw();
    } catch (error) {
      this.loading.hidden = false;
      this.loading.textContent = `The series cannot be loaded (${error.message}); reload the page to try again.`;
    }
  }

  // From each event: who is not calm, which servers are drawn (none: all), and on a live plot the last seconds.
  update(pool, tail) {
    this.urgent = pool.rows.filter((row) => row.state !== "calm").map((row) => row.node);
    this.drawn = pool.drawn;
    this.told = true;
    if (!this.live || !tail || this.series.times.length === 0) return;
    this.series.merge(tail);
    this.draw();
  }

  draw() {
    this.names = Object.keys(this.series.nodes).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const chosen = this.section.dataset.focus || this.select?.value;
    const focus = (chosen ? [chosen] : this.urgent).filter((node) => this.names.includes(node));
    const ordered = [...this.names.filter((node) => !focus.includes(node)), ...focus];
    const measured = SIGNALS.filter((signal) => this.series.has(signal.key) && (this.keys?.includes(signal.key) ?? true));
    const shown = NARROW.matches && this.more && !this.all ? measured.filter((signal) => signal.first) : measured;
    if (this.more) this.more.hidden = shown.length === measured.length;
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
    this.legend.replaceChildren(...this.names.map((node) => this.legendOf(node)));
    for (const figure of this.figures) figure.build();
  }

  // A server's name beside a piece of its line.
  legendOf(node) {
    const look = this.lookOf(node);
    const item = document.createElement("li");
    const piece = svg("svg", { viewBox: "0 0 24 6", "aria-hidden": "true" });
    piece.append(svg("line", { x1: 0, y1: 3, x2: 24, y2: 3, class: look.colour, "stroke-dasharray": look.dash.join(" ") }));
    item.append(piece, node);
    item.classList.toggle("front", this.focus.includes(node));
    return item;
  }
}
