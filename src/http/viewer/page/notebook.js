// Notebooks of Jupyter: their cells with their outputs. Nothing of a notebook runs in the page; HTML that has no other
// form runs in the frame without rights.

/** Frames of a notebook that are made at most. */
const NOTEBOOK_FRAMES = 5;
const NOTEBOOK_CELLS = 500;
const NOTEBOOK_BYTES = 20 << 20;
const OUTPUT_CHARS = 20_000;

const joined = (text) => (Array.isArray(text) ? text.join("") : typeof text === "string" ? text : "");
const plain = (text) => joined(text).replace(/\x1B\[[0-9;]*[A-Za-z]/g, "").slice(0, OUTPUT_CHARS);

async function notebook(file) {
  const text = await wholeText(file, NOTEBOOK_BYTES);
  if (text === null) return null;
  const cells = JSON.parse(text).cells ?? [];
  const frames = { left: NOTEBOOK_FRAMES };
  const more = cells.length > NOTEBOOK_CELLS ? el("p", { className: "muted" }, `The first ${NOTEBOOK_CELLS} of ${cells.length} cells.`) : null;
  return el("div", { className: "prose notebook" }, more, ...cells.slice(0, NOTEBOOK_CELLS).map((cell) => notebookCell(cell, frames)));
}

function notebookCell(cell, frames) {
  const source = joined(cell.source);
  if (cell.cell_type === "markdown") return el("div", {}, markdown(source));
  const number = cell.execution_count ? `In [${cell.execution_count}]` : cell.cell_type === "raw" ? "Raw" : "In [ ]";
  const outputs = Array.isArray(cell.outputs) ? cell.outputs : [];
  return el(
    "div",
    { className: "cell" },
    el("p", { className: "muted mono" }, number),
    el("pre", {}, source),
    ...outputs.map((output) => notebookOutput(output, frames)),
  );
}

function notebookOutput(output, frames) {
  if (output.output_type === "stream") return el("pre", { className: output.name === "stderr" ? "stderr" : "stdout" }, plain(output.text));
  if (output.output_type === "error") return el("pre", { className: "stderr" }, plain(joined(output.traceback?.map((line) => `${line}\n`)) || `${output.ename}: ${output.evalue}`));
  const data = output.data ?? {};
  const image = ["image/png", "image/jpeg", "image/gif", "image/webp"].find((type) => data[type]);
  if (image) return el("img", { alt: plain(data["text/plain"]) || "picture", src: `data:${image};base64,${joined(data[image]).replace(/\s/g, "")}` });
  if (data["text/markdown"]) return el("div", {}, markdown(joined(data["text/markdown"])));
  const html = joined(data["text/html"]);
  // A table of pandas is as good as text. A figure is not.
  if (html && (!data["text/plain"] || /<script/i.test(html)) && frames.left > 0) {
    frames.left -= 1;
    return framed(html, "Output");
  }
  return el("pre", { className: "result" }, plain(data["text/plain"] ?? data["application/json"] ?? ""));
}
