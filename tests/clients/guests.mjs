// Access: valid tokens, and the sessions of each client. A client is connected as in job.mjs.

import { check, equal, ok } from "./check.mjs";
import { answerOf, download, refusal } from "./job.mjs";
import { ANN, BEN, headers } from "./server.mjs";

const LEGACY = "2025-11-25";

/** The same for any client; `connect` takes {url, token, mcpSession}. */
export async function guests(name, version, connect, { url }) {
  const say = (sentence, promise) => check(`${name}: ${sentence}`, promise);
  for (const [who, token] of [["without a token", undefined], ["with a wrong token", `${ANN}x`]]) {
    await say(`a client ${who} hears 401`, async () => {
      const error = await failure(connect({ url, token }));
      ok(/401|[Uu]nauthori[sz]ed/.test(`${error.name} ${error.code} ${error.message}`), error.stack);
    });
  }
  let ann;
  let ben;
  let session_id;
  let artifact;
  const connected = await say("two clients with tokens of their own connect", async () => {
    [ann, ben] = [await connect({ url, token: ANN }), await connect({ url, token: BEN })];
    for (const client of [ann, ben]) await client.listTools();
    const code = 'open("hers.txt", "w").write("private")';
    [{ session_id, artifacts: [artifact] }] = answerOf(await ann.callTool("run_python", { code }));
  });
  if (!connected) return;
  const uri = `sandbox:///${session_id}/hers.txt`;

  for (const [tool, give] of [
    ["upload_file", { filename: "mine.txt", text: "planted" }],
    ["run_python", { code: "print(open('hers.txt').read())" }],
    ["list_artifacts", {}],
    ["read_artifact", { path: "hers.txt" }],
    ["close_session", {}],
  ]) {
    await say(`${tool} does not know another's session`, async () => {
      equal(refusal(await ben.callTool(tool, { session_id, ...give })).error, "session_not_found");
    });
  }
  await say("another's files are no resources", async () => {
    const listed = async (client) => (await client.listResources()).map((resource) => resource.uri);
    equal([(await listed(ann)).includes(uri), (await listed(ben)).includes(uri)], [true, false]);
    equal((await ann.readResource(uri))[0].text, "private");
    const error = await failure(ben.readResource(uri));
    ok(error.message.includes(`There is no file ${uri}`), error.message);
  });
  await say("download_url needs no token, the address without its signature does", async () => {
    equal(await (await download(artifact.download_url)).text(), "private");
    const [bare] = artifact.download_url.split("?");
    const status = async (token) => (await download(bare, { headers: headers(token) })).status;
    equal([await status(), await status(BEN), await status(ANN)], [401, 404, 200]);
    const forged = artifact.download_url.replace(/.$/, (last) => (last === "0" ? "1" : "0"));
    equal((await download(forged)).status, 403);
  });
  if (version === LEGACY) {
    await say("another's MCP session cannot be taken over", async () => {
      ok(ann.mcpSession, "the client is told of its MCP session");
      const call = async (token) => {
        const client = await connect({ url, token, mcpSession: ann.mcpSession });
        try {
          return await client.callTool("list_artifacts", { session_id });
        } finally {
          await client.close();
        }
      };
      const error = await failure(call(BEN));
      ok(/404|not found/i.test(`${error.code} ${error.message}`), error.stack);
      equal(answerOf(await call(ANN))[0].artifacts.length, 1, "its own client may go on in it");
    });
  }
  await say("the session that another could not touch is as it was", async () => {
    const [{ artifacts }] = answerOf(await ann.callTool("list_artifacts", { session_id }));
    equal(artifacts.map(({ filename }) => filename), ["hers.txt"]);
    answerOf(await ann.callTool("close_session", { session_id }));
  });
  for (const client of [ann, ben]) await client.close();
}

async function failure(promise) {
  let got;
  try {
    got = await promise;
  } catch (error) {
    return error;
  }
  await got?.close?.();
  throw new Error("it was not refused");
}
