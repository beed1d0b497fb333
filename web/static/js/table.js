// Puts a pool's texts into the page. Everything is set as text: names and reasons are never read as markup.
import { dayAndClock, setTime, utc } from "./times.js";

const MODES = { act: "act", observe: "observe", "": "mode unknown" };

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function field(root, name) {
  return root.querySelector(`[data-field="${name}"]`);
}

export function showPool(section, pool) {
  section.dataset.state = pool.state;
  section.toggleAttribute("data-stale", pool.stale);
  const plain = ["symbol", "headline", "sentence", "age", "total_rps", "slowest", "slowest_node", "moved", "moved_note", "alarm"];
  for (const name of plain) setText(field(section, name), pool[name]);
  for (const name of ["law", "balance"]) setText(field(section, name), pool[name] || "–");
  field(section, "alarm").hidden = !pool.alarm;
  field(section, "paused").hidden = !pool.paused;
  const mode = field(section, "mode");
  mode.dataset.mode = pool.mode;
  setText(mode, MODES[pool.mode] ?? pool.mode);
  showList(section.querySelector(".servers tbody"), pool.rows, "#row", "node", showRow);
  showList(section.querySelector(".changes"), pool.changes, "#change", "id", showChange);
}

// Keeps an element for each item, in order, by its key; makes and removes what is needed.
function showList(parent, items, template, key, show) {
  const old = new Map([...parent.children].map((element) => [element.dataset[key], element]));
  let place = parent.firstElementChild;
  for (const item of items) {
    let element = old.get(item[key]);
    old.delete(item[key]);
    if (!element) {
      element = document.querySelector(template).content.firstElementChild.cloneNode(true);
      element.dataset[key] = item[key];
    }
    show(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
  const empty = parent.closest(".card").querySelector(".empty");
  if (empty) empty.hidden = items.length > 0;
}

function showRow(element, row) {
  element.dataset.state = row.state;
  for (const name of ["node", "note", "symbol", "word", "since", "weight", "wanted", "rps", "p95", "cpu", "why"]) {
    setText(field(element, name), row[name]);
  }
  const since = row.since_unix_s;
  field(element, "since").title = since == null ? "" : `since ${dayAndClock(since)} (${utc(since)})`;
  for (const name of ["weight_share", "cpu_share"]) field(element, name).setAttribute("width", (100 * row[name]).toFixed(1));
}

function showChange(element, change) {
  for (const name of ["what", "why", "by"]) setText(field(element, name), change[name]);
  field(element, "would").hidden = change.applied;
  setTime(element.querySelector("time"), change.time_unix_s);
}
