// How long pages are on a phone, each pool of the overview on two screens, and what the first screen shows. PAGES, the pools' addresses, comes from the environment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open } from "./kit.mjs";

const SCREEN_PX = 844;
const PAGES = JSON.parse(process.env.PAGES);
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

for (const address of PAGES) {
  test(address, { timeout: 60_000 }, async () => {
    const page = await open(browser, address, { width: 390, height: SCREEN_PX });
    try {
      await page.goto(address);
      await page.locator(".figures figure canvas").first().waitFor();
      const length = await page.evaluate(() => document.documentElement.scrollHeight);
      console.log(`${address}: ${length} pixels`);
      assert.ok(length <= 4 * SCREEN_PX, `${length} pixels`);
      const rows = page.locator('[data-list="rows"] tr');
      const shown = () => rows.evaluateAll((all) => all.filter((row) => row.checkVisibility()).length);
      assert.ok((await shown()) >= Math.min(3, await rows.count()));
      await page.getByText("Response times over the last 5 minutes").click();
      const times = page.locator('[data-list="percentiles"] tr');
      assert.equal(await times.count(), await rows.count());
      for (const cell of await times.locator("td").all()) assert.ok((await cell.isVisible()) || (await cell.textContent()).trim() === "");
      if (await page.locator(".all-servers").isVisible()) await page.locator(".all-servers summary").click();
      assert.equal(await shown(), await rows.count(), "unfolded, all servers are shown");
      assert.deepEqual(page.problems, []);
    } finally {
      await page.context().close(); // else the page's events keep the dashboard from ending
    }
  });
}

// The first pool has three servers, one of them in an episode.
for (const [width, height] of [[1280, 800], [390, SCREEN_PX]]) {
  test(`the first screen of ${width} x ${height}: state, plot, servers, who, why, done, helped, stop`, { timeout: 60_000 }, async () => {
    const page = await open(browser, PAGES[0], { width, height });
    try {
      await page.goto(new URL("/", PAGES[0]).href);
      const pool = page.locator(".pool").first();
      await pool.locator(".figures figure canvas").nth(1).waitFor();
      const shown = [".verdict", ".episode-head", '[data-field="because"]', '[data-field="done"]', '[data-field="helped"]', '[data-field="p95_note"]', "figure:nth-child(1) .canvas", "figure:nth-child(2) .canvas"];
      const rows = ["condition", "sessions", "errors", "p95"].map((field) => `.now tbody tr:last-child [data-field="${field}"]`);
      for (const part of [...shown, ...rows]) {
        const box = await pool.locator(part).first().boundingBox();
        assert.ok(box && box.y + box.height <= height, `${part} ends at ${box && box.y + box.height}`);
      }
      const stop = await page.getByRole("link", { name: "Pause everything" }).boundingBox();
      assert.ok(stop.y + stop.height <= height);
    } finally {
      await page.context().close();
    }
  });
}

for (const width of [390, 1400]) {
  test(`the overview, ${width} px`, { timeout: 120_000 }, async () => {
    const page = await open(browser, PAGES[0], { width, height: SCREEN_PX });
    try {
      await page.goto(new URL("/", PAGES[0]).href);
      const pools = await page.locator(".pool").all();
      assert.equal(pools.length, PAGES.length);
      for (const pool of pools) {
        await pool.locator(".stack").scrollIntoViewIfNeeded(); // plots that are far from the screen are not loaded
        await pool.locator(".figures figure canvas").first().waitFor();
        const { height } = await pool.boundingBox();
        assert.ok(height <= 4 * SCREEN_PX, `${await pool.getAttribute("data-pool")}: ${height} pixels`);
      }
      assert.deepEqual(page.problems, []);
    } finally {
      await page.context().close();
    }
  });
}
