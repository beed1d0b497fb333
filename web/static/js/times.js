// Puts texts and times into elements; times in the viewer's own zone, with UTC on hover.
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

export function clock(unixS) {
  return CLOCK.format(new Date(unixS * 1000));
}

export function dayAndClock(unixS) {
  const then = new Date(unixS * 1000);
  const today = new Date().toDateString() === then.toDateString();
  return today ? CLOCK.format(then) : `${DAY.format(then)}, ${CLOCK.format(then)}`;
}

export function utc(unixS) {
  return `${new Date(unixS * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// What is set anew is laid out anew.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setTime(element, unixS) {
  element.dateTime = new Date(unixS * 1000).toISOString();
  element.title = utc(unixS);
  element.textContent = dayAndClock(unixS);
}
