"use strict";

// The page: sessions at the root, one session's files and runs at files/{session}/. It requests JSON,
// waits for changes, and updates only new parts, so that readers keep their place.

const one = /^(.*\/)files\/([^/]+)\/?$/.exec(location.pathname);
const root = one ? one[1] : location.pathname.replace(/[^/]*$/, "");
const WAIT_S = 25;
/** Time after the requested wait until a silent server counts as unreachable. */
const LATE_MS = 10_000;
/** Pauses between two requests; the longer one applies if there is always something new. */
const PAUSE_MS = 300;
const BUSY_PAUSE_MS = 2_000;
/** Pause between two requests for a list that does not say whether it has changed. */
const LIST_PAUSE_MS = 5_000;
const THUMB_BYTES = 8 << 10;
const TEXT_BYTES = 256 << 10;
const PDF_BYTES = 50 << 20;
const PDF_THUMB_BYTES = 5 << 20;
const TABLE_ROWS = 200;
const TABLE_COLUMNS = 100;
/** If there are more variables, their list is folded. */
const OPEN_VARIABLES = 20;

const $ = (id) => document.getElementById(id);

/** An element, with properties, and children as nodes or text. Text never becomes markup. */
function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(element.dataset, value);
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// --- asking --------------------------------------------------------------------------------------

const token = {
  get: () => sessionStorage.getItem("token"),
  set: (value) => sessionStorage.setItem("token", value),
  forget: () => sessionStorage.removeItem("token"),
};

/** The answer that is shown: its tag, its time, until when its URLs are fresh, and what aborts the wait. */
const shown = { tag: null, at: 0, freshUntil: Infinity, wait: new AbortController() };

/** The signature in this page's URL, if there is one. It is used instead of a token. */
let signature = one && new URLSearchParams(location.search).has("signature") ? location.search : "";

function ask(path) {
  const wait = Math.ceil(Math.min(WAIT_S, Math.max(1, (shown.freshUntil - Date.now()) / 1000)));
  const headers = shown.tag ? { "If-None-Match": shown.tag, Prefer: `wait=${wait}` } : {};
  if (!signature && token.get()) headers.Authorization = `Bearer ${token.get()}`;
  shown.wait = new AbortController();
  const late = AbortSignal.timeout(WAIT_S * 1000 + LATE_MS);
  const signal = AbortSignal.any([shown.wait.signal, late]);
  return fetch(root + path + signature, { headers, cache: "no-store", signal });
}

// A browser has six connections to a server, for all its tabs, so a hidden tab gives up its own.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) shown.wait.abort();
});

const visible = () =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });

/** A file's URL on the server that this page is from, whatever host name that has. */
const local = (url, session = one[2]) => root + url.slice(url.indexOf(`/files/${session}/`) + 1);

/** Requests a path and shows the answer, again and again when it changes. */
async function follow(path, show) {
  for (let failures = 0; ; ) {
    await visible();
    const asked = Date.now();
    if (asked > shown.freshUntil) shown.tag = null;
    try {
      const response = await ask(path);
      if (response.status === 429) {
        await pause(1000 * (Number(response.headers.get("Retry-After")) || 1));
        continue;
      }
      if (response.status === 401) return stranger(response, path, show);
      if ([403, 404].includes(response.status) && signature && token.get()) {
        signature = "";
        continue;
      }
      if (response.status === 403 || response.status === 404) return refused(response);
      if (!response.ok && response.status !== 304) throw new Error(response.statusText);
      failures = 0;
      live("on", "live");
      if (response.status === 200) {
        const first = shown.at === 0;
        const answer = await response.json();
        shown.tag = response.headers.get("ETag");
        shown.at = Date.now();
        shown.freshUntil = shown.at + 500 * (answer.urls_expire_in_s ?? Infinity);
        show(answer, first);
      }
      const isBusy = response.status === 200 && Date.now() - asked < BUSY_PAUSE_MS;
      await pause(shown.tag === null ? LIST_PAUSE_MS : isBusy ? BUSY_PAUSE_MS : PAUSE_MS);
    } catch (error) {
      // Aborted by this page, because it was hidden.
      if (error.name === "AbortError") continue;
      failures += 1;
      shown.tag = null;
      live("off", "not connected");
      await pause(Math.min(1000 * 2 ** failures, 15_000));
    }
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function live(is, text) {
  if ($("live-text").textContent === text) return;
  // Before the first answer, only failures are announced.
  if (is === "off" || shown.at) say(text);
  $("live").dataset.is = is;
  $("live-text").textContent = text;
}

/** Handles a 401. If the server has no tokens, there is nothing to sign in with. */
async function stranger(response, path, show) {
  const { needs } = await response.json().catch(() => ({}));
  if (needs !== "url") return askForToken(path, show);
  tell("Ask for the page of a session", "This server works for one program, which gets a page_url for each session from list_artifacts and can pass it on to you. Nothing is shown without one.");
  live("off", "not signed in");
}

function askForToken(path, show) {
  const wrong = token.get() !== null;
  token.forget();
  // The next token may belong to a caller with other sessions.
  shown.tag = null;
  for (const id of ["viewer", "end"]) $(id).close();
  $("leave").hidden = true;
  live("off", "not signed in");
  // Password managers save nothing without a user name.
  const name = el("input", { type: "text", autocomplete: "username", value: "llm-sandbox", hidden: true });
  const input = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const form = el(
    "form",
    { className: "note" },
    el("h1", {}, "Sign in"),
    el("p", {}, "This server asks for a token: the one that you were given, or an access token. On its machine ", el("code", {}, "llm-sandbox token"), " prints those that clients need."),
    el("p", { className: "muted" }, "With Docker Compose: ", el("code", {}, "docker compose exec sandbox llm-sandbox token")),
    wrong ? el("p", { role: "alert" }, "This server does not know that token.") : null,
    el("p", { className: "row" }, el("label", { htmlFor: "token" }, "Token"), name, input, el("button", {}, "Open")),
    el("p", { className: "muted" }, "It is kept in this tab and forgotten when the tab is closed."),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    $("leave").hidden = false;
    $("main").replaceChildren();
    follow(path, show);
  });
  $("main").replaceChildren(form);
  input.focus();
}

async function refused(response) {
  const { error, message } = await response.json().catch(() => ({}));
  const texts = {
    forbidden: ["This token may not open this page", message],
    url_expired: ["This link has expired", "Ask for a new one, or open the list of sessions."],
    not_found: ["There is no such session", "It was closed, or was unused for too long. Its files are gone."],
  };
  const fallback = ["This link does not open a session", "It is incomplete, or the server has restarted since it was made. Ask for a new one."];
  const [title, text] = texts[error] ?? fallback;
  live("off", "ended");
  tell(title, text, el("p", {}, el("a", { href: root }, "All sessions")));
}

/** Shows only this message. */
function tell(title, text, more = null) {
  for (const id of ["viewer", "end"]) $(id).close();
  $("main").replaceChildren(el("div", { className: "note" }, el("h1", {}, title), el("p", {}, text), more));
  $("main").focus();
}

// --- showing -------------------------------------------------------------------------------------

/**
 * Makes the children of an element match a list. Unchanged items keep their element, with its focus, its
 * open details and its position. `make` gets an item and the element that it replaces.
 */
function sync(parent, items, key, make) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const print = JSON.stringify(item, (field, value) => (field.endsWith("_url") ? undefined : value));
    let child = old.get(name);
    old.delete(name);
    if (!child || child.print !== print) {
      const fresh = make(item, child);
      Object.assign(fresh, { print });
      fresh.dataset.key = name;
      if (child) {
        if (at === child) at = fresh;
        const isRead = child.querySelector("summary") === document.activeElement;
        child.replaceWith(fresh);
        if (isRead) fresh.querySelector("summary")?.focus();
      }
      child = fresh;
    }
    child.renew?.(item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const gone of old.values()) gone.remove();
}

const badge = (word) => el("span", { className: "badge", data: { is: word } }, word.replaceAll("_", " "));

function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB"];
  const power = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), 3);
  const number = bytes / 1000 ** power;
  return `${power === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[power]}`;
}

function duration(ms) {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

function ago(date) {
  const seconds = Math.round((date - Date.now()) / 1000);
  if (seconds > -45) return "just now";
  if (seconds > -3600) return relative.format(Math.round(seconds / 60), "minute");
  if (seconds > -86_400) return relative.format(Math.round(seconds / 3600), "hour");
  return relative.format(Math.round(seconds / 86_400), "day");
}

function time(iso) {
  const date = new Date(iso);
  return el("time", { dateTime: iso, title: date.toLocaleString() }, ago(date));
}

setInterval(() => {
  for (const element of document.querySelectorAll("time")) element.textContent = ago(new Date(element.dateTime));
}, 20_000);

/** Announces a text. While the viewer is open, screen readers read only what is in it. */
const say = (text) => ($("news").textContent = $("viewer-news").textContent = text);
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// --- all sessions --------------------------------------------------------------------------------

function showSessions({ sessions, can_list_all }) {
  document.title = "Sessions · llm-sandbox";
  if (!$("sessions")) {
    const all = can_list_all ? el("a", { href: "?all" }, "All callers and what they use") : null;
    $("main").replaceChildren(
      el("h1", {}, "Sessions"),
      el("p", { className: "row" }, el("span", { className: "muted", id: "how-many" }), all),
      el("ul", { className: "cards", id: "sessions" }),
    );
  }
  $("how-many").textContent = sessions.length
    ? `${count(sessions.length, "session")}, most recently used first.`
    : "No sessions yet. When a client starts one, it appears here with its charts, files and runs.";
  sessions.sort((a, b) => b.changed_at.localeCompare(a.changed_at));
  sync($("sessions"), sessions, (session) => session.session_id + session.since, sessionCard);
}

function sessionCard(session) {
  const pictures = session.pictures.map((file) => picture(file, "", session.session_id));
  const thumb = pictures.length
    ? el("div", { className: "strip" }, ...pictures)
    : el("span", { className: "kind" }, session.runs ? "no charts" : { asleep: "kept", archived: "archived" }[session.state] ?? "new");
  const outcome = session.state === "idle" && session.last_outcome ? session.last_outcome : session.state;
  return el(
    "li",
    { className: "card" },
    el("div", { className: "thumb", ariaHidden: "true" }, thumb),
    el(
      "div",
      { className: "about" },
      el("span", { className: "row" }, el("a", { className: "name", href: `${root}files/${session.session_id}/` }, session.session_id), badge(outcome)),
      el(
        "span",
        { className: "row facts muted" },
        ["asleep", "archived"].includes(session.state) ? null : el("span", {}, count(session.runs, "run")),
        time(session.changed_at),
        el("span", { className: "grow" }),
        endButton(session.session_id, "End", "quiet danger end"),
      ),
    ),
  );
}

// --- the sessions of all callers, for operators --------------------------------------------------

const COLUMNS = ["Session", "Client", "State", "Used", "Memory", "Peak", "CPU", "Disk", "Runs", "End"];

function showAll({ sessions, servers_without_answer = [] }) {
  document.title = "All sessions · llm-sandbox";
  if (!$("all")) {
    const heads = COLUMNS.map((name) => el("th", { scope: "col" }, name));
    $("main").replaceChildren(
      el("h1", {}, "Sessions of all callers"),
      el("p", { className: "row" }, el("span", { className: "muted", id: "how-many" }), el("a", { href: root }, "Your sessions")),
      el("p", { id: "silent", role: "alert", hidden: true }),
      el("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "Sessions" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", { id: "all" }))),
    );
  }
  $("how-many").textContent = `${count(sessions.length, "session")}. Files, code and output are their callers' alone.`;
  $("silent").hidden = servers_without_answer.length === 0;
  $("silent").textContent = `The sessions of these servers are missing, as they do not answer: ${servers_without_answer.join(", ")}`;
  sync($("all"), sessions, keyOf, sessionRow);
}

const keyOf = ({ caller, session_id, created_at, archived_at }) => [caller, session_id, created_at ?? archived_at].join(" ");

function sessionRow(session) {
  const { caller, session_id, client = "", state, memory_bytes, memory_peak_bytes, cpu_seconds, disk_bytes, runs, last_outcome } = session;
  const used = session.used_at ?? session.archived_at ?? session.created_at;
  const bytes = (figure) => (figure === undefined ? "" : size(figure));
  const cell = (...children) => el("td", {}, ...children);
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("span", { className: "muted" }, `${caller} `), session_id),
    cell(legible(client)),
    cell(badge(state)),
    cell(used ? time(used) : ""),
    cell(bytes(memory_bytes)),
    cell(bytes(memory_peak_bytes)),
    cell(cpu_seconds === undefined ? "" : duration(Math.round(1000 * cpu_seconds))),
    cell(bytes(disk_bytes)),
    cell(runs === undefined ? "" : String(runs), last_outcome ? el("span", { className: "muted" }, ` last ${last_outcome.replaceAll("_", " ")}`) : ""),
    cell(endButton(session_id, "End", "quiet danger end", caller)),
  );
}

/** A button that asks whether to end a session: one of this caller's, or of another's if that is named. */
function endButton(id, text, className, caller = "") {
  const button = el("button", { className, ariaLabel: `End session ${id}`, ariaHasPopup: "dialog" }, text);
  button.addEventListener("click", () => {
    $("end-title").textContent = `End ${id}?`;
    Object.assign($("end").dataset, { session: id, caller });
    $("end-failed").hidden = true;
    $("end-now").disabled = false;
    $("end").showModal();
    $("end-not").focus();
  });
  return button;
}

/** Ends a session. The list shows this like any other change. */
async function end({ session: id, caller }) {
  $("end-now").disabled = true;
  const headers = !signature && token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const whose = caller ? `?caller=${encodeURIComponent(caller)}` : signature;
  const response = await fetch(`${root}sessions/${id}${whose}`, { method: "DELETE", headers }).catch(() => null);
  if (response?.ok || response?.status === 404) {
    $("end").close();
    say(`Session ${id} has ended.`);
    $("main").focus();
    return;
  }
  const { message } = (await response?.json().catch(() => null)) ?? {};
  $("end-failed").textContent = message ?? "The server does not answer. Try again.";
  $("end-failed").hidden = false;
  $("end-now").disabled = false;
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

// --- one session ---------------------------------------------------------------------------------

let files = [];

/** How the runs are shown: their answer, whether the oldest is first, and whether all code is unfolded. */
const runsShown = { of: null, oldestFirst: sessionStorage.getItem("oldest-first") === "yes", allCode: false };

function showRuns(session) {
  runsShown.of = session;
  const runs = session.runs.map(withPictures);
  $("runs").reversed = !runsShown.oldestFirst;
  sync($("runs"), runsShown.oldestFirst ? runs.reverse() : runs, (run) => run.run_id, runCard);
  $("order").textContent = runsShown.oldestFirst ? "Newest first" : "Oldest first";
  $("all-code").textContent = runsShown.allCode ? "Hide code" : "Show all code";
  for (const id of ["order", "all-code"]) $(id).hidden = runs.length === 0;
}

/** A button that changes how the runs are shown. */
function runsButton(id, change) {
  const button = el("button", { className: "quiet", id });
  button.addEventListener("click", () => {
    change();
    showRuns(runsShown.of);
  });
  return button;
}

function turnOrder() {
  runsShown.oldestFirst = !runsShown.oldestFirst;
  sessionStorage.setItem("oldest-first", runsShown.oldestFirst ? "yes" : "no");
}

function foldCode() {
  runsShown.allCode = !runsShown.allCode;
  for (const code of document.querySelectorAll("#runs .code")) code.open = runsShown.allCode;
}

function showSession(session, first) {
  document.title = `${session.session_id} · llm-sandbox`;
  if (!$("files")) {
    $("main").replaceChildren(
      el("p", { className: "row" }, el("a", { href: root }, "← All sessions"), el("span", { className: "grow" }), endButton(session.session_id, "End session", "danger")),
      el("div", { className: "row", id: "head" }),
      el("h2", { id: "files-title" }),
      el("ul", { className: "cards", id: "files", "aria-labelledby": "files-title" }),
      el("div", { id: "variables" }),
      el("div", { className: "row titled" }, el("h2", { id: "runs-title" }), el("span", { className: "grow" }), runsButton("order", turnOrder), runsButton("all-code", foldCode)),
      el("ol", { id: "runs", "aria-labelledby": "runs-title", reversed: true }),
      el("p", { className: "muted", id: "older" }),
    );
  }
  const [heard, seen] = [files.length, files.find((file) => file.path === viewed)];
  files = session.artifacts.toSorted((a, b) => b.modified_at.localeCompare(a.modified_at));
  $("head").replaceChildren(
    el("h1", {}, session.session_id),
    badge(session.state),
    el("span", { className: "muted" }, session.state === "archived" ? "archived " : "started ", time(session.since)),
    el("span", { className: "grow" }),
    files.length
      ? el("a", { className: "button", href: local(session.download_all_url), download: "" }, "Download all (ZIP)")
      : "",
    ...(session.runs.length
      ? [
          el("a", { className: "button", href: local(session.notebook_url), download: "" }, "Notebook"),
          el("a", { className: "button", href: local(session.script_url), download: "" }, "Script"),
        ]
      : []),
  );
  sync($("variables"), session.interpreters, (one) => one.language, interpreterPanel);
  const more = session.artifacts_omitted ? " (some are not shown)" : "";
  $("files-title").textContent = files.length ? `${count(files.length, "file")}${more}` : "No files yet";
  sync($("files"), files, (file) => file.path, fileCard);
  const runs = session.runs.length + session.runs_omitted;
  const none = session.state === "archived" ? "Files and variables are archived, runs are not" : "No runs yet";
  $("runs-title").textContent = runs ? count(runs, "run") : none;
  showRuns(session);
  $("older").textContent = session.runs_omitted ? `${count(session.runs_omitted, "older run")} not kept.` : "";
  $("older").hidden = !session.runs_omitted;
  if (!first) tellNews(session, files.length - heard);
  const now = files.find((file) => file.path === viewed);
  if (viewed && now?.modified_at !== seen?.modified_at) view(viewed);
  else if (viewed && now) $("viewer-save").href = local(now.download_url);
}

function tellNews(session, more) {
  const [run] = session.runs;
  const what = !run ? "" : run.outcome ? `Run ended: ${run.outcome}, ${duration(run.duration_ms)}.` : "A program is running.";
  say(more > 0 ? `${what} ${count(more, "new file")}.` : what);
}

/** Makes marks visible that change the direction of reading, as they can disguise a name. */
const legible = (name) =>
  name.replace(/[\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069]/g, (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase()}⟩`);

const extension = (file) => (/\.([A-Za-z0-9]{1,7})$/.exec(file.filename)?.[1] ?? "file").toUpperCase();

function kind({ mime_type: mime, filename }) {
  if (/^image\/(png|jpeg|gif|webp|avif|bmp)$/.test(mime)) return "picture";
  if (mime === "image/svg+xml") return "drawing";
  if (mime === "application/pdf") return "pdf";
  if (/\.(csv|tsv)$/i.test(filename)) return "table";
  if (/^text\/(?!html)/.test(mime) || /\.(json|jsonl|ya?ml|toml|log|sql|ini)$/i.test(filename)) return "text";
  return "other";
}

function fileCard(file) {
  const thumb = el("div", { className: "thumb", ariaHidden: "true", inert: true });
  const open = el("button", { className: "name", ariaHasPopup: "dialog" }, legible(file.filename));
  open.addEventListener("click", () => view(file.path));
  const save = el("a", { className: "save", download: "", ariaLabel: `Download ${legible(file.filename)}` }, "Download");
  const card = el(
    "li",
    { className: "card" },
    thumb,
    el(
      "div",
      { className: "about" },
      open,
      el(
        "span",
        { className: "row facts muted" },
        el("span", {}, size(file.size_bytes)),
        time(file.modified_at),
        el("span", { className: "grow" }),
        save,
      ),
    ),
  );
  thumb.append(el("span", { className: "kind" }, extension(file)));
  soon.observe(thumb);
  // Each answer has newer URLs.
  card.renew = (newer) => {
    thumb.file = newer;
    save.href = local(newer.download_url);
  };
  return card;
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
    case "text": return el("pre", {}, (await head(file, THUMB_BYTES)).slice(0, 1500));
    case "pdf": return file.size_bytes <= PDF_THUMB_BYTES ? pdf(file, "#toolbar=0&navpanes=0&scrollbar=0&view=FitH") : null;
    default: return null;
  }
}

/** The start of a text, in whole lines if it has any. */
async function head(file, bytes) {
  const response = await fetch(local(file.download_url), { headers: { Range: `bytes=0-${bytes - 1}` } });
  if (!response.ok) throw new Error(response.statusText);
  const charset = /charset=([\w-]+)/.exec(response.headers.get("Content-Type") ?? "")?.[1];
  const text = new TextDecoder(charset).decode(await response.arrayBuffer());
  if (response.status !== 206 || file.size_bytes <= bytes) return text;
  return text.slice(0, text.lastIndexOf("\n") + 1 || text.length - 1);
}

/** A PDF in the browser's own viewer. The page sets the type, so that the bytes are never taken for another. */
async function pdf(file, options = "") {
  if (!navigator.pdfViewerEnabled || file.size_bytes > PDF_BYTES) return null;
  const response = await fetch(local(file.download_url));
  if (!response.ok) throw new Error(response.statusText);
  const blob = new Blob([await response.arrayBuffer()], { type: "application/pdf" });
  const address = URL.createObjectURL(blob);
  const frame = el("iframe", { title: legible(file.filename), src: address + options });
  frame.addEventListener("load", () => URL.revokeObjectURL(address));
  return frame;
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

function table(all, columns) {
  const [titles = [], ...rest] = all.map((row) => row.slice(0, columns));
  const cell = (text) => el("td", { className: /^-?[\d.,]+%?$/.test(text) ? "number" : "", title: text.length > 30 ? text : "" }, text);
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...titles.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rest.map((row) => el("tr", {}, ...row.map(cell)))),
  );
}

const LANGUAGES = { python: "Python", javascript: "JavaScript", bash: "Shell" };

/** The variables of a workspace's interpreter. */
function interpreterPanel(one, before) {
  const rows = one.variables.map(({ name, summary }) => [legible(name), legible(summary)]);
  const name = LANGUAGES[one.language] ?? one.language;
  const more = one.variables_omitted ? el("p", { className: "muted" }, `and ${one.variables_omitted} more`) : null;
  return el(
    "details",
    { className: "run", open: before?.open ?? rows.length <= OPEN_VARIABLES },
    el("summary", {}, `${name}: ${count(rows.length + one.variables_omitted, "variable")} after ${count(one.execution_count, "cell")}`),
    rows.length ? table([["name", "type"], ...rows], 2) : null,
    more,
  );
}

const STATES = { rolled_back: "variables as before it", lost: "variables lost" };

/** The title of a run: the comment or docstring at its start, or else its first line other than an import. */
function titleOf(code) {
  const text = code.replace(/^\s*[rR]?("""|''')\s*/, "# ");
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  for (const line of lines) {
    if (!/^(#|\/\/)/.test(line)) break;
    const [, words] = /^(?:#+(?!!)|\/\/+)\s*(?:%+\s*)?(\S.*)$/.exec(line) ?? [];
    if (/\p{L}/u.test(words ?? "") && !/coding[:=]/.test(words)) return words.replace(/\s*("""|''')$/, "");
  }
  return lines.find((line) => !/^(#|\/\/|import |from )/.test(line)) ?? lines[0] ?? "(empty)";
}

/** A run with those of its pictures that still exist unchanged. */
function withPictures(run) {
  const isAsMade = (file) => files.some((now) => now.path === file.path && now.modified_at === file.modified_at);
  const made = (run.artifacts ?? []).filter((file) => kind(file) === "picture" && isAsMade(file));
  return { ...run, pictures: made.map((file) => file.path) };
}

function runCard(run, before) {
  const running = run.outcome === undefined;
  const code = el(
    "details",
    { className: "code", open: before?.querySelector(".code")?.open ?? runsShown.allCode },
    el("summary", { className: "mono" }, titleOf(run.code)),
    el("pre", {}, run.code, run.code_truncated ? "\n… (the rest is not kept)" : ""),
  );
  const facts = running
    ? [badge("running")]
    : [badge(run.outcome), el("span", {}, duration(run.duration_ms)), run.exit_code ? el("span", { className: "muted" }, `exit code ${run.exit_code}`) : ""];
  if (run.state && run.state !== "kept") facts.push(el("span", { className: "muted" }, STATES[run.state] ?? run.state));
  const name = LANGUAGES[run.language] ?? run.language;
  // The next cell gets the number of a cell that no longer counts.
  const uncounted = run.is_undone ? ", undone" : run.state === "rolled_back" ? ", rolled back" : "";
  const what = run.is_cell ? `${name} cell ${run.execution_count ?? ""}`.trim() + uncounted : `${name} program`;
  const isShown = (file) => run.pictures.includes(file.path);
  const all = run.artifacts ?? [];
  const shots = all.filter(isShown).map((file) => {
    const shot = el("button", { className: "shot", ariaHasPopup: "dialog", ariaLabel: legible(file.filename) }, picture(file, ""));
    shot.addEventListener("click", () => view(file.path));
    return el("li", {}, shot);
  });
  const chips = all.filter((file) => !isShown(file)).map((file) => {
    const chip = el("button", { ariaHasPopup: "dialog" }, legible(file.filename));
    chip.addEventListener("click", () => view(file.path));
    return el("li", {}, chip);
  });
  if (run.artifacts_omitted) chips.push(el("li", { className: "muted" }, `and ${run.artifacts_omitted} more`));
  return el(
    "li",
    { className: "run" },
    el("div", { className: "row" }, el("span", { className: "what" }, what), ...facts, time(run.begun_at), el("span", { className: "grow" }), el("span", { className: "mono muted" }, run.run_id)),
    code,
    ...output("Output", "stdout", run.stdout, run.stdout_truncated && "after"),
    ...output("Errors", "stderr", run.stderr, run.stderr_truncated && "before"),
    ...output("Result", "result", run.result, run.result_truncated && "after"),
    run.error_message ? el("p", { className: "message" }, run.error_message) : null,
    run.notes ? el("ul", { className: "notes", ariaLabel: "Notes on this run" }, ...run.notes.map((note) => el("li", {}, note))) : null,
    shots.length ? el("ul", { className: "shots", ariaLabel: "Pictures of this run" }, ...shots) : null,
    chips.length ? el("ul", { className: "chips", ariaLabel: "Files of this run" }, ...chips) : null,
  );
}

function output(title, name, text, cut) {
  if (!text) return [];
  const dots = cut ? "… (there was more)" : "";
  const part = cut === "before" ? `${dots}\n${text}` : cut ? `${text}\n${dots}` : text;
  return [el("h3", {}, title), el("pre", { className: name, tabIndex: 0 }, part)];
}

// --- one file ------------------------------------------------------------------------------------

let viewed = null;

async function view(path) {
  const file = files.find((each) => each.path === path);
  viewed = path;
  $("viewer-name").textContent = legible(file?.filename ?? path);
  $("viewer-size").textContent = file ? size(file.size_bytes) : "";
  $("viewer-save").hidden = !file;
  if (file) $("viewer-save").href = local(file.download_url);
  for (const [id, step] of [["viewer-before", -1], ["viewer-next", 1]]) $(id).disabled = !neighbour(step);
  $("viewer-body").replaceChildren(el("p", { className: "muted" }, "Loading"));
  if (!$("viewer").open) {
    $("viewer").showModal();
    $("viewer-close").focus();
  }
  const content = await (file ? whole(file) : null)?.catch(() => null);
  // Another file may have been opened meanwhile.
  if (viewed === path) {
    const nothing = file ? "There is no preview for this file. Download it to open it." : "The file no longer exists.";
    $("viewer-body").replaceChildren(content ?? el("p", {}, nothing));
  }
}

async function whole(file) {
  switch (kind(file)) {
    case "picture": return picture(file, legible(file.filename));
    case "drawing": return drawing(file);
    case "table": {
      const all = rows(await head(file, TEXT_BYTES), file, TABLE_ROWS);
      const isWide = all.some((row) => row.length > TABLE_COLUMNS);
      return el("div", {}, isWide ? el("p", {}, `The first ${TABLE_COLUMNS} columns.`) : null, table(all, TABLE_COLUMNS));
    }
    case "text": return el("pre", {}, await head(file, TEXT_BYTES));
    case "pdf": return pdf(file);
    default: return null;
  }
}

/** A small SVG can keep a browser busy forever, so it is drawn only on request. */
function drawing(file) {
  const show = el("button", {}, "Show it");
  show.addEventListener("click", () => $("viewer-body").replaceChildren(picture(file, legible(file.filename))));
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
$("viewer-close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("keydown", (event) => {
  // In the file's content, arrow keys scroll.
  if (event.target === $("viewer-body")) return;
  if (event.key === "ArrowLeft") turn(-1);
  if (event.key === "ArrowRight") turn(1);
});
$("viewer").addEventListener("close", () => {
  viewed = null;
  $("viewer-body").replaceChildren();
});

$("end-not").addEventListener("click", () => $("end").close());
$("end-now").addEventListener("click", () => end($("end").dataset));

// --- start ---------------------------------------------------------------------------------------

$("home").href = root;
$("leave").hidden = token.get() === null;
$("leave").addEventListener("click", () => {
  token.forget();
  location.reload();
});
if (one) follow(`sessions/${one[2]}`, showSession);
else if (new URLSearchParams(location.search).has("all")) follow("sessions?all", showAll);
else follow("sessions", showSessions);
