// Cells with the official TypeScript SDKs, and, over HTTP, whose workspace is whose.

import { wholeNotebook, workspaces } from "./cells.mjs";
import { PLACES } from "./server.mjs";
import { SDKS } from "./typescript_sdks.mjs";

const place = PLACES.at(-1);
for (const { name, version, connect } of SDKS) {
  await wholeNotebook(`${name}, ${place.name}`, version, connect, place);
  if (place.token) await workspaces(`${name}, ${place.name}`, version, connect, place);
}
