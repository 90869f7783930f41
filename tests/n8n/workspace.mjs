// Cells in a workflow, and a run in the background that a workflow polls. n8n's MCP Client opens an MCP session for each call, and closes none, so variables
// stay by the ?workspace= in its address only.

import { check, equal, ok } from "../clients/check.mjs";
import { CREDENTIAL } from "./place.mjs";

const PATH = "cells";
const LONG_PATH = "long-run";
const RUN_LIMIT_MS = 120_000;

/** The body of a request is {query, first, next}: the end of the address, and the arguments of two cells in turn. */
const asked = (field) => `$('Webhook').first().json.body.${field}`;

/** A node that calls a tool. The query and the input are expressions. */
const call = (name, tool, server, query, input, place) => ({
  id: crypto.randomUUID(),
  name,
  type: "@n8n/n8n-nodes-langchain.mcpClient",
  typeVersion: 1.1,
  position: [place, 0],
  parameters: {
    serverTransport: "httpStreamable",
    endpointUrl: `=${server}/mcp{{ ${query} }}`,
    authentication: "bearerAuth",
    tool: { __rl: true, mode: "id", value: tool },
    inputMode: "json",
    jsonInput: `={{ ${input} }}`,
    options: { timeout: RUN_LIMIT_MS },
  },
  credentials: { httpBearerAuth: { id: null, name: CREDENTIAL } },
});
const cell = (name, server, place) => call(name, "execute_code", server, asked("query"), asked(name), place);

const webhook = (path) => ({
  id: crypto.randomUUID(),
  name: "Webhook",
  type: "n8n-nodes-base.webhook",
  typeVersion: 2,
  position: [0, 0],
  parameters: { httpMethod: "POST", path, responseMode: "lastNode", responseData: "allEntries", options: {} },
  webhookId: crypto.randomUUID(),
});

const to = (node) => [{ node, type: "main", index: 0 }];

/** Begins a run in the background, and asks for its result until it has ended. The body of a request is {code}. */
const polling = (server) => ({
  name: "Long run",
  nodes: [
    webhook(LONG_PATH),
    call("begin", "run_python", server, "''", `{ code: ${asked("code")}, background: true }`, 220),
    call(
      "poll",
      "get_execution_result",
      server,
      "''",
      "{ execution_id: $('begin').first().json.structuredContent.run_id, wait_s: 1 }",
      440,
    ),
    {
      id: crypto.randomUUID(),
      name: "Runs",
      type: "n8n-nodes-base.if",
      typeVersion: 2.2,
      position: [660, 0],
      parameters: {
        conditions: {
          options: { caseSensitive: true, leftValue: "", typeValidation: "loose", version: 2 },
          combinator: "and",
          conditions: [
            {
              id: crypto.randomUUID(),
              leftValue: "={{ $json.structuredContent.status }}",
              rightValue: "running",
              operator: { type: "string", operation: "equals" },
            },
          ],
        },
        options: {},
      },
    },
    {
      id: crypto.randomUUID(),
      name: "Result",
      type: "n8n-nodes-base.set",
      typeVersion: 3.4,
      position: [880, 100],
      parameters: {
        mode: "raw",
        jsonOutput: "={{ { begun: $('begin').first().json, ended: $json } }}",
        options: {},
      },
    },
  ],
  connections: {
    Webhook: { main: [to("begin")] },
    begin: { main: [to("poll")] },
    poll: { main: [to("Runs")] },
    Runs: { main: [to("poll"), to("Result")] },
  },
  settings: { executionOrder: "v1" },
});

const workflow = (server) => ({
  name: "Cells",
  nodes: [
    webhook(PATH),
    cell("first", server, 220),
    cell("next", server, 440),
    {
      id: crypto.randomUUID(),
      name: "Both",
      type: "n8n-nodes-base.set",
      typeVersion: 3.4,
      position: [660, 0],
      parameters: {
        mode: "raw",
        jsonOutput: `={{ {
          first: $('first').first().json,
          next: $('next').first().json,
          pictures: Object.values($('next').first().binary ?? {}).map(({ mimeType }) => mimeType),
        } }}`,
        options: {},
      },
    },
  ],
  connections: {
    Webhook: { main: [to("first")] },
    first: { main: [to("next")] },
    next: { main: [to("Both")] },
  },
  settings: { executionOrder: "v1" },
});

export async function checkWorkspace(place) {
  const flow = await place.n8n.publish(workflow(place.recorder.url));
  const workspace = `?workspace=n8n-${crypto.randomUUID()}`;
  const run = async (query, first, next) => {
    const body = JSON.stringify({ query, first: { code: first }, next });
    const answer = await place.post(flow, body, { "content-type": "application/json" });
    const [{ first: one, next: two, pictures }] = await answer.json();
    return [one.structuredContent, two.structuredContent, pictures];
  };
  const end = async (session) => {
    equal((await place.ask(`/sessions/${session}`, { method: "DELETE" })).status, 204);
    await place.isGone(session);
  };
  let session_id;
  await check("workspace: with ?workspace= a node has the variable of the one before", async () => {
    const [first, next] = await run(workspace, "x = 20", { code: "x + 22" });
    equal([first.execution_count, first.new_workspace], [1, true]);
    equal([next.result, next.execution_count, next.session_id], ["42", 2, first.session_id]);
    session_id = next.session_id;
  });
  await check("workspace: a later execution has it, too, also after a cell that was rolled back", async () => {
    const [first, next] = await run(workspace, "x + 1", { code: "x = 0\nwhile True: pass", timeout: 1 });
    equal([first.result, first.new_workspace, first.session_id], ["21", undefined, session_id]);
    equal([next.status, next.state], ["timeout", "rolled_back"]);
  });
  await check("workspace: a chart that is left open is binary data, and a file to download", async () => {
    const draw = { code: "import matplotlib.pyplot as plt\nplt.plot([1, x])" };
    const [first, next, pictures] = await run(workspace, "x", draw);
    equal([first.result, pictures], ["20", ["image/png"]]);
    const [{ filename, download_url }] = next.artifacts;
    equal(filename, "figure_1.png");
    const { pathname, search } = new URL(download_url);
    const picture = await place.ask(pathname + search);
    equal([picture.status, picture.headers.get("content-type")], [200, "image/png"]);
  });
  await check("workspace: without ?workspace= each call has one of its own, as n8n opens an MCP session for each", async () => {
    const begun = () => place.recorder.exchanges.filter(({ sent }) => sent?.includes('"initialize"')).length;
    const before = begun();
    const [first, next] = await run("", "x = 20", { code: "x" });
    ok(begun() - before >= 2, "an MCP session for each call");
    equal([first.new_workspace, next.new_workspace, next.status], [true, true, "execution_error"]);
    ok(next.session_id !== first.session_id && next.stderr.includes("NameError"), next.stderr);
    // n8n closes none of these sessions.
    for (const { session_id } of [first, next]) await end(session_id);
  });
  await check("workspace: it ends when it is told to", () => end(session_id));
}

export async function checkLongRun(place) {
  const flow = await place.n8n.publish(polling(place.recorder.url));
  await check("long run: a workflow begins it, and polls it until its result is there", async () => {
    const polls = () => place.recorder.exchanges.filter(({ sent }) => sent?.includes('"get_execution_result"')).length;
    const before = polls();
    const code = "import time\nprint('begun', flush=True)\ntime.sleep(5)\nopen('a.txt', 'w').write('a')\nprint('done')";
    const answer = await place.post(flow, JSON.stringify({ code }), { "content-type": "application/json" });
    const [{ begun, ended }] = await answer.json();
    const { session_id, run_id, status } = begun.structuredContent;
    equal(status, "running");
    const result = ended.structuredContent;
    equal([result.run_id, result.session_id, result.outcome], [run_id, session_id, "ok"]);
    equal([result.stdout, result.artifacts.length], ["begun\ndone\n", 1]);
    ok(polls() - before >= 2, "each call waits for a second at most");
    equal((await place.ask(`/sessions/${session_id}`, { method: "DELETE" })).status, 204);
    await place.isGone(session_id);
  });
}
