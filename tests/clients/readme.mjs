// The commands and programs that README and docs/ offer for pasting: the programs run, and the settings for clients
// lead to the server, as the official SDK reads them.
//
//   node readme.mjs <command> <guarded address> <python>

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, delimiter, dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { check, equal, ok } from "./check.mjs";

const [command, url, python] = process.argv.slice(2);
const { ANN_TOKEN: token } = process.env;
const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../..");
const page = (path) => readFile(join(root, path), "utf8");
const client = (name) => page(`docs/clients/${name}.md`);
const ADDRESS = "http://127.0.0.1:8080/mcp";
const LIMIT_MS = 120_000;
const folder = await mkdtemp(join(tmpdir(), "llm-sandbox-readme-"));

const blocks = (text, language) =>
  [...text.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, "gm"))].map(([, text]) => text);

/** The entry of a client's settings, with the address and token of the server here. */
function entry(text) {
  const settings = JSON.parse(text);
  const { sandbox } = settings.mcpServers ?? settings.servers;
  if (sandbox.url) equal(sandbox.url, ADDRESS);
  const authorization = sandbox.headers?.Authorization;
  if (authorization) ok(/^Bearer \$\{(LLM_SANDBOX_TOKEN|env:LLM_SANDBOX_TOKEN|input:sandbox-token)\}$/.test(authorization), authorization);
  return sandbox;
}

async function connects(sandbox) {
  const transport = sandbox.url
    ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } })
    : new StdioClientTransport({ command, args: sandbox.args ?? [], env: { ...process.env, ...known(sandbox.env) }, cwd: folder, stderr: "ignore" });
  const client = new Client({ name: "readme", version: "1" });
  await client.connect(transport);
  const { tools } = await client.listTools();
  ok(tools.some(({ name }) => name === "run_python"), "run_python is offered");
  await client.close();
}

/** Replaces a missing folder in settings by an existing one. */
const known = (env = {}) =>
  Object.fromEntries(Object.entries(env).map(([name, value]) => [name, value.startsWith("/path/") ? folder : value]));

/** The output of a program of a page, run against this server. */
async function printed(program, args, text) {
  ok(text.includes(ADDRESS), "the program names the address");
  const file = join(folder, program);
  await writeFile(file, text.replace(ADDRESS, url));
  const options = { cwd: folder, timeout: LIMIT_MS, env: { ...process.env, LLM_SANDBOX_TOKEN: token } };
  const { stdout } = await promisify(execFile)(args[0], [...args.slice(1), file], options);
  return stdout.trim();
}

/** A program that must leave its chart. */
async function runs(program, args, text) {
  equal((await printed(program, args, text)).split(/\s+/), ["ok", "drawn"]);
  ok((await stat(join(folder, "chart.png"))).size > 1000, "the chart was downloaded");
  await rm(join(folder, "chart.png"));
}

/** The lines for a server over HTTP, pasted into one shell, and those for its token into another. */
async function pasted([serve, ask]) {
  equal(basename(command), "llm-sandbox");
  const options = { cwd: folder, env: { ...process.env, PATH: dirname(resolve(command)) + delimiter + process.env.PATH } };
  const server = spawn("sh", ["-c", serve], { ...options, stdio: ["ignore", "ignore", "pipe"], detached: true });
  const ended = once(server, "exit");
  try {
    let address;
    for await (const line of createInterface({ input: server.stderr })) {
      address = line.match(/url="(http[^"]*)"/)?.[1];
      if (address) break;
    }
    ok(address, "the server says where it is");
    const { stdout } = await promisify(execFile)("sh", ["-c", ask], options);
    const post = (headers) => fetch(address, { method: "POST", headers, body: "{}" });
    equal((await post({})).status, 401, "without the token");
    const transport = new StreamableHTTPClientTransport(new URL(address), { requestInit: { headers: { Authorization: `Bearer ${stdout.trim()}` } } });
    const client = new Client({ name: "readme", version: "1" });
    await client.connect(transport);
    await client.close();
  } finally {
    // The shell and what it started.
    process.kill(-server.pid);
    await ended;
  }
}

try {
  for (const path of ["README.md", "docs/clients/claude-code.md"]) {
    await check(`${path}: no block adds one server twice`, async () => {
      const shell = blocks(await page(path), "sh");
      ok(shell.some((text) => text.includes("claude mcp add")), "there is one");
      for (const text of shell) ok(text.split("claude mcp add").length <= 2, text);
    });
  }
  await check("docs/http.md: who pastes the lines has a server and its token", async () =>
    pasted(blocks(await page("docs/http.md"), "sh")),
  );
  for (const name of ["claude-code", "claude-desktop", "vscode", "cursor"]) {
    const settings = blocks(await client(name), "json");
    await check(`docs/clients/${name}.md: there are settings to paste`, async () => ok(settings.length > 0, name));
    for (const text of settings) {
      const { command: program, url: address } = JSON.parse(text).mcpServers?.sandbox ?? JSON.parse(text).servers.sandbox;
      // A bridge is another's program.
      if (program === "npx") continue;
      await check(`docs/clients/${name}.md: the settings for ${address ? "HTTP" : "stdio"} lead to the server`, () => connects(entry(text)));
    }
  }
  await check("docs/clients/python.md: the program does what it says", async () => {
    const [text] = blocks(await client("python"), "python");
    await runs("example.py", [resolve(python)], text);
  });
  await check("docs/clients/python.md: the program without the SDK keeps its variables", async () => {
    const [, text] = blocks(await client("python"), "python");
    equal(await printed("plain.py", [resolve(python)], text), "6");
  });
  await check("docs/http.md: the call from a shell is answered", async () => {
    const text = blocks(await page("docs/http.md"), "sh").find((block) => block.includes("curl"));
    const { result } = JSON.parse(await printed("call.sh", ["sh"], text));
    equal(result.structuredContent.stdout, "4\n");
  });
  await check("docs/clients/typescript.md: the program does what it says", async () => {
    const [text] = blocks(await client("typescript"), "ts");
    const compiler = join(here, "node_modules/.bin/tsc");
    const options = ["--strict", "--module", "nodenext", "--target", "es2022", "--types", "node"];
    await symlink(join(here, "node_modules"), join(folder, "node_modules"));
    await writeFile(join(folder, "example.mts"), text);
    await promisify(execFile)(compiler, [...options, "example.mts"], { cwd: folder }).catch(({ stdout }) => {
      throw new Error(stdout);
    });
    const compiled = await readFile(join(folder, "example.mjs"), "utf8");
    await runs("example.mjs", [process.execPath], compiled);
  });
} finally {
  await rm(folder, { recursive: true, force: true });
}
