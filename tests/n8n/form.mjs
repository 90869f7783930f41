// report-form.json: a person gives a CSV to a page and ends on one with the files, or with the reason.

import { check, equal, ok } from "../clients/check.mjs";
import { isChart, isPdf, sales } from "./files.mjs";
import { until } from "./n8n.mjs";
import { RUN_LIMIT_MS, triggerOf, within } from "./place.mjs";

const NO_COLUMNS = Buffer.from("when,what\n1,2\n");

/** Does what the scripts of the form's pages do, and returns the last page. */
async function submit(place, flow, csv) {
  const form = new FormData();
  form.set("field-0", new File([csv], "sales.csv", { type: "text/csv" }));
  const { formWaitingUrl } = await (await place.post(flow, form)).json();
  const page = new URL(formWaitingUrl);
  page.host = new URL(place.n8n.url).host;
  const progress = new URL(page);
  progress.pathname += "/n8n-execution-status";
  await until("the form's last page", RUN_LIMIT_MS, async () => {
    const status = (await (await within(RUN_LIMIT_MS, progress)).text()).trim();
    if (status !== "running" && status !== "form-waiting") throw new Error(`the form's run: ${status}`);
    return status === "form-waiting" || undefined;
  });
  const html = await (await within(RUN_LIMIT_MS, page)).text();
  await within(RUN_LIMIT_MS, page, { method: "POST" });
  return html;
}

/** The files that the page saves on the person's machine: [name, type, content]. */
function filesOf(html) {
  const [, packed] = html.match(/const binaries = "([^"]*)"/);
  const files = JSON.parse(decodeURIComponent(packed));
  return files.map(({ fileName, type, data }) => [fileName, type, Buffer.from(data.data)]);
}

export async function checkForm(place) {
  const flow = await place.publish("report-form");
  await check("form: its page asks for a CSV", async () => {
    const page = await (await within(RUN_LIMIT_MS, place.n8n.addressOf(triggerOf(flow)))).text();
    for (const part of ["Marketing report", 'type="file"', ".csv"]) ok(page.includes(part), part);
  });
  await check("form: the person gets report and chart, with the bytes that the server served", async () => {
    const page = await submit(place, flow, sales(500));
    for (const part of ["Your report is ready", "Spend 1,380, revenue 645"]) ok(page.includes(part), part);
    const [report, chart] = filesOf(page);
    equal([report.slice(0, 2), chart.slice(0, 2)], [["report.pdf", "application/pdf"], ["chart.png", "image/png"]]);
    isPdf(report[2]);
    isChart(chart[2]);
    for (const [name, , content] of [report, chart]) await place.isAsServed(sales(500), name, content);
  });
  await check("form: the person is told what is wrong with the file", async () => {
    const page = await submit(place, flow, NO_COLUMNS);
    const sentence = "The CSV has no column date, channel, spend, revenue.";
    for (const part of ["There is no report", sentence]) ok(page.includes(part), part);
    await place.isGone(place.recorder.sessionOf(NO_COLUMNS));
  });
}
