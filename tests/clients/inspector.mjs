// The MCP inspector without its browser. `--cli` starts a server for every command, so a session does
// not outlive one call; the whole job is done with mcpdo, the inspector's other program, which holds a
// connection in a daemon of its own.
//
// The package asks for Node 22.19; these two programs run on Node 20 as well.

import { execFile, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { wholeNotebook } from "./cells.mjs";
import { check, equal, ok } from "./check.mjs";
import { answerOf, refusal, wholeJob } from "./job.mjs";
import { ANN, BEN, CALL_LIMIT_MS, PLACES, guarded, headers, onStdio } from "./server.mjs";

const PROGRAMS = new URL("node_modules/@modelcontextprotocol/inspector/clients/", import.meta.url);
const inspector = fileURLToPath(new URL("launcher/build/index.js", PROGRAMS));
const mcpdo = fileURLToPath(new URL("mcpdo/build/mcp-bin.js", PROGRAMS));

// All that they keep on disk. The path is short, as it holds a socket.
const scratch = mkdtempSync(join(tmpdir(), "inspector-"));
const env = {
  ...process.env,
  MCP_STORAGE_DIR: join(scratch, "storage"),
  MCP_CATALOG_PATH: join(scratch, "catalog.json"),
  MCP_INSPECTOR_DAEMON_DIR: join(scratch, "daemon"),
  MCP_INSPECTOR_SECRET_STORE: "memory",
};

const IS_ERROR = 5; // their exit code for a result with isError
const options = { env, cwd: tmpdir(), timeout: CALL_LIMIT_MS, maxBuffer: 64 << 20 };

// A daemon outlives the program that started it, and would keep its servers running for ever.
process.on("exit", () => {
  spawnSync(process.execPath, [mcpdo, "daemon", "stop"], options);
  rmSync(scratch, { recursive: true, force: true });
});
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(1));

function program(...args) {
  return new Promise((resolve, reject) => {
    execFile(process.execPath, args, options, (error, stdout) => {
      if (error && error.code !== IS_ERROR) reject(new Error(`${error.message}\n${stdout}`));
      else resolve(stdout);
    });
  });
}

/** The arguments that name a server to the inspector's programs. */
const target = ({ command, url, token }) => [
  ...Object.entries(headers(token)).flatMap(([name, value]) => ["--header", `${name}: ${value}`]),
  ...(command ? ["--transport", "stdio", "--", command] : ["--transport", "http", "--server-url", url]),
];

let connections = 0;

async function connect(era, place) {
  const name = `c${++connections}`;
  await program(mcpdo, "--connection", name, "connect", "--era", era, ...target(place));
  const ask = async (...args) => JSON.parse(await program(mcpdo, "--format", "json", "--connection", name, ...args));
  return {
    version: (await ask("connections/show")).protocolVersion,
    listTools: async () => (await ask("tools/list")).tools,
    callTool: (tool, args) => ask("tools/call", tool, "--tool-args-json", JSON.stringify(args)),
    listResources: async () => (await ask("resources/list")).resources,
    readResource: async (uri) => (await ask("resources/read", uri)).contents,
    close: () => program(mcpdo, "disconnect", name),
  };
}

async function cli(place, ...args) {
  const output = await program(inspector, "--cli", "--format", "json", "--quiet", ...args, ...target(place));
  return JSON.parse(output).result;
}

const noSession = (result) => equal(refusal(result).error, "session_not_found");
const CLI_CALLS = [
  {
    sentence: "upload_file stores a file",
    tool: "upload_file",
    give: { filename: "a.txt", content_base64: "YQ==" },
    expect: (result) => equal(answerOf(result)[0].path, "/mnt/data/a.txt"),
  },
  {
    sentence: "run_python runs",
    tool: "run_python",
    give: { code: "print(6 * 7)" },
    expect: (result) => equal(answerOf(result)[0].stdout, "42\n"),
  },
  {
    sentence: "execute_code runs a cell",
    tool: "execute_code",
    give: { code: "6 * 7", session_id: "__stateless__" },
    expect: (result) => equal(answerOf(result)[0].result, "42"),
  },
  {
    sentence: "create_session starts a session",
    tool: "create_session",
    give: { memory_limit_mb: 128, timeout_seconds: 60 },
    expect: (result) => equal(answerOf(result)[0].language, "python"),
  },
  {
    sentence: "list_runtimes tells the languages",
    tool: "list_runtimes",
    give: {},
    expect(result) {
      const { runtimes } = answerOf(result)[0];
      const shells = process.env.SANDBOX_ENGINE === "wasm" ? [] : ["bash"];
      equal(runtimes.map(({ language }) => language).sort(), [...shells, "javascript", "python"]);
    },
  },
  {
    sentence: "cancel_execution does not know a run of nobody's",
    tool: "cancel_execution",
    give: { execution_id: "run_20260101T000000Z_0000" },
    expect: (result) => equal(answerOf(result)[0].status, "not_found"),
  },
  {
    sentence: "get_execution_result does not know a run of nobody's",
    tool: "get_execution_result",
    give: { execution_id: "run_20260101T000000Z_0000" },
    expect: (result) => equal(answerOf(result)[0].status, "not_found"),
  },
  ...["list_artifacts", "close_session", "destroy_session", "get_workspace_info", "reset_workspace"].map((tool) => ({
    sentence: `${tool} does not know the session of another server`,
    tool,
    give: { session_id: "of-another-server" },
    expect: noSession,
  })),
  {
    sentence: "read_artifact does not know the session of another server",
    tool: "read_artifact",
    give: { session_id: "of-another-server", path: "a.txt" },
    expect: noSession,
  },
  {
    sentence: "read_output does not know the session of another server",
    tool: "read_output",
    give: { session_id: "of-another-server", run_id: "run" },
    expect: noSession,
  },
];

const ERAS = [["legacy", "2025-11-25"], ["modern", "2026-07-28"]];

for (const place of PLACES) {
  const say = (sentence, promise) => check(`Inspector --cli, ${place.name}: ${sentence}`, promise);
  for (const [era] of ERAS) {
    await say(`tools/list --strict finds nothing that clients stumble over, ${era}`, async () => {
      const { tools } = await cli(place, "--method", "tools/list", "--strict", "--protocol-era", era);
      equal(new Set(CLI_CALLS.map(({ tool }) => tool)), new Set(tools.map(({ name }) => name)));
    });
  }
  for (const { sentence, tool, give, expect } of CLI_CALLS) {
    await say(sentence, async () => {
      const args = ["--tool-name", tool, "--tool-args-json", JSON.stringify(give)];
      expect(await cli(place, "--method", "tools/call", ...args));
    });
  }
  // The inspector declares the extension in every request, and a client without it hears that the run has begun.
  await say("a run in the background is a task, whose result the client fetches, modern", async () => {
    const give = JSON.stringify({ code: "import time; time.sleep(1); print(6 * 7)", background: true });
    const args = ["--protocol-era", "modern", "--tool-name", "run_python", "--tool-args-json", give];
    equal(answerOf(await cli(place, "--method", "tools/call", ...args))[0].stdout, "42\n");
  });
  for (const [era, version] of ERAS) {
    await say(`resources/list and resources/read, ${era}`, async () => {
      const call = (...args) => cli(place, "--protocol-era", era, "--method", ...args);
      const listed = (await call("resources/list")).resources;
      // Over stdio the server has just started, and has none.
      if (onStdio) return equal(listed, []);
      const { uri } = listed.find(({ name }) => name === "a.txt");
      equal((await call("resources/read", "--uri", uri)).contents[0].text, "a");
    });
    // Each command is a program that takes a while to start, so over HTTP each place has one of the two.
    if (!onStdio && (era === "modern") === Boolean(place.token)) continue;
    await wholeJob(`Inspector, ${era}, ${place.name}`, version, () => connect(era, place), place);
    await wholeNotebook(`Inspector, ${era}, ${place.name}`, version, (at) => connect(era, at), place);
  }
}
if (guarded) {
  for (const [who, token] of [["without a token", undefined], ["with a wrong token", `${ANN}${BEN}`]]) {
    await check(`Inspector --cli ${who} hears that one is needed`, async () => {
      const listing = cli({ url: guarded, token }, "--method", "tools/list", "--stored-auth-only");
      const error = await listing.then(() => undefined, (error) => error);
      ok(/401|auth/i.test(error?.message), String(error));
    });
  }
}
await check("Inspector: its daemon ends", async () => {
  const { pid } = JSON.parse(await program(mcpdo, "--format", "json", "daemon", "status"));
  await program(mcpdo, "daemon", "stop");
  await promisify(execFile)("tail", ["--pid", pid, "--sleep-interval", "0.1", "--follow", "/dev/null"], options);
});
