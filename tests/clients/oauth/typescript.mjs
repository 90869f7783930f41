// The official TypeScript SDKs sign in by themselves: from the refusal of a request without a token, through the
// metadata, the registration and the consent, to a call of a tool.
//
//   node typescript.mjs <address of the server>

import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { check, equal, ok } from "../check.mjs";

const [url] = process.argv.slice(2);
const REDIRECT = "http://127.0.0.1:9/callback";
const MAX_STEPS = 20;
const ME = { name: "client-tests", version: "1" };

/** What a client stores between its requests; a person in a browser is a loop that follows redirects. */
class Person {
  #stored = {};
  redirectUrl = REDIRECT;
  clientMetadata = {
    client_name: "client-tests",
    redirect_uris: [REDIRECT],
    grant_types: ["authorization_code"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  };
  clientInformation = () => this.#stored.client;
  saveClientInformation = (client) => void (this.#stored.client = client);
  tokens = () => this.#stored.tokens;
  saveTokens = (tokens) => void (this.#stored.tokens = tokens);
  codeVerifier = () => this.#stored.verifier;
  saveCodeVerifier = (verifier) => void (this.#stored.verifier = verifier);
  discoveryState = () => this.#stored.discovery;
  saveDiscoveryState = (discovery) => void (this.#stored.discovery = discovery);
  redirectToAuthorization = async (address) => void (this.answer = await follow(address));
}

/** Follows redirects with cookies, as a browser does; returns what the client's own address would get. */
async function follow(address) {
  const cookies = new Map();
  let at = new URL(address);
  for (let steps = 0; steps < MAX_STEPS; steps += 1) {
    if (at.href.startsWith(REDIRECT)) return at.searchParams;
    const cookie = [...cookies].map((pair) => pair.join("=")).join("; ");
    const response = await fetch(at, { redirect: "manual", headers: { cookie } });
    for (const set of response.headers.getSetCookie()) {
      const [name, ...value] = set.split(";")[0].split("=");
      cookies.set(name, value.join("="));
    }
    const next = response.headers.get("location");
    if (!next) throw new Error(`${at.pathname}: ${response.status} ${await response.text()}`);
    at = new URL(next, at);
  }
  throw new Error(`too many redirects, the last to ${at.pathname}`);
}

const SDKS = [
  {
    name: "TypeScript 1.x",
    connect: (person) => ({ client: new Client1(ME), transport: new Http1(new URL(url), { authProvider: person }) }),
    finish: (transport, answer) => transport.finishAuth(answer.get("code")),
    call: (client, tool) => client.callTool(tool),
  },
  ...["legacy", "auto"].map((mode) => ({
    name: `TypeScript 2.x, ${mode}`,
    connect: (person) => ({
      client: new Client2(ME, { versionNegotiation: { mode } }),
      transport: new Http2(new URL(url), { authProvider: person }),
    }),
    finish: (transport, answer) => transport.finishAuth(answer),
    call: (client, tool) => client.callTool(tool),
  })),
];

for (const { name, connect, finish, call } of SDKS) {
  await check(`${name}: signs in from the refusal of a request, and calls a tool`, async () => {
    const person = new Person();
    const refused = connect(person);
    const error = await refused.client.connect(refused.transport).then(
      () => undefined,
      (error) => error,
    );
    ok(error && person.answer?.get("code"), `no sign-in: ${error}`);
    await finish(refused.transport, person.answer);
    const { client, transport } = connect(person);
    await client.connect(transport);
    const run = { name: "run_python", arguments: { code: "print(6 * 7)" } };
    const result = await call(client, run);
    equal(result.structuredContent?.stdout, "42\n", JSON.stringify(result));
    await client.close();
    // The token is for this server, and names the account.
    const [, claims] = person.tokens().access_token.split(".");
    const { aud, sub, scope } = JSON.parse(Buffer.from(claims, "base64url"));
    equal({ aud, sub, scope }, { aud: url, sub: "ann", scope: "sandbox.use" });
  });
}
