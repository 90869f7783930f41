// The pictures of the page in the documents: the demo's data and programs, and files of many kinds, in real sandboxes.
// Usage: node screenshot.mjs <server binary> <chromium> [folder]     default: the folder of this repository
import { execFileSync } from "node:child_process";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Chromium } from "./chromium.mjs";
import { Web } from "./web.mjs";

const repository = fileURLToPath(new URL("../../", import.meta.url));
const [binary, chromium, folder = repository] = process.argv.slice(2);
const demo = join(repository, "demo");

const KINDS = `# Sales by region: tables, a report and a figure
import numpy as np, pandas as pd, matplotlib.pyplot as plt, plotly.express as px, docx
days = pd.date_range("2026-01-01", periods=90)
regions = ["North", "South", "Zürich"]
sales = pd.DataFrame([(day, region, round(60 + 9 * n + 14 * np.sin(d / 9 + n) + 5 * np.sin(d)), 19.9 + n) for d, day in enumerate(days)
                      for n, region in enumerate(regions)], columns=["day", "region", "units", "price"])
sales["revenue"] = (sales.units * sales.price).round(2)
sales.to_csv("sales.csv", index=False)
sales.to_parquet("sales.parquet")
sales.to_excel("sales.xlsx", index=False, sheet_name="Sales")
total = sales.groupby("region").revenue.sum()
total.plot.bar(color="#2b6cb0", title="Revenue by region", rot=0)
plt.savefig("chart.png")
report = docx.Document()
report.add_heading("Quarterly report", 0)
report.add_heading("Summary", 1)
report.add_paragraph("Zürich has the highest revenue.")
report.save("report.docx")
open("README.md", "w").write("# Sales\\n\\nRevenue of **three regions** in 2026.\\n\\n- [the chart](chart.png)\\n- tables for Excel and pandas\\n")
px.line(sales, x="day", y="revenue", color="region", title="Revenue by day").write_html("figure.html")
print(total.round().astype(int).to_string())
`;

const web = await Web.start(binary, { args: [] });
const browser = await Chromium.start(chromium);

/** The picture with 256 colours, which a picture of the page hardly has, in a third of the bytes. */
async function small(picture) {
  await web.put("pictures", "large.png", picture);
  const code = "from PIL import Image\nImage.open('large.png').convert('RGB').quantize(256, dither=0).save('small.png', optimize=True)";
  await web.run("pictures", code);
  const response = await fetch(`${web.base}/files/pictures/small.png`);
  return Buffer.from(await response.arrayBuffer());
}

/** Takes a picture of a session's page when its first files are drawn and `seen` holds. */
async function take(name, session, looks, seen = "true") {
  const page = await browser.page();
  await page.call("Emulation.setScrollbarsHidden", { hidden: true });
  await page.looks(looks);
  await page.visit(`${web.base}/files/${session}`);
  const thumbs = `[...document.querySelectorAll("#files .thumb")].slice(0, 6)`;
  await page.eventually(`${thumbs}.length === 6 && ${thumbs}.every((card) => card.querySelector("iframe, table, pre, .prose, .kind") || card.querySelector("img")?.complete)`);
  await page.eventually(seen);
  // The browser's own viewer, and a figure in its frame, do not tell when they have drawn.
  await new Promise((resolve) => setTimeout(resolve, 6000));
  await writeFile(join(folder, name), await small(await page.picture()));
  await page.close();
}

try {
  const make = "import make_csv, sys; sys.stdout.buffer.write(make_csv.generate()[0])";
  const csv = execFileSync("python3", ["-c", make], { cwd: demo, maxBuffer: 1 << 26 });
  await web.put("spring-campaign", "marketing.csv", csv);
  // The first of them reads a dataset, which this server does not have.
  for (const name of (await readdir(join(demo, "analysis"))).sort().slice(1)) {
    await web.run("spring-campaign", await readFile(join(demo, "analysis", name), "utf8"));
  }
  await web.run("sales", KINDS);
  await take("demo/page.png", "spring-campaign/", { width: 1200, height: 1280 });
  await take("docs/page/files.png", "sales/", { width: 1200, height: 1060 });
  await take("docs/page/phone.png", "sales/", { width: 360, height: 740, scheme: "dark" });
  const framed = `document.querySelector("#viewer").open && !!document.querySelector("#viewer-body iframe")`;
  await take("docs/page/figure.png", "sales/#file=figure.html", { width: 1200, height: 760 }, framed);
} finally {
  await browser.close();
  await web.close();
}
