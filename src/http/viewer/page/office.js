// Word, PowerPoint and Excel files as text and tables: ZIP files of XML, read without running anything of them.

/** Bytes of one part of a file that are read. */
const XML_BYTES = 16 << 20;
/** Bytes of all parts that are read. */
const ALL_BYTES = 64 << 20;
const SHEETS = 10;
const SLIDES = 200;
/** Paragraphs and tables of a document that are shown. */
const BLOCKS = 2000;

/** The page's policy demands a name for each text that is parsed. XML that is parsed runs nothing. */
const xmlTexts = window.trustedTypes?.createPolicy("xml", { createHTML: (text) => text }) ?? { createHTML: (text) => text };

function xml(text) {
  // Office files have no entities of their own, which can make a small text huge.
  if (/<!DOCTYPE|<!ENTITY/i.test(text)) throw new Error("a document type");
  const parsed = new DOMParser().parseFromString(xmlTexts.createHTML(text), "application/xml");
  if (parsed.getElementsByTagName("parsererror").length) throw new Error("damaged XML");
  return parsed;
}

/** Descendants with a name in whatever namespace. */
const named = (node, name) => [...node.getElementsByTagNameNS("*", name)];
const childrenNamed = (node, name) => [...node.children].filter((child) => child.localName === name);
/** An attribute with this name without its prefix. */
const attribute = (node, name) => [...(node?.attributes ?? [])].find((each) => each.localName === name)?.value;

/** The first bytes of a stream. */
async function firstBytes(stream, most) {
  const reader = stream.getReader();
  const parts = [];
  for (let total = 0; total < most; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    total += value.length;
  }
  reader.cancel().catch(() => {});
  return new Uint8Array(await new Blob(parts).arrayBuffer()).subarray(0, most);
}

const inflated = (bytes, format, most) => firstBytes(new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format)), most);

/** A ZIP file in memory. */
class Zip {
  #parts = new Map();
  #read = 0;

  static async of(file) {
    if (file.size_bytes > OFFICE_BYTES) throw new Error("too large");
    return new Zip((await bytes(file)).content);
  }

  constructor(content) {
    const view = new DataView(content);
    let at = view.byteLength - 22;
    while (at >= 0 && view.getUint32(at, true) !== 0x06054b50) at -= 1;
    const [all, start] = [view.getUint16(at + 10, true), view.getUint32(at + 16, true)];
    for (let i = 0, entry = start; i < all; i += 1) {
      const [nameLength, extra, comment] = [28, 30, 32].map((field) => view.getUint16(entry + field, true));
      const name = new TextDecoder().decode(new Uint8Array(content, entry + 46, nameLength));
      const [packed, offset] = [view.getUint32(entry + 20, true), view.getUint32(entry + 42, true)];
      const data = offset + 30 + view.getUint16(offset + 26, true) + view.getUint16(offset + 28, true);
      this.#parts.set(name, { method: view.getUint16(entry + 10, true), data: new Uint8Array(content, data, packed) });
      entry += 46 + nameLength + extra + comment;
    }
  }

  get names() {
    return [...this.#parts.keys()];
  }

  /** The text of a part, empty if there is none. A long text ends after the last `end` within its limit. */
  async text(name, end = "") {
    const part = this.#parts.get(name);
    if (!part) return "";
    const content = part.method === 8 ? await inflated(part.data, "deflate-raw", XML_BYTES) : part.data.subarray(0, XML_BYTES);
    this.#read += content.length;
    if (this.#read > ALL_BYTES) throw new Error("too large");
    const text = new TextDecoder().decode(content);
    if (content.length < XML_BYTES) return text;
    if (!end) throw new Error("too large");
    const [last, ...after] = end.split(" ");
    return text.slice(0, text.lastIndexOf(last) + last.length) + after.join("");
  }

  async xml(name, end) {
    const text = await this.text(name, end);
    return text ? xml(text) : null;
  }

  /** The parts that a part refers to, by their names in it. */
  async targets(name) {
    const [, folder, base] = /^(.*\/)?([^/]*)$/.exec(name);
    const list = await this.xml(`${folder ?? ""}_rels/${base}.rels`);
    const target = (it) => new URL(attribute(it, "Target"), `zip:///${folder ?? ""}`).pathname.slice(1);
    return new Map(list ? named(list, "Relationship").map((it) => [attribute(it, "Id"), target(it)]) : []);
  }
}

// --- Excel ---

const columnOf = (reference) => [...reference.replace(/\d/g, "")].reduce((sum, letter) => 26 * sum + letter.charCodeAt(0) - 64, 0) - 1;

/** Whether a format of numbers shows dates. */
const isDate = (id, code = "") => (id >= 14 && id <= 22) || (id >= 45 && id <= 47) || /[dmyhs]/i.test(code.replace(/"[^"]*"|\[[^\]]*\]|\\./g, ""));

function dateText(serial, is1904) {
  const at = new Date(Math.round((serial + (is1904 ? 1462 : 0)) * 86_400_000) + Date.UTC(1899, 11, 30));
  if (Number.isNaN(at.getTime())) return String(serial);
  const text = at.toISOString().slice(0, 19).replace("T", " ");
  return Number.isInteger(serial) ? text.slice(0, 10) : serial < 1 ? text.slice(11) : text;
}

/** Text of an element without its phonetic readings. */
const richText = (node) => named(node, "t").filter((it) => it.parentNode.localName !== "rPh").map((it) => it.textContent).join("");

async function sheets(file) {
  const zip = await Zip.of(file);
  const book = await zip.xml("xl/workbook.xml");
  const targets = await zip.targets("xl/workbook.xml");
  const shared = await zip.xml("xl/sharedStrings.xml", "</si> </sst>");
  const texts = shared ? named(shared, "si").map(richText) : [];
  const styles = await zip.xml("xl/styles.xml");
  const codes = new Map(styles ? named(styles, "numFmt").map((it) => [Number(attribute(it, "numFmtId")), attribute(it, "formatCode")]) : []);
  const formats = (styles ? named(styles, "cellXfs")[0] : null)?.children ?? [];
  const dates = [...formats].map((it) => Number(attribute(it, "numFmtId"))).map((id) => isDate(id, codes.get(id)));
  const is1904 = ["1", "true"].includes(attribute(named(book, "workbookPr")[0], "date1904"));

  const valueOf = (cell) => {
    const [type, value] = [attribute(cell, "t"), childrenNamed(cell, "v")[0]?.textContent ?? ""];
    if (type === "inlineStr") return richText(cell);
    if (type === "s") return texts[Number(value)] ?? "";
    if (type === "b") return value === "1" ? "TRUE" : "FALSE";
    if (value && !type && dates[Number(attribute(cell, "s") ?? 0)]) return dateText(Number(value), is1904);
    // 0.1 + 0.2 is stored with all its digits.
    return (!type || type === "n") && value.length > 15 ? String(Number(Number(value).toPrecision(15))) : value;
  };

  const shown = el("div", { className: "prose" });
  const all = named(book, "sheet");
  for (const sheet of all.slice(0, SHEETS)) {
    const id = [...sheet.attributes].find((it) => it.localName === "id" && it.prefix)?.value;
    const content = await zip.xml(targets.get(id) ?? "", "</row> </sheetData></worksheet>");
    const rowsOf = content ? named(content, "row") : [];
    const cells = rowsOf.slice(0, TABLE_ROWS + 1).map((row) => {
      const values = [];
      for (const cell of childrenNamed(row, "c")) {
        const at = attribute(cell, "r") ? columnOf(attribute(cell, "r")) : values.length;
        if (at <= TABLE_COLUMNS) values[at] = valueOf(cell);
      }
      return Array.from(values, (value) => value ?? "");
    });
    const rest = rowsOf.length > cells.length ? `The first ${TABLE_ROWS} of ${rowsOf.length - 1} rows.` : "";
    shown.append(el("h3", {}, legible(attribute(sheet, "name") ?? "")), cells.length ? largeTable(cells, rest) : el("p", { className: "muted" }, "Empty"));
  }
  if (all.length > SHEETS) shown.append(el("p", { className: "muted" }, `and ${count(all.length - SHEETS, "more sheet")}`));
  return shown;
}

// --- Word ---

/** The text of a paragraph of Word or PowerPoint. */
function paragraphText(paragraph) {
  let text = "";
  for (const it of paragraph.getElementsByTagNameNS("*", "*")) {
    if (it.localName === "t") text += it.textContent;
    else if (it.localName === "tab" && it.parentNode.localName === "r") text += "\t";
    else if (it.localName === "br" || it.localName === "cr") text += "\n";
  }
  return text;
}

/** A table of Word or PowerPoint. */
function officeTable(node) {
  const cell = (it) => named(it, "p").map(paragraphText).join("\n");
  return wide(table(childrenNamed(node, "tr").map((row) => childrenNamed(row, "tc").map(cell)), TABLE_COLUMNS));
}

async function wordDocument(file) {
  const zip = await Zip.of(file);
  const body = named(await zip.xml("word/document.xml"), "body")[0];
  const shown = el("div", { className: "prose" });
  const add = (node) => {
    for (const child of node.children) {
      if (shown.children.length > BLOCKS) return;
      if (child.localName === "tbl") shown.append(officeTable(child));
      else if (child.localName === "p") shown.append(wordParagraph(child));
      else if (["sdt", "sdtContent", "customXml"].includes(child.localName)) add(child);
    }
  };
  add(body);
  if (shown.children.length > BLOCKS) shown.append(el("p", { className: "muted" }, "… (there is more)"));
  return shown;
}

function wordParagraph(paragraph) {
  const text = paragraphText(paragraph);
  const style = attribute(named(paragraph, "pStyle")[0], "val") ?? "";
  const level = /^title$/i.test(style) ? 0 : Number(/^(?:heading|berschrift|titre)\s*(\d)/i.exec(style)?.[1] ?? NaN);
  if (!Number.isNaN(level) && text) return el(`h${Math.min(6, level + 3)}`, {}, text);
  const isItem = named(paragraph, "numPr").length > 0 || /^list/i.test(style);
  return el("p", { className: isItem ? "item" : "" }, isItem ? `• ${text}` : text);
}

// --- PowerPoint ---

async function slides(file) {
  const zip = await Zip.of(file);
  const targets = await zip.targets("ppt/presentation.xml");
  const order = named(await zip.xml("ppt/presentation.xml"), "sldId").map((it) => [...it.attributes].find((each) => each.localName === "id" && each.prefix)?.value);
  const shown = el("div", { className: "prose" });
  for (const [at, id] of order.slice(0, SLIDES).entries()) {
    if (shown.children.length > BLOCKS) break;
    const slide = await zip.xml(targets.get(id) ?? "");
    shown.append(el("h3", {}, `Slide ${at + 1}`));
    for (const shape of slide ? slide.getElementsByTagNameNS("*", "*") : []) {
      if (shown.children.length > BLOCKS) break;
      if (shape.localName === "tbl") shown.append(officeTable(shape));
      if (shape.localName !== "sp") continue;
      const isTitle = ["title", "ctrTitle"].includes(attribute(named(shape, "ph")[0], "type"));
      const texts = named(shape, "p").map(paragraphText).filter((text) => text.trim());
      shown.append(...texts.slice(0, BLOCKS).map((text) => el(isTitle ? "h4" : "p", {}, text)));
    }
  }
  if (order.length > SLIDES) shown.append(el("p", { className: "muted" }, `and ${count(order.length - SLIDES, "more slide")}`));
  return shown;
}
