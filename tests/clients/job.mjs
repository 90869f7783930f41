// A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the
// way. STEPS is the job; what holds for every answer is below it. job.py is the same in Python.
//
// A client is {version, listTools(), callTool(name, arguments), close()}, the calls as promises of
// what the server sent.

import { check, equal, ok } from "./check.mjs";
import { answerValidator, validateTool } from "./schema.mjs";

const CSV = Buffer.from("channel,spend,revenue\nsearch,120.5,480\nsocial,80,95.25\nCafé,19.5,60\n");
const CHART = `
import os
import matplotlib.pyplot as plt
import pandas as pd
data = pd.read_csv("sales.csv")
data.plot.bar(x="channel", y=["spend", "revenue"])
os.makedirs("plots", exist_ok=True)
plt.savefig("plots/chart.png")
print(data["spend"].sum())
`;
const BROKEN = `import pandas as pd
print("so far, so good")
pd.read_csv("sales.csv")["cost"].sum()
`;
const TOOLS = ["close_session", "list_artifacts", "read_artifact", "run_python", "upload_file"];
const DOWNLOAD_LIMIT_MS = 30_000;
const LEAVES_WITHIN_MS = 1_900; // after 2 s clients send a signal

const bytes = (base64) => Buffer.from(base64, "base64");
const named = (artifacts, name) => artifacts.find(({ filename }) => filename === name);

// Each step either calls a tool, in the job's session once there is one, and gets an answer or is
// refused with a code; or it gets a URL.
const STEPS = [
  {
    sentence: "upload_file stores a CSV in a new session",
    tool: "upload_file",
    give: () => ({ filename: "sales.csv", content_base64: CSV.toString("base64") }),
    expect(answer, job) {
      ok(/^sess_[0-9a-f]{12}$/.test(answer.session_id), answer.session_id);
      equal([answer.path, answer.size_bytes], ["/mnt/data/sales.csv", CSV.length]);
      job.session_id = answer.session_id;
    },
  },
  {
    sentence: "upload_file does not replace a file unasked",
    tool: "upload_file",
    give: () => ({ filename: "sales.csv", content_base64: "" }),
    refused: "file_exists",
  },
  {
    sentence: "upload_file replaces a file when told to",
    tool: "upload_file",
    give: () => ({ filename: "sales.csv", content_base64: CSV.toString("base64"), overwrite: true }),
    expect: (answer) => equal(answer.size_bytes, CSV.length),
  },
  {
    sentence: "upload_file refuses what is not base64",
    tool: "upload_file",
    give: () => ({ filename: "bad.csv", content_base64: "not base64!" }),
    refused: "invalid_base64",
  },
  {
    sentence: "upload_file refuses a name that leads out of the data area",
    tool: "upload_file",
    give: () => ({ filename: "../bad.csv", content_base64: "" }),
    refused: "invalid_filename",
  },
  {
    sentence: "run_python reads the CSV with pandas and draws a chart with matplotlib",
    tool: "run_python",
    give: () => ({ code: CHART, timeout_s: 50 }),
    expect(answer, job) {
      equal([answer.exit_code, answer.outcome, answer.stdout], [0, "ok", "220.0\n"], answer.stderr);
      ok(/^run_\d{8}T\d{6}Z_[0-9a-f]{4}$/.test(answer.run_id), answer.run_id);
      equal(answer.artifacts.map(({ path }) => path), ["/mnt/data/plots/chart.png"]);
      job.chart = named(answer.artifacts, "plots/chart.png");
      equal(job.chart.mime_type, "image/png");
    },
  },
  {
    sentence: "download_url serves the chart",
    get: (job) => job.chart.download_url,
    async expect(response, job) {
      equal([response.status, response.headers.get("content-type")], [200, "image/png"]);
      job.picture = Buffer.from(await response.arrayBuffer());
      equal(job.picture.length, job.chart.size_bytes);
      equal(job.picture.subarray(1, 4).toString(), "PNG");
    },
  },
  {
    sentence: "run_python gives a Python error as a result, with a traceback that shows the line",
    tool: "run_python",
    give: () => ({ code: BROKEN }),
    expect(answer) {
      equal([answer.exit_code, answer.outcome, answer.artifacts], [1, "error", []]);
      equal(answer.stdout, "so far, so good\n");
      for (const part of ["Traceback (most recent call last)", '["cost"].sum()', "KeyError: 'cost'"]) {
        ok(answer.stderr.includes(part), `${part} in ${answer.stderr}`);
      }
    },
  },
  {
    sentence: "run_python refuses a time limit of nothing",
    tool: "run_python",
    give: () => ({ code: "print(1)", timeout_s: 0 }),
    refused: "invalid_argument",
  },
  {
    sentence: "list_artifacts lists the chart and the CSV with their sizes, sorted",
    tool: "list_artifacts",
    give: () => ({}),
    expect(answer, job) {
      const sizes = answer.artifacts.map(({ filename, size_bytes }) => [filename, size_bytes]);
      equal(sizes, [["plots/chart.png", job.chart.size_bytes], ["sales.csv", CSV.length]]);
      for (const { modified_at } of answer.artifacts) ok(Date.parse(modified_at) > 0, modified_at);
    },
  },
  {
    sentence: "read_artifact shows the chart as one image block and nowhere else",
    tool: "read_artifact",
    give: (job) => ({ path: job.chart.path }),
    expect(answer, job, images) {
      equal(images.map(({ mimeType }) => mimeType), ["image/png"]);
      ok(bytes(images[0].data).equals(job.picture), "the image is the file that download_url serves");
      ok(!("content_base64" in answer), "content_base64 is absent");
    },
  },
  {
    sentence: "read_artifact gives the chart as base64 when asked to",
    tool: "read_artifact",
    give: () => ({ path: "plots/chart.png", format: "base64" }),
    expect: (answer, job) => ok(bytes(answer.content_base64).equals(job.picture)),
  },
  {
    sentence: "read_artifact gives the CSV back as it was uploaded",
    tool: "read_artifact",
    give: () => ({ path: "sales.csv" }),
    expect(answer) {
      equal([answer.path, answer.mime_type], ["/mnt/data/sales.csv", "text/csv"]);
      equal(bytes(answer.content_base64).toString(), CSV.toString());
    },
  },
  {
    sentence: "read_artifact does not know a file that is not there",
    tool: "read_artifact",
    give: () => ({ path: "nothing.csv" }),
    refused: "not_found",
  },
  {
    sentence: "read_artifact refuses a path outside the data area",
    tool: "read_artifact",
    give: () => ({ path: "/etc/passwd" }),
    refused: "invalid_path",
  },
  {
    sentence: "close_session ends the session",
    tool: "close_session",
    give: () => ({}),
    expect: (answer) => equal(answer.status, "closed"),
  },
  {
    sentence: "close_session does not know a session that is closed",
    tool: "close_session",
    give: () => ({}),
    refused: "session_not_found",
  },
  {
    sentence: "download_url is gone with the session",
    get: (job) => job.chart.download_url,
    async expect(response) {
      equal([response.status, (await response.json()).error], [404, "not_found"]);
    },
  },
];

/** Connects a client, checks the tools it is told of, does the job and closes it. */
export async function wholeJob(name, version, connect) {
  await withClient(name, connect, async (client, say) => {
    await say(`the protocol is ${version}`, () => equal(client.version, version));
    for (const step of await tools(client, say) ? stepsOf(client) : []) await say(step.sentence, step.promise);
  });
}

/** Connects a client, works with it and closes it; `work` gets the client and its own `check`. */
export async function withClient(name, connect, work) {
  const say = (sentence, promise) => check(`${name}: ${sentence}`, promise);
  let client;
  await say("the client connects", async () => (client = await connect()));
  if (!client) return;
  await work(client, say);
  await say("the server leaves when its client closes", async () => {
    const started = performance.now();
    await client.close();
    const took = performance.now() - started;
    ok(took < LEAVES_WITHIN_MS, `it took ${took.toFixed()} ms`);
  });
}

async function tools(client, say) {
  let listed = [];
  const complete = await say("the five tools are listed", async () => {
    listed = await client.listTools();
    equal(listed.map((tool) => tool.name).sort(), TOOLS);
  });
  for (const tool of listed) await say(`the schemas of ${tool.name} are valid and plain`, () => validateTool(tool));
  client.answers = new Map(listed.map((tool) => [tool.name, answerValidator(tool)]));
  return complete;
}

function stepsOf(client) {
  const job = {};
  return STEPS.map((step) => ({
    sentence: step.sentence,
    async promise() {
      if (step.get) return step.expect(await download(step.get(job)), job);
      const session = job.session_id ? { session_id: job.session_id } : {};
      const result = await client.callTool(step.tool, { ...session, ...step.give(job) });
      if (step.refused) return equal(refusal(result).error, step.refused);
      const [answer, images] = answerOf(result);
      client.answers.get(step.tool)(answer);
      if (job.session_id) equal(answer.session_id, job.session_id);
      return step.expect(answer, job, images);
    },
  }));
}

/** The JSON of a successful result, which every client can read in two ways, and its images. */
export function answerOf({ content, structuredContent, isError }) {
  const [text, ...more] = content.filter(({ type }) => type === "text").map((block) => block.text);
  ok(!isError, text);
  equal(more, [], "one text block");
  equal(JSON.parse(text), structuredContent, "the text block is the JSON of structuredContent");
  const images = content.filter(({ type }) => type === "image");
  equal(content.length, 1 + images.length, "text and images only");
  return [structuredContent, images];
}

/** The JSON of a result that must be an error. */
export function refusal(result) {
  equal(result.isError, true, `refused, not ${JSON.stringify(result).slice(0, 500)}`);
  equal(result.content.map(({ type }) => type), ["text"], "an error is one text block");
  ok(!("structuredContent" in result), "an error has no structuredContent");
  const error = JSON.parse(result.content[0].text);
  equal([typeof error.error, typeof error.message], ["string", "string"]);
  return error;
}

export const download = (url) => fetch(url, { signal: AbortSignal.timeout(DOWNLOAD_LIMIT_MS) });
