// The server under test. run.sh names a command that starts it with the settings of the tests.

import { tmpdir } from "node:os";
import { resolve } from "node:path";

if (!process.argv[2]) throw new Error("usage: node <this file> <command of the server>");

export const CALL_LIMIT_MS = 60_000;

export const server = {
  command: resolve(process.argv[2]),
  cwd: tmpdir(), // no .env file of this host counts
  stderr: "ignore",
};
