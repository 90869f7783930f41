// A server over HTTP of its own, its sandboxes plain processes, and a client that makes things happen
// there.
import { createServer } from "node:net";
import { resolve } from "node:path";

import { Server } from "../server.mjs";
import { within } from "./chromium.mjs";

const VERSION = "2026-07-28";

export class Web extends Server {
  static async start(binary, { tokens = "", args = ["--no-isolation"], more = {} } = {}) {
    const web = new Web();
    web.token = tokens.split(",")[0].split(":")[1];
    const port = await freePort();
    web.base = `http://127.0.0.1:${port}`;
    const settings = {
      SANDBOX_HTTP_PORT: String(port),
      SANDBOX_LOG_LEVEL: "ERROR",
      ...(tokens ? { SANDBOX_AUTH_TOKENS: tokens } : {}),
      ...more,
    };
    await web.spawn(resolve(binary), ["serve", "--http", ...args], settings, ["ignore", "ignore", "inherit"]);
    await within(web.#answers(), "the server's first answer");
    return web;
  }

  async #answers() {
    while (!(await fetch(`${this.base}/health`).catch(() => null))?.ok) {
      if (this.process.exitCode !== null) throw new Error("the server has ended");
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
  }

  get #access() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  async put(session, name, content) {
    const url = `${this.base}/files/${session}/${encodeURIComponent(name)}`;
    const response = await fetch(url, { method: "PUT", headers: this.#access, body: content });
    if (!response.ok) throw new Error(`${name}: ${await response.text()}`);
  }

  async call(tool, args) {
    const _meta = {
      "io.modelcontextprotocol/protocolVersion": VERSION,
      "io.modelcontextprotocol/clientCapabilities": {},
    };
    const params = { name: tool, arguments: args, _meta };
    const response = await fetch(`${this.base}/mcp`, {
      method: "POST",
      headers: {
        ...this.#access,
        "Content-Type": "application/json",
        Accept: "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
      },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params }),
    });
    const text = await response.text();
    const { result, error } = JSON.parse(text);
    if (error || result.isError) throw new Error(`${tool}: ${text}`);
    return result.structuredContent;
  }

  run(session_id, code, more = {}) {
    return this.call("run_python", { session_id, code, ...more });
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const listener = createServer().on("error", reject);
    listener.listen(0, "127.0.0.1", () => {
      const { port } = listener.address();
      listener.close(() => resolve(port));
    });
  });
}
