// report-webhook.json: a program posts a CSV and gets a file, or a sentence that says why not.

import { check, equal, ok } from "../clients/check.mjs";
import { isChart, isPdf, sales } from "./files.mjs";
import { CREDENTIAL, programOf, triggerOf } from "./place.mjs";

const AT_ONCE = 10;
const AS_CSV = { "content-type": "text/csv" };
const NO_COLUMNS = Buffer.from("a,b\n1,2\n");
const NO_TEXT = Buffer.from([0x89, 0x50, 0xff, 0x81, 0x8d, 0x00, 0x0a]);

/** Programs that may replace the analysis, and the answers to them. */
const OTHER_PROGRAMS = [
  ["the error of a tool reaches the caller in its own words", "#".repeat(1_100_000), 502, "The code is 1100000 bytes"],
  ["of a traceback the last line reaches the caller", 'import pandas as pd\npd.read_csv("data.csv")["cost"]', 422, "KeyError: 'cost'"],
  ["an analysis that makes no report is named as the reason", "print(1)", 422, "did not make report.pdf and chart.png"],
];

async function isFile(answer, type) {
  equal([answer.status, answer.headers.get("content-type")], [200, type]);
  return Buffer.from(await answer.arrayBuffer());
}

async function isRefused(answer, status, ...parts) {
  const text = await answer.text();
  equal(answer.status, status, text);
  const { error } = JSON.parse(text);
  for (const part of parts) ok(error.includes(part), error);
  ok(!/[{}\\]/.test(error), `a sentence, not ${error}`);
}

/** Returns the workflow at work. */
export async function checkWebhook(place) {
  const { n8n, recorder } = place;
  const flow = await place.publish("report-webhook");
  await check("webhook: n8n finds the credential by its name", async () => {
    const { id } = await n8n.credential(CREDENTIAL);
    const used = flow.nodes.flatMap(({ credentials }) => (credentials ? [credentials.httpBearerAuth] : []));
    equal(used, Array(3).fill({ id, name: CREDENTIAL }));
  });
  await check("webhook: a CSV becomes a PDF, with the bytes that the server served", async () => {
    const file = await isFile(await place.post(flow, sales(480), AS_CSV), "application/pdf");
    isPdf(file);
    await place.isAsServed(sales(480), "report.pdf", file);
  });
  await check("webhook: a multipart form with ?file=chart becomes the chart, with the bytes that the server served", async () => {
    const form = new FormData();
    form.set("any", new File([sales(481)], "x.csv", { type: "text/csv" }));
    const file = await isFile(await place.post(flow, form, {}, "?file=chart"), "image/png");
    isChart(file);
    await place.isAsServed(sales(481), "chart.png", file);
  });
  await check("webhook: uploads and calls bear the token, the links of downloads need none", () => {
    const asked = recorder.exchanges;
    const downloads = asked.filter(({ method, path }) => method === "GET" && /\.(pdf|png)$/.test(path));
    const others = asked.filter(({ method }) => ["PUT", "POST"].includes(method));
    equal(downloads.map(({ token, status }) => [token, status]), Array(4).fill([undefined, 200]));
    equal([...new Set(others.map(({ token }) => token))], [`Bearer ${place.token}`]);
  });
  await check("webhook: a CSV without the columns is refused with a sentence", async () => {
    const sentence = "The CSV has no column date, channel, spend, revenue.";
    await isRefused(await place.post(flow, NO_COLUMNS, AS_CSV), 422, sentence, "it has a, b.");
    await place.isGone(recorder.sessionOf(NO_COLUMNS));
  });
  await check("webhook: no file, and a file that is no text, are refused with a sentence", async () => {
    await isRefused(await place.post(flow), 422, "There was no file.");
    await isRefused(await place.post(flow, NO_TEXT, AS_CSV), 422, "cannot be read as a CSV");
    await place.isGone(recorder.sessionOf(NO_TEXT));
  });
  await check(`webhook: ${AT_ONCE} at once each get the report of their own CSV`, async () => {
    const csvs = Array.from({ length: AT_ONCE }, (_, n) => sales(1000 + n));
    const answers = await Promise.all(csvs.map((csv) => place.post(flow, csv, AS_CSV)));
    for (const [n, answer] of answers.entries()) {
      await place.isAsServed(csvs[n], "report.pdf", await isFile(answer, "application/pdf"));
    }
    equal(new Set(csvs.map((csv) => recorder.sessionOf(csv))).size, AT_ONCE);
  });
  for (const [n, [sentence, program, status, error]] of OTHER_PROGRAMS.entries()) {
    await check(`webhook: ${sentence}`, async () => {
      const other = { ...place.flow("report-webhook"), name: sentence };
      triggerOf(other).webhookId = crypto.randomUUID();
      triggerOf(other).parameters.path = `other-${n}`;
      programOf(other).value = program;
      await isRefused(await place.post(await n8n.publish(other), sales(n), AS_CSV), status, error);
      await place.isGone(recorder.sessionOf(sales(n)));
    });
  }
  await check("webhook: a wrong token is named as the reason", () =>
    place.withWrongToken(async () => {
      await isRefused(await place.post(flow, sales(5), AS_CSV), 502, "Authorization: Bearer <token>");
    }));
  return flow;
}

/** Takes the way to the server away for good. */
export async function checkNoServer(place, flow) {
  await check("webhook: a server that does not answer is named as the reason", async () => {
    await place.recorder.stop();
    await isRefused(await place.post(flow, sales(6), AS_CSV), 502, "No answer from the server: ");
  });
}
