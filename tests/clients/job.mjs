// A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the
// way. STEPS is the job; what holds for every answer is below it. job.py is the same in Python.
//
// A client is {version, listTools(), callTool(name, arguments, options), listResources(),
// readResource(uri), close()}, the calls as promises of what the server sent. One that also `isHeard`
// hears progress and can cancel, by the options onprogress and signal.

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
// Says something, and shows whether it is still at work.
const ENDLESS = `
import time
print("at work", flush=True)
for beat in range(300):
    with open("/tmp/beat", "w") as file:
        file.write(str(beat))
    time.sleep(0.1)
`;
const LOOK = `
import time
from pathlib import Path
def beat():
    path = Path("/tmp/beat")
    return path.exists() and path.read_text()
seen = beat()
time.sleep(0.5)
print("still at work" if beat() != seen else "at rest")
`;
const LINES = 'for n in range(20_000): print(f"line {n:06}")';
const [LINE, LINE_BYTES] = ["line 010000\n", 12];
const TOOLS = [
  "cancel_execution",
  "close_session",
  "create_session",
  "destroy_session",
  "execute_code",
  "get_workspace_info",
  "list_artifacts",
  "list_runtimes",
  "read_artifact",
  "read_output",
  "reset_workspace",
  "run_python",
  "upload_file",
];
const USABLE_WITHIN_MS = 10_000;
const DOWNLOAD_LIMIT_MS = 30_000;
const LEAVES_WITHIN_MS = 1_900; // after 2 s clients send a signal

const bytes = (base64) => Buffer.from(base64, "base64");
const named = (artifacts, name) => artifacts.find(({ filename }) => filename === name);

/** Width and height of what must be a PNG. */
export function pngSize(picture) {
  equal(picture.subarray(0, 8).toString("latin1"), "\x89PNG\r\n\x1a\n");
  equal(picture.subarray(-8, -4).toString(), "IEND");
  return [picture.readUInt32BE(16), picture.readUInt32BE(20)];
}

// Each step either calls a tool, in the job's session once there is one, and gets an answer or is
// refused with a code; or it gets a URL, or puts something there; or does what else the client can.
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
    sentence: "upload_file without content gives an address to put the file to",
    tool: "upload_file",
    give: () => ({ filename: "raw/more.csv" }),
    expect(answer, job) {
      equal([answer.path, "size_bytes" in answer], ["/mnt/data/raw/more.csv", false]);
      ok(answer.expires_in_s > 0, answer.expires_in_s);
      job.upload_url = answer.upload_url;
    },
  },
  {
    sentence: "whoever has the file puts it to upload_url without a token",
    put: (job) => job.upload_url,
    async expect(response, job) {
      const answer = await response.json();
      equal([response.status, answer.session_id, answer.size_bytes], [201, job.session_id, CSV.length]);
    },
  },
  {
    sentence: "upload_url does not replace a file unasked",
    put: (job) => job.upload_url,
    async expect(response) {
      equal([response.status, (await response.json()).error], [409, "file_exists"]);
    },
  },
  {
    sentence: "run_python reads the CSV with pandas and draws a chart with matplotlib",
    tool: "run_python",
    give: () => ({ code: CHART, timeout_s: 50 }),
    expect(answer, job, images, links) {
      equal([answer.exit_code, answer.outcome, answer.stdout], [0, "ok", "220.0\n"], answer.stderr);
      ok(/^run_\d{8}T\d{6}Z_[0-9a-f]{4}$/.test(answer.run_id), answer.run_id);
      equal(answer.artifacts.map(({ path }) => path), ["/mnt/data/plots/chart.png"]);
      job.chart = named(answer.artifacts, "plots/chart.png");
      equal(job.chart.mime_type, "image/png");
      equal(images.map(({ mimeType }) => mimeType), ["image/png"], "the chart comes with the result");
      const [width, height] = pngSize(bytes(images[0].data));
      ok(width > 300 && width <= 1024 && height > 200, `${width} by ${height}`);
      job.uri = `sandbox:///${job.session_id}/plots/chart.png`;
      equal(links.map(({ uri, name, mimeType }) => [uri, name, mimeType]), [
        [job.uri, "plots/chart.png", "image/png"],
      ]);
    },
  },
  {
    sentence: "run_python leaves the chart out when asked to",
    tool: "run_python",
    give: () => ({ code: CHART, inline_images: 0 }),
    expect(answer, job, images, links) {
      equal([answer.artifacts.length, images, links], [1, [], []]);
      job.chart = answer.artifacts[0];
    },
  },
  {
    sentence: "download_url serves the chart",
    get: (job) => job.chart.download_url,
    async expect(response, job) {
      equal([response.status, response.headers.get("content-type")], [200, "image/png"]);
      job.picture = Buffer.from(await response.arrayBuffer());
      equal(job.picture.length, job.chart.size_bytes);
      pngSize(job.picture);
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
    sentence: "run_python notes that a time limit of nothing is not what it used",
    tool: "run_python",
    give: () => ({ code: "print(1)", timeout_s: 0 }),
    expect(answer) {
      equal([answer.stdout, answer.notes], ["1\n", ["timeout_s 0 is less than 1; 1 was used."]]);
    },
  },
  {
    sentence: "run_python refuses code of nothing",
    tool: "run_python",
    give: () => ({ code: " " }),
    refused: "invalid_argument",
  },
  {
    sentence: "progress is heard, with what the program says",
    onlyIf: (client) => client.isHeard,
    async use(client, job) {
      const heard = [];
      const code = 'import time\nfor n in range(4): print("part", n, flush=True); time.sleep(0.7)';
      const options = { onprogress: (news) => heard.push(news) };
      const result = await client.callTool("run_python", { session_id: job.session_id, code }, options);
      equal(answerOf(result)[0].exit_code, 0);
      ok(heard.some(({ message }) => message?.startsWith("part ")), JSON.stringify(heard));
      const steps = heard.map(({ progress }) => progress);
      equal(steps, [...new Set(steps)].sort((a, b) => a - b), "progress grows");
    },
  },
  {
    sentence: "cancelling a call stops its program, and the session is usable at once",
    onlyIf: (client) => client.isHeard,
    async use(client, job) {
      const { session_id } = job;
      const cancel = new AbortController();
      const options = {
        signal: cancel.signal,
        onprogress: ({ message }) => message === "at work" && cancel.abort("enough"),
      };
      const call = client.callTool("run_python", { session_id, code: ENDLESS }, options);
      const how = await call.then(() => "an answer", () => "cancelled");
      equal([cancel.signal.aborted, how], [true, "cancelled"]);
      const started = performance.now();
      const [look] = answerOf(await client.callTool("run_python", { session_id, code: LOOK }));
      const took = performance.now() - started;
      equal(look.stdout, "at rest\n", look.stderr);
      ok(took < USABLE_WITHIN_MS, `it took ${took.toFixed()} ms`);
    },
  },
  {
    sentence: "run_python shows the ends of a long output",
    tool: "run_python",
    give: () => ({ code: LINES }),
    expect(answer, job) {
      equal([answer.stdout_truncated, answer.stderr_truncated], [true, undefined]);
      ok(answer.stdout.startsWith("line 000000\n") && answer.stdout.endsWith("line 019999\n"));
      ok(!answer.stdout.includes(LINE));
      job.run_id = answer.run_id;
    },
  },
  {
    sentence: "read_output reads what was left out",
    tool: "read_output",
    give: (job) => ({ run_id: job.run_id, offset: 10_000 * LINE_BYTES, length: LINE_BYTES }),
    expect: (answer) => equal([answer.text, answer.total_bytes], [LINE, 20_000 * LINE_BYTES]),
  },
  {
    sentence: "list_artifacts lists the chart and the CSVs with their sizes, sorted",
    tool: "list_artifacts",
    give: () => ({}),
    expect(answer, job) {
      const sizes = answer.artifacts.map(({ filename, size_bytes }) => [filename, size_bytes]);
      const csvs = ["raw/more.csv", "sales.csv"].map((name) => [name, CSV.length]);
      equal(sizes, [["plots/chart.png", job.chart.size_bytes], ...csvs]);
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
    give: () => ({ path: "plots/chart.png", format: "base64", length: 100_000 }),
    expect: (answer, job) => ok(bytes(answer.content_base64).equals(job.picture)),
  },
  ...["sales.csv", "raw/more.csv"].map((path) => ({
    sentence: `read_artifact gives ${path} back as it was uploaded`,
    tool: "read_artifact",
    give: () => ({ path }),
    expect(answer) {
      equal([answer.path, answer.mime_type], [`/mnt/data/${path}`, "text/csv"]);
      equal(answer.text, CSV.toString());
    },
  })),
  {
    sentence: "read_artifact reads on in a text",
    tool: "read_artifact",
    give: () => ({ path: "sales.csv", offset: 8, length: 5 }),
    expect: (answer) => equal([answer.text, answer.next_offset], [CSV.subarray(8, 13).toString(), 13]),
  },
  {
    sentence: "the files are resources, with their kinds and sizes",
    async use(client, job) {
      const listed = await client.listResources();
      const ours = listed.filter(({ uri }) => uri.startsWith(`sandbox:///${job.session_id}/`));
      equal(ours.map(({ name, mimeType, size }) => [name, mimeType, size]), [
        ["plots/chart.png", "image/png", job.chart.size_bytes],
        ["raw/more.csv", "text/csv", CSV.length],
        ["sales.csv", "text/csv", CSV.length],
      ]);
      equal(ours[0].uri, job.uri);
    },
  },
  {
    sentence: "the resources have the files' content",
    async use(client, job) {
      const [picture] = await client.readResource(job.uri);
      ok(bytes(picture.blob).equals(job.picture), "the picture is the file that download_url serves");
      const [csv] = await client.readResource(job.uri.replace("plots/chart.png", "sales.csv"));
      equal([csv.mimeType, csv.text], ["text/csv", CSV.toString()]);
    },
  },
  {
    sentence: "a resource that is not there is an error that says so",
    async use(client, job) {
      const uri = job.uri.replace("chart", "nothing");
      const error = await client.readResource(uri).then(() => undefined, (error) => error);
      ok(error?.message.includes(`There is no file ${uri}`), String(error));
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
    expect: async (response) => equal([response.status, (await response.json()).error], [404, "not_found"]),
  },
];

/** Connects a client at a place, checks the tools it is told of, does the job and closes it. */
export async function wholeJob(name, version, connect, place) {
  const job = async (client, say) => {
    await say(`the protocol is ${version}`, () => equal(client.version, version));
    for (const step of await tools(client, say) ? stepsOf(client) : []) await say(step.sentence, step.promise);
  };
  await withClient(name, connect, job, place);
}

/** Connects a client, works with it and closes it; `work` gets the client and its own `check`. */
export async function withClient(name, connect, work, place) {
  const say = (sentence, promise) => check(`${name}: ${sentence}`, promise);
  let client;
  await say("the client connects", async () => (client = await connect()));
  if (!client) return;
  await work(client, say);
  await say(place.command ? "the server leaves when its client closes" : "the client closes", async () => {
    const started = performance.now();
    await client.close();
    const took = performance.now() - started;
    ok(took < LEAVES_WITHIN_MS, `it took ${took.toFixed()} ms`);
  });
}

async function tools(client, say) {
  let listed = [];
  const complete = await say("all tools are listed", async () => {
    listed = await client.listTools();
    equal(listed.map((tool) => tool.name).sort(), TOOLS);
  });
  for (const tool of listed) await say(`the schemas of ${tool.name} are valid and plain`, () => validateTool(tool));
  client.answers = new Map(listed.map((tool) => [tool.name, answerValidator(tool)]));
  return complete;
}

function stepsOf(client) {
  const job = {};
  const steps = STEPS.filter(({ onlyIf }) => !onlyIf || onlyIf(client));
  return steps.map((step) => ({
    sentence: step.sentence,
    async promise() {
      if (step.use) return step.use(client, job);
      if (step.get) return step.expect(await download(step.get(job)), job);
      if (step.put) return step.expect(await download(step.put(job), { method: "PUT", body: CSV }), job);
      const session = job.session_id ? { session_id: job.session_id } : {};
      const result = await client.callTool(step.tool, { ...session, ...step.give(job) });
      if (step.refused) return equal(refusal(result).error, step.refused);
      const [answer, images, links] = answerOf(result);
      client.answers.get(step.tool)(answer);
      if (job.session_id) equal(answer.session_id, job.session_id);
      return step.expect(answer, job, images, links);
    },
  }));
}

/** The JSON of a successful result, which every client can read in two ways, its images and links. */
export function answerOf({ content, structuredContent, isError }) {
  const [text, ...more] = content.filter(({ type }) => type === "text").map((block) => block.text);
  ok(!isError, text);
  equal(more, [], "one text block");
  equal(JSON.parse(text), structuredContent, "the text block is the JSON of structuredContent");
  const images = content.filter(({ type }) => type === "image");
  const links = content.filter(({ type }) => type === "resource_link");
  equal(content.length, 1 + images.length + links.length, "text, images and links only");
  return [structuredContent, images, links];
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

export const download = (url, options) =>
  fetch(url, { signal: AbortSignal.timeout(DOWNLOAD_LIMIT_MS), ...options });
