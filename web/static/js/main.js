// Keeps the page live: one event a second from /events, again and again when the connection breaks.
import { Plots } from "./plots.js";
import { Series } from "./series.js";
import { showPool } from "./table.js";
import { clock, setTime } from "./times.js";

const PLOT_S = 300;
const TAIL_S = 8; // each event mends a little more than this
const SILENT_AFTER_MS = 3500;
const AGAIN_AFTER_MS = 2000;

const link = document.getElementById("link");
const sections = new Map([...document.querySelectorAll("[data-pool]")].map((section) => [section.dataset.pool, section]));
const plots = new Map();
const loading = new Set();
let lastEventMs = performance.now();
let lastUnixS = 0;

function say(state, text) {
  document.body.dataset.link = state;
  link.dataset.link = state;
  if (link.textContent !== text) link.textContent = text;
}

async function loadHistory(pool, section, rows) {
  if (loading.has(pool)) return;
  loading.add(pool);
  try {
    const answer = await fetch(`/api/v1/pools/${encodeURIComponent(pool)}/history?last_s=${PLOT_S}&step_s=1`);
    if (!answer.ok) return;
    const drawn = plots.get(pool) ?? new Plots(section, new Series(PLOT_S));
    plots.set(pool, drawn);
    drawn.series.merge(await answer.json());
    drawn.update(rows);
  } finally {
    loading.delete(pool);
  }
}

function onEvent(message) {
  const event = JSON.parse(message.data);
  lastEventMs = performance.now();
  const gap = event.time_unix_s - lastUnixS;
  lastUnixS = event.time_unix_s;
  const names = event.pools.map((pool) => pool.pool);
  if (names.length !== sections.size || !names.every((name) => sections.has(name))) {
    location.reload();
    return;
  }
  for (const pool of event.pools) showPool(sections.get(pool.pool), pool);
  document.title = [...event.pools.slice(0, 3).map((pool) => `${pool.symbol} ${pool.pool}`), "Slackwater"].join(" · ");
  for (const { pool, rows } of event.pools) {
    const known = plots.get(pool);
    const tail = event.tails[pool];
    if (!tail) continue;
    if (!known || gap > TAIL_S) {
      loadHistory(pool, sections.get(pool), rows).catch((error) => console.warn("history", error));
    } else {
      known.series.merge(tail);
      known.update(rows);
    }
  }
  const dead = event.error || event.pools.every((pool) => pool.stale);
  say(dead ? "idle" : "live", `${dead ? "connected, but nothing is new" : "live"} · ${clock(event.time_unix_s)}`);
}

function connect() {
  const source = new EventSource("/events");
  source.onmessage = onEvent;
  source.onerror = () => {
    // The browser connects again by itself unless the answer was a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_AFTER_MS);
  };
}

setInterval(() => {
  const silentMs = performance.now() - lastEventMs;
  if (silentMs > SILENT_AFTER_MS) {
    document.title = "✕ Slackwater: no connection";
    say("lost", `no connection for ${Math.round(silentMs / 1000)} s: this page is old, trying again`);
  }
}, 500);

for (const time of document.querySelectorAll("time[data-unix]")) setTime(time, Number(time.dataset.unix));
connect();
