// Hostile artifacts in a real browser. Usage: node hostile_check.mjs <server binary> <chromium>
import { Chromium } from "./chromium.mjs";
import { check, conclude, equal } from "./report.mjs";
import { disguised, scripted } from "./hostile.mjs";
import { Server, site } from "./site.mjs";

const [binary, chromium] = process.argv.slice(2);

/** Opens an address, clicks its link if it has one, and tells which ways of running script worked. */
async function visit(url, ways = []) {
  const page = await browser.page();
  try {
    await page.open(url);
    if (ways.includes("link")) await page.click();
    const ran = (await page.attributes())
      .map(([name]) => name)
      .filter((name) => name.startsWith("data-ran-"))
      .map((name) => name.slice("data-ran-".length));
    return { ran: [...new Set(ran)].sort(), downloads: page.downloads, log: page.log };
  } finally {
    await page.close();
  }
}

const server = await Server.start(binary);
const urls = await server.publish([...scripted, ...disguised]);
const proxy = await site(urls);
const browser = await Chromium.start(chromium);
try {
  for (const { name, ways } of scripted) {
    await check(`without our headers ${name} runs script, and the test sees it`, async () => {
      const { ran } = await visit(`${proxy.url}/protection/${name}`, ways);
      equal(ran, [...ways].sort(), "ran");
    });
    await check(`${name} shown in place runs nothing`, async () => {
      const { ran, downloads, log } = await visit(`${proxy.url}/disposition/${name}`, ways);
      equal(ran, [], "ran");
      equal(downloads, [], "downloads");
      if (!log.some((text) => text.includes("sandboxed"))) {
        throw new Error(`the sandbox blocked nothing: ${JSON.stringify(log)}`);
      }
    });
    await check(`${name} as it is served is saved, not shown`, async () => {
      const { ran, downloads } = await visit(urls.get(name));
      equal(ran, [], "ran");
      equal(downloads, [name], "downloads");
    });
    for (const frame of [
      (url) => `<iframe src="${url}"></iframe>`,
      (url) => `<object data="${url}"></object>`,
      (url) => `<embed src="${url}">`,
    ]) {
      const element = frame("").match(/\w+/)[0];
      await check(`${name} within <${element}> of another page runs nothing`, async () => {
        proxy.page = `<!doctype html><title>page</title>${frame(urls.get(name))}`;
        equal((await visit(`${proxy.url}/page`)).ran, [], "ran");
        proxy.page = `<!doctype html><title>page</title>${frame(`/disposition/${name}`)}`;
        equal((await visit(`${proxy.url}/page`)).ran, [], "ran from its own origin");
        proxy.page = `<!doctype html><title>page</title>${frame(`/protection/${name}`)}`;
        const { ran } = await visit(`${proxy.url}/page`);
        equal(ran.includes("script"), true, "ran without our headers");
      });
    }
  }
  await check("the frame of HTML files is empty, and refused to other pages", async () => {
    const frame = new URL("/page/frame", urls.get("evil.html")).href;
    equal((await visit(frame)).ran, [], "ran by itself");
    proxy.page = `<!doctype html><title>page</title><iframe src="${frame}"></iframe>`;
    const { log } = await visit(`${proxy.url}/page`);
    if (!log.some((text) => /frame-ancestors/.test(text))) throw new Error(`nothing was refused: ${JSON.stringify(log)}`);
  });
  for (const { name } of disguised) {
    await check(`${name} that holds a page is not taken for one`, async () => {
      const { ran, downloads } = await visit(urls.get(name));
      equal(ran, [], "ran");
      equal(downloads, [], "downloads");
    });
  }
} finally {
  await browser.close();
  proxy.close();
  await server.close();
}
conclude();
