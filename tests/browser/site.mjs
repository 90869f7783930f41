// The server under test with files in it, and a site that passes them on with headers left out: what
// the browser does without a header shows what the header is for, and that the test would notice.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { within } from "./chromium.mjs";

/** The server, its sandboxes plain processes: where files come from makes no difference here. */
export class Server {
  #last = 0;
  #calls = new Map();

  static async start(binary) {
    const server = new Server();
    server.folder = await mkdtemp(join(tmpdir(), "llm-sandbox-browser-"));
    server.process = spawn(binary, ["--no-isolation"], {
      cwd: server.folder,
      env: { ...process.env, SANDBOX_HTTP_PORT: "0", SANDBOX_LOG_FILE: "", SANDBOX_LOG_LEVEL: "ERROR" },
      stdio: ["pipe", "pipe", "inherit"],
    });
    server.ended = new Promise((resolve) => server.process.on("exit", resolve));
    createInterface({ input: server.process.stdout }).on("line", (line) => {
      const message = JSON.parse(line);
      server.#calls.get(message.id)?.(message);
    });
    await server.request("initialize", {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "browser-test", version: "1" },
    });
    server.#write({ method: "notifications/initialized" });
    return server;
  }

  #write(message) {
    this.process.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  }

  request(method, params) {
    const id = ++this.#last;
    const answer = new Promise((resolve) => this.#calls.set(id, resolve));
    this.#write({ id, method, params });
    return within(answer, method);
  }

  async call(tool, args) {
    const { result } = await this.request("tools/call", { name: tool, arguments: args });
    if (!result || result.isError) throw new Error(`${tool}: ${JSON.stringify(result)}`);
    return result.structuredContent;
  }

  /** Uploads files and gives their addresses by name. */
  async publish(files) {
    const session_id = "browser";
    for (const { name, content } of files) {
      const content_base64 = Buffer.from(content).toString("base64");
      await this.call("upload_file", { session_id, filename: name, content_base64 });
    }
    const { artifacts, download_url_template: any } = await this.call("list_artifacts", { session_id });
    const named = (filename) => any.replace("{filename}", encodeURI(filename));
    return new Map(artifacts.map(({ filename, download_url }) => [filename, download_url ?? named(filename)]));
  }

  async close() {
    this.process.stdin.end();
    await within(this.ended, "the server's end").catch(() => this.process.kill("SIGKILL"));
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** Serves `/<mode>/<name>`: the file with the headers that the mode leaves; and `/page` as it is told. */
export async function site(urls) {
  const without = {
    nothing: [],
    disposition: ["content-disposition"],
    protection: ["content-disposition", "content-security-policy", "x-content-type-options"],
  };
  const site = { page: "" };
  const listener = http.createServer((request, response) => {
    const [, mode, name] = request.url.split("/");
    if (mode === "page") {
      response.setHeader("content-type", "text/html");
      response.end(site.page);
      return;
    }
    const url = urls.get(name);
    if (!without[mode] || !url) {
      response.writeHead(404).end();
      return;
    }
    http.get(url, (original) => {
      const headers = { ...original.headers };
      for (const header of without[mode]) delete headers[header];
      response.writeHead(original.statusCode, headers);
      original.pipe(response);
    });
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  site.url = `http://127.0.0.1:${listener.address().port}`;
  site.close = () => listener.close();
  return site;
}
