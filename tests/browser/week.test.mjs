// The tour, the page of the week and the head of the page in Chromium. URL and PASSWORD come from the environment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, login, open } from "./kit.mjs";

const { URL: url, PASSWORD: password } = process.env;
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

function inBrowser(name, options, body) {
  test(name, { timeout: 120_000 }, async () => {
    const page = await open(browser, url, options);
    try {
      await body(page);
      assert.deepEqual(page.problems, []);
    } finally {
      await page.context().close();
    }
  });
}

const pressed = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };

for (const options of [{ width: 1280 }, { width: 380, dark: true }]) {
  inBrowser(`the tour of the first visit is walked with the keyboard, and remembered, ${options.width} px`, { ...options, firstVisit: true }, async (page) => {
    await page.goto("/");
    const tour = page.getByRole("dialog", { name: "The dashboard in three steps" });
    await tour.getByText("1. Where it stands.").waitFor();
    assert.equal(await page.locator(".toured").getAttribute("class"), "standing toured");
    await pressed(page, "Enter");
    await tour.getByText("2. What users feel.").waitFor();
    assert.equal(await tour.getByText("1. Where it stands.").isVisible(), false);
    await pressed(page, "Tab", "Enter");
    await tour.getByText("1. Where it stands.").waitFor();
    await pressed(page, "Enter", "Enter");
    await tour.getByText("3. Decide.").waitFor();
    assert.equal(await page.locator(".toured").textContent(), "Week");
    assert.ok(await page.evaluate(() => document.querySelector("#tour").getBoundingClientRect().left >= 0));
    await pressed(page, "Enter");
    await tour.waitFor({ state: "hidden" });
    await page.locator(".toured").waitFor({ state: "detached" }); // the dialog tells of its end a little after it is hidden
    assert.equal(await page.locator(".toured").count(), 0);
    await page.reload();
    await page.waitForSelector('#link[data-link="live"]');
    assert.equal(await tour.isVisible(), false, "remembered");
    await page.getByRole("link", { name: "tour in three steps" }).click();
    await tour.waitFor();
    await pressed(page, "Escape");
    await tour.waitFor({ state: "hidden" });
  });
}

inBrowser("the tour leaves the way to the brake open", { width: 1280, firstVisit: true }, async (page) => {
  await page.goto("/");
  await page.getByRole("dialog").waitFor();
  await page.getByRole("link", { name: "Pause everything" }).click();
  await page.waitForURL(/login|confirm/);
});

inBrowser("at 1280 pixels the head has its pages, the brake and the person in one row", { width: 1280 }, async (page) => {
  await login(page, "anna", password);
  for (const path of ["/", "/week", "/settings"]) {
    await page.goto(path);
    const rows = await page.evaluate(() => {
      const parts = [...document.querySelectorAll(".top .brand, .top nav a, .top .brake > *")];
      const middles = parts.map((part) => part.getBoundingClientRect()).map(({ top, bottom }) => (top + bottom) / 2);
      return Math.max(...middles) - Math.min(...middles);
    });
    assert.ok(rows < 8, `${path}: middles are ${rows} px apart`);
  }
});

inBrowser("an operator marks an episode on the page of the week", { width: 1280, dark: true }, async (page) => {
  await login(page, "anna", password);
  await page.goto("/week");
  const row = page.locator(".week tbody tr").first();
  await row.locator("summary").click();
  await row.getByLabel("It was").selectOption("a deploy");
  await row.getByLabel("Note").fill("release 14");
  await row.getByRole("button", { name: "Mark" }).click();
  await page.locator(".flash.done").waitFor();
  assert.match(await page.locator(".week tbody tr").first().locator("summary").textContent(), /a deploy/);
  const alarms = page.locator(".tiles div", { hasText: "False alarms" }).locator("b").first();
  assert.equal(await alarms.textContent(), "1");
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${over} px wider than the screen`);
});
