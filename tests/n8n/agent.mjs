// analyst-agent.json: a chat with a model that follows a script, and what that model gets to see.

import { readFileSync } from "node:fs";
import { check, equal, ok } from "../clients/check.mjs";
import { startModel, toolResults } from "../clients/claude_code/model.mjs";

const { tools: TOOLS } = JSON.parse(readFileSync(new URL("../clients/job.json", import.meta.url)));
const CSV = "channel,revenue\nsearch,480\nCafé,95\n";
const NAME = "sälés 1.csv";
const CHART = `import pandas as pd
pd.read_csv("${NAME}").plot.bar(x="channel", y="revenue").figure.savefig("c.png")
print("drawn")`;
const QUESTION = "What is in it?";
const SEEN_LIMIT = 60_000;

/** Starts the model. It uses the session that the system message names. */
async function startAnalyst() {
  const told = () => ({ session_id: JSON.stringify(model.requests.at(-1).system).match(/chat-[\w-]+/)[0] });
  const results = () => toolResults(model.requests.at(-1)).map(({ content }) => JSON.parse(content)[0]);
  const lines = [
    { tool: "sandbox_upload_file", give: () => ({ ...told(), filename: "notes.txt", text: "hello" }) },
    { tool: "sandbox_run_python", give: () => ({ ...told(), code: CHART }) },
    { tool: "sandbox_read_artifact", give: () => ({ ...told(), path: "nothing.csv" }) },
    { tool: "sandbox_read_artifact", give: () => ({ ...told(), path: NAME }) },
    { tool: "sandbox_execute_code", give: () => ({ ...told(), code: "x = 20" }) },
    () => `Done: [c.png](${results()[1].structuredContent.artifacts[0].download_url})`,
    { tool: "sandbox_execute_code", give: () => ({ ...told(), code: "x + 22" }) },
    { tool: "sandbox_close_session", give: told },
    "Closed.",
  ];
  // In turn, whatever results there are: n8n's memory keeps the last one of each message.
  const next = () => {
    const line = lines.shift();
    return typeof line === "function" ? line() : line;
  };
  const model = await startModel(new Proxy(lines, { get: next }));
  return { ...model, results };
}

export async function checkAgent(place) {
  const { n8n } = place;
  const model = await startAnalyst();
  await n8n.setCredential("Anthropic", "anthropicApi", { apiKey: "none", url: model.url });
  const flow = await place.publish("analyst-agent");
  const chat = crypto.randomUUID();
  let link;

  function say(text, { files = [], cookie = n8n.cookie } = {}) {
    const form = new FormData();
    form.set("action", "sendMessage");
    form.set("sessionId", chat);
    form.set("chatInput", text);
    for (const file of files) form.append("files", file);
    return place.post(flow, form, { cookie });
  }

  try {
    await check("agent: who is not logged in to n8n cannot chat", async () => {
      equal((await say(QUESTION, { cookie: "" })).status, 401);
      equal(model.requests, []);
    });
    await check("agent: the files of the chat are uploaded, and the answer has a link that opens", async () => {
      const files = [new File([CSV], NAME, { type: "text/csv" }), new File(["x"], "b.txt", { type: "text/plain" })];
      const answer = await say(QUESTION, { files });
      const { output } = await answer.json();
      equal([answer.status, output?.slice(0, 13)], [200, "Done: [c.png]"]);
      link = output.match(/\((.*)\)$/)[1];
      const { pathname, search } = new URL(link);
      const picture = await place.ask(pathname + search);
      equal([picture.status, picture.headers.get("content-type")], [200, "image/png"]);
    });
    await check("agent: the model sees the tools and is told of the files", () => {
      const [{ tools, messages }] = model.requests;
      equal(tools.map(({ name }) => name).sort(), TOOLS.map((name) => `sandbox_${name}`));
      const [said, attached] = messages.at(-1).content.split("\n\nAttached: ");
      equal([said, attached.split(", ").sort()], [QUESTION, ["/mnt/data/b.txt", `/mnt/data/${NAME}`]]);
    });
    await check("agent: the model gets structured results, and errors in the words of the tool", () => {
      const [upload, run, error, table] = model.results();
      equal(upload.structuredContent.path, "/mnt/data/notes.txt");
      const { stdout, exit_code, artifacts } = run.structuredContent;
      equal([stdout, exit_code, artifacts.length], ["drawn\n", 0, 1]);
      equal([artifacts[0].mime_type, artifacts[0].download_url], ["image/png", link]);
      ok(JSON.stringify(error).includes("No artifact at /mnt/data/nothing.csv"), JSON.stringify(error));
      equal(table.structuredContent.text, CSV);
    });
    await check("agent: no picture reaches the model as text", () => {
      const seen = JSON.stringify(model.requests.map(({ messages }) => messages));
      ok(!seen.includes("iVBOR"), "the head of a PNG in base64");
      ok(seen.length < SEEN_LIMIT, `${seen.length} characters`);
    });
    await check("agent: a second message has the same session and the first answer before it", async () => {
      const before = model.requests.length;
      equal(await (await say("Thank you.")).json(), { output: "Closed." });
      const said = JSON.stringify(model.requests[before].messages);
      ok(said.includes(QUESTION) && said.includes(link), said);
      await place.isGone(`chat-${chat}`);
    });
    await check("agent: a variable stays from message to message, by the chat's session", () => {
      const cells = model.results().filter(({ structuredContent }) => structuredContent?.execution_count);
      equal(cells.map(({ structuredContent: { result, state } }) => [result, state]), [[undefined, "kept"], ["42", "kept"]]);
    });
    await check("agent: a wrong token is named as the reason in n8n's list of executions", () =>
      place.withWrongToken(async () => {
        const before = model.requests.length;
        ok((await say("Are you there?")).status >= 500);
        equal(model.requests.length, before);
        ok((await n8n.lastExecution(flow)).data.includes("Authentication failed"));
      }));
  } finally {
    await model.stop();
  }
}
