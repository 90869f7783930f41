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
import { check, equal } from "./check.mjs";
import { answerOf, refusal, wholeJob } from "./job.mjs";
import { CALL_LIMIT_MS, server } from "./server.mjs";

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
const options = { env, cwd: server.cwd, timeout: CALL_LIMIT_MS, maxBuffer: 64 << 20 };

// A daemon outlives whoever started it, and would hold its servers for ever.
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

async function connect(era) {
  await program(mcpdo, "--connection", era, "connect", "--era", era, "--transport", "stdio", "--", server.command);
  const ask = async (...args) => JSON.parse(await program(mcpdo, "--format", "json", "--connection", era, ...args));
  return {
    version: (await ask("connections/show")).protocolVersion,
    listTools: async () => (await ask("tools/list")).tools,
    callTool: (name, args) => ask("tools/call", name, "--tool-args-json", JSON.stringify(args)),
    close: () => program(mcpdo, "disconnect", era),
  };
}

async function cli(...args) {
  const output = await program(inspector, "--cli", server.command, "--format", "json", "--quiet", ...args);
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
  ...["list_artifacts", "close_session"].map((tool) => ({
    sentence: `${tool} does not know the session of a server that has ended`,
    tool,
    give: { session_id: "of-another-server" },
    expect: noSession,
  })),
  {
    sentence: "read_artifact does not know the session of a server that has ended",
    tool: "read_artifact",
    give: { session_id: "of-another-server", path: "a.txt" },
    expect: noSession,
  },
];

for (const era of ["legacy", "modern"]) {
  await check(`Inspector --cli, ${era}: tools/list --strict finds nothing that clients stumble over`, async () => {
    equal((await cli("--method", "tools/list", "--strict", "--protocol-era", era)).tools.length, CLI_CALLS.length);
  });
}
for (const { sentence, tool, give, expect } of CLI_CALLS) {
  await check(`Inspector --cli: ${sentence}`, async () => {
    const args = ["--tool-name", tool, "--tool-args-json", JSON.stringify(give)];
    expect(await cli("--method", "tools/call", ...args));
  });
}

await wholeJob("Inspector, legacy", "2025-11-25", () => connect("legacy"));
await wholeJob("Inspector, modern", "2026-07-28", () => connect("modern"));
await check("Inspector: its daemon ends", async () => {
  const { pid } = JSON.parse(await program(mcpdo, "--format", "json", "daemon", "status"));
  await program(mcpdo, "daemon", "stop");
  await promisify(execFile)("tail", ["--pid", pid, "--sleep-interval", "0.1", "--follow", "/dev/null"], options);
});
