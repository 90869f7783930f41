// A real authorization server (oidc-provider) on this machine: clients register themselves, whoever asks is logged in as
// the account that the query `login_hint` names or as ann, and consents. Access tokens are JWTs for the resource that the
// client names.
//
//   node issuer.mjs        prints its address when it answers

import { createServer } from "node:http";
import { generateKeyPairSync } from "node:crypto";
import { once } from "node:events";
import Provider from "oidc-provider";

const SCOPE = "sandbox.use";

const key = (kind, options, alg) => {
  const { privateKey } = generateKeyPairSync(kind, options);
  return { ...privateKey.export({ format: "jwk" }), alg, use: "sig", kid: alg };
};

const server = createServer();
server.listen(0, "127.0.0.1");
await once(server, "listening");
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  jwks: {
    keys: [key("rsa", { modulusLength: 2048 }, "RS256"), key("ec", { namedCurve: "P-256" }, "ES256")],
  },
  cookies: { keys: ["of these tests"] },
  // Clients register with the scope that the server names.
  scopes: ["openid", "offline_access", SCOPE],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: SCOPE,
        audience: resource,
        accessTokenFormat: "jwt",
        accessTokenTTL: 600,
        jwt: { sign: { alg: "ES256" } },
      }),
    },
  },
});

/** Logs the person in and consents, without asking. */
async function interact(request, response) {
  const { params } = await provider.interactionDetails(request, response);
  const accountId = params.login_hint ?? "ann";
  const grant = new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(`openid offline_access ${SCOPE}`);
  for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, SCOPE);
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(request, response, result);
}

const answer = provider.callback();
server.on("request", (request, response) => {
  if (!request.url.startsWith("/interaction/")) return answer(request, response);
  interact(request, response).catch((error) => {
    console.error(error);
    response.writeHead(500).end(String(error));
  });
});
console.log(issuer);
