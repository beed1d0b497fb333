// The heat map: a row a server, a column a time. One link stands on a cell at a time: under the pointer, or where the
// arrow keys take it.
import { clock, dayAndClock } from "./times.js";

const LEVELS = [10, 30, 60]; // percent at which a darker colour begins
const NAMES = ["unknown", "0", "1", "2", "3", "4"];
const ROWS_PX = 900;
const ROW_PX = [3, 18]; // at least and at most
const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity] };

const within = (value, most) => Math.min(Math.max(value, 0), most);

// Its place in NAMES.
function level(percent, episodes) {
  if (percent === null) return 0;
  return episodes === 0 ? 1 : 2 + LEVELS.filter((least) => percent >= least).length;
}

export class HeatMap {
  constructor(section) {
    this.section = section;
    this.box = section.querySelector(".map");
    this.canvas = section.querySelector("canvas");
    this.link = section.querySelector(".cell");
    this.readout = section.querySelector(".readout");
    this.rows = [];
    this.columns = 0;
    this.at = null;
    for (const name of ["pointermove", "pointerdown"]) this.box.addEventListener(name, (event) => this.point(event));
    this.canvas.addEventListener("click", () => this.link.click());
    this.link.addEventListener("keydown", (event) => this.press(event));
    this.link.addEventListener("focus", () => this.move(...this.at));
    new ResizeObserver(() => this.canvas.width !== this.widthPx() && this.draw()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // `rows`: the harm of each server, in order.
  show(map, rows) {
    this.map = map;
    this.rows = rows;
    this.columns = rows.length > 0 ? rows[0].episodes.length : 0;
    this.box.hidden = this.columns === 0;
    this.box.removeAttribute("aria-busy");
    if (this.columns === 0) return;
    this.draw();
    this.at = this.at ? [within(this.at[0], rows.length - 1), within(this.at[1], this.columns - 1)] : [0, this.columns - 1];
    this.place(...this.at);
  }

  widthPx() {
    return Math.round(this.box.clientWidth * devicePixelRatio);
  }

  draw() {
    if (this.columns === 0) return;
    const style = getComputedStyle(document.documentElement);
    const colours = NAMES.map((name) => Number.parseInt(style.getPropertyValue(`--heat-${name}`).trim().slice(1), 16));
    const pixels = new ImageData(this.columns, this.rows.length);
    const bytes = new DataView(pixels.data.buffer);
    this.rows.forEach((row, y) => {
      for (let x = 0; x < this.columns; x += 1) {
        const colour = colours[level(row.lost_percent[x], row.episodes[x])];
        bytes.setUint32(4 * (y * this.columns + x), ((colour << 8) | 255) >>> 0); // red, green, blue, opaque
      }
    });
    const small = new OffscreenCanvas(this.columns, this.rows.length);
    small.getContext("2d").putImageData(pixels, 0, 0);
    const rowPx = Math.min(Math.max(Math.floor(ROWS_PX / this.rows.length), ROW_PX[0]), ROW_PX[1]);
    this.canvas.width = this.widthPx();
    this.canvas.height = Math.round(rowPx * this.rows.length * devicePixelRatio);
    this.canvas.style.aspectRatio = `${this.canvas.width} / ${this.canvas.height}`;
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
  }

  point(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const row = within(Math.floor(((event.clientY - top) / height) * this.rows.length), this.rows.length - 1);
    this.move(row, within(Math.floor(((event.clientX - left) / width) * this.columns), this.columns - 1));
  }

  press(event) {
    const by = KEYS[event.key];
    if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.move(within(this.at[0] + by[0], this.rows.length - 1), within(this.at[1] + by[1], this.columns - 1));
  }

  move(row, column) {
    this.place(row, column);
    this.readout.textContent = this.link.getAttribute("aria-label");
  }

  place(row, column) {
    this.at = [row, column];
    const { style } = this.link;
    style.left = `${(100 * column) / this.columns}%`;
    style.width = `${100 / this.columns}%`;
    style.top = `${(100 * row) / this.rows.length}%`;
    style.height = `${100 / this.rows.length}%`;
    this.link.setAttribute("href", this.target(row, column));
    this.link.setAttribute("aria-label", this.words(row, column));
  }

  words(row, column) {
    const { node, pool, lost_percent: lost, episodes } = this.rows[row];
    const since = this.map.since_unix_s + column * this.map.step_s;
    const count = episodes[column];
    const known = count === 0 ? "nothing" : `${lost[column]}% of its calm capacity`;
    const what = lost[column] === null ? "nothing known" : `lost ${known}${count === 0 ? "" : `, ${count} episode${count === 1 ? "" : "s"}`}`;
    return `${node} (${pool}), ${dayAndClock(since)} to ${clock(since + this.map.step_s)}: ${what}`;
  }

  target(row, column) {
    const { node, pool, episodes, worst_unix_ms: worst } = this.rows[row];
    const { fleet, narrower } = this.section.dataset;
    const path = `/pools/${encodeURIComponent(pool)}`;
    const count = episodes[column];
    if (count > 0 && (count === 1 || !narrower)) return `${path}/episodes/${encodeURIComponent(node)}/${worst[column]}`;
    if (!narrower) return path;
    const query = new URLSearchParams({ last: narrower, until: this.map.since_unix_s + (column + 1) * this.map.step_s });
    if (count > 0) query.set("q", node);
    return `${fleet}?${query}`;
  }
}
