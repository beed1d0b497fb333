// The plots, and how long and how whole the pages are. URL and PASSWORD come from the environment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, login, open } from "./kit.mjs";

const { URL: url, PASSWORD: password } = process.env;
const WIDTHS = [1600, 1280, 1140, 1024, 390];
const SCREEN_PX = 844;
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

function inBrowser(name, options, body) {
  test(name, { timeout: 120_000 }, async () => {
    const page = await open(browser, url, options);
    // What is written on each canvas, and in what colours lines are drawn on it.
    await page.addInitScript(() => {
      window.written = [];
      window.strokes = new Set();
      const { fillText, stroke } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function write(text, ...more) { window.written.push(`${text}`); return fillText.call(this, text, ...more); };
      CanvasRenderingContext2D.prototype.stroke = function draw(...more) { window.strokes.add(this.strokeStyle); return stroke.call(this, ...more); };
    });
    try {
      await body(page);
      assert.deepEqual(page.problems, []);
    } finally {
      await page.context().close();
    }
  });
}

const figure = (page, title) => page.locator("figure", { hasText: title });

async function drawn(page, path) {
  await page.goto(path);
  await page.locator(".figures figure canvas").first().waitFor();
}

inBrowser("the overview plots each server's p95 and weight over 15 minutes, with changes as marks", { width: 1280 }, async (page) => {
  await drawn(page, "/");
  assert.deepEqual(await page.locator(".figures figcaption b").allTextContents(), ["p95 of response time", "Weight"]);
  const section = page.locator(".stack");
  assert.equal(await section.getAttribute("data-last"), "900");
  const written = await page.evaluate(() => window.written);
  assert.ok(written.includes("web2 100 → 0") && written.includes("web2 0 → 100"), `${written}`);
  assert.equal(await figure(page, "Weight").locator(".readout").textContent(), "web1 100 · web3 100", "of those that are not calm");
});

inBrowser("one spike is cut and named, and what lasted is drawn whole", { width: 1280 }, async (page) => {
  for (const path of ["/", "/pools/web"]) {
    await drawn(page, path);
    const cut = await figure(page, "p95 of response time").locator(".cut").textContent();
    assert.match(cut, path === "/" ? /^▲ above the axis: web3 1\d\.\d s$/ : /^▲ above the axis: web3 97 s$/); // means of 5 s, and of 1
    const written = await page.evaluate(() => window.written);
    assert.ok(written.includes("50 ms") && written.includes("100 ms"), `web2's 120 ms can be read: ${written}`);
  }
});

inBrowser("values are written as people write them", { width: 1280 }, async (page) => {
  await drawn(page, "/pools/web");
  assert.equal(await figure(page, "Cycles per instruction").locator(".cut").textContent(), "▲ above the axis: web3 100 k");
  const texts = [...(await page.evaluate(() => window.written)), ...(await page.locator("figcaption").allTextContents())];
  assert.deepEqual(texts.filter((text) => /\d[eE][+-]?\d/.test(text)), []);
});

inBrowser("each line has its server's name and colour, the same on each page and in each plot", { width: 1280 }, async (page) => {
  const found = [];
  for (const path of ["/", "/pools/web"]) {
    await drawn(page, path);
    const legend = await page.locator(".legend li").evaluateAll((items) => items.map((item) => [item.textContent.trim(), getComputedStyle(item.querySelector("line")).stroke]));
    const strokes = await page.evaluate(() => [...window.strokes].map((text) => { const mark = document.createElement("i"); mark.style.color = text; return mark.style.color; }));
    for (const [name, colour] of legend) assert.ok(strokes.includes(colour), `${path}: ${name} is ${colour}, drawn are ${strokes}`);
    const written = await page.evaluate(() => window.written);
    for (const [name] of legend) assert.ok(written.includes(name), `${path}: ${name} stands at its line`);
    assert.equal(await page.locator(".legend").isVisible(), false, "the names at the lines are enough");
    found.push(JSON.stringify(legend));
  }
  const [first] = found.map((text) => JSON.parse(text));
  assert.deepEqual(first.map(([name]) => name), ["web1", "web2", "web3"]);
  assert.equal(new Set(first.map(([, colour]) => colour)).size, 3);
  assert.equal(found[0], found[1]);
});

inBrowser("dragging over a plot opens the pool's page at that time", { width: 1280 }, async (page) => {
  await drawn(page, "/");
  const asked = [];
  page.on("request", (request) => { if (request.isNavigationRequest()) asked.push(request.url()); });
  const box = await figure(page, "p95 of response time").locator(".u-over").boundingBox();
  await page.mouse.move(box.x + 0.25 * box.width, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 40, { steps: 5 });
  await page.mouse.up();
  await page.waitForURL(/\/pools\/web\?until_unix_s=\d+&last_s=\d+#signals$/);
  await page.locator(".figures figure canvas").first().waitFor();
  assert.equal(asked.length, 1, "by the plot under the pointer alone, not by those that follow it");
  const section = page.locator(".stack");
  const query = new URLSearchParams(await page.evaluate(() => location.search));
  assert.equal(Number(await section.getAttribute("data-until")), Number(query.get("until_unix_s")));
  assert.equal(Number(await section.getAttribute("data-last")), Number(query.get("last_s")));
  assert.match(await page.locator(".ranges").textContent(), /until/);
});

inBrowser("at 390 pixels the overview and a pool's page are four screens long at most", { width: 390, height: SCREEN_PX }, async (page) => {
  for (const path of ["/", "/pools/web"]) {
    await drawn(page, path);
    const screens = await page.evaluate(() => document.documentElement.scrollHeight / innerHeight);
    assert.ok(screens <= 4, `${path}: ${screens.toFixed(2)} screens`);
  }
  const signals = page.locator(".figures figure");
  assert.equal(await signals.count(), 3);
  await page.getByRole("button", { name: "More signals" }).click();
  assert.ok((await signals.count()) > 3);
  assert.equal(await page.locator(".controls").getByRole("link", { name: "Log in" }).isVisible(), false);
  await page.locator(".controls summary").click();
  assert.equal(await page.locator(".controls").getByRole("link", { name: "Log in" }).isVisible(), true);
});

inBrowser("at 390 pixels the name of each page is within the screen, on one line", { width: 390, height: SCREEN_PX }, async (page) => {
  for (const path of ["/", "/settings"]) {
    await page.goto(path);
    const boxes = await page.locator(".top nav a").evaluateAll((all) => all.map((one) => one.getBoundingClientRect().toJSON()));
    assert.equal(boxes.length, 7);
    for (const box of boxes) assert.ok(box.left >= 0 && box.right <= 390 && box.top === boxes[0].top, JSON.stringify(box));
  }
});

inBrowser("on paper nothing is folded", { width: 390, height: SCREEN_PX }, async (page) => {
  await drawn(page, "/pools/web");
  assert.equal(await page.locator("details.fold[open]").count(), 0);
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  assert.equal(await page.locator("details.fold:not([open])").count(), 0);
});

for (const dark of [false, true]) {
  inBrowser(`nothing covers anything: each cell's text is within the cell, ${dark ? "dark" : "light"}`, { width: 1280, dark }, async (page) => {
    await login(page, "anna", password);
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      for (const path of ["/", "/pools/web", "/fleet", "/episodes", "/week", "/changes", "/detector", "/governor", "/settings"]) {
        await page.goto(path);
        const wide = await page.evaluate(() => [...document.querySelectorAll("th, td")]
          .filter((cell) => cell.offsetParent !== null && !cell.closest(".unseen, thead"))
          .filter((cell) => {
            const box = cell.getBoundingClientRect();
            const range = document.createRange();
            const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
              if (!texts.currentNode.parentElement.checkVisibility()) continue;
              range.selectNodeContents(texts.currentNode);
              if ([...range.getClientRects()].some((one) => one.width > 1 && (one.right > box.right + 1 || one.left < box.left - 1))) return true;
            }
            return false;
          })
          .map((cell) => cell.textContent.trim().slice(0, 60)));
        assert.deepEqual(wide, [], `${path} at ${width} pixels`);
        if (path === "/week") {
          const cut = await page.locator(".tiles dd span").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent));
          assert.deepEqual(cut, [], `${path} at ${width} pixels`);
        }
        const over = await page.evaluate(() => [document.documentElement, ...document.querySelectorAll(".card")].filter((one) => one.scrollWidth > one.clientWidth + 1).length);
        assert.equal(over, 0, `${path} at ${width} pixels: nothing is to be scrolled sideways`);
      }
    }
  });
}
