// The job with the official TypeScript SDKs: 1.x, which n8n and most clients in use are built on, and
// 2.x in both generations of the protocol. Then files of the sizes at which a message ends to fit:
// both SDKs drop a stdio connection over a message of more than 10 MiB.

import { Client as Client2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as Stdio2 } from "@modelcontextprotocol/client/stdio";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as Stdio1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { equal, ok } from "./check.mjs";
import { answerOf, download, refusal, wholeJob, withClient } from "./job.mjs";
import { CALL_LIMIT_MS, server } from "./server.mjs";

const ME = { name: "client-tests", version: "1" };
const LIMIT = { timeout: CALL_LIMIT_MS };

async function connect1() {
  const client = new Client1(ME);
  const transport = new Stdio1(server);
  // The 1.x client does not keep the version; it tells the transport.
  let version;
  transport.setProtocolVersion = (agreed) => (version = agreed);
  await client.connect(transport, LIMIT);
  const callTool = (name, args) => client.callTool({ name, arguments: args }, undefined, LIMIT);
  return { version, callTool, ...common(client) };
}

async function connect2(mode) {
  const client = new Client2(ME, { versionNegotiation: { mode } });
  await client.connect(new Stdio2(server), LIMIT);
  const callTool = (name, args) => client.callTool({ name, arguments: args }, LIMIT);
  return { version: client.getNegotiatedProtocolVersion(), callTool, ...common(client) };
}

const common = (client) => ({
  listTools: async () => (await client.listTools(undefined, LIMIT)).tools,
  close: () => client.close(),
});

const FILES = [
  { name: "some.bin", size: 3_000_000 },
  { name: "largest.bin", size: 3_900_000 },
  { name: "larger.bin", size: 3_900_001, refused: true },
  { name: "huge.bin", size: 9_000_000, refused: true },
  { name: "largest.png", size: 7_800_000 },
  { name: "larger.png", size: 7_800_001, refused: true },
];
const MAKE_FILES = `
import os
for name, size in ${JSON.stringify(FILES.map(({ name, size }) => [name, size]))}:
    with open(name, "wb") as file:
        file.write(os.urandom(size))
`;

async function largeFiles(client, say) {
  let session_id;
  let artifacts = [];
  await say("a run makes large files", async () => {
    await client.listTools();
    [{ session_id, artifacts }] = answerOf(await client.callTool("run_python", { code: MAKE_FILES }));
    equal(artifacts.length, FILES.length);
  });
  for (const { filename: name, size_bytes, download_url } of artifacts) {
    const { refused, size } = FILES.find((file) => file.name === name);
    const read = () => client.callTool("read_artifact", { session_id, path: name });
    const served = async () => Buffer.from(await (await download(download_url)).arrayBuffer());
    if (refused) {
      await say(`${size} bytes of ${name} are too large, and download_url has them`, async () => {
        const error = refusal(await read());
        equal(error, { error: "artifact_too_large", message: error.message, size_bytes, download_url });
        equal((await served()).length, size);
      });
    } else {
      await say(`${size} bytes of ${name} arrive whole`, async () => {
        const [answer, images] = answerOf(await read());
        const content = Buffer.from(images[0]?.data ?? answer.content_base64, "base64");
        ok(content.length === size && content.equals(await served()), `${content.length} bytes came`);
      });
    }
  }
  await say("the connection outlives the large messages", async () => {
    answerOf(await client.callTool("close_session", { session_id }));
  });
}

const LEGACY = "2025-11-25";
await wholeJob("TypeScript 1.x", LEGACY, connect1);
await wholeJob("TypeScript 2.x, legacy", LEGACY, () => connect2("legacy"));
await wholeJob("TypeScript 2.x, auto", "2026-07-28", () => connect2("auto"));
await withClient("TypeScript 1.x, large files", connect1, largeFiles);
await withClient("TypeScript 2.x, large files", () => connect2("auto"), largeFiles);
