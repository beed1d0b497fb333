// The stream of a live page: one event a second, again and again when the connection breaks.
import { clock, setText } from "./times.js";

const SILENT_AFTER_MS = 3500;
const AGAIN_AFTER_MS = 2000;

const link = document.getElementById("link");

function showLink(state, text) {
  document.body.dataset.link = state;
  link.dataset.link = state;
  setText(link, text);
}

// `onEvent` shows an event and returns true while nothing new comes of it: the controller is dead.
export function follow(events, onEvent) {
  let lastEventMs = performance.now();

  function connect() {
    const source = new EventSource(events);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      lastEventMs = performance.now();
      const dead = onEvent(event);
      showLink(dead ? "idle" : "live", `${dead ? "connected, but nothing is new" : "live"} · ${clock(event.time_unix_s)}`);
    };
    source.onerror = () => {
      // The browser connects again by itself unless the answer was a refusal.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_AFTER_MS);
    };
  }

  connect();
  setInterval(() => {
    const silentMs = performance.now() - lastEventMs;
    if (silentMs > SILENT_AFTER_MS) {
      document.title = "✕ Slackwater: no connection";
      showLink("lost", `no connection for ${Math.round(silentMs / 1000)} s: this page is old, trying again`);
    }
  }, 500);
}
