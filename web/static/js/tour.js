// The tour of the first visit. It stands beside the page, not over it: the way to the brake stays open.
const SEEN = "slackwater-tour-seen";
const tour = document.getElementById("tour");
const steps = [...tour.querySelectorAll("[data-shows]")];
const button = (name) => tour.querySelector(`[data-tour="${name}"]`);
let now = 0;

// A browser that keeps nothing shows the tour each time.
function wasSeen() {
  try { return localStorage.getItem(SEEN) !== null; } catch { return false; }
}

function remember() {
  try { localStorage.setItem(SEEN, new Date().toISOString()); } catch { /* it comes again */ }
}

function point(step) {
  for (const shown of document.querySelectorAll(".toured")) shown.classList.remove("toured");
  const target = step && document.querySelector(step.dataset.shows);
  target?.classList.add("toured");
  target?.scrollIntoView({ block: "nearest" });
}

function show(number) {
  now = number;
  steps.forEach((step, index) => { step.hidden = index !== now; });
  button("back").disabled = now === 0;
  button("next").textContent = now === steps.length - 1 ? "Done" : "Next";
  point(steps[now]);
}

button("next").addEventListener("click", () => (now === steps.length - 1 ? tour.close() : show(now + 1)));
button("back").addEventListener("click", () => { show(now - 1); if (now === 0) button("next").focus(); });
button("close").addEventListener("click", () => tour.close());
tour.addEventListener("close", () => { point(null); remember(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && tour.open) tour.close(); });

if (!wasSeen() || new URLSearchParams(location.search).has("tour")) {
  tour.show();
  show(0);
}
