// A server of its own for these checks, on a free port, with a token.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";

const START_LIMIT_MS = 30_000;
const END_LIMIT_MS = 30_000;

export class Server {
  /** `onProcessGroup` gets the process group before any step can fail. */
  static async start(binary, token, settings, onProcessGroup) {
    const server = new Server();
    const inherited = Object.entries(process.env).filter(([name]) => !/^SANDBOX_(?!IMAGE$|RUNTIME$)/.test(name));
    server.process = spawn(binary, ["serve", "--http"], {
      cwd: tmpdir(), // no .env file of this folder counts
      detached: true,
      env: {
        ...Object.fromEntries(inherited),
        SANDBOX_AUTH_TOKENS: `n8n:${token}`,
        SANDBOX_HTTP_PORT: "0",
        SANDBOX_LOG_FILE: "",
        ...settings,
      },
      stdio: ["ignore", "ignore", "pipe"],
    });
    onProcessGroup(server.process.pid);
    server.ended = new Promise((done) => server.process.once("exit", done));
    const log = [];
    server.url = await new Promise((found, failed) => {
      const late = setTimeout(() => failed(new Error(`the server does not start:\n${log.join("\n")}`)), START_LIMIT_MS);
      server.process.once("exit", (code) => failed(new Error(`the server ended with ${code}:\n${log.join("\n")}`)));
      createInterface({ input: server.process.stderr }).on("line", (line) => {
        log.push(line);
        const [, url] = line.match(/url="(http[^"]*)\/mcp"/) ?? [];
        if (!url) return;
        clearTimeout(late);
        found(url);
      });
    }).catch((error) => {
      server.process.kill("SIGKILL");
      throw error;
    });
    return server;
  }

  /** Returns the exit code. */
  async stop() {
    this.process.kill("SIGTERM");
    const late = setTimeout(() => this.process.kill("SIGKILL"), END_LIMIT_MS);
    const code = await this.ended;
    clearTimeout(late);
    return code;
  }
}
