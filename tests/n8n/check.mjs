// The workflows of demo/n8n in a real n8n, with nothing changed in them but the address of the server; and
// two of the tests' own, for cells and for a long run.
//
//   node check.mjs <server binary>
//   SANDBOX_TOKEN=<token> node check.mjs <address of a server>
//
// PROCESS_GROUPS may name a file that gets the number of each process group that is started here.

import { appendFileSync, rmSync } from "node:fs";
import { check, equal, ok } from "../clients/check.mjs";
import { checkAgent } from "./agent.mjs";
import { checkForm } from "./form.mjs";
import { fileOf, Place, programOf } from "./place.mjs";
import { Server } from "./server.mjs";
import { checkNoServer, checkWebhook } from "./webhook.mjs";
import { checkLongRun, checkWorkspace } from "./workspace.mjs";

const OWN_TOKEN = "n8n-0123456789abcdef0123456789abcdef";
/** Runs wait for each other on a slow host. All else is as it is by default. */
const SETTINGS = { SANDBOX_EXEC_TIMEOUT_S: "110" };
const [at] = process.argv.slice(2);
const { SANDBOX_TOKEN, PROCESS_GROUPS } = process.env;
let server, place;

function onProcessGroup(group) {
  if (PROCESS_GROUPS) appendFileSync(PROCESS_GROUPS, `${group}\n`);
}

async function start() {
  if (!/^https?:/.test(at)) server = await Server.start(at, OWN_TOKEN, SETTINGS, onProcessGroup);
  place = await Place.open(server?.url ?? at, server ? OWN_TOKEN : SANDBOX_TOKEN, onProcessGroup);
}

async function checkAll() {
  await check("the workflows hold no token, no id of a credential, and one analysis", () => {
    const flows = ["report-form", "report-webhook", "analyst-agent"].map((name) => JSON.parse(fileOf(name)));
    const used = flows.flatMap(({ nodes }) => nodes.flatMap(({ credentials }) => Object.values(credentials ?? {})));
    equal(used.map(({ id }) => id), Array(9).fill(null));
    equal(programOf(flows[0]).value, programOf(flows[1]).value);
  });
  const webhook = await checkWebhook(place);
  await checkForm(place);
  await checkAgent(place);
  await checkWorkspace(place);
  await checkLongRun(place);
  await check("no session is left", async () => {
    const { sessions } = place.recorder;
    ok(sessions.length > 10, sessions.join());
    for (const session of sessions) await place.isGone(session);
    if (server) equal((await (await place.ask("/ready")).json()).sessions, 0);
  });
  await checkNoServer(place, webhook);
}

let stopped;
/** Once, whether by the end or by a signal. */
const stop = () => (stopped ??= stopAll());

async function stopAll() {
  await place?.close();
  if (server) await check("the server ends well", async () => equal(await server.stop(), 0));
}

for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) process.once(signal, () => stop().finally(() => process.exit(1)));
try {
  await start();
  await checkAll();
} finally {
  await stop();
}
if (PROCESS_GROUPS) rmSync(PROCESS_GROUPS, { force: true }); // nothing is left in them
