// A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the
// way. job.json is the job, for job.py as well; what holds for every answer is at the end.
//
// A client is {version, listTools(), callTool(name, arguments, options), listResources(),
// readResource(uri), close()}, the calls as promises of what the server sent. One that also `isHeard`
// hears progress and can cancel, by the options onprogress and signal.

import { readFileSync } from "node:fs";
import { check, equal, ok } from "./check.mjs";
import { answerValidator, validateTool } from "./schema.mjs";

// A step calls a tool, in the job's session once there is one; reads a resource; gets or puts something at a URL; or is
// a function below, which it names in `use`. What comes of it is as `isAsWanted` says; or it is `refused` with a code,
// or `fails` with a message. It may `keep` parts for later steps, which take them, and `texts`, by `$name`.
const { tools: TOOLS, texts, steps: STEPS } = JSON.parse(readFileSync(new URL("job.json", import.meta.url)));
const USABLE_WITHIN_MS = 10_000;
const DOWNLOAD_LIMIT_MS = 30_000;
const LEAVES_WITHIN_MS = 1_900; // after 2 s clients send a signal

/** Width and height of what must be a PNG. */
export function pngSize(picture) {
  equal(picture.subarray(0, 8).toString("latin1"), "\x89PNG\r\n\x1a\n");
  equal(picture.subarray(-8, -4).toString(), "IEND");
  return [picture.readUInt32BE(16), picture.readUInt32BE(20)];
}

const at = (from, path) => path.split(".").reduce((value, part) => value?.[part], from);

/** The same JSON with what the job knows in the place of each `$name`. */
function filled(wanted, job) {
  const known = (name) => at(job, name) ?? ok(false, `an earlier step gave no ${name}`);
  if (typeof wanted === "string") {
    const name = /^\$([\w.]+)$/.exec(wanted)?.[1];
    return name ? known(name) : wanted.replace(/\$(\w+)/g, (_, name) => known(name));
  }
  if (typeof wanted !== "object") return wanted;
  if (Array.isArray(wanted)) return wanted.map((item) => filled(item, job));
  return Object.fromEntries(Object.entries(wanted).map(([key, value]) => [key, filled(value, job)]));
}

/** The expectations of a step for a value, by paths into it: `is`, `absent`, and the contents of texts and pictures. */
export function isAsWanted(found, { is = {}, absent = [], holds = {}, matches = {}, pictures = [] }) {
  const shown = JSON.stringify(found)?.slice(0, 1000);
  equal(Object.fromEntries(Object.keys(is).map((path) => [path, at(found, path)])), is, shown);
  for (const path of absent) ok(at(found, path) === undefined, `${path} in ${shown}`);
  for (const [path, parts] of Object.entries(holds)) {
    for (const part of [parts].flat()) ok(at(found, path).includes(part), `${part} in ${at(found, path)}`);
  }
  for (const [path, pattern] of Object.entries(matches)) {
    ok(new RegExp(`^(?:${pattern})$`).test(at(found, path)), `${path} in ${shown}`);
  }
  for (const path of pictures) {
    const [width, height] = pngSize(Buffer.from(at(found, path), "base64"));
    ok(width > 300 && width <= 1024 && height > 200, `${width} by ${height}`);
  }
}

async function heard(client, { session_id, speaking }) {
  const heard = [];
  const options = { onprogress: (news) => heard.push(news) };
  const result = await client.callTool("run_python", { session_id, code: speaking }, options);
  equal(answerOf(result)[0].exit_code, 0);
  ok(heard.some(({ message }) => message?.startsWith("part ")), JSON.stringify(heard));
  const steps = heard.map(({ progress }) => progress);
  equal(steps, [...new Set(steps)].sort((a, b) => a - b), "progress grows");
}

async function cancelled(client, { session_id, endless, look }) {
  const cancel = new AbortController();
  const onprogress = ({ message }) => message?.endsWith("at work") && cancel.abort("enough");
  const call = client.callTool("run_python", { session_id, code: endless }, { signal: cancel.signal, onprogress });
  const how = await call.then(() => "an answer", () => "cancelled");
  equal([cancel.signal.aborted, how], [true, "cancelled"]);
  const started = performance.now();
  const [seen] = answerOf(await client.callTool("run_python", { session_id, code: look }));
  const took = performance.now() - started;
  equal(seen.stdout, "at rest\n", seen.stderr);
  ok(took < USABLE_WITHIN_MS, `it took ${took.toFixed()} ms`);
}

/** The resources of the job's session. */
async function resources(client, { session_id }) {
  return (await client.listResources()).filter(({ uri }) => uri.startsWith(`sandbox:///${session_id}/`));
}

const USES = { heard, cancelled, resources };

/** Connects a client at a place, checks the listed tools, does the job and closes the client. */
export async function wholeJob(name, version, connect, place) {
  const work = async (client, say) => {
    await say(`the protocol is ${version}`, () => equal(client.version, version));
    const job = { ...texts };
    for (const step of await tools(client, say) ? STEPS : []) {
      if (client.isHeard || !["heard", "cancelled"].includes(step.use)) {
        await say(step.sentence, () => take(filled(step, job), client, job));
      }
    }
  };
  await withClient(name, connect, work, place);
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
    ok(!place.command || took < LEAVES_WITHIN_MS, `it took ${took.toFixed()} ms`);
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

async function take(step, client, job) {
  const doing = outcome(step, client, job);
  if (step.fails) {
    const error = await doing.then(() => undefined, (error) => error);
    return ok(error?.message.includes(step.fails), String(error));
  }
  const found = await doing;
  isAsWanted(found, step);
  for (const [name, path] of Object.entries(step.keep ?? {})) job[name] = at(found, path);
}

/** The result of a step. */
async function outcome({ use, read, get, put, tool, give, refused }, client, job) {
  if (use) return USES[use](client, job);
  if (read) return client.readResource(read);
  if (!tool) {
    const response = await download(get ?? put, put && { method: "PUT", body: job.csv });
    const body = Buffer.from(await response.arrayBuffer());
    const type = response.headers.get("content-type");
    const json = type === "application/json" ? JSON.parse(body) : undefined;
    return { status: response.status, type, size: body.length, base64: body.toString("base64"), json };
  }
  const session = job.session_id ? { session_id: job.session_id } : {};
  const result = await client.callTool(tool, { ...session, ...give });
  if (refused) return equal(refusal(result).error, refused);
  const [answer, images, links] = answerOf(result);
  client.answers.get(tool)(answer);
  if (job.session_id) equal(answer.session_id, job.session_id);
  return { ...answer, images, links };
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
