// The page for people in a real browser. Usage: node page_check.mjs <server binary> <chromium>
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Chromium } from "./chromium.mjs";
import { MARKDOWN, OFFICE, PARQUET, notebook } from "./files.mjs";
import { scripted } from "./hostile.mjs";
import { check, conclude, equal } from "./report.mjs";
import { Server } from "./site.mjs";
import { Web } from "./web.mjs";

const [binary, chromium] = process.argv.slice(2);
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

/** A program without libraries that makes two pictures, a PDF, a table and a text. */
const MAKE = `
import struct, zlib

def png(name, colour, width=320, height=200):
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    rows = b''.join(b'\\0' + bytes(colour) * width for _ in range(height))
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    data = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
    open(name, 'wb').write(data)

png('red.png', (200, 60, 60))
png('blue.png', (60, 60, 200))
objects = [b'<< /Type /Catalog /Pages 2 0 R >>', b'<< /Type /Pages /Kids [3 0 R] /Count 1 >>',
           b'<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 280] >>']
pdf, places = b'%PDF-1.4\\n', []
for number, item in enumerate(objects, 1):
    places.append(len(pdf))
    pdf += b'%d 0 obj %s endobj\\n' % (number, item)
table = b''.join(b'%010d 00000 n \\n' % place for place in places)
pdf += b'xref\\n0 4\\n0000000000 65535 f \\n' + table + b'trailer << /Size 4 /Root 1 0 R >>\\nstartxref\\n%d\\n%%%%EOF' % len(pdf)
open('report.pdf', 'wb').write(pdf)
open('sales.csv', 'w').write('day;"name; quoted";amount\\n' + ''.join(f'{d};"say ""{d}""";{d * 1.5}\\n' for d in range(1, 400)))
open('notes.txt', 'w').write('first line\\nsecond line\\n')
print('six files')
`;

const TOKENS = "ann:secret-of-ann,ben:secret-of-ben";
const LIVE = `document.querySelector("#live").dataset.is === "on"`;
const card = (name) => `[...document.querySelectorAll("#files .card")].find((card) => card.querySelector(".name").textContent === "${name}")`;
const opened = `document.querySelector("#viewer").open`;
const focused = `document.activeElement.textContent.trim()`;

const browser = await Chromium.start(chromium);

/** A page at an address, and what must hold of every visit: no word in its log, nothing from elsewhere. */
async function visit(url, test, looks = {}) {
  const page = await browser.page();
  try {
    await page.looks(looks);
    await page.visit(url);
    await test(page);
    // The browser reports each answer of 4xx as well, and some are part of a test.
    equal(page.log.filter((text) => !text.startsWith("Failed to load resource")), [], "the browser's log");
    const foreign = page.requests.filter((asked) => !/^(blob:|data:|chrome|about:)/.test(asked) && new URL(asked).origin !== new URL(url).origin);
    equal(foreign, [], "asked of others");
  } finally {
    await page.close();
  }
}

/** The rules of WCAG 2.2 AA that a program can check. */
async function accessible(page, where) {
  if (!(await page.value("!!window.axe"))) await page.value(`${axe};0`);
  const found = await page.value(
    `axe.run(document, { runOnly: ${JSON.stringify(RULES)}, iframes: false }).then(({ violations }) =>
       violations.map(({ id, nodes }) => id + ": " + nodes.map((node) => node.html.slice(0, 120)).join(" | ")))`,
  );
  equal(found, [], where);
}

/** A page in every look: it can be read by everybody, and nothing has to be scrolled sideways. */
async function inEveryLook(page, where) {
  for (const width of [360, 768, 1440]) {
    for (const scheme of ["light", "dark"]) {
      await page.looks({ width, height: 900, scheme });
      equal(await page.value(`document.documentElement.scrollWidth <= innerWidth`), true, `${where}, ${width}: no scrolling sideways`);
      await accessible(page, `${where}, ${width}, ${scheme}`);
    }
  }
}

/** A program that says a number, and the next one each time that there is the next file. */
const COUNTS = `
import os, time
n = 0
while True:
    n += 1
    print('line', n, flush=True)
    while not os.path.exists(f'go{n}'): time.sleep(0.02)
`;

const web = await Web.start(binary);
const closed = await Web.start(binary, { tokens: TOKENS });
try {
  await check("without sessions the page says when there will be some", () =>
    visit(web.base, async (page) => {
      await page.eventually(`${LIVE} && document.querySelector("#how-many").textContent.startsWith("No sessions yet")`);
      await accessible(page, "empty");
      await web.run("campaign", "print('hello')");
      await page.eventually(`document.querySelector("#sessions .name")?.textContent === "campaign"`);
    }),
  );

  await web.run("campaign", MAKE);
  await web.run("campaign", "1/0");
  const session = `${web.base}/files/campaign/`;

  await check("the list, a session and a file can be read by everybody, on every screen", () =>
    visit(web.base, async (page) => {
      await page.eventually(`${LIVE} && document.querySelector("#sessions img")?.naturalWidth === 320`);
      await inEveryLook(page, "list");
      await page.value(`document.querySelector("#sessions .name").click()`);
      await page.eventually(`location.pathname === "/files/campaign/" && ${LIVE} && !!document.querySelector(".run pre")`);
      await inEveryLook(page, "session");
      await page.value(`document.querySelector("#files .name").click()`);
      await page.eventually(opened);
      await inEveryLook(page, "file");
    }),
  );

  await check("a session shows its files, each as what it is", () =>
    visit(session, async (page) => {
      await page.eventually(LIVE);
      await page.eventually(`${card("red.png")}.querySelector("img")?.naturalHeight === 200`);
      await page.eventually(`${card("report.pdf")}.querySelector("iframe")?.src.startsWith("blob:")`);
      await page.eventually(`${card("notes.txt")}.querySelector("pre")?.textContent.startsWith("first line")`);
      const cells = `[...${card("sales.csv")}.querySelectorAll("tr")].slice(0, 2).map((row) => [...row.children].map((cell) => cell.textContent))`;
      await page.eventually(`!!${card("sales.csv")}.querySelector("table")`);
      equal(await page.value(cells), [["day", "name; quoted", "amount"], ["1", 'say "1"', "1.5"]], "table");
      equal(await page.value(`document.querySelector("#files-title").textContent`), "5 files", "count");
      const head = await page.value(`[...document.querySelectorAll("#head a")].map((a) => [a.textContent, a.getAttribute("href")])`);
      equal(head, [
        ["Download all (ZIP)", "/files/campaign/?format=zip"],
        ["Notebook", "/files/campaign/?format=ipynb"],
        ["Script", "/files/campaign/?format=py"],
      ], "what there is to take away");
    }),
  );

  await check("a session shows its runs: code, outcome, output, errors, pictures, other files", () =>
    visit(session, async (page) => {
      await page.eventually(`document.querySelectorAll(".run").length === 3`);
      const runs = await page.value(`[...document.querySelectorAll(".run")].map((run) => ({
        outcome: run.querySelector(".badge").textContent,
        output: run.querySelector(".stdout")?.textContent ?? "",
        error: run.querySelector(".stderr")?.textContent.trim().split("\\n").at(-1) ?? "",
        code: run.querySelector("details pre").textContent.length,
        pictures: [...run.querySelectorAll(".shot")].map((shot) => shot.ariaLabel),
        files: [...run.querySelectorAll(".chips button")].map((chip) => chip.textContent),
      }))`);
      const nothing = { pictures: [], files: [] };
      const made = { pictures: ["blue.png", "red.png"], files: ["notes.txt", "report.pdf", "sales.csv"] };
      equal(runs, [
        { outcome: "error", output: "", error: "ZeroDivisionError: division by zero", code: 3, ...nothing },
        { outcome: "ok", output: "six files\n", error: "", code: MAKE.length, ...made },
        { outcome: "ok", output: "hello\n", error: "", code: 14, ...nothing },
      ], "runs");
    }),
  );

  await check("notebook and script are saved by a key, under the session's name", () =>
    visit(session, async (page) => {
      for (const [text, name] of [["Notebook", "campaign.ipynb"], ["Script", "campaign.py"]]) {
        const button = `[...document.querySelectorAll("#head a")].find((a) => a.textContent === "${text}")`;
        await page.eventually(`${LIVE} && !!${button}`);
        await page.value(`${button}.focus()`);
        await page.press("Enter");
        await page.until(() => page.downloads.at(-1) === name, name);
        const response = await fetch(new URL(await page.value(`${button}.getAttribute("href")`), web.base));
        equal(response.status, 200, text);
        equal((await response.text()).includes("six files"), true, `${text} has the code`);
      }
      await web.put("unused", "a.txt", "a");
      await page.visit(`${web.base}/files/unused/`);
      await page.eventually(`${LIVE} && !!${card("a.txt")}`);
      equal(await page.value(`document.querySelectorAll("#head a").length`), 1, "without a run there are neither");
    }),
  );

  await check("the sessions of all callers are a table from which they can be ended", async () => {
    await web.run("of-somebody", "print(1)");
    const row = `[...document.querySelectorAll("#all tr")].find((row) => row.querySelector("th").textContent.endsWith("of-somebody"))`;
    for (const [scheme, width] of [["light", 1280], ["dark", 360]]) {
      await visit(web.base, async (page) => {
        await page.eventually(`${LIVE} && !!document.querySelector("main a[href='?all']")`);
        await page.value(`document.querySelector("main a[href='?all']").click()`);
        await page.eventually(`location.search === "?all" && ${LIVE} && !!${row}`);
        const cells = await page.value(`[...${row}.children].map((cell) => cell.textContent)`);
        equal([cells[0], cells[2], cells[8]], ["local of-somebody", "idle", "1 last ok"], "cells");
        equal(/^\d+ ms$|^[\d.]+ s$/.test(cells[6]), true, `processor time: ${cells[6]}`);
        equal(await page.value(`document.documentElement.scrollWidth <= innerWidth`), true, "no scrolling sideways");
        await accessible(page, `all sessions, ${scheme}`);
      }, { scheme, width, height: 740 });
    }
    await visit(`${web.base}/?all`, async (page) => {
      await page.eventually(`!!${row}`);
      await page.value(`${row}.querySelector("button").click()`);
      await page.eventually(`document.querySelector("#end").open`);
      await page.value(`document.querySelector("#end-now").click()`);
      await page.eventually(`!${row}`);
    });
  });

  await check("a picture stands beside the run that made it, for as long as it is that", async () => {
    const [start] = MAKE.split("png('red.png'");
    const run = (n) => `document.querySelectorAll(".run")[${n}]`;
    const shot = (n) => `${run(n)}.querySelector(".shot")`;
    await web.run("pictures", `${start}\npng('one.png', (0, 0, 0), 64, 40)`);
    await visit(`${web.base}/files/pictures/`, async (page) => {
      await page.eventually(`${shot(0)}?.querySelector("img").naturalWidth === 64`);
      equal(await page.value(`${run(0)}.querySelector(".shots").ariaLabel`), "Pictures of this run", "the list has a name");
      await page.value(`${shot(0)}.focus()`);
      await page.press("Enter");
      await page.eventually(`${opened} && document.querySelector("#viewer-name").textContent === "one.png"`);
      await page.press("Escape");
      await page.eventually(`!${opened} && document.activeElement === ${shot(0)}`);
      await web.run("pictures", `${start}\npng('one.png', (0, 0, 0), 32, 20)`);
      await page.eventually(`${shot(0)}?.querySelector("img").naturalWidth === 32 && document.querySelectorAll(".run").length === 2`);
      equal(await page.value(`[${shot(1)}, ${run(1)}.querySelector(".chips button").textContent]`), [null, "one.png"], "the run before");
    });
  });

  await check("what happens is shown at once, and whoever reads keeps their place", () =>
    visit(session, async (page) => {
      await page.eventually(`document.querySelectorAll(".run").length === 3`);
      await page.value(`(document.querySelectorAll(".run details")[1].open = true, document.querySelectorAll(".run summary")[1].focus())`);
      const code = "import os, time\nwhile not os.path.exists('go.txt'): time.sleep(0.01)";
      const run = web.run("campaign", code);
      await page.eventually(`document.querySelector(".run .badge").textContent === "running"`);
      await page.eventually(`document.querySelector("#news").textContent === "A program is running."`);
      await web.put("campaign", "go.txt", "go");
      await run;
      await page.eventually(`document.querySelector(".run .badge").textContent === "ok"`);
      await page.eventually(`!!${card("go.txt")}`);
      await page.eventually(`document.querySelector("#news").textContent.startsWith("Run ended: ok")`);
      equal(await page.value(`document.querySelectorAll(".run details")[2].open`), true, "open details");
      equal(await page.value(`document.activeElement === document.querySelectorAll(".run summary")[2]`), true, "focus");
    }),
  );

  await check("a workspace shows its variables, as they are now, and never runs them", async () => {
    const marks = "<img src=x onerror=document.documentElement.dataset.ran=1>";
    const hostile = `hostile = type("${marks}", (), {})()`;
    const isolated = await Web.start(binary, { args: [], more: { SANDBOX_POOL_SIZE: "0" } });
    try {
      const cell = (code, language = "python") => isolated.call("execute_code", { session_id: "cells", language, code });
      await cell(`count = 41\nrates = {"a": 1.5}\n${hostile}`);
      await cell("let total = 1", "javascript");
      await cell("import matplotlib.pyplot as plt\nplt.plot([1, count])\ncount + 1");
      const panels = `[...document.querySelectorAll("#variables details")]`;
      const rows = `${panels}.map((panel) => [panel.querySelector("summary").textContent, ...[...panel.querySelectorAll("tbody tr")].map((row) => [...row.children].map((each) => each.textContent).join(" is "))])`;
      const wanted = [
        ["JavaScript: 1 variable after 1 cell", "total is number"],
        ["Python: 3 variables after 2 cells", "count is int", "rates is dict 1", `hostile is ${marks}`],
      ];
      for (const scheme of ["light", "dark"]) {
        await visit(`${isolated.base}/files/cells/`, async (page) => {
          await page.eventually(`${LIVE} && ${panels}.length === 2`);
          equal((await page.value(rows)).sort(), wanted, "variables");
          equal(await page.value(`[...document.querySelectorAll("#variables th")].slice(0, 2).map((each) => [each.textContent, each.scope])`), [["name", "col"], ["type", "col"]], "titles");
          await page.eventually(`document.querySelector(".run .shot img")?.naturalWidth > 300`);
          equal(await page.value(`document.querySelector(".run .result").textContent`), "42", "result");
          equal(await page.value(`[...document.querySelectorAll(".run .what")].map((each) => each.textContent)`), ["Python cell 2", "JavaScript cell 1", "Python cell 1"], "what they are");
          await accessible(page, `variables, ${scheme}`);
        }, { scheme });
      }
      await visit(`${isolated.base}/files/cells/`, async (page) => {
        await page.eventually(`${LIVE} && ${panels}.length === 2`);
        const python = `${panels}.find((panel) => panel.textContent.startsWith("Python"))`;
        await page.value(`document.querySelector("#tabs [data-part=variables]").click()`);
        await page.value(`${python}.querySelector("summary").focus()`);
        await page.press("Enter");
        await page.eventually(`!${python}.open`);
        await cell("del count, rates");
        await page.eventually(`${python}?.querySelector("summary").textContent === "Python: 1 variable after 3 cells"`);
        equal(await page.value(`${python}.open`), false, "it stays closed");
        equal(await page.value(`${python}.querySelector("summary") === document.activeElement`), true, "focus");
        equal(await page.value(`document.documentElement.dataset.ran ?? "never"`), "never", "ran");
        await page.press("Enter");
        equal(await page.value(`document.documentElement.scrollWidth <= innerWidth`), true, "no scrolling sideways");
        const stopped = await isolated.call("execute_code", { session_id: "cells", code: "while True: pass", timeout: 1 });
        const run = `document.querySelector(".run .message")?.closest(".run")`;
        await page.eventually(`!!${run}`);
        const seen = await page.value(`[".what", ".message", ".notes li"].map((each) => ${run}.querySelector(each).textContent)`);
        equal(seen, ["Python cell 4, rolled back", stopped.error_message, stopped.notes[0]], "why it was stopped");
        equal(stopped.notes.join(" ").includes("Cell In[4]"), true, "the number in the notes");
        await accessible(page, "a stopped cell");
      }, { width: 360, height: 740 });
    } finally {
      await isolated.close();
    }
  });

  await check("many variables are a line that unfolds", async () => {
    const isolated = await Web.start(binary, { args: [], more: { SANDBOX_POOL_SIZE: "0" } });
    try {
      const code = "from numpy import *\nfrom json import loads\nclass Own: pass\n" + Array.from({ length: 21 }, (_, n) => `v${n} = ${n}`).join("\n");
      await isolated.call("execute_code", { session_id: "many", code });
      await visit(`${isolated.base}/files/many/`, async (page) => {
        await page.eventually(`${LIVE} && !!document.querySelector("#variables details")`);
        equal(await page.value(`document.querySelector("#variables details").open`), false, "folded");
        const names = await page.value(`[...document.querySelectorAll("#variables tbody tr")].map((row) => row.firstChild.textContent)`);
        equal(names.filter((name) => !/^v\d+$/.test(name) && name !== "Own").filter((name) => ["ndarray", "array", "loads", "sin"].includes(name)), [], "imported names");
        equal(["Own", "v0", "v20"].every((name) => names.includes(name)), true, "own names");
      });
    } finally {
      await isolated.close();
    }
  });

  await check("runs are read in either order, with all code at once, and by the comment they begin with", async () => {
    for (const code of ["# Load the sales\nimport csv\nprint(1)", "#!/usr/bin/python3\n# coding: utf-8\n# -----\nimport csv\nprint(2)", "from csv import reader\nprint(3)", '"""\nThe end."""\nprint(4)']) {
      await web.run("order", code);
    }
    const titles = `[...document.querySelectorAll("#runs summary")].map((each) => each.textContent)`;
    const oldestFirst = ["Load the sales", "print(2)", "print(3)", "The end."];
    await visit(`${web.base}/files/order/`, async (page) => {
      await page.eventually(`document.querySelectorAll(".run").length === 4`);
      equal(await page.value(titles), oldestFirst.toReversed(), "newest first");
      await page.value(`document.querySelector("#order").focus()`);
      await page.press("Enter");
      equal(await page.value(titles), oldestFirst, "oldest first");
      await page.value(`document.querySelector("#all-code").focus()`);
      await page.press("Enter");
      await web.run("order", "print(5)");
      await page.eventually(`document.querySelectorAll(".run").length === 5`);
      equal(await page.value(titles), [...oldestFirst, "print(5)"], "the newest at the end");
      equal(await page.value(`[...document.querySelectorAll("#runs .code")].every((each) => each.open)`), true, "all code");
      equal(await page.value(`document.querySelector("#all-code").textContent`), "Hide code", "the other way");
      await accessible(page, "all code");
      await page.press("Enter");
      equal(await page.value(`[...document.querySelectorAll("#runs .code")].some((each) => each.open)`), false, "no code");
    });
  });

  await check("an archived session is in the list, and says what it still has", async () => {
    const archive = await mkdtemp(join(tmpdir(), "llm-sandbox-archive-"));
    const brief = await Web.start(binary, { more: { SANDBOX_ARCHIVE: archive, SANDBOX_SESSION_TTL_M: "0.03" } });
    try {
      await brief.put("yesterday", "a.txt", "a");
      await brief.run("yesterday", "print('from then')");
      await visit(brief.base, async (page) => {
        await page.eventually(`document.querySelector("#sessions .badge")?.textContent === "archived"`);
        await accessible(page, "archived, list");
        await page.value(`document.querySelector("#sessions .name").click()`);
        await page.eventually(`!!${card("a.txt")}`);
        equal(await page.value(`document.querySelector("#head .muted").textContent`), "archived just now", "since when");
        equal(await page.value(`document.querySelector("#runs-title").textContent`), "1 run", "runs");
        equal(await page.value(`document.querySelector("#runs .stdout").textContent`), "from then\n", "output");
        equal(await page.value(`document.querySelectorAll("#runs .stop").length`), 0, "nothing to stop");
        equal(await page.value(`[...document.querySelectorAll("#head .button")].map((each) => each.textContent)`), ["Download all (ZIP)", "Notebook", "Script"], "downloads");
        await inEveryLook(page, "archived, session");
      });
    } finally {
      await brief.close();
      await rm(archive, { recursive: true, force: true });
    }
  });

  await check("without a mouse: to a file, into its viewer, on to the next, and back", () =>
    visit(session, async (page) => {
      await page.eventually(`!!${card("notes.txt")}`);
      await page.press("Tab");
      equal(await page.value(focused), "Skip to content", "first");
      const order = await page.value(`[...document.querySelectorAll("#files .name")].map((name) => name.textContent)`);
      for (let i = 0; i < 20 && (await page.value(focused)) !== order[0]; i += 1) await page.press("Tab");
      await page.press("Enter");
      await page.eventually(`${opened} && document.querySelector("#viewer-name").textContent === "${order[0]}"`);
      await page.press("ArrowRight");
      await page.eventually(`document.querySelector("#viewer-name").textContent === "${order[1]}"`);
      await page.press("ArrowLeft");
      await page.eventually(`document.querySelector("#viewer-name").textContent === "${order[0]}"`);
      await page.press("Escape");
      await page.eventually(`!${opened}`);
      equal(await page.value(focused), order[0], "the focus is back");
    }),
  );

  await check("the viewer shows pictures, PDF, long tables and text", () =>
    visit(session, async (page) => {
      await page.eventually(`!!${card("sales.csv")}`);
      const view = (name) => page.value(`${card(name)}.querySelector(".name").click()`);
      await view("red.png");
      await page.eventually(`document.querySelector("#viewer-body img")?.naturalWidth === 320`);
      equal(await page.value(`document.querySelector("#viewer-body img").alt`), "red.png", "alternative text");
      await view("sales.csv");
      await page.eventually(`document.querySelectorAll("#viewer-body tr").length === 200`);
      await view("notes.txt");
      await page.eventually(`document.querySelector("#viewer-body pre")?.textContent === "first line\\nsecond line\\n"`);
      equal(await page.value("navigator.pdfViewerEnabled"), true, "this browser shows PDF");
      await view("report.pdf");
      await page.eventually(`document.querySelector("#viewer-body iframe")?.title === "report.pdf"`);
      equal(await page.value(`document.querySelector("#viewer-save").getAttribute("href")`), "/files/campaign/report.pdf", "download");
    }),
  );

  await check("Markdown, notebooks, Excel, Word, PowerPoint and Parquet are shown as text and tables", async () => {
    await web.run("office", OFFICE);
    await web.put("office", "notes.txt", "notes");
    await web.put("office", "README.md", MARKDOWN);
    await web.put("office", "three.parquet", PARQUET);
    await web.put("office", "latin.csv", Buffer.from("name;city\nJörg Müller;Zürich\nÄnne Weiß;Köln\n", "latin1"));
    await web.put("office", "wide.json", Buffer.from('\uFEFF{"name": "Zürich"}', "utf16le"));
    const error = { output_type: "error", ename: "ValueError", evalue: "bad", traceback: ["\u001B[31mValueError\u001B[0m: bad"] };
    await web.put("office", "work.ipynb", notebook({ output_type: "stream", name: "stdout", text: ["hi\n"] }, error));
    const text = `document.querySelector("#viewer-body").innerText`;
    const cells = `[...document.querySelectorAll("#viewer-body tr")].map((row) => [...row.children].map((cell) => cell.textContent))`;
    for (const [scheme, width] of [["light", 1440], ["dark", 768], ["light", 360]]) {
      await visit(`${web.base}/files/office/`, async (page) => {
        const view = async (name, holds) => {
          await page.eventually(`!!${card(name)}`);
          await page.value(`${card(name)}.querySelector(".name").click()`);
          await page.eventually(`document.querySelector("#viewer-name").textContent === "${name}" && (${holds})`);
          await accessible(page, `${name}, ${scheme}, ${width}`);
        };
        await view("book.xlsx", `!!document.querySelector("#viewer-body table")`);
        equal(await page.value(cells), [["day", "", "units"], ["2026-01-01", "Zürich", "1.5"]], "Excel");
        equal(await page.value(`document.querySelector("#viewer-body h3").textContent`), "Sales & costs", "sheet");
        await view("report.docx", `document.querySelector("#viewer-body h3")?.textContent === "Summary"`);
        equal(await page.value(cells), [["Region"], ["North"]], "table of Word");
        equal(await page.value(`document.querySelector("#viewer-body p").textContent`), "It grew <b>", "paragraph");
        await view("talk.pptx", `document.querySelector("#viewer-body h4")?.textContent === "Results" && ${text}.includes("Sales up")`);
        await view("three.parquet", `document.querySelectorAll("#viewer-body table").length === 2`);
        equal((await page.value(cells)).slice(0, 4), [["day", "region", "units"], ["2026-01-01 00:00:00", "North", "1"], ["2026-01-02 00:00:00", "Süd", "2"], ["2026-01-03 00:00:00", "", "3"]], "Parquet");
        await view("work.ipynb", `${text}.includes("In [7]") && ${text}.includes("ValueError: bad") && !!document.querySelector("#viewer-body strong")`);
        await view("README.md", `document.querySelector("#viewer-body h3")?.textContent === "Title"`);
        equal(await page.value(cells), [["a", "b"], ["1", "2"]], "table of Markdown");
        equal(await page.value(`[...document.querySelectorAll("#viewer-body :is(a, li)")].map((it) => it.getAttribute("href") ?? it.localName)`), ["https://example.org/", "/files/office/#file=notes.txt", "li", "li", "li"], "links");
        await page.value(`document.querySelector("#viewer-source").click()`);
        await page.eventually(`document.querySelector("#viewer-body pre")?.textContent.startsWith("# Title")`);
        await view("latin.csv", `${text}.includes("Jörg Müller") && ${text}.includes("Köln")`);
        await view("wide.json", `document.querySelector("#viewer-body pre")?.textContent === '{"name": "Zürich"}'`);
        for (const name of ["bomb.docx", "large.docx"]) await view(name, `${text}.startsWith("There is no preview")`);
      }, { scheme, width });
    }
  });

  await check("HTML runs in a frame from which it reaches nothing", async () => {
    const attempts = `<!doctype html><title>figure</title><p id="at">figure</p><script>
      const tried = { origin };
      const attempt = (name, act) => { try { const it = act(); tried[name] = it === null || it === undefined ? "nothing" : "reached"; } catch { tried[name] = "refused"; } };
      attempt("page", () => parent.document.body);
      attempt("token", () => parent.sessionStorage.length + 1);
      attempt("storage", () => localStorage.length + 1);
      attempt("cookie", () => document.cookie + "x");
      attempt("window", () => open("/"));
      attempt("top", () => { top.location.href = "/files/elsewhere/"; return null; });
      const heard = [fetch("${web.base}/sessions"), new Promise((good, bad) => Object.assign(new Image(), { onload: good, onerror: bad, src: "${web.base}/files/campaign/red.png" })),
        new Promise((good, bad) => document.body.append(Object.assign(document.createElement("script"), { onload: good, onerror: bad, src: "${web.base}/x.js" })))];
      Promise.allSettled(heard).then((all) => { tried.network = all.map(({ status }) => status); parent.postMessage(tried, "*"); location.href = "https://example.org/?stolen"; });
    </script>`;
    await web.put("framed", "figure.html", attempts);
    const page = await browser.page();
    try {
      await page.looks({});
      await page.visit(`${web.base}/files/framed/`);
      await page.eventually(`${LIVE} && !!${card("figure.html")}`);
      await page.value(`(addEventListener("message", ({ data, origin }) => (window.heard = { data, origin })), ${card("figure.html")}.querySelector(".name").click())`);
      await page.eventually(`!!window.heard`);
      equal(await page.value(`window.heard`), {
        data: { origin: "null", page: "refused", token: "refused", storage: "refused", cookie: "refused", window: "nothing", top: "refused", network: ["rejected", "rejected", "rejected"] },
        origin: "null",
      }, "what it reaches");
      equal(await page.value(`location.pathname`), "/files/framed/", "the page");
      equal(page.requests.filter((asked) => asked.includes("example.org")), [], "asked of others");
      equal(await page.value(`[document.querySelector("#viewer-body iframe").sandbox.value, document.querySelector("#viewer-body iframe").src]`), ["allow-scripts", `${web.base}/page/frame`], "frame");
    } finally {
      await page.close();
    }
  });

  await check("a link shows one file", async () => {
    await visit(`${session}#file=notes.txt`, async (page) => {
      await page.eventually(`${opened} && document.querySelector("#viewer-body pre")?.textContent.startsWith("first line")`);
      await page.press("ArrowLeft");
      await page.eventually(`location.hash === "#file=" + document.querySelector("#viewer-name").textContent`);
      equal(await page.value(`document.querySelector("#viewer-link").href === location.href`), true, "link");
      await page.press("Escape");
      await page.eventually(`!${opened} && location.hash === ""`);
    });
    await visit(`${session}#file=gone.txt`, (page) => page.eventually(`${opened} && document.querySelector("#viewer-body").textContent === "The file no longer exists."`));
  });

  await check("a file is uploaded by dropping it, and replaces another only if the person says so", async () => {
    await web.put("dropped", "first.txt", "first");
    const drop = (content) => `(() => {
      const data = new DataTransfer();
      data.items.add(new File([${JSON.stringify(content)}], "a b.txt"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    })()`;
    const stored = () => fetch(`${web.base}/files/dropped/a%20b.txt`).then((response) => response.text());
    await visit(`${web.base}/files/dropped/`, async (page) => {
      await page.eventually(`${LIVE} && !document.querySelector("#upload").hidden`);
      await page.value(drop("one"));
      await page.eventually(`!!${card("a b.txt")} && !document.querySelector("#uploads p")`);
      equal(await stored(), "one", "content");
      await page.value(drop("two"));
      await page.eventually(`document.querySelector("#uploads")?.textContent.startsWith("a b.txt already exists.")`);
      await accessible(page, "upload");
      await page.value(`document.querySelector("#uploads button").click()`);
      await page.eventually(`!document.querySelector("#uploads p")`);
      equal(await stored(), "two", "replaced");
    });
  });

  await check("a running program shows its newest output and can be stopped, and one that has ended says so", () =>
    visit(session, async (page) => {
      await page.eventually(`${LIVE} && !!document.querySelector(".run")`);
      const run = { run_id: "r-1", begun_at: new Date().toISOString(), language: "python", is_cell: false, code: "loop()", pictures: [], stdout: "line\n".repeat(500), stdout_truncated: true };
      await page.value(`(() => {
        const real = fetch;
        window.asked = [];
        window.fetch = (url, options) => (options?.method === "DELETE" ? (asked.push(url), Promise.resolve(new Response("{}", { status: 404 }))) : real(url, options));
        document.querySelector("#runs").prepend(window.made = runCard(${JSON.stringify(run)}));
        made.renew();
      })()`);
      equal(await page.value(`[made.querySelector("h3").textContent, made.querySelector(".stdout").textContent.startsWith("… (there was more)"), made.querySelector(".stdout").scrollTop > 0]`), ["Output so far", true, true], "output");
      await accessible(page, "running");
      await page.value(`made.querySelector(".stop").click()`);
      await page.eventually(`made.textContent.includes("The run has already ended.")`);
      equal(await page.value("asked"), ["/sessions/campaign/runs/r-1"], "asked");
    }),
  );

  await check("a call that waits for a person shows what is called, and its buttons decide", () =>
    visit(session, async (page) => {
      await page.eventually(`${LIVE} && !!document.querySelector(".run")`);
      const approval = { approval_id: "a-1", upstream: "crm", tool: "delete_contact", description: "Deletes <b>one</b>", arguments: '{"note": "<img src=x onerror=alert(1)>\\u202e"}', until: new Date().toISOString() };
      const calls = [{ upstream: "crm", tool: "search", outcome: "ok", duration_ms: 3, decision: "once" }];
      const run = { run_id: "r-2", begun_at: new Date().toISOString(), language: "python", is_cell: true, code: "tools.crm.delete_contact()", pictures: [], approvals: [approval], calls, calls_omitted: 0 };
      await page.value(`(() => {
        window.asked = [];
        window.fetch = (url, options) => (asked.push([url, options.body]), Promise.resolve(new Response(null, { status: 204 })));
        document.querySelector("#runs").prepend(window.made = runCard(${JSON.stringify(run)}));
      })()`);
      equal(await page.value(`[made.querySelector(".approval h3").textContent, made.querySelector(".approval pre").textContent, made.querySelectorAll(".approval b, .approval img").length]`), ["Waits for you: crm.delete_contact", approval.arguments, 0], "what is called");
      equal(await page.value(`made.querySelector(".calls li").textContent`), "crm.search: ok, 3 ms, a person: once", "calls so far");
      for (const scheme of ["light", "dark"]) {
        await page.looks({ width: 768, height: 900, scheme });
        await accessible(page, `approval, ${scheme}`);
      }
      await page.value(`[...made.querySelectorAll(".approval button")].find((it) => it.textContent === "Allow for this run").click()`);
      await page.eventually("asked.length === 1");
      equal(await page.value("asked"), [["/sessions/campaign/approvals/a-1", '{"decision":"run"}']], "asked");
    }),
  );

  await check("the lines of a program are shown as they come, and Stop ends it, whether it is a run or a cell", async () => {
    const isolated = await Web.start(binary, { args: [], more: { SANDBOX_POOL_SIZE: "0" } });
    const first = (part) => `document.querySelector("#runs > :first-child ${part}")`;
    try {
      for (const [server, tool, what] of [[web, "run_python", "Python program"], [isolated, "execute_code", "Python cell"]]) {
        const args = { session_id: "counts" };
        await server.call(tool, { ...args, code: "print('before')" });
        await visit(`${server.base}/files/counts/`, async (page) => {
          await page.eventually(`${first(".stdout")}?.textContent === "before\\n"`);
          const { run_id } = await server.call(tool, { ...args, code: COUNTS, background: true });
          await page.eventually(`${first(".stdout")}?.textContent === "line 1\\n"`);
          equal(await page.value(`[${first(".badge")}.textContent, ${first(".what")}.textContent]`), ["running", what], "in progress");
          await server.put("counts", "go1", "");
          await page.eventually(`${first(".stdout")}?.textContent === "line 1\\nline 2\\n"`);
          await accessible(page, "a program in progress");
          await page.value(`${first(".stop")}.focus()`);
          await page.press("Enter");
          await page.eventually(`${first(".badge")}.textContent === "cancelled"`);
          equal(await page.value(`[${first(".stdout")}.textContent, ${first(".stop")}]`), ["line 1\nline 2\n", null], "output");
          await page.eventually(`document.querySelector("#news").textContent.startsWith("Run ended: cancelled")`);
          const { outcome = "cancelled", error_message, notes = [] } = await server.call("get_execution_result", { execution_id: run_id });
          equal(outcome, "cancelled", "what its caller is told");
          const why = await page.value(`[${first(".message")}?.textContent, [...document.querySelectorAll("#runs > :first-child .notes li")].map((note) => note.textContent)]`);
          equal(why, [error_message ?? null, notes], "why it ended");
          await accessible(page, "a stopped program");
        });
      }
    } finally {
      await isolated.close();
    }
  });

  await check("on a small screen files, runs and variables are tabs", () =>
    visit(session, async (page) => {
      await page.eventually(`${LIVE} && document.querySelectorAll(".run").length > 2`);
      const visible = `[...document.querySelectorAll("main section")].filter((part) => part.offsetParent).map((part) => part.dataset.part)`;
      for (const part of ["files", "runs", "variables"]) {
        await page.value(`document.querySelector("#tabs [data-part=${part}]").click()`);
        equal(await page.value(visible), [part], part);
        equal(await page.value(`document.documentElement.scrollWidth <= innerWidth`), true, `${part}: no scrolling sideways`);
        for (const scheme of ["light", "dark"]) {
          await page.looks({ width: 360, height: 740, scheme });
          await accessible(page, `${part}, ${scheme}`);
        }
      }
    }, { width: 360, height: 740 }),
  );

  await check("the form behind an upload URL says which file it expects", async () => {
    const { upload_url: url } = await web.call("upload_file", { session_id: "asked", filename: "wanted.csv" });
    await visit(url, async (page) => {
      await page.eventually(`document.querySelector("h1")?.textContent === "Upload a file"`);
      equal(await page.value(`[...document.querySelectorAll("dd")].map((it) => it.textContent).slice(0, 2)`), ["wanted.csv", "asked"], "told");
      await inEveryLook(page, "upload form");
    });
  });

  await check("a picture that is drawn again is shown as it is now", () =>
    visit(session, async (page) => {
      const [thumb, large] = [`${card("red.png")}.querySelector("img")`, `document.querySelector("#viewer-body img")`];
      await page.eventually(`${thumb}?.naturalWidth === 320`);
      await page.value(`${card("red.png")}.querySelector(".name").click()`);
      await page.eventually(`${large}?.naturalWidth === 320`);
      await web.run("campaign", `${MAKE.split("png('red.png'")[0]}\npng('red.png', (0, 0, 0), 64, 40)`);
      await page.eventually(`${thumb}?.naturalWidth === 64 && ${large}?.naturalWidth === 64`);
      await web.run("campaign", `${MAKE.split("png('red.png'")[0]}\npng('red.png', (200, 60, 60))`);
      await page.eventually(`${thumb}?.naturalWidth === 320 && ${large}?.naturalWidth === 320`);
    }),
  );

  await check("a drawing that would keep the browser busy is drawn for those who ask", async () => {
    const level = (n) => `<g id="l${n}">${`<use href="#l${n - 1}"/>`.repeat(10)}</g>`;
    const bomb = `<svg xmlns="http://www.w3.org/2000/svg"><defs><rect id="l0" width="1" height="1"/>${[1, 2, 3, 4, 5, 6].map(level).join("")}</defs><use href="#l6"/></svg>`;
    await web.put("drawings", "bomb.svg", bomb);
    await web.put("drawings", "good.svg", `<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="9" height="9"/></svg>`);
    await visit(`${web.base}/files/drawings/`, async (page) => {
      await page.eventually(`${card("bomb.svg")}?.textContent.includes("SVG")`);
      equal(await page.value(`document.querySelectorAll("#files img").length`), 0, "pictures");
      await page.value(`${card("good.svg")}.querySelector(".name").click()`);
      await page.eventually(`document.querySelector("#viewer-body button")?.textContent === "Show it"`);
      await page.value(`document.querySelector("#viewer-body button").click()`);
      await page.eventually(`document.querySelector("#viewer-body img")?.naturalWidth === 30`);
    });
  });

  await check("a dozen open tabs leave room for the next, and catch up when they are shown", async () => {
    const tabs = [];
    try {
      for (let i = 0; i < 12; i += 1) {
        tabs.push(await browser.page());
        await tabs[i].visit(session);
        await tabs[i].eventually(`${LIVE} && document.querySelectorAll(".run").length > 2`);
      }
      const before = await tabs[0].value(`document.querySelectorAll(".run").length`);
      await web.run("campaign", "print('while nobody looked')");
      await tabs[0].call("Page.bringToFront");
      await tabs[0].eventually(`document.querySelectorAll(".run").length === ${before + 1}`);
    } finally {
      for (const tab of tabs) await tab.close();
    }
  });

  await check("a table of very many columns is shown in part", async () => {
    const row = (text) => Array.from({ length: 60_000 }, () => text).join(",");
    await web.put("wide", "wide.csv", `${row("a")}\n${row("1")}\n`);
    await visit(`${web.base}/files/wide/`, async (page) => {
      await page.eventually(`${card("wide.csv")}?.querySelector("table")`);
      await page.value(`${card("wide.csv")}.querySelector(".name").click()`);
      await page.eventually(`document.querySelector("#viewer-body p")?.textContent === "The first 100 columns."`);
      equal(await page.value(`document.querySelectorAll("#viewer-body th").length`), 100, "columns");
    });
  });

  await check("a card's button is whole and on the line of its age, however old it is", async () => {
    const old = `for (const at of document.querySelectorAll("time")) at.textContent = ago(new Date(Date.now() - 1000 * 60 * 59))`;
    const wrong = `[...document.querySelectorAll(".card :is(.save, .end)")].filter((button) => {
      const [card, age, is] = [button.closest(".card"), button.parentElement.querySelector("time"), button].map((each) => each.getBoundingClientRect());
      return is.right > card.right || is.width < button.scrollWidth || Math.abs((is.top + is.bottom) - (age.top + age.bottom)) > 8 || age.width < 20;
    }).map((button) => button.ariaLabel)`;
    for (const [url, cards] of [[session, "#files .card"], [web.base, "#sessions .card"]]) {
      for (const width of [320, 360, 700, 1280]) {
        await visit(url, async (page) => {
          await page.eventually(`${LIVE} && document.querySelectorAll("${cards}").length > 1`);
          await page.value(old);
          equal(await page.value(wrong), [], `${cards} at ${width} pixels`);
        }, { width });
      }
    }
  });

  await check("on a telephone nothing is cut off", () =>
    visit(session, async (page) => {
      await page.eventually(`document.querySelectorAll(".run").length > 2`);
      equal(await page.value(`document.documentElement.scrollWidth <= innerWidth`), true, "no scrolling sideways");
      await accessible(page, "narrow");
    }, { width: 360, height: 740 }),
  );

  await check("what a program makes is shown as text and pictures, and never runs", async () => {
    for (const { name, content } of scripted) await web.put("hostile", name, content);
    const marks = "<img src=x onerror=document.documentElement.dataset.ran=1>";
    await web.put("hostile", `${marks}.csv`, `${marks},b\n${marks},2\n`);
    await web.put("hostile", "lies.pdf", scripted[0].content);
    await web.put("hostile", "lies.png", scripted[0].content);
    for (const name of ["lies.xlsx", "lies.docx", "lies.pptx", "lies.parquet"]) await web.put("hostile", name, scripted[0].content);
    const outputs = ["text/html", "text/markdown", "image/svg+xml"].map((type) => ({ output_type: "display_data", data: { [type]: `${marks}<script>top.document.documentElement.dataset.ran = 1</script>` } }));
    await web.put("hostile", "notebook.ipynb", notebook(...outputs));
    await web.put("hostile", "notes.md", `${marks}\n\n[x](javascript:document.documentElement.dataset.ran=1) ![x](javascript:0)\n`);
    const code = `# ${marks}\nimport sys\nprint("${marks}")\nprint("${marks}", file=sys.stderr)`;
    await web.run("hostile", code);
    await visit(`${web.base}/files/hostile/`, async (page) => {
      await page.eventually(`document.querySelector(".run .stdout")?.textContent.includes("onerror")`);
      const names = await page.value(`[...document.querySelectorAll("#files .name")].map((name) => name.textContent)`);
      for (const name of names) {
        await page.value(`[...document.querySelectorAll("#files .name")].find((each) => each.textContent === ${JSON.stringify(name)}).click()`);
        await page.eventually(`${opened} && document.querySelector("#viewer-body").textContent !== "Loading"`);
      }
      // HTML runs, but in a frame from which it does not reach the page.
      equal(await page.value(`document.documentElement.getAttributeNames().filter((name) => name.startsWith("data-ran"))`), [], "ran");
      equal(page.downloads, [], "saved unasked");
    });
  });

  await check("a session that ends while somebody looks says so", async () => {
    await web.run("short", "pass");
    await visit(`${web.base}/files/short/`, async (page) => {
      await page.eventually(LIVE);
      await web.call("close_session", { session_id: "short" });
      await page.eventually(`document.querySelector("h1")?.textContent === "There is no such session"`);
      await accessible(page, "ended");
    });
  });

  await check("a person ends a session, and is asked before, without a mouse", async () => {
    const button = `document.querySelector("[aria-label='End session ended']")`;
    const asked = `document.querySelector("#end").open`;
    await web.run("ended", "pass");
    await visit(`${web.base}/files/ended/`, async (page) => {
      await page.eventually(`${LIVE} && !!${button}`);
      await page.value(`${button}.focus()`);
      await page.press("Enter");
      await page.eventually(`${asked} && document.activeElement.id === "end-not"`);
      equal(await page.value(`document.querySelector("#end-title").textContent`), "End ended?", "question");
      await accessible(page, "question");
      await page.press("Escape");
      await page.eventually(`!${asked} && document.activeElement === ${button}`);
      await web.run("ended", "print('goes on')");
      await page.eventually(`document.querySelectorAll(".run").length === 2`);
      equal(await page.value(`document.activeElement === ${button}`), true, "focus");
      await page.press("Enter");
      await page.eventually(asked);
      await page.press("Tab");
      equal(await page.value(`document.activeElement.id`), "end-now", "next");
      await page.press("Enter");
      await page.eventually(`document.querySelector("h1")?.textContent === "There is no such session"`);
    });
    await web.run("ended", "pass");
    await visit(web.base, async (page) => {
      await page.eventually(`${LIVE} && !!${button}`);
      const others = await page.value(`document.querySelectorAll("#sessions .card").length - 1`);
      await page.value(`${button}.click()`);
      await page.eventually(asked);
      await page.value(`document.querySelector("#end-now").click()`);
      await page.eventually(`!${asked} && !${button}`);
      await page.eventually(`document.querySelector("#news").textContent === "Session ended has ended."`);
      equal(await page.value(`document.querySelectorAll("#sessions .card").length`), others, "the others");
    });
  });

  await check("over stdio a session is shown to those who have the address of its page", async () => {
    const server = await Server.start(binary);
    try {
      await server.call("run_python", { session_id: "own", code: MAKE });
      const { page_url: url } = await server.call("list_artifacts", { session_id: "own" });
      await visit(url, async (page) => {
        await page.eventually(`${LIVE} && document.querySelectorAll("#files .card").length === 5`);
        await page.eventually(`${card("red.png")}.querySelector("img")?.naturalHeight === 200`);
        await page.eventually(`!!${card("sales.csv")}.querySelector("table")`);
        const hrefs = await page.value(`[...document.querySelectorAll(".save, #head a")].map((a) => a.href)`);
        for (const href of hrefs) equal((await fetch(href)).status, 200, href);
        await page.value(`document.querySelector("[aria-label='End session own']").click()`);
        await page.eventually(`document.querySelector("#end").open`);
        await page.value(`document.querySelector("#end-now").click()`);
        await page.eventually(`document.querySelector("h1")?.textContent === "There is no such session"`);
      });
      for (const bare of [new URL(url).origin, url.split("?")[0]]) {
        await visit(bare, async (page) => {
          await page.eventually(`document.querySelector("h1")?.textContent === "Ask for the page of a session"`);
          await accessible(page, "stranger");
        });
      }
    } finally {
      await server.close();
    }
  });

  await check("with tokens whoever comes is asked for one, and sees their own sessions only", async () => {
    await closed.run("private", MAKE);
    await visit(closed.base, async (page) => {
      await page.eventually(`document.activeElement.id === "token"`);
      await accessible(page, "sign-in");
      await page.type("wrong");
      await page.press("Enter");
      await page.eventually(`!!document.querySelector("[role=alert]")`);
      await page.eventually(`document.activeElement.id === "token" && document.activeElement.value === ""`);
      await page.type("secret-of-ben");
      await page.press("Enter");
      await page.eventually(`document.querySelector("#how-many")?.textContent.startsWith("No sessions yet")`);
      await page.value(`document.querySelector("#leave").click()`);
      await page.eventually(`document.activeElement.id === "token"`);
      await page.type("secret-of-ann");
      await page.press("Enter");
      await page.eventually(`document.querySelector("#sessions img")?.naturalWidth === 320`);
      await page.value(`document.querySelector("#sessions .name").click()`);
      await page.eventually(`document.querySelectorAll("#files .card").length === 5`);
      equal(page.requests.filter((asked) => asked.includes("secret")), [], "tokens in addresses");
      const hrefs = await page.value(`[...document.querySelectorAll("#head a")].map((a) => a.href)`);
      equal(hrefs.length, 3, "all files, notebook, script");
      for (const href of hrefs) equal((await fetch(href)).status, 200, href);
    });
  });

  await check("an address that was handed out opens its session without a token", async () => {
    const { page_url: url } = await closed.call("list_artifacts", { session_id: "private" });
    await visit(url, async (page) => {
      await page.eventually(`document.querySelectorAll("#files .card").length === 5`);
      await page.eventually(`${card("red.png")}.querySelector("img")?.naturalHeight === 200`);
      await page.eventually(`!!${card("sales.csv")}.querySelector("table")`);
    });
    await visit(url.replace("private", "another"), (page) =>
      page.eventually(`document.querySelector("h1")?.textContent === "This link does not open a session"`),
    );
  });

  await check("an address that was handed out counts before a token of somebody else", async () => {
    const { page_url: url } = await closed.call("list_artifacts", { session_id: "private" });
    await visit(closed.base, async (page) => {
      await page.eventually(`document.activeElement.id === "token"`);
      await page.type("secret-of-ben");
      await page.press("Enter");
      await page.eventually(`document.querySelector("#how-many")?.textContent.startsWith("No sessions yet")`);
      await page.visit(url);
      await page.eventually(`document.querySelectorAll("#files .card").length === 5`);
    });
  });

  await check("the addresses on a page that stays open stay good", async () => {
    const brief = await Web.start(binary, { tokens: TOKENS, more: { SANDBOX_URL_TTL_M: "0.05" } });
    try {
      await brief.put("brief", "a.txt", "a");
      await visit(brief.base, async (page) => {
        await page.eventually(`document.activeElement.id === "token"`);
        await page.type("secret-of-ann");
        await page.press("Enter");
        await page.eventually(`!!document.querySelector("#sessions .name")`);
        await page.value(`document.querySelector("#sessions .name").click()`);
        await page.eventually(`!!document.querySelector(".save")`);
        const hrefs = `[document.querySelector(".save").href, document.querySelector("#head a").href].join(" ")`;
        const status = (href) => fetch(href).then(({ status }) => status);
        const [first] = (await page.value(hrefs)).split(" ");
        for (let status_now = 200; status_now === 200; ) {
          await new Promise((resolve) => setTimeout(resolve, 100));
          status_now = await status(first);
        }
        for (const href of (await page.value(hrefs)).split(" ")) equal(await status(href), 200, href);
      });
    } finally {
      await brief.close();
    }
  });

  await check("a server that is gone is told, and found again", async () => {
    const other = await Web.start(binary);
    try {
      await visit(other.base, async (page) => {
        await page.eventually(LIVE);
        await other.close();
        await page.eventually(`document.querySelector("#live-text").textContent === "not connected"`);
      });
    } finally {
      await other.close();
    }
  });
} finally {
  await browser.close();
  await web.close();
  await closed.close();
}
conclude();
