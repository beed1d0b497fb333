// How long pages are on a phone. PAGES, a list of addresses, comes from the environment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open } from "./kit.mjs";

const SCREEN_PX = 844;
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

for (const address of JSON.parse(process.env.PAGES)) {
  test(address, { timeout: 60_000 }, async () => {
    const page = await open(browser, address, { width: 390, height: SCREEN_PX });
    try {
      await page.goto(address);
      await page.locator(".figures figure canvas").first().waitFor();
      const length = await page.evaluate(() => document.documentElement.scrollHeight);
      console.log(`${address}: ${length} pixels`);
      assert.ok(length <= 4 * SCREEN_PX, `${length} pixels`);
      const rows = page.locator(".servers tbody tr");
      const shown = () => rows.evaluateAll((all) => all.filter((row) => row.checkVisibility()).length);
      assert.ok((await shown()) >= Math.min(3, await rows.count()));
      if (await page.locator(".all-servers").isVisible()) await page.locator(".all-servers summary").click();
      assert.equal(await shown(), await rows.count(), "unfolded, all servers are shown");
      assert.deepEqual(page.problems, []);
    } finally {
      await page.context().close(); // else the page's events keep the dashboard from ending
    }
  });
}
