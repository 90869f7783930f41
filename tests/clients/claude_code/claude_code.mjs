// Claude Code itself, with a model that follows a script (model.mjs): what a person who has configured
// the server gets, and what the model gets to see.
//
//   node claude_code.mjs stdio <command>
//   node claude_code.mjs http <any> <address that wants a token> [seconds of a long run]

import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { named, STEPS } from "../cells.mjs";
import { check, equal, ok } from "../check.mjs";
import { download, isAsWanted, pngSize } from "../job.mjs";
import { headers, onStdio, PLACES } from "../server.mjs";
import { startModel, toolResults } from "./model.mjs";

const { dependencies } = JSON.parse(readFileSync(new URL("package.json", import.meta.url)));
const PACKAGE = "@anthropic-ai/claude-code";
const claude = fileURLToPath(
  new URL(`node_modules/${PACKAGE}-${process.platform}-${process.arch}/claude`, import.meta.url),
);
const [longRun] = process.argv.slice(5);
const place = PLACES.at(-1);
const TURN_LIMIT_MS = 120_000;
const CSV = "x,y\n1,2\n3,4\n";
const CHART = `
import pandas as pd
pd.read_csv("a.csv").plot().figure.savefig("c.png")
print("drawn")
`;
const PROMPT = "Draw a.csv.";
const LAST = "Here it is.";

const parts = ({ content }) => (typeof content === "string" ? [{ type: "text", text: content }] : content);
const texts = (result) => parts(result).filter(({ type }) => type === "text").map(({ text }) => text);
// The JSON comes last, after what stands for pictures and links.
const answer = (result) => JSON.parse(texts(result).at(-1));
const sessionOf = ([first]) => answer(first).session_id;

/** The calls of the model in order, and the answers that it must get. */
const SCRIPT = [
  {
    sentence: "a file of the folder that it works in is uploaded",
    tool: "mcp__sandbox__upload_file",
    give: (_, folder) => ({ filename: "a.csv", ...(onStdio ? { local_path: join(folder, "a.csv") } : { text: CSV }) }),
    expect: (result) => equal([answer(result).path, answer(result).size_bytes], ["/mnt/data/a.csv", CSV.length]),
  },
  {
    sentence: "the model sees the chart as a picture, its links and the whole result",
    tool: "mcp__sandbox__run_python",
    give: (results) => ({ session_id: sessionOf(results), code: CHART }),
    async expect(result, results) {
      const pictures = parts(result).filter(({ type }) => type === "image");
      equal(pictures.map(({ source }) => [source.type, source.media_type]), [["base64", "image/png"]]);
      const [width, height] = pngSize(Buffer.from(pictures[0].source.data, "base64"));
      ok(width > 300 && height > 200, `${width} by ${height}`);
      const { stdout, exit_code, artifacts: [chart] } = answer(result);
      equal([stdout, exit_code, chart.mime_type], ["drawn\n", 0, "image/png"]);
      const link = `sandbox:///${sessionOf(results)}/c.png`;
      ok(texts(result).some((text) => text.endsWith(link)), texts(result).join("\n"));
      if (onStdio) return; // the server has ended when this is checked
      const file = await download(chart.download_url);
      equal(pngSize(Buffer.from(await file.arrayBuffer())), [width, height]);
    },
  },
  {
    sentence: "the model can read an error",
    tool: "mcp__sandbox__read_artifact",
    give: (results) => ({ session_id: sessionOf(results), path: "nothing.csv" }),
    expect: (result) => equal([result.is_error, answer(result).error], [true, "not_found"]),
  },
  {
    sentence: "the model can read a file as a resource",
    tool: "ReadMcpResourceTool",
    give: (results) => ({ server: "sandbox", uri: `sandbox:///${sessionOf(results)}/a.csv` }),
    expect: (result) => equal(answer(result).contents[0].text, CSV),
  },
];
const cell = (code, expect) => ({
  tool: "mcp__sandbox__execute_code",
  give: () => ({ code }),
  expect: (result) => expect(answer(result)),
});
/** The cells that every client runs, in the workspace that it has by the way in which it is connected. */
const CELLS = [
  ...STEPS.map(({ sentence, tool, give, charts = [], refused, ...wanted }) => ({
    sentence: `cells: ${sentence}`,
    tool: `mcp__sandbox__${tool}`,
    // The one tool that has no workspace of its own accord.
    give: (results) => (tool === "run_python" ? { session_id: answer(results.at(-1)).session_id, ...give } : give),
    expect(result) {
      if (refused) return equal([result.is_error, answer(result).error], [true, refused]);
      isAsWanted(answer(result), wanted);
      const pictures = parts(result).filter(({ type }) => type === "image");
      equal(pictures.map(({ source }) => source.media_type), charts.map(() => "image/png"));
    },
  })),
  {
    sentence: "cells: a last one leaves a variable",
    ...cell("x = 20", (answer) => equal(answer.state, "kept")),
  },
];
/** By another Claude Code, started later. */
const AGAIN = [
  {
    sentence: "with ?workspace= one that is started later has the variable",
    ...cell("x + 1", (answer) => equal([answer.result, answer.new_workspace], ["21", undefined])),
  },
];
const LONG = [
  {
    sentence: `the model gets the result of a run of ${longRun} s that says nothing`,
    tool: "mcp__sandbox__run_python",
    give: () => ({ code: `import time; time.sleep(${longRun}); print("done")` }),
    expect: (result) => equal(answer(result).stdout, "done\n"),
  },
];

/** A turn: what Claude Code says at its end, and what it asked the model last. */
async function turn(script, negotiation, server) {
  // The folder for Claude Code's own files, and its working folder.
  const home = realpathSync(mkdtempSync(join(tmpdir(), "turn-")));
  const lines = script.map(({ tool, give }) => ({ tool, give: (results) => give(results, home) }));
  const model = await startModel([...lines, LAST]);
  try {
    const config = join(home, "mcp.json");
    writeFileSync(config, JSON.stringify({ mcpServers: { sandbox: server } }));
    writeFileSync(join(home, "a.csv"), CSV);
    const args = ["--print", PROMPT, "--output-format", "stream-json", "--verbose"];
    args.push("--mcp-config", config, "--strict-mcp-config");
    args.push("--allowedTools", "mcp__sandbox,ReadMcpResourceTool");
    const env = {
      PATH: process.env.PATH,
      HOME: home,
      TMPDIR: home,
      ANTHROPIC_BASE_URL: model.url,
      ANTHROPIC_API_KEY: "none",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      ENABLE_TOOL_SEARCH: "false", // all tools are listed at once
      MCP_PROTOCOL_NEGOTIATION: negotiation,
      NO_PROXY: "127.0.0.1",
    };
    const events = await new Promise((resolve, reject) => {
      const options = { cwd: home, env, timeout: TURN_LIMIT_MS, maxBuffer: 64 << 20 };
      const child = execFile(claude, args, options, (error, stdout, stderr) => {
        if (error) reject(new Error(`${error.message}\n${stderr}\n${stdout.slice(-1000)}`));
        else resolve(stdout.trim().split("\n").map((line) => JSON.parse(line)));
      });
      child.stdin.end();
    });
    return { events, asked: model.requests.at(-1) };
  } finally {
    await model.stop();
    rmSync(home, { recursive: true, force: true, maxRetries: 3 });
  }
}

const SERVER = onStdio
  ? { command: place.command, args: [] }
  : { type: "http", url: place.url, headers: { Authorization: headers(place.token).authorization } };

async function wholeTurn(negotiation, script, server = SERVER) {
  const name = `Claude Code, ${negotiation}, ${place.name}`;
  let done;
  await check(`${name}: a turn runs to its end`, async () => {
    done = await turn(script, negotiation, server);
    equal(done.events.at(-1).result, LAST);
    const { claude_code_version } = done.events.find(({ subtype }) => subtype === "init");
    equal(claude_code_version, dependencies[PACKAGE], "npm ci brings it up to date");
  });
  if (!done) return;
  await check(`${name}: the model is told of all tools and how to use them`, () => {
    equal(done.asked.tools.filter((tool) => tool.name.startsWith("mcp__sandbox__")).length, 13);
    ok(JSON.stringify(done.asked).includes("Typical use: execute_code"), "the instructions are there");
  });
  const results = toolResults(done.asked);
  for (const [n, { sentence, expect }] of script.entries()) {
    await check(`${name}: ${sentence}`, () => expect(results[n], results));
  }
}

if (longRun) {
  await wholeTurn("auto", LONG);
} else {
  // By its own MCP session; without one, by the name of a workspace, which both can give.
  const byName = onStdio ? SERVER : { ...SERVER, url: named(place).url };
  await wholeTurn("legacy", [...SCRIPT, ...CELLS]);
  await wholeTurn("auto", [...SCRIPT, ...CELLS], byName);
  if (!onStdio) {
    for (const negotiation of ["legacy", "auto"]) await wholeTurn(negotiation, AGAIN, byName);
    await check(`Claude Code, ${place.name}: without its token there is no server`, async () => {
      const { events } = await turn([], "auto", { type: "http", url: place.url });
      const { mcp_servers } = events.find(({ subtype }) => subtype === "init");
      ok(mcp_servers.length === 1 && mcp_servers[0].status !== "connected", JSON.stringify(mcp_servers));
    });
  }
}
