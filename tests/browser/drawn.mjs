// node drawn.mjs URL: milliseconds from the navigation to the first frame with all rows (and plots, and the heat map), seven times each.
import { launch, open } from "./kit.mjs";

const [url] = process.argv.slice(2);
const browser = await launch();
const found = {};
for (const path of ["/", "/pools/web", "/fleet", "/fleet?last=90d", "/week"]) {
  found[path] = [];
  for (let run = 0; run < 8; run += 1) {
    const page = await open(browser, url);
    await page.addInitScript(() => {
      const look = () => {
        const rows = document.readyState !== "loading" && document.querySelector(".servers tbody tr, .fleet tbody tr, .week tbody tr");
        const plots = !document.querySelector(".stack") || document.querySelector(".stack canvas");
        const map = !document.querySelector(".map[aria-busy]");
        if (rows && plots && map) requestAnimationFrame(() => setTimeout(() => { window.drawnMs = performance.now(); }));
        else requestAnimationFrame(look);
      };
      look();
    });
    await page.goto(path);
    await page.waitForFunction(() => window.drawnMs !== undefined);
    if (run > 0) found[path].push(await page.evaluate(() => window.drawnMs));
    await page.context().close();
  }
}
console.log(JSON.stringify(found));
await browser.close();
