// How fast the page is with very much on it: a list of 300 sessions, and a session with 5,000 files and 500 runs.
// Usage: node tests/bench/page.mjs <server binary> <chromium>
//
// The server's sandboxes are plain processes, except for the 300 sessions: the list's answer is put together here, so
// that no 300 processes are needed. Prints the time until the first paint with content, until all that is shown at first
// is shown, and until a key in the search field has acted. Exit code 1: a first paint took a second or more.
import { Chromium } from "../browser/chromium.mjs";
import { Web } from "../browser/web.mjs";

const [binary, chromium] = process.argv.slice(2);
const SESSIONS = 300;
const FILES = 5000;
const RUNS = 500;
const LIMIT_MS = 1000;

/** Times of a visit, in milliseconds since the page was requested. `from` replaces an answer of the server. */
async function times(browser, url, { items, search, word, from = null }) {
  const page = await browser.page();
  try {
    if (from) {
      const real = `const real = fetch; window.fetch = (url, ...rest) => url.endsWith(${JSON.stringify(from.path)}) ? real(url, ...rest).then(() => new Response(${JSON.stringify(JSON.stringify(from.answer))}, { headers: { ETag: "x" } })) : real(url, ...rest);`;
      await page.call("Page.addScriptToEvaluateOnNewDocument", { source: real });
    }
    const note = `addEventListener("DOMContentLoaded", () => new MutationObserver(() => { if (!window.shownAt && document.querySelector(${JSON.stringify(items)})) window.shownAt = performance.now(); }).observe(document.body, { childList: true, subtree: true }))`;
    await page.call("Page.addScriptToEvaluateOnNewDocument", { source: note });
    await page.looks({});
    await page.visit(url);
    await page.eventually("window.shownAt");
    const paint = await page.eventually(`performance.getEntriesByName("first-contentful-paint")[0]?.startTime`);
    const shown = await page.value("window.shownAt");
    const acts = await page.value(`(() => {
      const [input, begun] = [document.querySelector(${JSON.stringify(search)}), performance.now()];
      input.value = ${JSON.stringify(word)};
      input.dispatchEvent(new Event("input"));
      return performance.now() - begun;
    })()`);
    return { paint, shown, search: acts };
  } finally {
    await page.close();
  }
}

function report(what, { paint, shown, search }) {
  const ms = (time) => `${Math.round(time)} ms`.padStart(8);
  console.log(`${what.padEnd(40)} first paint ${ms(paint)}   list ${ms(shown)}   search ${ms(search)}`);
  if (paint >= LIMIT_MS) process.exitCode = 1;
}

const web = await Web.start(binary);
const browser = await Chromium.start(chromium);
try {
  const at = new Date().toISOString();
  const sessions = Array.from({ length: SESSIONS }, (_, n) => ({
    session_id: `session-${n}`, state: "idle", since: at, changed_at: at, expires_at: at, client: "a client", runs: n,
    last_outcome: "ok", memory_bytes: 1e8, memory_limit_bytes: 5e8, pictures: [], page_url: "",
  }));
  // The first page of a new browser is slow by itself.
  await times(browser, web.base, { items: "#how-many", search: "#live", word: "" });
  const from = { path: "sessions", answer: { sessions, can_list_all: false } };
  report(`${SESSIONS} sessions`, await times(browser, web.base, { items: "#sessions .card", search: ".search", word: "session-29", from }));
  await web.run("large", `for n in range(${FILES}): open(f'file-{n}.txt', 'w').write(str(n))`);
  for (let n = 1; n < RUNS; n += 1) await web.run("large", `# Run ${n}\nprint(${n})`);
  report(`${FILES} files and ${RUNS} runs`, await times(browser, `${web.base}/files/large/`, { items: "#files .card", search: ".search", word: "file-49" }));
} finally {
  await browser.close();
  await web.close();
}
