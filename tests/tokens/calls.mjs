// Counts the tokens of a task of many calls: by code in a sandbox, and by calls of the model itself.
//
//   node calls.mjs compare|write <server binary> <transcript of demo/calls/run.sh> <repository>

import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { TOKENIZERS, tokens } from "./count.mjs";
import { Stdio } from "../server.mjs";

const [mode, binary, transcript, root] = process.argv.slice(2);
const NAMES = Object.keys(TOKENIZERS);

/** Upstreams, and the tools of each: as many names as a description has, and 500 tools. */
const UPSTREAMS = 8;
const TOOLS = 63;

const plus = (...counts) => counts.reduce((sum, count) => sum.map((one, at) => one + count[at]));
const minus = (one, other) => one.map((count, at) => count - other[at]);
const ofJson = (value) => tokens(JSON.stringify(value));
const ofTurn = ({ call, content }) => plus(ofJson(call), tokens(content.map(({ text }) => text).join("\n")));
const ofTurns = (turns) => plus(NAMES.map(() => 0), ...turns.map(ofTurn));

/** The tool as a model is given it, by a server with these settings; and the value of a cell. */
async function describedBy(settings, code) {
  const server = await Stdio.start(binary, settings);
  try {
    const { result } = await server.request("tools/list", {});
    const { name, description, inputSchema } = result.tools.find(({ name }) => name === "execute_code");
    const cell = code && (await server.call("execute_code", { code })).structuredContent;
    return [{ name, description, inputSchema }, cell];
  } finally {
    await server.close();
  }
}

/** Tokens by which the description of execute_code is longer if code can call some hundred tools. */
async function ofManyTools() {
  const folder = await mkdtemp(join(tmpdir(), "llm-sandbox-test-"));
  try {
    const args = [join(root, "tests/upstream/server.py"), "old", "", String(TOOLS)];
    const names = Array.from({ length: UPSTREAMS }, (_, at) => `department_${at + 1}`);
    const upstreams = Object.fromEntries(names.map((name) => [name, { command: "python3", args }]));
    const file = join(folder, "config.yaml");
    // JSON is YAML.
    await writeFile(file, JSON.stringify({ upstreams }));
    const every = "it['name'] for up in tools.list() for it in tools.list(up['name'])";
    const count = `import tools\nsum(name.startswith('more_') for name in (${every}))`;
    const [described, { result }] = await describedBy({ SANDBOX_CONFIG_FILE: file }, count);
    if (result !== String(UPSTREAMS * TOOLS)) throw new Error(`${result} tools instead of ${UPSTREAMS * TOOLS}`);
    const [without] = await describedBy({});
    return minus(ofJson(described), ofJson(without));
  } finally {
    await rm(folder, { recursive: true });
  }
}

const { code, direct } = JSON.parse(await readFile(transcript, "utf8"));
const [look, analysis] = code.turns;
const list = minus(ofJson(code.tools), ofJson(code.without));
const byCode = plus(list, ofTurn(analysis));
const calls = direct.turns.filter(({ call }) => call.name !== "execute_code");
const last = direct.turns.filter(({ call }) => call.name === "execute_code");
const byCalls = plus(ofJson(direct.tools), ofTurns(direct.turns));
const many = await ofManyTools();
const percent = (counts) => counts.map((count, at) => Math.ceil((100 * count) / byCalls[at]));
const number = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");
const rows = [
  [`${UPSTREAMS * TOOLS} tools of ${UPSTREAMS} upstreams: the description of \`execute_code\` is longer by`, many, 120],
  [`**by code**: the list of tools is longer by`, list],
  ["the cell with the analysis", ofJson(analysis.call)],
  ["its result", minus(ofTurn(analysis), ofJson(analysis.call))],
  ["together", byCode, 2000],
  ["a cell before it, in which the model finds the tools, and its result", ofTurn(look)],
  ["together with that cell", plus(byCode, ofTurn(look)), 2000],
  [`**by direct calls**: ${direct.tools.length} tools of the three servers`, ofJson(direct.tools)],
  [`${calls.length} calls and their results`, ofTurns(calls)],
  ["the cell with the analysis, to which the model copies the results, and its result", ofTurns(last)],
  ["together", byCalls],
  ["**the analysis by code**, in percent of direct calls", percent(byCode), 10],
  ["together with the cell before it", percent(plus(byCode, ofTurn(look)))],
];
const lines = rows.map(([name, counts, most]) => [name, ...counts.map(number), most ? number(most) : ""]);
const head = ["", ...NAMES, "at most"];
const table = [head, ["---", ...head.slice(1).map(() => "---:")], ...lines];
const text = table.map((cells) => `| ${cells.join(" | ")} |`).join("\n");
console.log(text);

const dear = rows.filter(([, [count], most]) => most && count > most);
for (const [name, [count], most] of dear) console.log(`FAIL ${name}: ${count}, and at most ${most} was promised`);
if (dear.length) process.exit(1);
console.log("ok   nothing exceeds a maximum");
if (mode === "write") execFileSync("python3", [join(root, "docs/measured.py"), "docs/tokens.md", "calls"], { input: text });
