// Keeps a page live: one event a second, again and again when the connection breaks. Other pages get times and plots.
import { Stack } from "./plots.js";
import { showPool, showStanding } from "./table.js";
import { clock, setTime } from "./times.js";

const GAP_S = 8; // each event mends a little more than this
const SILENT_AFTER_MS = 3500;
const AGAIN_AFTER_MS = 2000;
const MOST_DRAWN = 24;

const link = document.getElementById("link");
const events = document.body.dataset.events;
const sections = new Map([...document.querySelectorAll("section[data-pool]")].map((section) => [section.dataset.pool, section]));
const place = document.querySelector(".stack");
const stack = place && new Stack(place);
let lastEventMs = performance.now();
let lastUnixS = 0;

function showLink(state, text) {
  document.body.dataset.link = state;
  link.dataset.link = state;
  if (link.textContent !== text) link.textContent = text;
}

// The servers that are drawn, those that are not calm first.
function drawn(rows) {
  const urgent = [...rows.filter((row) => row.state !== "calm"), ...rows.filter((row) => row.state === "calm")];
  return urgent.slice(0, MOST_DRAWN).map((row) => row.node);
}

function onEvent(message) {
  const event = JSON.parse(message.data);
  lastEventMs = performance.now();
  const gap = event.time_unix_s - lastUnixS;
  const first = lastUnixS === 0;
  lastUnixS = event.time_unix_s;
  const names = event.pools.map((pool) => pool.pool);
  if (names.length !== sections.size || !names.every((name) => sections.has(name))) {
    location.reload();
    return;
  }
  showStanding(event.standing);
  for (const pool of event.pools) showPool(sections.get(pool.pool), pool);
  document.title = [...event.pools.slice(0, 3).map((pool) => `${pool.symbol} ${pool.pool}`), "Slackwater"].join(" · ");
  const [{ pool, rows }] = event.pools;
  const tail = event.tails[pool];
  if (stack && tail) {
    stack.update(tail, rows);
    if (first || gap > GAP_S) stack.load(rows.length > MOST_DRAWN ? drawn(rows) : []);
  }
  const dead = event.error || event.pools.every((one) => one.stale);
  showLink(dead ? "idle" : "live", `${dead ? "connected, but nothing is new" : "live"} · ${clock(event.time_unix_s)}`);
}

function connect() {
  const source = new EventSource(events);
  source.onmessage = onEvent;
  source.onerror = () => {
    // The browser connects again by itself unless the answer was a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_AFTER_MS);
  };
}

for (const time of document.querySelectorAll("time[data-unix]")) setTime(time, Number(time.dataset.unix));
if (events) {
  connect();
  setInterval(() => {
    const silentMs = performance.now() - lastEventMs;
    if (silentMs > SILENT_AFTER_MS) {
      document.title = "✕ Slackwater: no connection";
      showLink("lost", `no connection for ${Math.round(silentMs / 1000)} s: this page is old, trying again`);
    }
  }, 500);
} else {
  stack?.load();
}
