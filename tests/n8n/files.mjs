// The inputs and outputs of the reports.

import { equal, ok } from "../clients/check.mjs";

/** A CSV as people have them. With its numbers: spend 1,380.50, revenue what is given and 145. */
export const sales = (revenue) =>
  Buffer.from(
    `date,channel,spend,revenue\n2026-01-05,Search,"$1,200.50",${revenue}\n` +
      "06/02/2026,Café,80,95\n2026-02-17, search ,n/a,7\n28/02/2026,Social,100,50\n",
  );

export function isPdf(file) {
  equal(file.subarray(0, 5).toString(), "%PDF-");
  ok(file.subarray(-10).toString().includes("%%EOF"), "the PDF is whole");
}

export function isChart(file) {
  equal(file.subarray(0, 8).toString("latin1"), "\x89PNG\r\n\x1a\n");
  equal(file.subarray(-8, -4).toString(), "IEND");
  equal([file.readUInt32BE(16), file.readUInt32BE(20)], [1320, 540]);
}
