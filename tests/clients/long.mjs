// Runs that take longer than the minute after which clients give up by default, and say nothing all the
// while: by one that lets progress extend its limit, and by one that has a higher limit and hears nothing.
//
//   node long.mjs http <open address> <guarded address>

import { check, equal, ok } from "./check.mjs";
import { answerOf } from "./job.mjs";
import { PLACES } from "./server.mjs";
import { SDKS } from "./typescript_sdks.mjs";

const SECONDS = 65;
const SILENT = `import time; time.sleep(${SECONDS}); print("done")`;
const place = PLACES.at(-1);

async function run(connect, options) {
  const client = await connect(place);
  try {
    await client.listTools();
    const started = performance.now();
    const result = await client.callTool("run_python", { code: SILENT }, options);
    const [answer] = answerOf(result);
    equal([answer.outcome, answer.stdout], ["ok", "done\n"]);
    ok(performance.now() - started > SECONDS * 1000);
    await client.callTool("close_session", { session_id: answer.session_id });
  } finally {
    await client.close();
  }
}

await Promise.all(
  SDKS.flatMap(({ name, connect }) => [
    check(`${name}, ${place.name}: progress keeps a client with a limit of 20 s waiting for ${SECONDS} s`, async () => {
      let heard = 0;
      const onprogress = () => heard++;
      await run(connect, { timeout: 20_000, resetTimeoutOnProgress: true, onprogress });
      ok(heard > 10, `${heard} times`);
    }),
    check(`${name}, ${place.name}: a client that waits hears of a run of ${SECONDS} s without progress`, () =>
      run(connect, { timeout: 150_000 })),
  ]),
);
