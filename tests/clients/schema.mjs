// The rules for a tool's schemas, so that every client in use understands them: valid JSON Schema in both dialects that
// clients assume, and of the plainest kind.

import Ajv7 from "ajv";
import Ajv2020 from "ajv/dist/2020.js";
import { ok } from "./check.mjs";

// n8n loses references and unions; TypeScript clients drop the whole list over a bare `true`, and 1.x over a `format`.
const PLAIN = new Set([
  "type", "description", "default", "enum",
  "properties", "required", "additionalProperties", "items",
  "minimum", "maximum", "minLength", "maxLength", "pattern",
]);

export function validateTool(tool) {
  for (const kind of ["inputSchema", "outputSchema"]) {
    const schema = tool[kind];
    ok(schema?.type === "object", `${kind} describes an object`);
    for (const Ajv of [Ajv7, Ajv2020]) new Ajv({ strict: true }).compile(schema);
    plain(schema, kind);
  }
}

function plain(schema, at) {
  ok(schema !== null && typeof schema === "object", `${at} is a schema, not ${schema}`);
  ok(typeof schema.type === "string", `${at} has one type, not ${schema.type}`);
  for (const keyword of Object.keys(schema)) ok(PLAIN.has(keyword), `${at} uses ${keyword}`);
  for (const [name, inner] of Object.entries(schema.properties ?? {})) plain(inner, `${at}.${name}`);
  if (schema.type === "array") plain(schema.items, `${at}[]`);
  // The server checks arguments; the list of tools omits parts of the schemas.
  const more = schema.additionalProperties;
  const isClosed = more === false || more?.type === "string"; // names with a text each
  if (schema.type === "object") ok(isClosed || at.startsWith("inputSchema"), `${at} is closed`);
}

/** The check of one tool's answers, strict about what it does not know. */
export function answerValidator(tool) {
  const ajv = new Ajv2020({ strict: true, allErrors: true });
  const validate = ajv.compile(tool.outputSchema);
  return (answer) => ok(validate(answer), `the outputSchema of ${tool.name}: ${ajv.errorsText(validate.errors)}`);
}
