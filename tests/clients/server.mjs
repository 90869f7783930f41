// The servers under test, as run.sh names them: a command that starts one over stdio, or the addresses
// of two over HTTP, of which the second wants a token.
//
//   node <this file> stdio <command>
//   node <this file> http <open address> <guarded address>

import { tmpdir } from "node:os";
import { resolve } from "node:path";

const [transport, ...at] = process.argv.slice(2);
if (!at[0]) throw new Error("usage: node <this file> stdio <command> | http <open address> <guarded address>");

export const CALL_LIMIT_MS = 60_000;

/** Tokens that the guarded server knows. */
export const { ANN_TOKEN: ANN, BEN_TOKEN: BEN } = process.env;
if (!ANN || !BEN) throw new Error("ANN_TOKEN and BEN_TOKEN are not set");

export const onStdio = transport === "stdio";
export const [open, guarded] = onStdio ? [] : at;

/** The place of a server: {command} or {url, token}. */
export const PLACES = onStdio
  ? // No .env file of this host counts.
    [{ name: "stdio", command: resolve(at[0]), args: [], cwd: tmpdir(), stderr: "ignore" }]
  : [{ name: "HTTP", url: open }, { name: "HTTP with a token", url: guarded, token: ANN }];

/** The headers of a client with this token. */
export const headers = (token) => (token ? { authorization: `Bearer ${token}` } : {});
