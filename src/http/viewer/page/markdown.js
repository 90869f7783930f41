// Markdown as elements. A text never becomes markup, links lead only to the web or to files of the session, and images
// are only those of the session.

/** Longer paragraphs are shown as they are. */
const INLINE_CHARS = 5_000;
/** Deeper lists and quotations are shown as they are. */
const MARKDOWN_DEPTH = 8;

const INLINE = new RegExp(
  [
    /\\([\\`*_{}[\]()#+.!|~<>-])/,
    /(`+)([^`](?:[^`]|(?!\2)`)*)\2(?!`)/,
    /(!?)\[([^[\]]*)\]\(\s*<?([^()\s<>]*(?:\([^()\s<>]*\)[^()\s<>]*)*)>?[^()]*\)/,
    /(\*\*|__)(?=\S)((?:(?!\7)[\s\S])+)\7/,
    /([*_])(?=\S)([^*_]+)\9/,
    /~~([^~]+)~~/,
    /<?(https?:\/\/[^\s<>"')\]]+)>?/,
  ].map((part) => part.source).join("|"),
  "g",
);

function inline(text, depth = 0) {
  if (text.length > INLINE_CHARS || depth > 4) return [text];
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, escaped, , code, isImage, label, target, , strong, mark, emphasis, struck, address] = match;
    // Names such as a_b_c are no emphasis.
    if (mark === "_" && /\w/.test(text[match.index - 1] ?? "")) continue;
    parts.push(text.slice(from, match.index));
    from = match.index + all.length;
    if (escaped) parts.push(escaped);
    else if (code !== undefined) parts.push(el("code", {}, code.trim()));
    else if (isImage) parts.push(markdownImage(label, target));
    else if (label !== undefined) parts.push(markdownLink(inline(label, depth + 1), target));
    else if (strong) parts.push(el("strong", {}, ...inline(strong, depth + 1)));
    else if (emphasis) parts.push(el("em", {}, ...inline(emphasis, depth + 1)));
    else if (struck) parts.push(el("s", {}, ...inline(struck, depth + 1)));
    else parts.push(markdownLink([address], address));
  }
  parts.push(text.slice(from));
  return parts.filter((part) => part !== "");
}

/** The session's file that a relative address names. */
function fileAt(target) {
  let path = target.replace(/^\.\//, "");
  try {
    path = decodeURIComponent(path);
  } catch {
    // It is not encoded.
  }
  return files.find((file) => file.filename === path || file.path === path);
}

function markdownLink(label, target) {
  if (/^(https?:|mailto:)/i.test(target)) return el("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...label);
  const file = fileAt(target);
  return file ? el("a", { href: fileLink(file) }, ...label) : el("span", {}, ...label);
}

function markdownImage(alt, target) {
  const file = fileAt(target);
  if (file && kind(file) === "picture") return picture(file, alt);
  return el("span", { className: "muted" }, `[image: ${alt || target}]`);
}

/** The elements of a Markdown text. */
function markdown(text, depth = 0) {
  const lines = text.replace(/^\uFEFF?---\r?\n[\s\S]*?\n---\r?\n/, "").split(/\r?\n/);
  const all = document.createDocumentFragment();
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)/.exec(line)?.[1];
    const heading = /^\s{0,3}(#{1,6})\s(.*)$/s.exec(line);
    /** Takes the lines that follow for which a condition holds. */
    const take = (holds) => {
      const from = at;
      do at += 1; while (at < lines.length && holds(lines[at]));
      return lines.slice(from, at);
    };
    if (fence) {
      const code = take((next) => !next.trim().startsWith(fence)).slice(1);
      at += 1;
      all.append(el("pre", {}, code.join("\n")));
    } else if (!line.trim()) at += 1;
    else if (heading) {
      // The file's name is the heading of level 2.
      all.append(el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2].trim().replace(/\s#+$/, ""))));
      at += 1;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      all.append(el("hr"));
      at += 1;
    } else if (/^\s{0,3}>/.test(line) && depth < MARKDOWN_DEPTH) {
      const quoted = take((next) => /^\s{0,3}>/.test(next)).map((each) => each.replace(/^\s{0,3}>\s?/, ""));
      all.append(el("blockquote", {}, markdown(quoted.join("\n"), depth + 1)));
    } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const [titles, , ...body] = take((next) => next.includes("|")).map(cellsOf);
      all.append(wide(markdownTable(titles, body)));
    } else if (ITEM.test(line) && depth < MARKDOWN_DEPTH) all.append(markdownList(take(continuing(line)), depth));
    else all.append(el("p", {}, ...inline(take((next) => next.trim() && !/^\s{0,3}(#{1,6}\s|>|```|~~~)/.test(next) && !ITEM.test(next)).join("\n"))));
  }
  return all;
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;

/** Whether a line belongs to the list that begins with another: it is indented, or an item of the same kind. */
const continuing = (first) => (line) =>
  /^\s+\S/.test(line) || (ITEM.test(line) && /^\s*\d/.test(line) === /^\s*\d/.test(first));

function markdownList(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const list = el(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) list.start = parseInt(mark, 10);
  const items = [];
  for (const line of lines) {
    const [start, before] = ITEM.exec(line) ?? [];
    if (start && before.length <= indent.length) items.push([line.slice(start.length)]);
    else items.at(-1).push(line.replace(/^(\t| {1,4})/, ""));
  }
  for (const [first, ...rest] of items) {
    const task = /^\[([ xX])\]\s+(.*)$/.exec(first);
    const text = task ? `${task[1] === " " ? "☐" : "☑"} ${task[2]}` : first;
    list.append(el("li", {}, ...inline(text), markdown(rest.join("\n"), depth + 1)));
  }
  return list;
}

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function markdownTable(titles, body) {
  const row = (cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, ...inline(cell))));
  const title = (cell) => (cell ? el("th", { scope: "col" }, ...inline(cell)) : el("td", {}));
  return el("table", {}, el("thead", {}, el("tr", {}, ...titles.map(title))), el("tbody", {}, ...body.map(row)));
}
