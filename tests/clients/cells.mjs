// Cells in a workspace, for any client: cells.json is what is called and what is answered, here and in
// cells.py. No call names a session, so the workspace is the one that the way of connecting gives.
//
// A client is connected as in job.mjs.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { check, equal, ok } from "./check.mjs";
import { answerOf, download, isAsWanted, pngSize, refusal, withClient } from "./job.mjs";
import { answerValidator } from "./schema.mjs";
import { BEN } from "./server.mjs";

// The keys of a step: `is` has fields of the answer, `absent` fields that it must not have, `holds` parts of its texts,
// `charts` the files that come as images, too; `refused` is the code of an error.
const engine = process.env.SANDBOX_ENGINE ?? "docker";
const holds = ({ only, unless }) => (only ?? engine) === engine && unless !== engine;
export const STEPS = JSON.parse(readFileSync(new URL("cells.json", import.meta.url))).filter(holds);
const SESSIONLESS = "2026-07-28";
const ENDLESS = `
x = "cancelled"
print("at work", flush=True)
while True: pass
`;

/** A workspace that no other test uses. */
export const named = (place, name = `cells-${randomUUID()}`) => ({ ...place, url: `${place.url}?workspace=${name}` });

/** Connects a client at a place, and works through the cells in the workspace that it has there. */
export async function wholeNotebook(name, version, connect, place) {
  // The sessionless generation has one for each token, which others at work here would use as well.
  const at = place.url && version === SESSIONLESS ? named(place) : place;
  await withClient(`${name}, cells`, () => connect(at), cells, place);
}

async function cells(client, say) {
  const answers = new Map((await client.listTools()).map((tool) => [tool.name, answerValidator(tool)]));
  let session_id;
  for (const { sentence, tool, give, ...wanted } of STEPS) {
    await say(sentence, async () => {
      // The one tool that has no workspace of its own accord.
      const result = await client.callTool(tool, tool === "run_python" ? { session_id, ...give } : give);
      if (wanted.refused) return equal(refusal(result).error, wanted.refused);
      const [answer, images, links] = answerOf(result);
      answers.get(tool)(answer);
      session_id ??= answer.session_id;
      equal(answer.session_id, session_id, "it is the same workspace");
      isAsWanted(answer, wanted);
      return charts(wanted.charts ?? [], answer, images, links);
    });
  }
  if (client.isHeard) await say("a cell that is cancelled is rolled back", () => cancelled(client));
  await say("the workspace is closed as any session is", async () => {
    equal(answerOf(await client.callTool("destroy_session", { session_id }))[0].status, "destroyed");
  });
}

async function charts(names, { session_id, artifacts = [] }, images, links) {
  equal(artifacts.map(({ filename, mime_type }) => [filename, mime_type]), names.map((name) => [name, "image/png"]));
  equal(links.map(({ uri }) => uri), names.map((name) => `sandbox:///${session_id}/${name}`));
  equal(images.map(({ mimeType }) => mimeType), names.map(() => "image/png"));
  for (const [n, { download_url }] of artifacts.entries()) {
    const shown = pngSize(Buffer.from(images[n].data, "base64"));
    ok(shown[0] > 300 && shown[1] > 200, shown.join(" by "));
    const response = await download(download_url);
    equal([response.status, response.headers.get("content-type")], [200, "image/png"]);
    pngSize(Buffer.from(await response.arrayBuffer()));
  }
}

async function cancelled(client) {
  answerOf(await client.callTool("execute_code", { code: "x = 'before'" }));
  const cancel = new AbortController();
  const onprogress = ({ message }) => message?.endsWith("at work") && cancel.abort("enough");
  const call = client.callTool("execute_code", { code: ENDLESS }, { signal: cancel.signal, onprogress });
  const how = await call.then(() => "an answer", () => "cancelled");
  equal([cancel.signal.aborted, how], [true, "cancelled"]);
  const [answer] = answerOf(await client.callTool("execute_code", { code: "x" }));
  equal([answer.result, answer.new_workspace], ["'before'", undefined]);
}

/** Which clients share a workspace over HTTP. The place must require a token. */
export async function workspaces(name, version, connect, place) {
  const shared = named(place, `shared-${randomUUID()}`);
  /** Whether a client that is connected at the second place has the variable of one at the first. */
  const reaches = async (first, second) => {
    const clients = [];
    try {
      for (const at of [first, second]) clients.push(await connect(at));
      const [one, other] = clients;
      const variable = `x_${randomUUID().replaceAll("-", "")}`;
      const run = async (client, code) => answerOf(await client.callTool("execute_code", { code }))[0];
      const made = await run(one, `${variable} = 20`);
      const seen = await run(other, `${variable} + 22`);
      const again = await run(one, `${variable} + 1`);
      equal([again.result, again.session_id], ["21", made.session_id], "the first still has it");
      const isReached = seen.result === "42";
      equal(seen.session_id === made.session_id, isReached, JSON.stringify(seen));
      if (!isReached) ok(seen.stderr.includes(`name '${variable}' is not defined`), seen.stderr);
      // There is room for ten, also for those of other clients.
      answerOf(await one.callTool("close_session", { session_id: made.session_id }));
      if (!isReached) answerOf(await other.callTool("close_session", { session_id: seen.session_id }));
      return isReached;
    } finally {
      for (const client of clients) await client.close();
    }
  };
  const is = (sentence, first, second, wanted) =>
    check(`${name}: ${sentence}`, async () => equal(await reaches(first, second), wanted));
  if (version === SESSIONLESS) {
    await is("two connections with one token and nothing else share their variables", place, place, true);
  } else {
    await is("two MCP sessions with one token do not share variables", place, place, false);
  }
  await is("two connections with one ?workspace= share their variables", shared, shared, true);
  await is("two ?workspace= of one token do not share variables", named(place), named(place), false);
  await is("two tokens with one ?workspace= do not share variables", shared, { ...shared, token: BEN }, false);
}
