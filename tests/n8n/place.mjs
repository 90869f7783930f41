// The set-up of the checks: an n8n, a server with a token, and a recorder between the two.

import { readFileSync } from "node:fs";
import { equal, ok } from "../clients/check.mjs";
import { N8n } from "./n8n.mjs";
import { Recorder } from "./recorder.mjs";

/** Longest wait for an answer; ten runs at once on a slow host take a minute. */
export const RUN_LIMIT_MS = 240_000;

/** The name under which the workflows look for the server's token. */
export const CREDENTIAL = "llm-sandbox";

/** A workflow of demo/n8n as it is. */
export const fileOf = (name) => readFileSync(new URL(`../../demo/n8n/${name}.json`, import.meta.url), "utf8");

/** The node with which a workflow starts when its URL is requested. */
export const triggerOf = (flow) => flow.nodes.find(({ webhookId }) => webhookId);

/** The assignment that holds the analysis. */
export const programOf = (flow) =>
  flow.nodes.find(({ name }) => name === "Python").parameters.assignments.assignments[0];

export const within = (limit_ms, url, options) => fetch(url, { signal: AbortSignal.timeout(limit_ms), ...options });

export class Place {
  static async open(server, token, onProcessGroup) {
    const place = new Place();
    place.token = token;
    place.recorder = await Recorder.start(server);
    try {
      place.n8n = await N8n.start(onProcessGroup);
      await place.setToken(token);
    } catch (error) {
      await place.close();
      throw error;
    }
    return place;
  }

  setToken(token) {
    return this.n8n.setCredential(CREDENTIAL, "httpBearerAuth", { token });
  }

  async withWrongToken(doing) {
    await this.setToken("wrong");
    try {
      await doing();
    } finally {
      await this.setToken(this.token);
    }
  }

  /** The workflow of a file, with this server's address in its settings and nothing else changed. */
  flow(name) {
    return JSON.parse(fileOf(name).replaceAll("http://127.0.0.1:8080", this.recorder.url));
  }

  publish(name) {
    return this.n8n.publish(this.flow(name));
  }

  /** Asks the server, with the token. */
  ask(path, options) {
    const headers = { authorization: `Bearer ${this.token}` };
    return within(RUN_LIMIT_MS, this.recorder.url + path, { ...options, headers });
  }

  /** Asks a workflow. */
  post(flow, body, headers = {}, query = "") {
    return within(RUN_LIMIT_MS, this.n8n.addressOf(triggerOf(flow)) + query, { method: "POST", body, headers });
  }

  async isGone(session) {
    ok(session, "nothing was uploaded");
    equal((await this.ask(`/files/${session}/`)).status, 404, `${session} is gone`);
  }

  /** Checks that n8n got the files that the server sent for this CSV, and that the session has ended. */
  async isAsServed(csv, name, file) {
    const session = this.recorder.sessionOf(csv);
    const { status, got } = this.recorder.served(session, name);
    equal([status, got.length], [200, file.length]);
    ok(got.equals(file), `${name} has the bytes that were served`);
    await this.isGone(session);
  }

  async close() {
    await this.n8n?.stop();
    await this.recorder.stop();
  }
}
