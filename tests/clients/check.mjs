// Checks are sentences: a line each on stdout, `ok` or `FAIL`, which run.sh counts. A failed one is
// explained below its line, and the program goes on with the next.

export { deepStrictEqual as equal, ok } from "node:assert/strict";

/** Returns whether it held. */
export async function check(sentence, promise) {
  try {
    await promise();
    console.log(`ok   ${sentence}`);
    return true;
  } catch (error) {
    const why = String(error?.message ?? error).slice(0, 2000).split("\n");
    console.log([`FAIL ${sentence}`, ...why].join("\n     "));
    return false;
  }
}
