// All servers: searched, grouped and sorted here without a reload, live, with the heat map in the same order.
import { follow } from "./connection.js";
import { HeatMap } from "./heat.js";
import { setText, setTime } from "./times.js";

const HARM_EVERY_MS = 30_000;
const FIELDS = { none: null, pool: "pool", zone: "zone", type: "machine_type" };
const NOTHING = "–";

const form = document.getElementById("fleet-filter");
const table = document.querySelector("table.fleet");
const section = document.querySelector("section.heat");
const heat = new HeatMap(section);
const rows = new Map([...table.querySelectorAll("tr[data-key]")].map((row) => [row.dataset.key, row]));
const names = new Intl.Collator("en", { numeric: true });
let servers = []; // of the last event
let map = { servers: [] };
let harm = new Map(); // by the servers' keys
let arranged = keysOf([...table.tBodies].map((body) => [
  body.querySelector("[data-field='title']")?.textContent,
  [...body.querySelectorAll("tr[data-key]")].map((row) => row.dataset),
]));
let asked = false; // for the harm, with an answer or without; until then the rows stay in the page's own order
let states = "";

// The order of the rows, to compare: the keys below each title.
function keysOf(groups) {
  return JSON.stringify(groups.map(([title, members]) => [title ?? "", members.map((server) => server.key)]));
}

// As `arrange` in web/content/fleet.py.
function groups() {
  const words = form.elements.q.value.toLowerCase().split(/\s+/);
  const searched = (server) => [server.node, server.pool, server.zone, server.machine_type, server.word].join(" ").toLowerCase();
  const shown = servers.filter((server) => words.every((word) => searched(server).includes(word)));
  const lost = (server) => harm.get(server.key)?.lost_s ?? 0;
  const before = {
    harm: (a, b) => lost(b) - lost(a),
    name: () => 0,
    state: (a, b) => a.rank - b.rank,
    load: (a, b) => (a.load_share ?? 1e9) - (b.load_share ?? 1e9),
    p95: (a, b) => (b.p95_ms ?? 0) - (a.p95_ms ?? 0),
  }[form.elements.sort.value];
  shown.sort((a, b) => before(a, b) || names.compare(a.node, b.node) || names.compare(a.pool, b.pool));
  const field = FIELDS[form.elements.group.value];
  if (!field) return [["", shown]];
  const found = Map.groupBy(shown, (server) => server[field]);
  return [...found].sort(([a], [b]) => (a === "") - (b === "") || names.compare(a, b)).map(([title, members]) => [title || NOTHING, members]);
}

function rowOf(server) {
  let row = rows.get(server.key);
  if (!row) {
    row = document.getElementById("fleet-row").content.firstElementChild.cloneNode(true);
    row.dataset.key = server.key;
    for (const [name, text] of [["node", server.node], ["zone", server.zone || NOTHING], ["machine_type", server.machine_type || NOTHING]]) {
      row.querySelector(`[data-field="${name}"]`).textContent = text;
    }
    const pool = row.querySelector('[data-field="pool"]');
    pool.textContent = server.pool;
    pool.setAttribute("href", `/pools/${encodeURIComponent(server.pool)}`);
    rows.set(server.key, row);
    fill(row, server);
    fillHarm(row, harm.get(server.key));
  }
  return row;
}

function fill(row, server) {
  row.dataset.state = server.state;
  for (const [name, text] of Object.entries({ badge: `${server.symbol} ${server.word}`, since: server.since, load: server.load, p95: server.p95 })) {
    setText(row.querySelector(`[data-field="${name}"]`), text);
  }
}

function fillHarm(row, server) {
  setText(row.querySelector('[data-field="lost"]'), server?.lost ?? NOTHING);
  const cell = row.querySelector('[data-field="worst"]');
  if (!server?.worst_url) {
    setText(cell, NOTHING);
  } else if (cell.firstElementChild?.getAttribute("href") !== server.worst_url) {
    const link = document.createElement("a");
    const time = document.createElement("time");
    link.setAttribute("href", server.worst_url);
    setTime(time, server.worst_unix_s);
    link.append(time);
    cell.replaceChildren(link);
  }
}

function groupRow(title, count) {
  const row = document.getElementById("fleet-group").content.firstElementChild.cloneNode(true);
  row.querySelector("[data-field='title']").textContent = title;
  row.querySelector("[data-field='count']").textContent = count;
  return row;
}

// Puts the rows into the table anew where their order has changed; what had the focus keeps it.
function arrange() {
  if (servers.length === 0 || !asked) return;
  const found = groups();
  const order = found.flatMap(([, members]) => members);
  const now = keysOf(found);
  if (now !== arranged) {
    arranged = now;
    const focused = document.activeElement;
    for (const body of [...table.tBodies]) body.remove();
    for (const [title, members] of found) {
      const body = table.createTBody();
      body.append(...(title ? [groupRow(title, members.length)] : []), ...members.map(rowOf));
    }
    if (table.contains(focused)) focused.focus();
    document.getElementById("fleet-empty").hidden = order.length > 0;
    document.getElementById("fleet-shown").textContent = `${order.length} of ${servers.length}`;
  }
  heat.show(map, order.map((server) => harm.get(server.key)).filter(Boolean));
}

function onEvent(event) {
  servers = event.servers;
  for (const server of servers) if (rows.has(server.key)) fill(rows.get(server.key), server);
  document.getElementById("fleet-summary").textContent = event.summary;
  const alarm = document.getElementById("fleet-alarm");
  alarm.hidden = event.error === "" && event.silent.length === 0;
  alarm.textContent = event.error || `The controller is silent about: ${event.silent.join(", ")}`;
  document.title = "Fleet · Slackwater";
  const present = servers.map((server) => server.key + server.state).join();
  if (present !== states) arrange();
  states = present;
  return event.error !== "" || servers.every((server) => event.silent.includes(server.pool));
}

async function loadHarm() {
  try {
    const answer = await fetch(section.dataset.harm);
    if (!answer.ok) throw new Error(`${answer.status}`);
    map = await answer.json();
  } catch (error) {
    section.querySelector(".readout").textContent = `The heat map cannot be loaded (${error.message}); reload the page to try again.`;
    asked = true;
    if (map.servers.length === 0) heat.show(map, []);
    arrange();
    return;
  }
  asked = true;
  harm = new Map(map.servers.map((server) => [`${server.pool}/${server.node}`, server]));
  for (const [key, row] of rows) fillHarm(row, harm.get(key));
  for (const [place, unixS] of [map.since_unix_s, map.until_unix_s].entries()) setTime(section.querySelectorAll(".axis time")[place], unixS);
  if (servers.length > 0) arrange();
  else heat.show(map, [...rows.keys()].map((key) => harm.get(key)).filter(Boolean)); // the page's own order
}

function onFilter(event) {
  if (servers.length === 0 || !asked) return; // the server does it
  event.preventDefault();
  const query = new URLSearchParams(new FormData(form));
  history.replaceState(null, "", `${form.getAttribute("action")}?${query}`);
  for (const link of section.querySelectorAll(".ranges a")) {
    const url = new URL(link.href);
    for (const name of ["q", "group", "sort"]) url.searchParams.set(name, query.get(name));
    link.href = url;
  }
  arrange();
}

for (const time of document.querySelectorAll("time[data-unix]")) setTime(time, Number(time.dataset.unix));
form.addEventListener("submit", onFilter);
form.addEventListener("input", onFilter);
loadHarm();
setInterval(loadHarm, HARM_EVERY_MS);
follow(document.body.dataset.events, onEvent);
