// The viewer of one file.

let viewed = null;

/** The URL of this page that shows one file. */
const fileLink = (file) => `${location.pathname}${location.search}#file=${encodeURIComponent(file.filename)}`;

/** Shows the file that the page's URL names. */
function viewLinked() {
  const name = new URLSearchParams(location.hash.slice(1)).get("file");
  const path = name && (files.find((file) => file.filename === name)?.path ?? name);
  if (path && path !== viewed && one) view(path);
  if (!path && viewed) $("viewer").close();
}
window.addEventListener("hashchange", viewLinked);

/** Kinds of which the source can be shown as well. */
const WITH_SOURCE = ["page", "markdown", "notebook", "table"];

async function view(path, asSource = false) {
  const file = files.find((each) => each.path === path);
  viewed = path;
  if (file) history.replaceState(null, "", fileLink(file));
  $("viewer-name").textContent = legible(file?.filename ?? path);
  $("viewer-size").textContent = file ? size(file.size_bytes) : "";
  $("viewer-save").hidden = $("viewer-link").hidden = !file;
  if (file) {
    $("viewer-link").href = fileLink(file);
    $("viewer-save").href = local(file.download_url);
  }
  $("viewer-source").hidden = !file || !WITH_SOURCE.includes(kind(file));
  $("viewer-source").ariaPressed = String(asSource);
  for (const [id, step] of [["viewer-before", -1], ["viewer-next", 1]]) $(id).disabled = !neighbour(step);
  $("viewer-body").replaceChildren(el("p", { className: "muted" }, "Loading"));
  if (!$("viewer").open) {
    $("viewer").showModal();
    $("viewer-close").focus();
  }
  const content = await (file ? whole(file, asSource) : null)?.catch(() => null);
  // Another file may have been opened meanwhile.
  if (viewed === path && ($("viewer-source").ariaPressed === "true") === asSource) {
    const nothing = file ? "There is no preview for this file. Download it to open it." : "The file no longer exists.";
    $("viewer-body").replaceChildren(leveled(content) ?? el("p", {}, nothing));
  }
}

const textOf = (text) => (text === null ? null : el("pre", {}, text));

async function whole(file, asSource = false) {
  if (asSource) return textOf(await head(file, TEXT_BYTES));
  switch (kind(file)) {
    case "picture": return picture(file, legible(file.filename));
    case "drawing": return drawing(file);
    case "pdf": return pdf(file);
    case "page": return htmlPage(file);
    case "table": return largeTable(rows(await head(file, TEXT_BYTES), file, TABLE_ROWS));
    case "markdown": return el("div", { className: "prose" }, markdown(await head(file, TEXT_BYTES)));
    case "notebook": return notebook(file);
    case "sheet": return sheets(file);
    case "document": return wordDocument(file);
    case "slides": return slides(file);
    case "parquet": return parquet(file);
    case "text": return textOf(await head(file, TEXT_BYTES));
    default: return textOf(await head(file, TEXT_BYTES, true));
  }
}

/** A small SVG can keep a browser busy forever, so it is drawn only on request. */
function drawing(file) {
  const show = button("Show it", {}, () => $("viewer-body").replaceChildren(picture(file, legible(file.filename))));
  return el("p", {}, "This is an SVG drawing. A malicious one can make this tab unresponsive. ", show);
}

function neighbour(step) {
  return files[files.findIndex((file) => file.path === viewed) + step];
}

function turn(step) {
  const file = neighbour(step);
  if (file) view(file.path);
}

$("viewer-before").addEventListener("click", () => turn(-1));
$("viewer-next").addEventListener("click", () => turn(1));
$("viewer-source").addEventListener("click", () => view(viewed, $("viewer-source").ariaPressed !== "true"));
$("viewer-close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("keydown", (event) => {
  // In the file's content, arrow keys scroll.
  if (event.target === $("viewer-body")) return;
  if (event.key === "ArrowLeft") turn(-1);
  if (event.key === "ArrowRight") turn(1);
});
$("viewer").addEventListener("close", () => {
  viewed = null;
  history.replaceState(null, "", location.pathname + location.search);
  $("viewer-body").replaceChildren();
});

$("end-not").addEventListener("click", () => $("end").close());
$("end-now").addEventListener("click", () => end($("end").dataset));

