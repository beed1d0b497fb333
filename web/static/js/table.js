// Puts an event's texts into the page. Everything is set as text: names and reasons are never read as markup.
import { dayAndClock, setText, setTime, utc } from "./times.js";

const MODES = { act: "act", observe: "observe", "": "mode unknown" };

// What stands between backticks becomes code.
function setCode(element, text) {
  const parts = text.split("`");
  if (element.textContent === parts.join("")) return;
  element.replaceChildren(...parts.map((part, index) => {
    const node = index % 2 ? document.createElement("code") : document.createTextNode("");
    node.textContent = part;
    return node;
  }));
}

// `item` names what each data-* attribute of the elements below `root` shows.
function fill(root, item) {
  for (const element of root.querySelectorAll("[data-field]")) {
    const text = item[element.dataset.field];
    if (text === undefined) continue;
    setText(element, text);
    if ("hide" in element.dataset) element.hidden = !text;
  }
  for (const element of root.querySelectorAll("[data-bar]")) {
    element.setAttribute("width", (100 * item[element.dataset.bar]).toFixed(1));
  }
  for (const element of root.querySelectorAll("[data-if]")) element.hidden = !item[element.dataset.if];
  for (const element of root.querySelectorAll("[data-unless]")) element.hidden = item[element.dataset.unless];
  for (const element of root.querySelectorAll("[data-href]")) {
    const path = item[element.dataset.href];
    if (path?.startsWith("/pools/")) element.setAttribute("href", path);
  }
  for (const element of root.querySelectorAll("[data-time]")) setTime(element, item[element.dataset.time]);
  if (item.state) root.dataset.state = item.state;
  root.toggleAttribute("data-fails", Boolean(item.fails));
  root.toggleAttribute("data-cpu", Boolean(item.has_cpu));
}

// Only the pool's own fields, not those of the rows in its lists.
function fillHead(section, pool) {
  const lists = [...section.querySelectorAll("[data-list]")];
  const own = (selector) => [...section.querySelectorAll(selector)].filter((e) => !lists.some((list) => list.contains(e)));
  for (const element of own("[data-field]")) {
    const text = pool[element.dataset.field];
    if (text === undefined || element.dataset.field === "mode") continue;
    setText(element, text);
    if ("hide" in element.dataset) element.hidden = !text;
  }
  for (const element of own("[data-if]")) element.hidden = !pool[element.dataset.if];
}

// Where the site stands, in the head of the page.
export function showStanding(standing) {
  const head = document.querySelector("[data-standing]");
  head.dataset.standing = standing.state;
  for (const element of head.querySelectorAll("[data-stands]")) setCode(element, standing[element.dataset.stands]);
}

export function showPool(section, pool) {
  section.dataset.state = pool.state;
  section.toggleAttribute("data-stale", pool.stale);
  section.querySelector(".tiles").toggleAttribute("data-hurt", pool.hurt);
  section.querySelector(".tiles .errors").toggleAttribute("data-hurt", pool.failing !== "");
  fillHead(section, pool);
  const mode = section.querySelector('[data-field="mode"]');
  mode.dataset.mode = pool.mode;
  setText(mode, MODES[pool.mode] ?? pool.mode);
  for (const list of section.querySelectorAll("[data-list]")) showList(section, list, pool);
}

// Keeps an element for each item, in order, by its key; makes and removes what is needed.
function showList(section, parent, pool) {
  const name = parent.dataset.list;
  const items = pool[name].map((item) => ({ ...item, key: item.id ?? item.node }));
  const old = new Map([...parent.children].map((element) => [element.dataset.key, element]));
  let place = parent.firstElementChild;
  for (const item of items) {
    let element = old.get(item.key);
    old.delete(item.key);
    if (!element) {
      element = document.querySelector(parent.dataset.template).content.firstElementChild.cloneNode(true);
      element.dataset.key = item.key;
    }
    fill(element, item);
    const moment = element.querySelector("a.moment");
    if (moment) moment.href = `/pools/${encodeURIComponent(section.dataset.pool)}?until_unix_s=${Math.trunc(item.time_unix_s) + 30}&last_s=120#signals`;
    const since = element.querySelector('[data-field="since"]');
    if (since) since.title = item.since_unix_s == null ? "" : `since ${dayAndClock(item.since_unix_s)} (${utc(item.since_unix_s)})`;
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
  const empty = section.querySelector(`[data-empty="${name}"]`);
  if (empty) empty.hidden = items.length > 0 || (name === "rows" && pool.calm_note !== "");
}
