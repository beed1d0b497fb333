// The plotted series of one pool: the last minutes on a grid of seconds, mended by each event's last ten seconds.
const PLOTTED = ["rt_p50_ms", "rt_p95_ms", "weight"];
const NAMES = [...PLOTTED, "rps"];

export class Series {
  constructor(keepS) {
    this.keepS = keepS;
    this.points = new Map(); // second -> node -> {rt_p50_ms, rt_p95_ms, weight, rps}
    this.spans = new Map();
    this.marks = new Map();
    this.newest = 0;
  }

  merge({ history, spans, marks }) {
    history.time_unix_s.forEach((second, slot) => {
      const nodes = {};
      for (const [node, series] of Object.entries(history.nodes)) {
        nodes[node] = Object.fromEntries(NAMES.map((name) => [name, series[name][slot]]));
      }
      this.points.set(second, nodes);
      this.newest = Math.max(this.newest, second);
    });
    for (const span of spans) this.spans.set(`${span.node} ${span.state} ${span.since_unix_s}`, span);
    for (const mark of marks) this.marks.set(mark.id, mark);
    const oldest = this.newest - this.keepS;
    for (const second of this.points.keys()) if (second < oldest) this.points.delete(second);
    for (const [key, span] of this.spans) if (span.last_unix_s < oldest) this.spans.delete(key);
    for (const [key, mark] of this.marks) if (mark.time_unix_s < oldest) this.marks.delete(key);
  }

  nodes() {
    const names = new Set();
    for (const nodes of this.points.values()) for (const node of Object.keys(nodes)) names.add(node);
    return names;
  }

  // [seconds, p50, p95, weight]: every second has its place, so that a gap is seen as one.
  columns(node) {
    const seconds = [];
    for (let second = this.newest - this.keepS; second <= this.newest; second += 1) seconds.push(second);
    const of = (name) => seconds.map((second) => this.points.get(second)?.[node]?.[name] ?? null);
    return [seconds, ...PLOTTED.map(of)];
  }

  // Whether anything was measured in the last seconds, be it that there were no requests.
  hears(node, lastS) {
    for (let second = this.newest - lastS; second <= this.newest; second += 1) {
      if (this.points.get(second)?.[node]?.rps != null) return true;
    }
    return false;
  }

  // Steps upwards that follow each other are one ramp, hence one mark.
  marksOf(node) {
    const told = [];
    const own = [...this.marks.values()].filter((mark) => mark.node === node);
    for (const mark of own.sort((a, b) => a.time_unix_s - b.time_unix_s)) {
      const last = told.at(-1);
      const up = last && last.after > last.before && mark.after > mark.before;
      if (up && mark.applied === last.applied && mark.time_unix_s - last.until < 3) {
        last.after = mark.after;
        last.until = mark.time_unix_s;
      } else {
        told.push({ ...mark, until: mark.time_unix_s });
      }
    }
    return told;
  }

  spansOf(node) {
    return [...this.spans.values()].filter((span) => span.node === node);
  }
}
