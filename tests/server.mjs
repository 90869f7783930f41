// A server under test, over stdio or over HTTP with a token: `request` sends one message of MCP.

import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const TOKEN = "0123456789abcdef";
const END_LIMIT_MS = 60_000;
const HELLO = {
  protocolVersion: "2025-11-25",
  capabilities: {},
  clientInfo: { name: "tests", version: "1" },
};

export class Server {
  /** Starts the program in a folder of its own. */
  async spawn(binary, args, settings, stdio) {
    this.folder = await mkdtemp(join(tmpdir(), "llm-sandbox-test-"));
    this.process = spawn(binary, args, {
      cwd: this.folder,
      env: { ...process.env, SANDBOX_HTTP_PORT: "0", SANDBOX_LOG_FILE: "", SANDBOX_MIN_FREE: "0", ...settings },
      stdio,
    });
    this.ended = new Promise((resolve) => this.process.on("exit", resolve));
  }

  /** Calls a tool and returns its result, which may be an error. */
  async call(name, args) {
    const { result, error } = await this.request("tools/call", { name, arguments: args });
    if (error) throw new Error(`${name}: ${JSON.stringify(error)}`);
    return result;
  }

  async close() {
    this.process.kill("SIGTERM");
    const late = setTimeout(() => this.process.kill("SIGKILL"), END_LIMIT_MS);
    await this.ended;
    clearTimeout(late);
    await rm(this.folder, { recursive: true, force: true });
  }
}

export class Stdio extends Server {
  #last = 0;
  #waiting = new Map();

  static async start(binary, more = {}, args = []) {
    const server = new this();
    await server.spawn(binary, args, { SANDBOX_LOG_LEVEL: "ERROR", ...more }, ["pipe", "pipe", "inherit"]);
    createInterface({ input: server.process.stdout }).on("line", (line) => {
      const message = JSON.parse(line);
      server.#waiting.get(message.id)?.(message);
    });
    await server.request("initialize", HELLO);
    server.#write({ method: "notifications/initialized" });
    return server;
  }

  #write(message) {
    this.process.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  }

  request(method, params) {
    const id = ++this.#last;
    const answer = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.#write({ id, method, params });
    return Promise.race([
      answer,
      this.ended.then((code) => Promise.reject(new Error(`the server has ended: ${code}`))),
    ]);
  }
}

export class Http extends Server {
  #last = 0;
  #headers = {
    accept: "application/json, text/event-stream",
    authorization: `Bearer ${TOKEN}`,
    "content-type": "application/json",
  };

  static async start(binary, more = {}) {
    const server = new Http();
    const settings = { SANDBOX_AUTH_TOKENS: `ann:${TOKEN}`, ...more };
    await server.spawn(binary, ["serve", "--http"], settings, ["ignore", "inherit", "pipe"]);
    server.url = await new Promise((resolve, reject) => {
      const log = [];
      createInterface({ input: server.process.stderr }).on("line", (line) => {
        log.push(line);
        const found = /url="(http[^"]*)"/.exec(line);
        if (found) resolve(found[1]);
      });
      server.ended.then(() => reject(new Error(log.join("\n"))));
    });
    const hello = await server.#post({ id: ++server.#last, method: "initialize", params: HELLO });
    server.#headers["mcp-session-id"] = hello.headers.get("mcp-session-id");
    server.#headers["mcp-protocol-version"] = HELLO.protocolVersion;
    await server.#post({ method: "notifications/initialized" });
    return server;
  }

  async #post(message) {
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    const response = await fetch(this.url, { method: "POST", headers: this.#headers, body });
    if (!response.ok) throw new Error(`${message.method}: ${response.status} ${await response.text()}`);
    return response;
  }

  async request(method, params) {
    const id = ++this.#last;
    return (await this.#post({ id, method, params })).json();
  }
}
