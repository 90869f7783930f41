// The picture of the page in the README: the demo's data and programs, in a real sandbox.
// Usage: node screenshot.mjs <server binary> <chromium> <picture.png>
import { execFileSync } from "node:child_process";
import { readFile, readdir, writeFile } from "node:fs/promises";

import { Chromium } from "./chromium.mjs";
import { Web } from "./web.mjs";

const [binary, chromium, picture] = process.argv.slice(2);
const demo = new URL("../../demo/", import.meta.url);
const session = "spring-campaign";

const web = await Web.start(binary, { args: [] });
const browser = await Chromium.start(chromium);
try {
  const make = "import make_csv, sys; sys.stdout.buffer.write(make_csv.generate()[0])";
  const csv = execFileSync("python3", ["-c", make], { cwd: demo, maxBuffer: 1 << 26 });
  await web.put(session, "marketing.csv", csv);
  for (const name of (await readdir(new URL("analysis/", demo))).sort()) {
    await web.run(session, await readFile(new URL(`analysis/${name}`, demo), "utf8"));
  }
  const page = await browser.page();
  await page.looks({ width: 1200, height: 1440 });
  await page.visit(`${web.base}/files/${session}/`);
  const cards = `[...document.querySelectorAll("#files .thumb")].slice(0, 8)`;
  await page.eventually(`${cards}.length === 8 && ${cards}.every((card) => card.querySelector("iframe, table, pre") || card.querySelector("img")?.complete)`);
  // The browser's own viewer does not tell when it has drawn.
  await new Promise((resolve) => setTimeout(resolve, 3000));
  await writeFile(picture, await page.picture());
} finally {
  await browser.close();
  await web.close();
}
