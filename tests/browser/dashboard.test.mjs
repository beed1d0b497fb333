// The dashboard in Chromium, over a whole controller. URL, PASSWORD, STAGE, CONFIG and PYTHON come from the environment.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { launch, login, open, serious } from "./kit.mjs";

const { URL: url, PASSWORD: password, STAGE: stage, CONFIG: config, PYTHON: python } = process.env;
const PAGES = ["/", "/pools/web", "/episodes", "/changes", "/detector", "/governor", "/settings", "/confirm/pause"];
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

function staged(when, name, body) {
  test(name, { skip: stage !== when, timeout: 240_000 }, async () => {
    const pages = [];
    const fresh = async (options) => { const page = await open(browser, url, options); pages.push(page); return page; };
    try {
      await body(fresh);
      for (const page of pages) assert.deepEqual(page.problems.filter((p) => !page.expected?.test(p)), []);
    } finally {
      for (const page of pages) await page.context().close();
    }
  });
}

// Anna logs in once: more than ten logins a minute are refused.
let cookies;
async function operator(fresh, options) {
  const page = await fresh(options);
  if (cookies === undefined) {
    await login(page, "anna", password);
    cookies = await page.context().cookies();
  } else {
    await page.context().addCookies(cookies);
  }
  return page;
}

async function live(page, path) {
  await page.goto(path);
  await page.waitForSelector('#link[data-link="live"]');
}

async function episode(page) {
  await page.goto("/pools/web");
  await page.goto(await page.locator(".listed a").first().getAttribute("href"));
}

const chip = (page, selector) => page.locator(`.chips ${selector}`);

for (const [look, options] of Object.entries({ "wide and light": { width: 1600 }, "narrow and dark": { width: 380, dark: true } })) {
  staged("live", `each page, ${look}: complete, no serious finding of axe, nothing wider than the screen`, async (fresh) => {
    const page = await operator(fresh, options);
    for (const path of [...PAGES, "episode", "/login"]) {
      if (path === "episode") await episode(page);
      else await page.goto(path);
      if (path === "/pools/web" || path === "episode") await page.waitForSelector(".stack .canvas canvas");
      assert.ok((await page.locator("h1").count()) >= 1, `${path} has a heading`);
      assert.deepEqual(await serious(page), [], path);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${path} is ${over} px wider than the screen`);
      const screens = await page.evaluate(() => document.documentElement.scrollHeight / 844);
      if (options.width < 400 && ["/", "/pools/web"].includes(path)) assert.ok(screens <= 4.2, `${path}: ${screens} screens beside an episode`);
    }
  });
}

staged("live", "the overview answers in order: users, which server and why, what was done, how to stop it", async (fresh) => {
  const page = await fresh();
  await live(page, "/");
  const card = page.locator(".episode").first();
  assert.equal(await card.locator('[data-field="node"]').textContent(), "host1");
  assert.match(await card.locator('[data-field="because"]').textContent(), /as long/); // its programs, or one that wants a CPU, wait so many times as long
  assert.match(await card.locator('[data-field="done"]').textContent(), /weight 100 → \d{1,2}, /);
  assert.match(await page.locator('[data-field="p95_note"]').textContent(), /target 25 ms/);
  await page.getByRole("link", { name: "Pause everything" }).waitFor();
});

staged("live", "it is live: what changes appears without a reload", async (fresh) => {
  const page = await fresh();
  await live(page, "/pools/web");
  const cell = page.locator('tr[data-node="host2"] [data-field="rps"]');
  const first = await cell.textContent();
  await page.waitForFunction(([node, text]) => document.querySelector(`tr[data-node="${node}"] [data-field="rps"]`).textContent !== text, ["host2", first]);
});

staged("live", "colour is never the only sign", async (fresh) => {
  const page = await fresh();
  await live(page, "/");
  assert.match(await page.locator('tr[data-node="host1"] .badge').textContent(), /▲\s+interference/);
  assert.match(await page.locator('tr[data-node="host2"] .badge').textContent(), /●\s+calm/);
});

staged("live", "times are in the viewer's zone with UTC on hover", async (fresh) => {
  const page = await fresh();
  await page.goto("/changes");
  const time = page.locator("tbody time").first();
  const unix = Number(await time.getAttribute("data-unix"));
  const own = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "Europe/Berlin" }).format(new Date(unix * 1000));
  assert.ok((await time.textContent()).includes(own));
  assert.equal(await time.getAttribute("title"), `${new Date(unix * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`);
});

staged("live", "dark is dark and light is light", async (fresh) => {
  for (const dark of [true, false]) {
    const page = await fresh({ dark });
    await page.goto("/");
    const [red] = (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number);
    assert.equal(red < 100, dark);
  }
});

staged("live", "on paper: dark on white also from a dark screen, no controls, nothing wider than the sheet", async (fresh) => {
  const page = await operator(fresh, { width: 718, height: 1000, dark: true }); // A4 within margins of 1 cm
  for (const path of ["/", "/pools/web", "episode", "/changes"]) {
    if (path === "episode") await episode(page);
    else await page.goto(path);
    if (path === "/pools/web" || path === "episode") await page.waitForSelector(".stack .canvas canvas");
    await page.emulateMedia({ media: "print" });
    const [paper, ink] = await page.evaluate(() => {
      const { backgroundColor, color } = getComputedStyle(document.body);
      return [backgroundColor, color].map((text) => Math.max(...text.match(/\d+/g).slice(0, 3).map(Number)));
    });
    assert.ok(paper > 250 && ink < 60, `${path}: ink ${ink} on ${paper}`);
    assert.equal(await page.locator(".brake:visible, .top nav:visible, .controls:visible, .filter:visible").count(), 0, path);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(over <= 0, `${path} is ${over} px wider than the sheet`);
    assert.deepEqual(await serious(page), [], path);
    await page.emulateMedia({ media: "screen" });
  }
  const sheets = await page.pdf({ format: "A4" });
  assert.equal(sheets.subarray(0, 5).toString(), "%PDF-");
});

staged("live", "markup in reasons stays text", async (fresh) => {
  const page = await fresh();
  await page.goto("/detector");
  await page.locator("details summary").last().click();
  assert.ok((await page.locator(".absent").last().textContent()).includes("<img src=x onerror=alert(1)><b>&amp;"));
  assert.equal(await page.locator("img[src='x']").count(), 0);
});

staged("live", "changes can be filtered, searched and exported", async (fresh) => {
  const page = await fresh();
  await page.goto("/changes");
  await page.getByLabel("What").selectOption("weight");
  await page.getByLabel("Text, also of the CSV").fill("INTERFERENCE");
  await page.getByRole("button", { name: "Show" }).click();
  const rows = await page.locator("tbody tr").allTextContents();
  assert.ok(rows.length > 0 && rows.some((row) => row.includes("interference")));
  const csv = await page.request.get(await page.getByRole("link", { name: "CSV" }).getAttribute("href"));
  const [head, ...lines] = (await csv.text()).trim().split("\r\n");
  assert.match(head, /^time_utc,time_unix_s,pool,what/);
  assert.ok(lines.length >= rows.length);
  assert.ok(lines.every((line) => line.includes("interference")));
});

staged("live", "with the keyboard alone: pause everything, and resume", async (fresh) => {
  const page = await operator(fresh);
  await live(page, "/");
  const tabTo = async (name) => {
    for (let presses = 0; presses < 60; presses += 1) {
      await page.keyboard.press("Tab");
      if ((await page.evaluate(() => document.activeElement.textContent.trim())).includes(name)) return;
    }
    assert.fail(`${name} cannot be reached`);
  };
  await tabTo("Pause everything");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/confirm/pause");
  assert.match(await page.evaluate(() => document.activeElement.textContent), /Pause now/, "one key more");
  await page.keyboard.press("Enter");
  await page.getByText("paused by anna").first().waitFor();
  await chip(page, ".paused").waitFor();
  await page.goto("/confirm/resume");
  await page.keyboard.press("Enter");
  await page.getByText("resumed by anna").first().waitFor();
  await page.waitForFunction(() => document.querySelector(".chips .paused").hidden);
});

staged("live", "an operator pins a server for a time and ends the pin", async (fresh) => {
  const page = await operator(fresh);
  await live(page, "/pools/web");
  const pin = page.locator("form.control", { has: page.getByRole("button", { name: "Pin", exact: true }) });
  await pin.getByLabel("Server (the balancer’s name)").fill("host3");
  await pin.getByLabel("Weight").fill("101");
  await pin.getByRole("button").click();
  await page.getByText("a pin may not be above it").waitFor();
  await pin.getByLabel("Server (the balancer’s name)").fill("host1");
  await pin.getByLabel("Weight").fill("40");
  await pin.getByRole("button").click();
  await page.getByText("host1 is pinned at 40 by anna for 600 s").first().waitFor();
  await page.locator('tr[data-node="host1"]', { hasText: "40 / 100" }).waitFor();
  const unpin = page.locator("form.control", { has: page.getByRole("button", { name: "Unpin" }) });
  await unpin.getByLabel("Server").fill("host1");
  await unpin.getByRole("button").click();
  await page.getByText("host1 is no longer pinned").first().waitFor();
});

staged("live", "an operator has the pool observe, and act again", async (fresh) => {
  const page = await operator(fresh);
  for (const mode of ["observe", "act"]) {
    await page.goto(`/confirm/${mode}?pool=web`);
    await page.getByLabel("Why, for the log").fill("a test");
    await page.getByRole("button", { name: "now" }).click();
    await page.getByText(`mode is ${mode} by anna`).first().waitFor();
    await page.locator(`.chips [data-mode="${mode}"]`).waitFor();
  }
});

staged("live", "an operator acknowledges an episode and ends it by hand, with the name in the log", async (fresh) => {
  const page = await operator(fresh);
  await episode(page);
  await page.getByRole("button", { name: "I have seen it" }).click();
  await page.getByText("acknowledged by anna").first().waitFor();
  await page.getByRole("button", { name: "End it" }).click();
  await page.getByText("episode was ended by anna").first().waitFor();
  await page.goto("/changes?what=end_episode");
  assert.match(await page.locator("tbody tr").first().textContent(), /anna/);
});

staged("live", "a viewer may look and nothing else", async (fresh) => {
  const page = await fresh();
  page.expected = /403/;
  await login(page, "victor", password);
  await page.goto("/pools/web");
  assert.equal(await page.locator(".control button").count(), 0);
  assert.equal((await page.goto("/confirm/pause")).status(), 403);
  assert.match(await page.locator("[role=alert]").textContent(), /victor is a viewer/);
});

staged("live", "nobody is led to the login and back", async (fresh) => {
  const page = await fresh();
  await page.goto("/confirm/pause");
  await page.waitForURL("**/login**");
  page.expected = /401/;
  await page.getByLabel("Name").fill("anna");
  await page.getByLabel("Password").fill("wrong wrong wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("Name or password is wrong").waitFor();
});

staged("live", "two operators at once: the second is told that it is done already", async (fresh) => {
  const [anna, bert] = [await operator(fresh), await operator(fresh)];
  for (const page of [anna, bert]) await page.goto("/confirm/pause");
  await anna.getByRole("button", { name: "Pause now" }).click();
  await anna.getByText("paused by anna").first().waitFor();
  await bert.getByRole("button", { name: "Pause now" }).click();
  await bert.getByText("paused by anna already").first().waitFor();
  await anna.goto("/confirm/resume");
  await anna.getByRole("button", { name: "Resume now" }).click();
  await anna.getByText("resumed by anna").first().waitFor();
  await chip(bert, ".paused").waitFor({ state: "hidden" });
});

staged("live", "an expired session leads to the login, and nothing is done", async (fresh) => {
  const page = await fresh();
  const add = (word) => execFileSync(python, ["-m", "slackwater.controller.cli.main", "web", "user", "add", "olga", "--role", "operator", "--config", config], { input: `${word}\n` });
  add("the first password");
  await login(page, "olga", "the first password");
  await page.goto("/confirm/pause");
  add("another password");
  page.expected = /400|401/;
  await page.getByRole("button", { name: "Pause now" }).click();
  await page.waitForURL("**/login**");
  await page.goto("/");
  await page.waitForSelector('#link[data-link="live"]');
  assert.equal(await chip(page, ".paused").isHidden(), true);
});

staged("live", "a lost connection is seen, and the way back", async (fresh) => {
  const page = await fresh();
  page.expected = /ERR_|Failed to load/;
  await page.clock.install();
  await live(page, "/");
  await page.context().setOffline(true);
  await page.route("**/events", (route) => route.abort());
  await page.evaluate(() => performance.now());
  await page.clock.runFor(6000);
  await page.waitForSelector('body[data-link="lost"]');
  assert.match(await page.locator("#link").textContent(), /no connection for/);
  assert.match(await page.title(), /no connection/);
  await page.unroute("**/events");
  await page.context().setOffline(false);
  await page.clock.resume();
  await page.waitForSelector('body[data-link="live"]');
  assert.doesNotMatch(await page.title(), /no connection/);
});

staged("stale", "a silent controller looks dead, not calm", async (fresh) => {
  for (const path of ["/", "/pools/web"]) {
    const page = await fresh();
    await page.goto(path);
    await page.locator(".standing", { hasText: "The controller is silent" }).waitFor();
    await page.waitForSelector('#link[data-link="idle"]');
    assert.match(await page.locator(".headline .verdict").textContent(), /The controller is silent/);
    assert.equal(await page.locator('.servers [data-state="calm"]').count(), 0);
    assert.deepEqual(await serious(page), [], path);
  }
});

staged("stale", "what is asked of a silent controller is answered with what is wrong", async (fresh) => {
  const page = await operator(fresh);
  await page.goto("/confirm/pause");
  await page.getByRole("button", { name: "Pause now" }).click();
  await page.locator(".flash.refused", { hasText: "lbengine cannot be reached" }).waitFor();
});
