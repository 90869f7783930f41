// Previews of files: their kinds, their content, pictures, tables, PDF, and HTML in a frame without rights.

const THUMB_BYTES = 8 << 10;
const TEXT_BYTES = 256 << 10;
/** Larger files have no preview. */
const PDF_BYTES = 50 << 20;
const PDF_THUMB_BYTES = 5 << 20;
const HTML_BYTES = 32 << 20;
/** Characters of HTML in which parts from the internet are looked for. */
const LOOKED_AT = 256 << 10;
const OFFICE_BYTES = 20 << 20;
/** Kinds that must be read whole, and how large a file of them may be to have a preview on its card. */
const SMALL_KINDS = ["sheet", "document", "slides", "notebook", "parquet"];
const SMALL_BYTES = 1 << 20;
const TABLE_ROWS = 200;
const TABLE_COLUMNS = 100;

const extension = (file) => (/\.([A-Za-z0-9]{1,7})$/.exec(file.filename)?.[1] ?? "file").toUpperCase();

const KINDS = {
  page: /\.html?$/i,
  table: /\.(csv|tsv)$/i,
  markdown: /\.(md|markdown)$/i,
  notebook: /\.ipynb$/i,
  sheet: /\.xls[xm]$/i,
  document: /\.docx$/i,
  slides: /\.pptx$/i,
  parquet: /\.parquet$/i,
  text: /\.(json|jsonl|geojson|ya?ml|toml|log|sql|ini|xml|tex|r|ipynb)$/i,
};

function kind({ mime_type: mime, filename }) {
  if (/^image\/(png|jpeg|gif|webp|avif|bmp)$/.test(mime)) return "picture";
  if (mime === "image/svg+xml") return "drawing";
  if (mime === "application/pdf") return "pdf";
  const named = Object.keys(KINDS).find((name) => KINDS[name].test(filename));
  return named ?? (/^text\//.test(mime) ? "text" : "other");
}

/** A URL with the file's version: browsers reuse an image that they already show for the same URL. */
function version(file, session) {
  const url = local(file.download_url, session);
  return `${url}${url.includes("?") ? "&" : "?"}version=${encodeURIComponent(file.modified_at)}`;
}

function picture(file, alt, session) {
  const image = el("img", { alt, loading: "lazy", decoding: "async" });
  // The file may have been removed, or not be an image.
  image.addEventListener("error", () => image.replaceWith(el("span", { className: "kind" }, extension(file))));
  image.src = version(file, session);
  return image;
}

/** Creates previews when they come into view. */
const soon = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    soon.unobserve(target);
    preview(target.file).then((content) => content && target.replaceChildren(content), () => {});
  }
}, { rootMargin: "300px" });

async function preview(file) {
  if (file.size_bytes === 0) return null;
  switch (kind(file)) {
    case "picture": return picture(file, "");
    case "table": return table(rows(await head(file, THUMB_BYTES), file, 9), 6);
    case "markdown": return el("div", { className: "prose" }, markdown((await head(file, THUMB_BYTES)).slice(0, 1500)));
    case "text": return el("pre", {}, (await head(file, THUMB_BYTES)).slice(0, 1500));
    case "pdf": return file.size_bytes <= PDF_THUMB_BYTES ? pdf(file, "#toolbar=0&navpanes=0&scrollbar=0&view=FitH") : null;
    default: return SMALL_KINDS.includes(kind(file)) && file.size_bytes <= SMALL_BYTES ? whole(file) : null;
  }
}

/** Bytes of a file, from one to another; all of them without a range. */
async function bytes(file, from = 0, to = null) {
  const response = await fetch(local(file.download_url), to === null ? {} : { headers: { Range: `bytes=${from}-${to - 1}` } });
  if (!response.ok) throw new Error(response.statusText);
  return { response, content: await response.arrayBuffer() };
}

/** The encoding in which the server reads a text, if it is not UTF-8. */
const charset = (response) => /charset=([\w-]+)/.exec(response.headers.get("Content-Type") ?? "")?.[1];

/** The start of a text, in whole lines if it has any; null if it must be a text and is none. */
async function head(file, most, mustBeText = false) {
  const { response, content } = await bytes(file, 0, most);
  const text = new TextDecoder(charset(response)).decode(content);
  // A character may be cut at the end.
  if (mustBeText && /[\0-\x08\x0E-\x1A\uFFFD]/.test(text.slice(0, -1))) return null;
  if (response.status !== 206 || file.size_bytes <= most) return text;
  return text.slice(0, text.lastIndexOf("\n") + 1 || text.length - 1);
}

/** A whole text; null if it is too long. */
async function wholeText(file, most) {
  if (file.size_bytes > most) return null;
  const { response, content } = await bytes(file);
  return new TextDecoder(charset(response)).decode(content);
}

/** A PDF in the browser's own viewer. The page sets the type, so that the bytes are never taken for another. */
async function pdf(file, options = "") {
  if (!navigator.pdfViewerEnabled || file.size_bytes > PDF_BYTES) return null;
  const { content } = await bytes(file);
  const address = URL.createObjectURL(new Blob([content], { type: "application/pdf" }));
  const frame = el("iframe", { title: legible(file.filename), src: address + options });
  frame.addEventListener("load", () => URL.revokeObjectURL(address));
  return frame;
}

/** HTML in a frame that has an origin of its own, no network and no way to this page. */
function framed(text, title) {
  const frame = el("iframe", { title, sandbox: "allow-scripts", referrerPolicy: "no-referrer", src: `${root}page/frame` });
  frame.addEventListener("load", () => frame.contentWindow?.postMessage(text, "*"), { once: true });
  return frame;
}

async function htmlPage(file) {
  const text = await wholeText(file, HTML_BYTES);
  if (text === null) return null;
  const isIncomplete = /<(script|link|img)\b[^<>]{0,500}?\b(src|href)\s{0,9}=\s{0,9}["']?(https?:)?\/\//i.test(text.slice(0, LOOKED_AT));
  const hint = isIncomplete
    ? el("p", { className: "hint" }, "This file loads parts from the internet, which the page does not allow. A plotly figure is complete with write_html(path, include_plotlyjs=True).")
    : null;
  return el("div", { className: "framed" }, hint, framed(text, legible(file.filename)));
}

/** The first rows of a delimited text (RFC 4180). */
function rows(text, file, most) {
  const line = text.slice(0, text.indexOf("\n") + 1 || text.length);
  const likely = [",", ";", "\t", "|"].map((mark) => [line.split(mark).length, mark]);
  const mark = /\.tsv$/i.test(file.filename) ? "\t" : likely.sort((a, b) => b[0] - a[0])[0][1];
  const all = [];
  let [row, field, quoted] = [[], "", false];
  for (let i = text.startsWith("\uFEFF") ? 1 : 0; i < text.length && all.length < most; i += 1) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') field += text[(i += 1)];
      else quoted = false;
    } else if (c === '"' && field === "") quoted = true;
    else if (c === mark) (row.push(field), (field = ""));
    else if (c === "\n") (all.push([...row, field]), (row = []), (field = ""));
    else if (c !== "\r") field += c;
  }
  if (all.length < most && (row.length || field)) all.push([...row, field]);
  return all;
}

/** A table whose first row has the titles of its columns. */
function table(all, columns) {
  const width = Math.min(columns, Math.max(0, ...all.map((row) => row.length)));
  const [titles = [], ...rest] = all.map((row) => Array.from({ length: width }, (_, at) => row[at] ?? ""));
  const cell = (text) => el("td", { className: /^-?[\d.,]+%?$/.test(text) ? "number" : "", title: text.length > 30 ? text : "" }, text);
  // A title without a text is no title.
  const title = (text) => (text ? el("th", { scope: "col" }, text) : el("td", {}));
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...titles.map(title))),
    el("tbody", {}, ...rest.map((row) => el("tr", {}, ...row.map(cell)))),
  );
}

/** Something that may be wider than the page, and scrolls. */
const wide = (content) => el("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: "Table" }, content);

/** Makes the levels of headings follow one another, as screen readers expect. The file's name has level 2. */
function leveled(content) {
  let last = 2;
  for (const heading of content?.querySelectorAll?.("h3, h4, h5, h6") ?? []) {
    const level = Math.min(Number(heading.localName[1]), last + 1);
    if (`h${level}` !== heading.localName) heading.replaceWith(el(`h${level}`, {}, ...heading.childNodes));
    last = level;
  }
  return content;
}

/** A table in a viewer, of which the first rows and columns are shown. */
function largeTable(all, of = "") {
  const cuts = [];
  if (all.some((row) => row.length > TABLE_COLUMNS)) cuts.push(`The first ${TABLE_COLUMNS} columns.`);
  if (of) cuts.push(of);
  return el("div", {}, cuts.length ? el("p", {}, cuts.join(" ")) : null, wide(table(all, TABLE_COLUMNS)));
}
