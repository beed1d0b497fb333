// Keeps a page live: one event a second. Other pages get times and plots.
import { follow } from "./connection.js";
import { Stack } from "./plots.js";
import { showPool, showStanding } from "./table.js";
import { setTime } from "./times.js";

const GAP_S = 8; // each event mends a little more than this

const events = document.body.dataset.events;
const sections = new Map([...document.querySelectorAll("section[data-pool]")].map((section) => [section.dataset.pool, section]));
const stacks = [...document.querySelectorAll(".stack")].map((section) => new Stack(section));
let lastUnixS = 0;

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
  for (const stack of stacks) {
    const pool = event.pools.find((shown) => shown.pool === stack.section.dataset.of);
    if (!pool) continue;
    stack.update(pool, event.tails[pool.pool]);
    if (first || gap > GAP_S) stack.renew();
  }
  return event.error !== "" || event.pools.every((pool) => pool.stale);
}

// What is secondary is folded on a narrow screen alone, and never on paper.
const unfold = () => document.querySelectorAll("details.fold").forEach((fold) => { fold.open = true; });
if (!matchMedia("(max-width: 820px)").matches) unfold();
addEventListener("beforeprint", unfold);

for (const time of document.querySelectorAll("time[data-unix]")) setTime(time, Number(time.dataset.unix));
if (events) follow(events, onEvent);
else for (const stack of stacks) stack.load();
