// The official conformance suite, in both generations of the protocol. Most of its scenarios call tools
// of its own reference server; conformance.yml names the checks that fail here for that or another
// reason. A check is that a scenario had no other failure, and none of those named passed.
//
//   node conformance.mjs http <open address> <guarded address>

import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify, stripVTControlCharacters } from "node:util";
import { check, equal, ok } from "./check.mjs";
import { answerOf } from "./job.mjs";
import { open, PLACES } from "./server.mjs";
import { SDKS } from "./typescript_sdks.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const SUITE = here("node_modules/@modelcontextprotocol/conformance/dist/index.js");
const SUITE_LIMIT_MS = 120_000;
// So many scenarios there are at least: with none, none would fail.
const VERSIONS = [["2025-03-26", 1], ["2025-06-18", 27], ["2025-11-25", 33], ["2026-07-28", 40]];

async function scenarios(version) {
  const args = ["--import", here("conformance_fs.mjs"), SUITE, "server", "--url", open, "--suite", "all"];
  args.push("--spec-version", version, "--expected-failures", here("conformance.yml"));
  const run = promisify(execFile)(process.execPath, args, { timeout: SUITE_LIMIT_MS, maxBuffer: 64 << 20 });
  // The suite exits with 1 if a result was not as expected.
  const { stdout } = await run.catch((error) => (error.stdout ? error : Promise.reject(error)));
  const [, summary, verdict] = stripVTControlCharacters(stdout).match(/=== SUMMARY ===\n([^]*?)\nTotal: (.*[^]*)/);
  const names = [...summary.matchAll(/^[✓✗] ([\w-]+): /gm)].map(([, name]) => name);
  const list = (title) => verdict.match(new RegExp(`^${title}.*\\n((?:  .*\\n)*)`, "m"))?.[1] ?? "";
  const entries = (title) => [...list(title).matchAll(/^ {2}. (\S+)/gm)].map(([, entry]) => entry);
  return { names, wrong: [...entries("Unexpected failures"), ...entries("Stale baseline entries")] };
}

const of = (name) => (entry) => entry.split(":")[0] === name;

// So that there is a resource to be listed and read.
const client = await SDKS[0].connect(PLACES[0]);
const [{ session_id }] = answerOf(await client.callTool("upload_file", { filename: "a.txt", text: "a" }));

for (const [version, least] of VERSIONS) {
  let found;
  await check(`Conformance, ${version}: the suite runs`, async () => {
    found = await scenarios(version);
    ok(found.names.length >= least, `${found.names.length} scenarios`);
    equal(found.wrong.filter((entry) => !found.names.some((name) => of(name)(entry))), [], "all that is wrong is told");
  });
  for (const name of found?.names ?? []) {
    await check(`Conformance, ${version}: ${name}`, async () => {
      const wrong = found.wrong.filter(of(name)).join(" ");
      ok(!wrong, `not as in conformance.yml: ${wrong}`);
    });
  }
}
await client.callTool("close_session", { session_id });
await client.close();
