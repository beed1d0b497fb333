// Keeps a page live: one event a second. Other pages get times and plots.
import { follow } from "./connection.js";
import { Stack } from "./plots.js";
import { showPool, showStanding } from "./table.js";
import { setTime } from "./times.js";

const GAP_S = 8; // each event mends a little more than this
const MOST_DRAWN = 24;

const events = document.body.dataset.events;
const sections = new Map([...document.querySelectorAll("section[data-pool]")].map((section) => [section.dataset.pool, section]));
const place = document.querySelector(".stack");
const stack = place && new Stack(place);
let lastUnixS = 0;

// The servers that are drawn, those that are not calm first.
function drawn(rows) {
  const urgent = [...rows.filter((row) => row.state !== "calm"), ...rows.filter((row) => row.state === "calm")];
  return urgent.slice(0, MOST_DRAWN).map((row) => row.node);
}

function onEvent(event) {
  const gap = event.time_unix_s - lastUnixS;
  const first = lastUnixS === 0;
  lastUnixS = event.time_unix_s;
  const names = event.pools.map((pool) => pool.pool);
  if (names.length !== sections.size || !names.every((name) => sections.has(name))) {
    location.reload();
    return true;
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
  return event.error !== "" || event.pools.every((one) => one.stale);
}

for (const time of document.querySelectorAll("time[data-unix]")) setTime(time, Number(time.dataset.unix));
if (events) follow(events, onEvent);
else stack?.load();
