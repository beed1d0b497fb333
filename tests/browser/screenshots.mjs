// node screenshots.mjs URL FOLDER PASSWORD [all]: each page as PNG; in both widths and schemes the overview, in both widths a pool, or all.
import { launch, login, open } from "./kit.mjs";

const [url, folder, password, all] = process.argv.slice(2);
const browser = await launch();
const looks = [["wide", 1280, false], ["wide-dark", 1280, true], ["narrow", 390, false], ["narrow-dark", 390, true]];
for (const [look, width, dark] of looks) {
  const page = await open(browser, url, { width, height: width > 1000 ? 1000 : 800, dark });
  const shoot = async (name) => {
    // Rows that are far from the screen are not laid out.
    await page.evaluate(() => document.querySelectorAll(".long tbody tr").forEach((row) => { row.style.contentVisibility = "visible"; }));
    await page.screenshot({ path: `${folder}/${name}-${look}.png`, fullPage: true });
  };
  if (look === "wide" || all) {
    await page.goto("/login");
    await shoot("login");
  }
  await login(page, "anna", password);
  await page.waitForSelector('#link[data-link="live"]');
  await page.locator(".stack").scrollIntoViewIfNeeded(); // plots that are far from the screen are not loaded
  await page.waitForSelector(".stack .canvas canvas");
  await shoot("overview");
  if (look === "wide" || look === "narrow" || all) {
    await page.goto("/pools/web");
    await page.waitForSelector(".stack .canvas canvas");
    await page.waitForSelector('#link[data-link="live"]');
    await shoot("pool");
  }
  if (look !== "wide" && !all) {
    await page.context().close();
    continue;
  }
  const episode = await page.locator(".listed a").first().getAttribute("href");
  await page.goto(episode);
  await page.waitForSelector(".stack .canvas canvas");
  await shoot("episode");
  for (const [name, path] of [["episodes", "/episodes"], ["week", "/week"], ["changes", "/changes"], ["detector", "/detector"], ["settings", "/settings"], ["confirm", "/confirm/pause"]]) {
    await page.goto(path);
    await shoot(name);
  }
  if (page.problems.length) throw new Error(`${look}: ${page.problems.join("; ")}`);
  await page.context().close();
}
await browser.close();
