// Makes calls as models do, counts the tokens of the results, and compares them with the committed table.
//
//   node measure.mjs compare|write <server binary> <page with the table>

import { readFile, writeFile } from "node:fs/promises";

import { ofPicture, TOKENIZERS, tokens } from "./count.mjs";
import { Http, Stdio } from "../server.mjs";

const [mode, binary, page] = process.argv.slice(2);
const MARKS = ["<!-- generated: tokens -->", "<!-- end -->"];

/** So much more may something cost: sizes of files in bytes vary with the versions of libraries. */
const allowed = (tokens) => tokens + 3 + Math.floor(tokens / 100);

const CHART = (size, dpi) => `
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=${size})
ax.bar(["North", "South", "East", "West"], [40, 25, 30, 12])
ax.set_title("Revenue by region")
fig.savefig("revenue_by_region.png", dpi=${dpi})
`;
const FILES = (count) => `
for n in range(${count}):
    open(f"chart_{n:03}.png", "w").write("x" * (1000 + n))
`;
const SHOWN = `
import matplotlib.pyplot as plt
plt.bar(["North", "South", "East", "West"], [40, 25, 30, 12])
plt.title("Revenue by region")
plt.show()
`;
const SALES = `
import pandas as pd
sales = pd.DataFrame({"Region": ["North", "South"], "Revenue": [40, 25]})
`;

const SALES_ROW = (n) =>
  n === 0
    ? "Order date,Region,Customer,Product,Units,Revenue"
    : `2026-01-${10 + (n % 19)},${["North", "South", "", "East"][n % 4]},Miller & Sons ${n},Desk lamp,${n % 7},${n * 1.25}`;
const WIDE_ROW = (n) => Array.from({ length: 100 }, (_, at) => (n ? `value ${n * at}` : `column_${at}`)).join(",");
/** Texts of which a tokenizer knows no part: always the same ones. */
const letters = (seed, alphabet, length) => {
  let text = "";
  for (let state = seed + 1; text.length < length; ) {
    state = (state * 48271) % 2147483647;
    text += alphabet[state % alphabet.length];
  }
  return text;
};
const RANDOM_ROW = (n) =>
  Array.from({ length: 40 }, (_, at) =>
    letters(40 * n + at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 30),
  ).join(",");
const CHINESE_ROW = (n) =>
  Array.from({ length: 40 }, (_, at) => letters(40 * n + at, "日期渠道花费抖音微信小红书地区销售额单价数量客户备注", 12)).join(",");

/** Tokens of the result of an upload without a summary. */
const UPLOAD = 25;

/** The place in the table, the call, and the maximum cost (o200k_base). */
const ROWS = [
  ["the list of tools, toolset `run`", (on) => toolList(on, "run"), 1000],
  ["toolsets `run,code`", (on) => toolList(on, "run,code"), 1500],
  ["all toolsets", (on) => toolList(on, "run,code,sessions"), 2000],
  ["`print(2+2)`", ({ run }) => run("print(2+2)")],
  ["a chart of 640x480", ({ run }) => run(CHART("(6.4, 4.8)", 100)), 1500],
  ["a chart of 12x8 inches, 200 dpi", ({ run }) => run(CHART("(12, 8)", 200)), 1500],
  ["a square chart of 8x8 inches, 200 dpi", ({ run }) => run(CHART("(8, 8)", 200)), 1500],
  ["`NameError`", ({ run }) => run("total = 1\nprint(totl)")],
  ["`KeyError` of a column", ({ run }) => run(`${SALES}print(sales["revenue"].sum())`)],
  ["a file that is not there", ({ run }) => run('import pandas as pd\nprint(pd.read_csv("sale.csv"))')],
  ["`read_csv` of a URL", ({ run }) => run('import pandas as pd\npd.read_csv("https://example.org/sales.csv")')],
  ["a session that has ended", ({ server }) => server.call("run_python", { session_id: "sess_0123456789ab", code: "1" })],
  ["1 file in `list_artifacts`", (on) => list(on, 1)],
  ["10 files", (on) => list(on, 10)],
  ["100 files, all pages", (on) => list(on, 100), 6000],
  ["a run that makes 100 files", ({ run }) => run(FILES(100), { inline_images: 0 }), 5000],
  ["a cell that prints", ({ cell }) => cell("print(2+2)")],
  ["a cell with a value", ({ cell }) => cell("2+2")],
  ["a cell that shows a chart of 640x480", ({ cell }) => cell(SHOWN), 1500],
  ["a cell with a `KeyError` of a column", ({ cell }) => cell(`${SALES}sales["revenue"].sum()`)],
  ["a cell that is stopped", ({ cell }) => cell("x = 1\nwhile True: pass", { timeout: 1 })],
  ["`get_workspace_info` after three cells", (on) => workspace(on)],
  ["an upload of a text", (on) => upload(on, "notes.txt", () => "x", 3)],
  ["an upload of a table of 6 columns", (on) => upload(on, "sales.csv", SALES_ROW), UPLOAD + 150],
  ["an upload of a table of 100 columns", (on) => upload(on, "wide.csv", WIDE_ROW), UPLOAD + 150],
  ["an upload of a table of random letters", (on) => upload(on, "random.csv", RANDOM_ROW), UPLOAD + 150],
  ["an upload of a table in Chinese", (on) => upload(on, "chinese.csv", CHINESE_ROW), UPLOAD + 150],
  [
    "a log of 5 MB, printed",
    ({ run }) => run('for n in range(100_000):\n    print(f"{n:06} INFO request handled by worker 3 in 12 ms")'),
  ],
  ["`read_artifact` of a workbook", (on) => workbook(on)],
  ["`read_artifact` of a picture of 2500x2500", (on) => picture(on)],
];

/** Uploads a table, by a function of the row's number, until the result has a summary. */
async function upload({ server }, filename, row, count = 500) {
  const text = Array.from({ length: count }, (_, n) => row(n)).join("\n");
  for (let attempt = 0; attempt < 100; attempt++) {
    const result = await server.call("upload_file", { session_id: "tokens", filename, text, overwrite: true });
    if (answerOf(result).summary || filename.endsWith(".txt")) return result;
  }
  throw new Error(`no summary of ${filename}`);
}

async function toolList({ Transport }, toolsets) {
  const server = await Transport.start(binary, { SANDBOX_TOOLSETS: toolsets });
  try {
    const { result } = await server.request("tools/list", {});
    const shown = result.tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }));
    return { content: [{ type: "text", text: JSON.stringify(shown) }] };
  } finally {
    await server.close();
  }
}

async function workspace({ server, cell }) {
  await cell(SALES);
  await cell("total = sales.Revenue.sum()\ntotal");
  await cell("words = 'a b c'.split()");
  return server.call("get_workspace_info", {});
}

async function list({ server, run }, count) {
  const { session_id } = answerOf(await run(FILES(count), { inline_images: 0 }));
  const content = [];
  for (let offset = 0; offset !== undefined; ) {
    // The first page is asked for as a model does that knows of no others.
    const page = await server.call("list_artifacts", offset ? { session_id, offset } : { session_id });
    content.push(...page.content);
    offset = answerOf(page).next_offset;
  }
  await server.call("close_session", { session_id });
  return { content };
}

async function workbook({ server, run }) {
  const code = 'import pandas as pd\npd.DataFrame({"n": range(9000), "square": [n * n for n in range(9000)]}).to_excel("book.xlsx")';
  const { session_id } = answerOf(await run(code));
  return server.call("read_artifact", { session_id, path: "book.xlsx" });
}

async function picture({ server, run }) {
  const code = 'import numpy, PIL.Image\nPIL.Image.fromarray(numpy.zeros((2500, 2500, 3), "uint8")).save("large.png")';
  const { session_id } = answerOf(await run(code, { inline_images: 0 }));
  return server.call("read_artifact", { session_id, path: "large.png" });
}

function answerOf(result) {
  if (result.isError) throw new Error(JSON.stringify(result));
  return result.structuredContent;
}

/** Tokens of a result by each tokenizer, and of its pictures, which are in each. */
function cost(result) {
  const text = result.content
    .filter((block) => block.type !== "image")
    .map((block) => (block.type === "text" ? block.text : JSON.stringify(block)));
  const pictures = result.content.filter((block) => block.type === "image").map(ofPicture);
  const ofPictures = pictures.reduce((sum, tokens) => sum + tokens, 0);
  return tokens(text.join("\n")).map((count) => count + ofPictures);
}

async function measure(Transport) {
  const server = await Transport.start(binary);
  // Each call has a session of its own, which starts with the call.
  const run = (code, more = {}) => server.call("run_python", { code, ...more });
  // The workspace of the client, which ends with the row.
  const cell = (code, more = {}) => server.call("execute_code", { code, ...more });
  const costs = [];
  try {
    for (const [name, play] of ROWS) {
      const result = await play({ Transport, server, run, cell });
      if (process.env.SHOW === name) console.log(JSON.stringify(result));
      costs.push(cost(result));
      await closeAll(server, result);
    }
  } finally {
    await server.close();
  }
  return costs;
}

/** Closes sessions that are not needed any more, because they count towards the limit. */
async function closeAll(server, result) {
  const session_id = result.structuredContent?.session_id;
  if (session_id) await server.call("close_session", { session_id });
}

const number = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

function table(stdio, http) {
  const names = Object.keys(TOKENIZERS);
  const head = ["", ...["stdio", "HTTP"].flatMap((over) => names.map((name) => `${over}, ${name}`)), "at most"];
  const rows = ROWS.map(([name, , most], n) => {
    const costs = [...stdio[n], ...http[n]].map(number);
    return [name, ...costs, most ? number(most) : ""];
  });
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(head), line(["---", ...head.slice(1).map(() => "---:")]), ...rows.map(line)].join("\n");
}

/** The costs in a table, by the name of the row. */
function read(text) {
  const lines = text.split("\n").filter((line) => line.startsWith("| "));
  const rows = lines.map((line) => line.split("|").slice(1, -1).map((cell) => cell.trim()));
  return new Map(rows.map(([name, ...cells]) => [name, cells.map((cell) => Number(cell.replaceAll(",", "")))]));
}

const [stdio, http] = [await measure(Stdio), await measure(Http)];
const measured = table(stdio, http);
console.log(measured);

const text = await readFile(page, "utf8");
const [before, rest] = text.split(`${MARKS[0]}\n`);
// Tables after this one end with the same mark.
const [committed, ...tables] = rest.split(MARKS[1]);
const after = tables.join(MARKS[1]);
const dear = ROWS.flatMap(([name, , most], n) => {
  const costs = Math.max(stdio[n][0], http[n][0]);
  return most && costs > most ? [`${name}: ${costs} tokens, and at most ${most} were promised`] : [];
});
if (mode === "write") {
  await writeFile(page, `${before}${MARKS[0]}\n\n${measured}\n\n${MARKS[1]}${after}`);
} else {
  const was = read(committed);
  const head = ["stdio", "HTTP"].flatMap((over) => Object.keys(TOKENIZERS).map((name) => `${over}, ${name}`));
  ROWS.forEach(([name], n) => {
    const old = was.get(name);
    if (!old) return dear.push(`${name} is not in the table; --write puts it there`);
    [...stdio[n], ...http[n]].forEach((costs, column) => {
      if (costs > allowed(old[column])) dear.push(`${name}, ${head[column]}: ${costs} tokens, and it was ${old[column]}`);
    });
  });
}
for (const sentence of dear) console.log(`FAIL ${sentence}`);
if (dear.length) process.exit(1);
console.log(mode === "write" ? `ok   ${page} is written` : `ok   none of ${ROWS.length} costs more than it did`);
