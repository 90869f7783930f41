#!/usr/bin/env node
// Starts the program, which is in the package of this architecture.
"use strict";
const { spawn } = require("node:child_process");
const { name } = require("./package.json");

let program;
try {
  program = require.resolve(`${name}-${process.platform}-${process.arch}/bin/llm-sandbox`);
} catch {
  console.error(
    `${name}: there is no program for ${process.platform} on ${process.arch}, or npm left out optional dependencies. ` +
      "It runs on Linux with glibc, on x64 and arm64.",
  );
  process.exit(69);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`${name}: ${error.message}`);
  process.exit(69);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
