// The signals of a pool as small multiples on one time axis: one line a server, in the server's colour.
/* global uPlot */
import { colour, drawCuts, drawMarks, drawNames, drawSpans, drawTarget, roomForNames } from "./drawing.js";
import { cutRuns, highest, milliseconds, percent, plain, roomForMarks, seconds } from "./scale.js";
import { Series } from "./series.js";
import { clock, dayAndClock, setText } from "./times.js";

const RELOAD_EVERY_MS = 30_000;
const TAIL_EVERY_MS = 5_000;
const TAIL_STEPS = 6;
const COLOURS = 8;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]]; // for the servers beyond the colours
const ROOM_ABOVE = 1.12;
const [PAD_TOP_PX, PAD_BOTTOM_PX, TIMES_PX] = [4, 7, 24];
const LEAST_SHOWN_S = 20;
const FEW_S = 150; // a plot of so little is drawn in seconds
const LEAST_DRAG_PX = 8;
const LEAST_CHOSEN_S = 10;
const CHOSEN_ONCE_MS = 500;
const MOST_NAMES = 8; // with more, only the servers in front have their names at their lines
const TARGET_WITHIN = 3; // the axis reaches a target up to so many times what was measured
const NARROW = matchMedia("(max-width: 820px)");
const SIGNALS = [
  { key: "rt_p95_ms", title: "p95 of response time", unit: milliseconds, first: true },
  { key: "weight", title: "Weight", unit: (value) => `${Math.round(value)}`, stepped: true, first: true },
  { key: "rps", title: "Requests per second", unit: (value) => plain(value, "/s"), first: true },
  { key: "errors_per_s", title: "Errors per second", unit: (value) => plain(value, "/s") },
  { key: "cpu", title: "CPU", unit: percent },
  { key: "run_delay_per_cpu_s", title: "Wait for a CPU, per second of CPU time", unit: seconds },
  { key: "steal", title: "CPU taken by the hypervisor (steal)", unit: percent },
  { key: "cpi", title: "Cycles per instruction or memory access", unit: plain },
];

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The places of values without a neighbour, which no line shows.
function alone(plot, number) {
  const values = plot.data[number];
  return values.flatMap((value, place) => (value != null && values[place - 1] == null && values[place + 1] == null ? [place] : []));
}

class Figure {
  constructor(stack, signal, place, count) {
    this.stack = stack;
    this.signal = signal;
    this.first = place === 0;
    this.last = place === count - 1;
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
    if (this.target && this.target < TARGET_WITHIN * this.top) this.top = Math.max(this.top, this.target);
    return [series.times, ...columns];
  }

  // The target, where the axis reaches it.
  get target() {
    return this.signal.key === "rt_p95_ms" ? this.stack.targetP95Ms : 0;
  }

  // The servers whose names stand at the ends of their lines: all of a few, else those in front.
  get named() {
    const { nodes, focus } = this.stack;
    return nodes.length <= MOST_NAMES ? nodes : focus.slice(0, MOST_NAMES);
  }

  ends() {
    return this.named.flatMap((node) => {
      const value = this.stack.series.column(node, this.signal.key).findLast((known) => known != null);
      return value == null ? [] : [{ node, value, colour: this.stack.lookOf(node).colour }];
    });
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
    return this.canvas.clientHeight;
  }

  // The room for the texts of changes, above the lines.
  get marks() {
    return roomForMarks(this.height - PAD_TOP_PX - (this.last ? TIMES_PX : PAD_BOTTOM_PX));
  }

  build() {
    this.plot?.destroy();
    const { nodes, focus } = this.stack;
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const paths = this.signal.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const line = (node) => {
      const look = this.stack.lookOf(node);
      const front = focus.includes(node);
      return { stroke: colour(look.colour), width: front ? 2.5 : 1.25, dash: look.dash, alpha: front || focus.length === 0 ? 1 : 0.7, points: { show: true, size: 4, fill: colour(look.colour), filter: alone }, paths };
    };
    const data = this.data();
    const days = this.stack.lastS > 2 * 86400;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.canvas.clientWidth),
        height: this.height,
        padding: [PAD_TOP_PX, roomForNames(this.named), this.last ? 0 : PAD_BOTTOM_PX, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "signals" }, points: { show: false } },
        scales: { x: { time: true, range: () => this.stack.span() }, y: { range: () => [0, (this.signal.stepped ? this.marks.factor : ROOM_ABOVE) * this.top] } },
        series: [{}, ...nodes.map(line)],
        axes: [
          { ...axis, show: this.last, space: 70, size: TIMES_PX, incrs: [60, 120, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800, 1209600], values: (_, splits) => splits.map((second) => (days ? dayAndClock(second).split(",")[0] : clock(second).slice(0, 5))) },
          { ...axis, size: 58, space: 30, values: (_, splits) => splits.map((value) => this.signal.unit(value)) },
        ],
        hooks: {
          drawClear: [(plot) => drawSpans(plot, this.stack.series.spansOf(nodes), this.first)],
          draw: [
            (plot) => drawMarks(plot, this.stack.series.marksOf(nodes), this.signal.stepped ? this.marks.rows : 0),
            (plot) => drawCuts(plot, this.cuts(), this.signal.unit),
            (plot) => drawNames(plot, this.ends()),
            (plot) => { if (this.target && this.target <= plot.scales.y.max) drawTarget(plot, this.target, `target ${this.signal.unit(this.target)}`); },
          ],
          setCursor: [() => this.read()],
          setSelect: [(plot) => this.choose(plot)],
        },
      },
      data,
      this.canvas,
    );
    this.read();
  }

  // Dragging over the plot opens the pool's page at that time. The other plots take the selection over: they say it again.
  choose(plot) {
    const { left, width } = plot.select;
    if (width < LEAST_DRAG_PX || performance.now() - this.stack.chosenMs < CHOSEN_ONCE_MS) return;
    this.stack.chosenMs = performance.now();
    const [from, until] = [left, left + width].map((place) => plot.posToVal(place, "x"));
    const query = new URLSearchParams({ until_unix_s: until.toFixed(0), last_s: Math.max(until - from, LEAST_CHOSEN_S).toFixed(0) });
    location.assign(`${this.stack.section.dataset.page}?${query}#signals`);
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
    this.targetP95Ms = Number(section.dataset.targetP95Ms);
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
    this.stepS = Number(section.dataset.step);
    this.byTails = section.dataset.tails === "1";
    this.loadedMs = this.chosenMs = -Infinity;
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
    const tailS = TAIL_STEPS * this.stepS;
    const recent = this.byTails && performance.now() - this.loadedMs < (tailS * 1000) / 2;
    this.load(recent ? tailS : this.lastS);
  }

  async load(lastS = this.lastS) {
    const query = new URLSearchParams({ last_s: lastS, step_s: this.stepS });
    if (this.section.dataset.until) query.set("until_unix_s", this.section.dataset.until);
    for (const node of this.drawn) query.append("node", node);
    try {
      const answer = await fetch(`${this.section.dataset.history}?${query}`);
      if (!answer.ok) throw new Error(`${answer.status}`);
      const found = await answer.json();
      if (lastS === this.lastS) this.series = new Series();
      this.series.merge(found);
      this.loadedMs = performance.now();
      if (this.byTails && this.fit()) return;
      this.draw();
    } catch (error) {
      this.loading.hidden = false;
      this.loading.textContent = `The series cannot be loaded (${error.message}); reload the page to try again.`;
    }
  }

  // Steps of a second while there are a few minutes of data, as after a start; answers whether all is loaded again.
  fit() {
    const { last, step } = this.section.dataset;
    const isShort = this.series.newest - this.span()[0] < FEW_S;
    const [lastS, stepS] = isShort ? [2 * FEW_S, 1] : [Number(last), Number(step)];
    const differs = this.lastS !== lastS;
    [this.lastS, this.stepS] = [lastS, stepS];
    if (differs) this.load();
    return differs;
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

  // What the time axis shows: from the first value on, so that a plot of a minute's data is not empty for the rest.
  span() {
    const { times } = this.series;
    const first = times[Math.max(this.series.firstKnown(SIGNALS.map((signal) => signal.key)) - 1, 0)];
    return [Math.max(times[0], Math.min(first, this.series.newest - LEAST_SHOWN_S)), this.series.newest];
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
    this.figures = shown.map((signal, place) => new Figure(this, signal, place, shown.length));
    this.parent.replaceChildren(...this.figures.map((figure) => figure.element));
    this.legend.hidden = this.names.length <= MOST_NAMES; // each has its name at its line
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
