// The plotted series of one pool: the answer of `.../history`, mended by the tail of each event.
export class Series {
  constructor() {
    this.times = [];
    this.nodes = {};
    this.spans = new Map();
    this.marks = new Map();
  }

  merge({ history, spans, marks }) {
    const places = new Map(this.times.map((time, slot) => [time, slot]));
    const keep = this.times.length;
    const signals = new Set(Object.values(history.nodes).flatMap((node) => Object.keys(node)));
    history.time_unix_s.forEach((time, slot) => {
      let place = places.get(time);
      if (place === undefined) {
        place = this.times.push(time) - 1;
        for (const series of Object.values(this.nodes)) for (const values of Object.values(series)) values.push(null);
      }
      for (const [node, found] of Object.entries(history.nodes)) {
        this.nodes[node] ??= {};
        for (const signal of signals) {
          this.nodes[node][signal] ??= this.times.map(() => null);
          this.nodes[node][signal][place] = found[signal][slot];
        }
      }
    });
    if (keep > 0) this.drop(this.times.length - keep);
    for (const span of spans) this.spans.set(`${span.node} ${span.state} ${span.since_unix_s}`, span);
    for (const mark of marks) this.marks.set(mark.id, mark);
  }

  // The oldest go as new ones come.
  drop(count) {
    this.times.splice(0, count);
    for (const series of Object.values(this.nodes)) for (const values of Object.values(series)) values.splice(0, count);
  }

  get newest() {
    return this.times.at(-1) ?? 0;
  }

  column(node, signal) {
    return this.nodes[node]?.[signal] ?? this.times.map(() => null);
  }

  // The place of the first value that any server has of these signals; 0 without any.
  firstKnown(signals) {
    const columns = Object.values(this.nodes).flatMap((node) => signals.map((signal) => node[signal] ?? []));
    const places = columns.map((values) => values.findIndex((value) => value != null)).filter((place) => place >= 0);
    return places.length > 0 ? Math.min(...places) : 0;
  }

  has(signal) {
    return Object.values(this.nodes).some((series) => series[signal]?.some((value) => value != null));
  }

  marksOf(nodes) {
    return [...this.marks.values()].filter((mark) => nodes.includes(mark.node));
  }

  spansOf(nodes) {
    return [...this.spans.values()].filter((span) => nodes.includes(span.node));
  }
}
