// The job with the official TypeScript SDKs: 1.x, which n8n and most clients in use are built on, and
// 2.x in both generations of the protocol. Then who may come in, and files of the sizes at which a
// message ends to fit.

import { guests } from "./guests.mjs";
import { wholeJob, withClient } from "./job.mjs";
import { largeFiles } from "./large_files.mjs";
import { PLACES } from "./server.mjs";
import { SDKS } from "./typescript_sdks.mjs";

for (const place of PLACES) {
  for (const { name, version, connect } of SDKS) {
    await wholeJob(`${name}, ${place.name}`, version, () => connect(place), place);
    if (place.token) await guests(`${name}, ${place.name}`, version, connect, place);
  }
}
for (const { name, connect } of SDKS.filter(({ name }) => !name.includes("legacy"))) {
  const place = PLACES.at(-1);
  await withClient(`${name}, ${place.name}, large files`, () => connect(place), largeFiles, place);
}
