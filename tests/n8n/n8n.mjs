// A real n8n with nothing in it: a folder, a port and an owner of its own. It is asked as its editor
// asks it, so that a workflow is imported and published the way a person does it.

import { spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const PROGRAM = fileURLToPath(new URL("node_modules/n8n/bin/n8n", import.meta.url));
const OWNER = { email: "owner@example.org", password: "Owner-of-this-1", firstName: "Ann", lastName: "Owner" };
const START_LIMIT_MS = 120_000;
const END_LIMIT_MS = 30_000;
const REQUEST_LIMIT_MS = 30_000;
const RETRY_MS = 250;

async function freePorts(count) {
  const servers = Array.from({ length: count }, () => createServer());
  await Promise.all(servers.map((server) => new Promise((done) => server.listen(0, "127.0.0.1", done))));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
  return ports;
}

/** Asks until `ask` returns something other than undefined. */
export async function until(what, limit_ms, ask) {
  for (const end = Date.now() + limit_ms; ; ) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    if (Date.now() > end) throw new Error(`${what}: not within ${limit_ms / 1000} s`);
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

export class N8n {
  /** `onProcessGroup` gets the process group before any step can fail. */
  static async start(onProcessGroup) {
    const [port, broker] = await freePorts(2);
    const n8n = new N8n(port, mkdtempSync(join(tmpdir(), "n8n-")));
    const log = openSync(n8n.log, "w");
    n8n.process = spawn(process.execPath, [PROGRAM, "start"], {
      cwd: n8n.folder,
      // A group of its own, as it starts processes itself.
      detached: true,
      stdio: ["ignore", log, log],
      env: {
        PATH: process.env.PATH,
        HOME: n8n.folder,
        NODE_ENV: "production",
        N8N_USER_FOLDER: n8n.folder,
        N8N_LISTEN_ADDRESS: "127.0.0.1",
        N8N_PORT: String(port),
        N8N_RUNNERS_BROKER_PORT: String(broker),
        N8N_DIAGNOSTICS_ENABLED: "false",
        N8N_VERSION_NOTIFICATIONS_ENABLED: "false",
        N8N_TEMPLATES_ENABLED: "false",
        N8N_COMMUNITY_PACKAGES_ENABLED: "false",
        N8N_SECURE_COOKIE: "false",
      },
    });
    onProcessGroup(n8n.process.pid);
    n8n.ended = new Promise((done) => n8n.process.once("exit", done));
    try {
      await until("n8n starts", START_LIMIT_MS, () => n8n.#isReady());
      await n8n.rest("POST", "/owner/setup", OWNER);
    } catch (error) {
      await n8n.stop();
      throw error;
    }
    return n8n;
  }

  constructor(port, folder) {
    this.url = `http://127.0.0.1:${port}`;
    this.folder = folder;
    this.log = join(folder, "n8n.log");
    this.cookie = "";
  }

  async #isReady() {
    if (this.process.exitCode !== null) throw new Error(`n8n ended:\n${readFileSync(this.log)}`);
    const signal = AbortSignal.timeout(REQUEST_LIMIT_MS);
    const answer = await fetch(`${this.url}/healthz/readiness`, { signal }).catch(() => undefined);
    return answer?.ok || undefined;
  }

  async rest(method, path, body) {
    const answer = await fetch(`${this.url}/rest${path}`, {
      method,
      headers: { "content-type": "application/json", cookie: this.cookie },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(REQUEST_LIMIT_MS),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text.slice(0, 1000)}`);
    const login = answer.headers.getSetCookie().find((cookie) => cookie.startsWith("n8n-auth="));
    if (login) this.cookie = login.split(";")[0];
    return JSON.parse(text).data;
  }

  async credential(name) {
    return (await this.rest("GET", "/credentials")).find((credential) => credential.name === name);
  }

  /** Makes a credential, or replaces the data of the one of this name. */
  async setCredential(name, type, data) {
    const known = await this.credential(name);
    if (known) return this.rest("PATCH", `/credentials/${known.id}`, { name, type, data });
    return this.rest("POST", "/credentials", { name, type, data });
  }

  /** Returns the workflow as n8n has it, at work. */
  async publish(flow) {
    const saved = await this.rest("POST", "/workflows", flow);
    await this.rest("POST", `/workflows/${saved.id}/activate`, { versionId: saved.versionId });
    const [trigger] = saved.nodes.filter(({ webhookId }) => webhookId);
    // n8n reports a workflow as active a moment before its address works.
    await until(`${saved.name} is at work`, START_LIMIT_MS, async () => {
      const signal = AbortSignal.timeout(REQUEST_LIMIT_MS);
      const asked = await fetch(this.addressOf(trigger), { redirect: "manual", signal });
      return asked.status !== 404 || (await asked.text()).includes("Did you mean") || undefined;
    });
    return saved;
  }

  /** The address that a person or a program gets from a trigger. */
  addressOf({ type, parameters, webhookId }) {
    if (type.endsWith(".formTrigger")) return `${this.url}/form/${parameters.options.path}`;
    if (type.endsWith(".chatTrigger")) return `${this.url}/webhook/${webhookId}/chat`;
    return `${this.url}/webhook/${parameters.path}`;
  }

  /** The newest execution of a workflow, with all that its nodes said. */
  async lastExecution(flow) {
    const filter = encodeURIComponent(JSON.stringify({ workflowId: flow.id }));
    const { results } = await this.rest("GET", `/executions?limit=1&filter=${filter}`);
    return this.rest("GET", `/executions/${results[0].id}`);
  }

  async stop() {
    const group = -this.process.pid;
    if (this.process.exitCode === null) {
      process.kill(this.process.pid, "SIGTERM");
      const late = setTimeout(() => process.kill(group, "SIGKILL"), END_LIMIT_MS);
      await this.ended;
      clearTimeout(late);
    }
    try {
      process.kill(group, "SIGKILL"); // what it may have left
    } catch (error) {
      if (error.code !== "ESRCH") throw error;
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}
