// What the browser tests and the screenshots share: Chromium through playwright-core, from where `make setup` put them.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.BROWSER_MODULES}/`);
export const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export async function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
}

export async function open(browser, url, { width = 1600, height = 1000, dark = false, firstVisit = false, ...more } = {}) {
  const context = await browser.newContext({
    viewport: { width, height }, colorScheme: dark ? "dark" : "light", timezoneId: "Europe/Berlin", locale: "en-GB", baseURL: url, ...more,
  });
  if (!firstVisit) await context.addInitScript(() => localStorage.setItem("slackwater-tour-seen", "by the tests"));
  const page = await context.newPage();
  page.setDefaultTimeout(90_000); // other things may run on the machine
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(`${error}`));
  page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
  page.on("dialog", (dialog) => { page.problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  return page;
}

export async function login(page, name, password) {
  await page.goto("/login");
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL((url) => url.pathname === "/");
}

// What axe finds that is serious or critical.
export async function serious(page) {
  // In the page's own world a script from outside is against its policy: axe is run by the debugger instead.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | ")}`);
}
