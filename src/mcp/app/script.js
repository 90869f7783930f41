// The view of a session in a client that shows MCP Apps. It shows the result of one call, and reads files and runs of
// the session through its client (`resources/read`): it has no network of its own.
//
// Everything that is shown was made by code in a sandbox, so it is only ever set as text, or as the data of an image.
"use strict";

const PROTOCOL = "2026-01-26";
const MAX_ROWS = 1000;
const MAX_COLUMNS = 100;
const MAX_RUNS = 50;
const DATA = "/mnt/data/";
const READ_LIMIT_MS = 30000;
// No outcome: a list of files, or a run that goes on.
const GOOD = new Set([undefined, "ok", "success", "running"]);
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const TABLES = new Map([["text/csv", ","], ["text/tab-separated-values", "\t"]]);

// --- the client ----------------------------------------------------------------------------------

const asked = new Map();
let last = 0;
let host = {};

function send(message) {
  parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
}

function ask(method, params) {
  const id = ++last;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      asked.delete(id);
      reject(new Error("The client did not answer."));
    }, READ_LIMIT_MS);
    asked.set(id, { resolve, reject, timer });
    send({ id, method, params });
  });
}

const heard = {
  "ui/notifications/tool-result": show,
  "ui/notifications/tool-cancelled": () => state("cancelled", "bad"),
  "ui/notifications/host-context-changed": dress,
};

addEventListener("message", ({ source, data }) => {
  if (source !== parent || data?.jsonrpc !== "2.0") return;
  if (data.method && data.id !== undefined) {
    const known = ["ping", "ui/resource-teardown"].includes(data.method);
    const error = { code: -32601, message: "Method not found" };
    send(known ? { id: data.id, result: {} } : { id: data.id, error });
  } else if (data.method) {
    heard[data.method]?.(data.params ?? {});
  } else {
    const call = asked.get(data.id);
    if (!call) return;
    asked.delete(data.id);
    clearTimeout(call.timer);
    if (data.error) call.reject(new Error(data.error.message));
    else call.resolve(data.result);
  }
});

// Colours and fonts of the client.
function dress({ theme, styles }) {
  if (theme) document.documentElement.style.colorScheme = theme;
  for (const [name, value] of Object.entries(styles?.variables ?? {})) {
    if (name.startsWith("--") && value) document.documentElement.style.setProperty(name, value);
  }
}

async function read(uri) {
  const { contents } = await ask("resources/read", { uri });
  return contents[0];
}

// --- elements ------------------------------------------------------------------------------------

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function part(title, ...children) {
  return element("section", {}, title ? element("h2", { textContent: title }) : null, ...children);
}

function state(text, className = "") {
  const shown = element("span", { className: `state ${className}`, textContent: text });
  document.querySelector("header").prepend(shown);
}

function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB"];
  let unit = 0;
  let value = bytes;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

function text(title, content, className = "") {
  if (!content) return null;
  return part(title, element("pre", { className, tabIndex: 0, textContent: content }));
}

// Replaces a button by what it loads, or by the reason why that cannot be shown.
function loading(label, load) {
  const button = element("button", { type: "button", textContent: label });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      button.replaceWith(await load());
    } catch (error) {
      button.disabled = false;
      button.after(element("p", { className: "bad", textContent: `${label}: ${error.message}` }));
    }
  });
  return button;
}

function picture(mime, base64, name) {
  return element("img", { src: `data:${mime};base64,${base64}`, alt: name });
}

// --- tables --------------------------------------------------------------------------------------

function rows(source, separator) {
  const found = [];
  let row = [], cell = "", quoted = false;
  const end = () => { row.push(cell); cell = ""; };
  for (let at = 0; at < source.length && found.length <= MAX_ROWS; at += 1) {
    const c = source[at];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (source[at + 1] === '"') { cell += c; at += 1; }
      else quoted = false;
    } else if (c === '"' && cell === "") quoted = true;
    else if (c === separator) end();
    else if (c === "\n") { end(); found.push(row); row = []; }
    else if (c !== "\r") cell += c;
  }
  if (cell !== "" || row.length > 0) { end(); found.push(row); }
  return found;
}

function number(value) {
  return value.trim() === "" ? NaN : Number(value);
}

function table([names = [], ...body], name) {
  const columns = names.slice(0, MAX_COLUMNS);
  const shown = body.slice(0, MAX_ROWS);
  const content = element("tbody");
  const fill = (sorted) => content.replaceChildren(...sorted.map((row) => element("tr", {},
    ...columns.map((_, at) => {
      const value = row[at] ?? "";
      return element("td", { className: Number.isNaN(number(value)) ? "" : "number", textContent: value });
    }))));
  const heads = columns.map((title, at) => {
    const head = element("th", { scope: "col" });
    const button = element("button", { type: "button", textContent: title || `column ${at + 1}` });
    button.addEventListener("click", () => {
      const down = head.ariaSort === "ascending";
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = down ? "descending" : "ascending";
      fill([...shown].sort((a, b) => (down ? -1 : 1) * compared(a[at] ?? "", b[at] ?? "")));
    });
    head.append(button);
    return head;
  });
  fill(shown);
  const parts = [
    shown.length < body.length || body.length >= MAX_ROWS ? `The first ${shown.length} rows.` : `${shown.length} rows.`,
    columns.length < names.length ? ` The first ${columns.length} of ${names.length} columns.` : "",
  ];
  return part(name,
    element("div", { className: "scroll", tabIndex: 0 },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), content)),
    element("p", { className: "dim", textContent: parts.join("") }));
}

function compared(a, b) {
  const difference = number(a) - number(b);
  return Number.isNaN(difference) ? a.localeCompare(b) : difference;
}

// --- the result ----------------------------------------------------------------------------------

// The path of a file below /mnt/data, as resources have it.
function inData(path) {
  return path.startsWith(DATA) ? path.slice(DATA.length) : path;
}

function uri(session, path) {
  return `sandbox:///${session}/${path.split("/").map(encodeURIComponent).join("/")}`;
}

function file(session, { path: whole, mime_type: mime, size_bytes: bytes }) {
  const path = inData(whole);
  const label = `${path} (${size(bytes)})`;
  // Files of datasets are no resources.
  if (!session || !host.serverResources || path.startsWith("/")) {
    return element("p", { className: "dim", textContent: label });
  }
  const known = uri(session, path);
  if (TABLES.has(mime)) {
    return loading(label, async () => {
      const { text: source } = await read(known);
      if (source === undefined) throw new Error("It is not UTF-8 text.");
      return table(rows(source, TABLES.get(mime)), path);
    });
  }
  if (IMAGES.has(mime)) {
    return loading(label, async () => part(path, picture(mime, (await read(known)).blob, path)));
  }
  if (mime?.startsWith("text/") && mime !== "text/html") {
    return loading(label, async () => text(path, (await read(known)).text));
  }
  if (host.downloadFile) {
    const link = { type: "resource_link", uri: known, name: path, mimeType: mime };
    return loading(`Save ${label}`, async () => {
      await ask("ui/download-file", { contents: [link] });
      return element("p", { className: "dim", textContent: `${path}: given to the client.` });
    });
  }
  return element("p", { className: "dim", textContent: label });
}

function run({ language, code, outcome, stdout, stderr, result, error_message: why, duration_ms: ms }) {
  const title = code.split("\n").find((line) => line.trim() && !/^\s*(#|\/\/)/.test(line)) ?? language;
  const name = `${language}: ${title.trim().slice(0, 80)} `;
  const took = ms === undefined ? "" : `, ${(ms / 1000).toFixed(1)} s`;
  const good = GOOD.has(outcome);
  return element("details", {},
    element("summary", {}, name,
      element("span", { className: good ? "dim" : "bad", textContent: `(${outcome ?? "running"}${took})` })),
    text("", code), text("", result), text("", stdout), text("", stderr, good ? "" : "bad"),
    why ? element("p", { className: "bad", textContent: why }) : null);
}

async function runs(session) {
  const { text: source } = await read(`sandbox:///${session}`);
  const { runs: all } = JSON.parse(source);
  if (all.length === 0) return part("Runs", element("p", { className: "dim", textContent: "There are none." }));
  return part("Runs", ...all.slice(0, MAX_RUNS).map(run));
}

function show({ content = [], structuredContent: data, isError }) {
  const header = element("header");
  const main = document.querySelector("main");
  document.querySelector("header").replaceWith(header);
  main.replaceChildren();
  const told = content.filter((block) => block.type === "text").map((block) => block.text).join("\n");
  if (!data || isError) {
    state(isError ? "error" : "result", isError ? "bad" : "");
    main.append(text("", told) ?? "");
    return;
  }
  const { session_id: session, notes = [], artifacts: files = [] } = data;
  const outcome = data.outcome ?? data.status;
  const ms = data.duration_ms ?? data.execution_time_ms;
  const good = GOOD.has(outcome);
  if (outcome) state(outcome, good ? "" : "bad");
  for (const known of [ms === undefined ? "" : `${(ms / 1000).toFixed(1)} s`, session ?? ""]) {
    if (known) header.append(element("span", { textContent: known }));
  }
  const images = content.filter((block) => block.type === "image" && IMAGES.has(block.mimeType));
  const drawn = files.filter((each) => IMAGES.has(each.mime_type));
  for (const [at, block] of images.entries()) {
    main.append(picture(block.mimeType, block.data, inData(drawn[at]?.path ?? "chart")));
  }
  const rest = files.filter((each) => !drawn.slice(0, images.length).includes(each));
  main.append(...[
    text("", data.result), text("", data.stdout),
    text("", data.stderr, good ? "" : "bad"),
    notes.length > 0 ? element("ul", { className: "dim" }, ...notes.map((note) => element("li", { textContent: note }))) : null,
    rest.length > 0 ? part(rest.length === files.length ? "Files" : "Other files", ...rest.map((each) => file(session, each))) : null,
    session && host.serverResources ? loading("Runs of this session", () => runs(session)) : null,
  ].filter(Boolean));
}

async function start() {
  const appInfo = { name: "llm-sandbox", version: "1" };
  const hello = await ask("ui/initialize", { appInfo, appCapabilities: {}, protocolVersion: PROTOCOL });
  host = hello.hostCapabilities ?? {};
  dress(hello.hostContext ?? {});
  send({ method: "ui/notifications/initialized", params: {} });
  const resized = () => {
    const { width, height } = document.documentElement.getBoundingClientRect();
    send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
  };
  new ResizeObserver(resized).observe(document.documentElement);
}

start().catch((error) => state(error.message, "bad"));
