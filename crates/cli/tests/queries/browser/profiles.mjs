// SPDX-License-Identifier: Apache-2.0
// Opens profiles in the browser $CHROMIUM and uses them: node profiles.mjs MODULES FOLDER PAGE…
// With SCREENSHOT=FILE the first page is also drawn into a PNG.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, folder, ...pages] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, "index.js"))("playwright-core");
const executablePath = execFileSync("sh", ["-c", 'command -v "$CHROMIUM"'], { encoding: "utf8" }).trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let failed = false;
for (const name of pages) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1100 } });
  const complaints = [];
  page.on("console", message => { if (["error", "warning"].includes(message.type())) complaints.push(message.text()); });
  page.on("pageerror", error => complaints.push(error.message));
  page.on("request", request => { if (!request.url().startsWith("file:")) complaints.push("asks for " + request.url()); });
  const check = (holds, what) => { if (!holds) complaints.push(what); };
  await page.goto(pathToFileURL(join(folder, name)).href);

  const { nodes, spans } = await page.evaluate(() => ({
    nodes: profile.nodes.map(node => ({ name: node.name, kernels: node.kernels?.length ?? 0 })),
    spans: profile.lanes.map(lane => lane.spans.length).reduce((sum, count) => sum + count, 0),
  }));
  const lines = page.locator("#plan tbody tr");
  check(await lines.count() === nodes.length && nodes.length > 1, "not each operator has a line");
  check(spans > 0, "the timeline is empty");
  check(nodes.some(node => node.kernels > 0), "no operator has a kernel");
  // A click shows the operator, and the source of its longest kernel that has one.
  let sources = 0;
  for (const [number, node] of nodes.entries()) {
    await lines.nth(number).click({ position: { x: 200, y: 8 } });
    check(await page.locator("#node h2").textContent() === node.name, `${node.name} is not shown`);
    if (node.kernels > 0 && await page.locator("#source:visible mark").count() === 1) sources += 1;
  }
  check(sources > 0, "no kernel is shown");
  // The timeline is drawn, and the wheel zooms into it.
  const drawn = () => page.evaluate(() => document.getElementById("canvas").toDataURL().length);
  const canvas = page.locator("#canvas"), before = await drawn();
  check(before > 2000, "the timeline is not drawn");
  await canvas.scrollIntoViewIfNeeded();
  await canvas.hover();
  await page.mouse.wheel(0, -400);
  await page.waitForFunction(() => to - from < profile.total_nanos);
  await canvas.dblclick();
  check(await page.evaluate(() => to - from === profile.total_nanos), "a double click does not show all");
  // A click on a span chooses its operator: the longest one of another than is chosen.
  const target = await page.evaluate(() => {
    const others = shown.filter(one => one.span.node !== chosen);
    const one = others.reduce((best, one) => one.right - one.left > best.right - best.left ? one : best, others[0]);
    // A span above may cover its middle.
    const x = (Math.max(one.left, gutter) + one.right) / 2, y = (one.upper + one.lower) / 2;
    const top = shown.findLast(other => x >= other.left - 1 && x <= other.right + 1 && y >= other.upper && y < other.lower);
    return { x, y, name: nodes[top.span.node].name };
  });
  await canvas.click({ position: { x: target.x, y: target.y } });
  await page.waitForTimeout(400);
  check(await page.locator("#node h2").textContent() === target.name, `a span of ${target.name} does not choose it`);
  check(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth), "the page is too wide");

  if (process.env.SCREENSHOT && name === pages[0]) {
    const hottest = await page.evaluate(() => nodes.reduce((best, node, number) => node.kernels && node.own_nanos > (nodes[best].kernels ? nodes[best].own_nanos : 0) ? number : best, 0));
    await lines.nth(hottest).click({ position: { x: 200, y: 8 } });
    await page.evaluate(() => window.scrollTo(0, 0));
    await page.screenshot({ path: process.env.SCREENSHOT, fullPage: true });
  }
  await page.close();
  console.log(`${name}: ${complaints.length ? complaints.join("; ") : "shown"}`);
  failed ||= complaints.length > 0;
}
await browser.close();
process.exit(failed ? 1 : 0);
