// Every page and every control, at four widths, dark and light. No page is wider than the screen, at one more width. URL, PASSWORD and PAGES come from the environment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, login, open, serious } from "./kit.mjs";

const { URL: url, PASSWORD: password } = process.env;
const PAGES = JSON.parse(process.env.PAGES);
const EPISODE = PAGES.find((path) => path.includes("/episodes/"));
const WIDTHS = [360, 768, 1280, 1920];
const IN_ONE_LINE = 1024;
const SCREEN_PX = 844;
let browser;
let cookies;

before(async () => {
  browser = await launch();
  const page = await open(browser, url);
  await login(page, "anna", password);
  cookies = await page.context().cookies();
  await page.context().close();
});
after(async () => { await browser.close(); });

// A test with pages of its own; nothing may be wrong on any of them. `anonymous`: nobody is logged in.
function checked(name, options, body, anonymous = false) {
  test(name, { timeout: 600_000 }, async () => {
    const page = await open(browser, url, options);
    if (!anonymous) await page.context().addCookies(cookies);
    try {
      await body(page);
      assert.deepEqual(page.problems.filter((problem) => !page.expected?.test(problem)), []);
    } finally {
      await page.context().close();
    }
  });
}

// Each control that can be seen: it has a name, is within the screen once it is scrolled to, and nothing covers it.
function unreachable(page) {
  return page.evaluate(() => {
    const wrong = [];
    for (const one of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary")) {
      if (!one.checkVisibility({ visibilityProperty: true }) || one.classList.contains("skip")) continue;
      one.scrollIntoView({ block: "center", inline: "center" });
      const box = one.getClientRects()[0];
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      const top = document.elementFromPoint(x, y);
      const name = one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent;
      const what = `${one.tagName} ${name.trim()} at ${Math.round(x)}, ${Math.round(y)}`;
      if (name.trim() === "") wrong.push(`${what}: it has no name`);
      if (!top || !(one.contains(top) || top.contains(one))) wrong.push(`${what}: ${top?.outerHTML.slice(0, 80)} is above it`);
    }
    return wrong;
  });
}

// Nothing is wider than the screen, and the navigation of a screen that is not narrow stands in one line.
async function fits(page, path, width) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${path} is ${over} px wider than the screen`);
  const tops = await page.locator(".top nav a").evaluateAll((all) => all.map((one) => one.offsetTop));
  if (width >= IN_ONE_LINE) assert.equal(new Set(tops).size, 1, `${path}: the navigation is in one line`);
}

const rows = (page) => page.locator("table.fleet [data-field=node], table.fleet [data-field=title]").allTextContents();

// On a narrow screen what is secondary is folded.
async function unfold(page) {
  await page.evaluate(() => document.querySelectorAll("details.fold, .all-rows").forEach((one) => { one.open = true; }));
}

async function unfolded(page, path) {
  await page.goto(path);
  await unfold(page);
}

async function live(page, path) {
  await page.goto(path);
  await page.waitForSelector('#link[data-link="live"]');
}

for (const width of [380, 1600]) {
  for (const dark of [false, true]) {
    checked(`axe, every page, ${width} px, ${dark ? "dark" : "light"}`, { width, dark }, async (page) => {
      for (const path of PAGES) {
        await page.goto(path);
        if (path === "/fleet") await page.waitForSelector(".map:not([aria-busy])");
        await page.evaluate(() => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
        assert.deepEqual(await serious(page), [], path);
      }
    });
  }
}

checked(`${IN_ONE_LINE} px: nothing is wider than the screen`, { width: IN_ONE_LINE, height: 900 }, async (page) => {
  for (const path of PAGES) {
    await page.goto(path);
    await fits(page, path, IN_ONE_LINE);
  }
});

checked("390 px: no page is longer than four screens", { width: 390, height: SCREEN_PX }, async (page) => {
  for (const path of PAGES) {
    await page.goto(path);
    if (path === "/fleet") await page.waitForSelector(".map:not([aria-busy])");
    if ((await page.locator(".stack").count()) > 0) await page.waitForSelector(".stack .canvas canvas");
    const length = await page.evaluate(() => document.documentElement.scrollHeight);
    console.log(`${path}: ${length} pixels`);
    assert.ok(length <= 4 * SCREEN_PX, `${path}: ${length} pixels`);
  }
});

for (const width of WIDTHS) {
  const at = (name, body, anonymous) => checked(`${width} px: ${name}`, { width, height: 900 }, body, anonymous);

  at("every control of every page can be seen, reached and named, and nothing is wider than the screen", async (page) => {
    for (const path of PAGES) {
      assert.equal((await page.goto(path)).status(), 200, path);
      assert.ok((await page.locator("h1").count()) >= 1, `${path} has a heading`);
      assert.deepEqual(await unreachable(page), [], path);
      await fits(page, path, width);
    }
  });

  at("the links of the navigation and of the foot lead to their pages", async (page) => {
    await page.goto("/");
    const names = await page.locator(".top nav a").allTextContents();
    assert.ok(names.includes("Fleet"));
    for (const name of names) {
      await page.locator(".top nav").getByRole("link", { name, exact: true }).click();
      await page.locator('.top nav a[aria-current="page"]', { hasText: name }).waitFor();
    }
    for (const link of await page.locator(".foot a, .brand").all()) {
      assert.equal((await page.request.get(await link.getAttribute("href"))).status(), 200);
    }
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    assert.equal(new URL(page.url()).hash, "#main");
  });

  at("Fleet: rows that are in order already stay as the server wrote them", async (page) => {
    await page.addInitScript(() => document.addEventListener("readystatechange", () => { window.written ??= document.querySelector("table.fleet tbody"); }));
    for (const query of ["", "?sort=state", "?group=zone"]) {
      await live(page, `/fleet${query}`);
      await page.waitForSelector(".map:not([aria-busy])");
      assert.ok(await page.evaluate(() => window.written !== null && window.written === document.querySelector("table.fleet tbody")), query);
    }
  });

  at("Fleet: search, groups and order without a reload, the same as with one", async (page) => {
    await live(page, "/fleet");
    await page.evaluate(() => { window.stays = true; });
    const search = page.getByLabel("Search");
    await search.fill("interference");
    await page.waitForFunction(() => document.querySelectorAll("table.fleet tr[data-key]").length === 1);
    assert.equal(await page.locator("#fleet-shown").textContent(), "1 of 4");
    await search.fill("no such server");
    await page.locator("#fleet-empty").waitFor();
    await search.fill("");
    for (const group of ["none", "pool", "zone", "type"]) {
      await page.getByLabel("Group by").selectOption(group);
      for (const sort of ["harm", "name", "state", "load", "p95"]) {
        await page.getByLabel("Sort by").selectOption(sort);
        const served = await page.request.get(page.url());
        const again = [...(await served.text()).split("<template")[0].matchAll(/data-field="(?:node|title)">([^<]*)</g)];
        assert.deepEqual(await rows(page), again.map(([, name]) => name), `${group}, ${sort}`);
      }
    }
    assert.equal(await page.evaluate(() => window.stays), true);
    await page.getByRole("button", { name: "Show" }).click();
    assert.equal(await page.evaluate(() => window.stays), true);
    for (const last of ["1h", "24h", "7d", "90d"]) {
      await page.locator(".ranges").getByRole("link", { name: last, exact: true }).click();
      await page.locator('.ranges a[aria-current="true"]', { hasText: last }).waitFor();
      assert.equal(await page.getByLabel("Sort by").inputValue(), "p95", "what was chosen stays");
    }
  });

  at("Fleet: an episode opens from the heat map, by keyboard, pointer and table", async (page) => {
    const cell = page.locator(".map .cell");
    const readout = page.locator(".heat .readout");
    await page.goto("/fleet?last=1h&sort=name");
    await page.waitForSelector(".map:not([aria-busy])");
    await cell.focus();
    assert.match(await readout.textContent(), /^shop1 \(shop\)/);
    await page.keyboard.press("ArrowDown");
    assert.match(await readout.textContent(), /^web1 \(web\).*lost 50% of its calm capacity, 1 episode$/);
    await page.keyboard.press("Home");
    assert.match(await readout.textContent(), /lost nothing$/);
    assert.equal(await cell.getAttribute("href"), "/pools/web", "no episode, and no narrower map");
    await page.keyboard.press("End");
    await page.keyboard.press("Enter");
    await page.waitForURL(`**${EPISODE}`);

    await page.goto("/fleet?last=24h&sort=name&q=web2");
    await page.waitForSelector(".map:not([aria-busy])");
    const box = await page.locator(".map canvas").boundingBox();
    const calm = { position: { x: 2, y: box.height / 2 } };
    await page.locator(".map").hover(calm);
    assert.match(await readout.textContent(), /^web2 \(web\).*nothing known$/);
    await page.locator(".map").click(calm);
    await page.waitForURL("**/fleet?last=1h&until=*");
    await page.getByRole("link", { name: "until now" }).click();
    await page.waitForURL((to) => !to.searchParams.has("until"));

    await page.goto("/fleet?last=1h");
    await page.getByText("The same as a table").click();
    await page.locator("details tbody a").first().click();
    await page.waitForURL("**/episodes/web1/*");
    await page.goto("/fleet");
    await page.locator('tr[data-key="web/web1"] [data-field="worst"] a').click();
    await page.waitForURL(`**${EPISODE}`);
    await page.goto("/fleet");
    await page.locator('tr[data-key="shop/shop1"] [data-field="pool"]').click();
    await page.waitForURL("**/pools/shop");
  });

  at("Changes: each filter, pages and files", async (page) => {
    await page.goto("/changes");
    await page.getByRole("link", { name: "older" }).click();
    await page.getByText("page 2", { exact: true }).waitFor();
    await page.getByRole("link", { name: "newer" }).click();
    await page.getByLabel("Pool").selectOption("web");
    await page.getByLabel("What").selectOption("weight");
    await page.getByLabel("Server or node").fill("web1");
    await page.getByLabel("Text").fill("nothing like it");
    await page.getByLabel("Since").selectOption("1h");
    await page.getByRole("button", { name: "Show" }).click();
    await page.getByText("No change matches.").waitFor();
    await page.getByLabel("Text").fill("");
    await page.getByRole("button", { name: "Show" }).click();
    await page.locator("tbody tr").first().waitFor();
    await unfold(page);
    await page.locator("tbody tr").nth(99).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 100);
    for (const name of ["CSV", "JSON"]) {
      const file = await page.request.get(await page.getByRole("link", { name, exact: true }).getAttribute("href"));
      assert.match(await file.text(), /weight/);
    }
  });

  at("Pool and episode: each control is carried out", async (page) => {
    await live(page, "/pools/web");
    for (const last of ["1h", "6h", "1d", "7d", "90d", "5min"]) {
      await page.locator(".ranges").getByRole("link", { name: last, exact: true }).click();
      await page.locator('.ranges a[aria-current="true"]', { hasText: last }).waitFor();
    }
    await page.waitForSelector(".stack .canvas canvas");
    await page.locator("select.focus").selectOption("web2");
    await page.locator(".readout", { hasText: "web2" }).first().waitFor();
    for (const [word, done] of [["Pause", "pause"], ["Resume", "resume"], ["Observe", "mode"], ["Act", "mode"]]) {
      await unfolded(page, "/pools/web");
      await page.locator(".controls").getByRole("link", { name: word }).click();
      await page.getByRole("link", { name: "Cancel" }).click();
      await unfolded(page, "/pools/web");
      await page.locator(".controls").getByRole("link", { name: word }).click();
      await page.getByLabel("Why, for the log").fill("a test");
      await page.getByRole("button", { name: `${word} now` }).click();
      await page.getByText(`web: ${done} is done`).waitFor();
    }
    await unfolded(page, "/pools/web");
    const pin = page.locator("form.control", { has: page.getByRole("button", { name: "Pin", exact: true }) });
    await pin.getByLabel("Server (the balancer’s name)").fill("web1");
    await pin.getByLabel("Weight").fill("40");
    await pin.getByLabel("For").selectOption("30");
    await pin.getByLabel("Why").fill("a test");
    await pin.getByRole("button").click();
    await page.getByText("web: pin web1 is done").waitFor();
    await unfold(page);
    const unpin = page.locator("form.control", { has: page.getByRole("button", { name: "Unpin" }) });
    await unpin.getByLabel("Server").fill("web1");
    await unpin.getByRole("button").click();
    await page.getByText("web: unpin web1 is done").waitFor();
    await page.getByRole("link", { name: "All changes of web" }).click();
    await page.waitForURL("**/changes?pool=web");
    await unfolded(page, "/pools/web");
    await page.locator(`.listed a[href="${EPISODE}"]`).click();
    const seen = page.locator("form.control", { has: page.getByRole("button", { name: "I have seen it" }) });
    await seen.getByLabel("Note").fill("a test");
    await seen.getByRole("button").click();
    await page.getByText("web: acknowledge web1 is done").waitFor();
    await page.getByLabel("Why", { exact: true }).fill("a test");
    await page.getByRole("button", { name: "End it" }).click();
    await page.getByText("web: end_episode web1 is done").waitFor();
  });

  at("whoever is not logged in is led there from the brake; the brake; the way out", async (page) => {
    page.expected = /401/;
    await page.goto("/");
    await page.getByRole("link", { name: "Pause everything" }).click();
    await page.waitForURL("**/login**");
    await page.getByLabel("Name").fill("anna");
    await page.getByLabel("Password").fill("wrong wrong wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("Name or password is wrong").waitFor();
    await page.goto("/");
    await page.getByRole("link", { name: "Log in" }).click();
    await page.getByLabel("Name").fill("anna");
    await page.getByLabel("Password").fill(password);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("link", { name: "Pause everything" }).click();
    await page.getByRole("button", { name: "Pause now" }).click();
    await page.getByText("shop: pause is done").waitFor();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("link", { name: "Log in" }).waitFor();
  }, true);
}
