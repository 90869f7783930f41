// The conformance suite imports `globSync` from `fs`, which Node has since version 22, for a command that
// is not used here. Loaded before it, this gives it one.

import { register } from "node:module";

const module = (source) => `data:text/javascript,${encodeURIComponent(source)}`;

const fs = module('export * from "node:fs"; export { default } from "node:fs"; export const globSync = undefined;');

register(
  module(`
    export async function resolve(specifier, context, next) {
      const isSuite = context.parentURL?.includes("/conformance/dist/");
      if (isSuite && specifier === "fs") return { url: ${JSON.stringify(fs)}, shortCircuit: true };
      return next(specifier, context);
    }
  `),
);
