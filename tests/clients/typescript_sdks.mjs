// The official TypeScript SDKs as clients for the job.

import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as Stdio2 } from "@modelcontextprotocol/client/stdio";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as Stdio1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CALL_LIMIT_MS, headers } from "./server.mjs";

const ME = { name: "client-tests", version: "1" };
const LIMIT = { timeout: CALL_LIMIT_MS };

const address = ({ url, token, mcpSession }) => [
  new URL(url),
  { requestInit: { headers: headers(token) }, sessionId: mcpSession },
];

async function connect1(place) {
  const client = new Client1(ME);
  const transport = place.command ? new Stdio1(place) : new Http1(...address(place));
  // The 1.x client does not keep the version; it tells the transport.
  let version;
  const tell = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (agreed) => {
    version = agreed;
    tell?.(agreed);
  };
  await client.connect(transport, LIMIT);
  const callTool = (name, args, options) =>
    client.callTool({ name, arguments: args }, undefined, { ...LIMIT, ...options });
  return { version, callTool, ...common(client, transport) };
}

async function connect2(mode, place) {
  const client = new Client2(ME, { versionNegotiation: { mode } });
  const transport = place.command ? new Stdio2(place) : new Http2(...address(place));
  await client.connect(transport, LIMIT);
  const callTool = (name, args, options) => client.callTool({ name, arguments: args }, { ...LIMIT, ...options });
  return { version: client.getNegotiatedProtocolVersion(), callTool, ...common(client, transport) };
}

const common = (client, transport) => ({
  mcpSession: transport.sessionId,
  isHeard: true,
  listTools: async () => (await client.listTools(undefined, LIMIT)).tools,
  listResources: async () => (await client.listResources(undefined, LIMIT)).resources,
  readResource: async (uri) => (await client.readResource({ uri }, LIMIT)).contents,
  close: () => client.close(),
});

const [LEGACY, MODERN] = ["2025-11-25", "2026-07-28"];
export const SDKS = [
  { name: "TypeScript 1.x", version: LEGACY, connect: connect1 },
  { name: "TypeScript 2.x, legacy", version: LEGACY, connect: (place) => connect2("legacy", place) },
  { name: "TypeScript 2.x, auto", version: MODERN, connect: (place) => connect2("auto", place) },
];
