// Requests to the server: the token, waiting for changes, signing in, refusals.

const token = {
  get: () => sessionStorage.getItem("token"),
  set: (value) => sessionStorage.setItem("token", value),
  forget: () => sessionStorage.removeItem("token"),
};

/** The answer that is shown: its tag, its time, until when its URLs are fresh, and what aborts the wait. */
const shown = { tag: null, at: 0, freshUntil: Infinity, wait: new AbortController() };

/** The signature in this page's URL, if there is one. It is used instead of a token. */
let signature = one && new URLSearchParams(location.search).has("signature") ? location.search : "";

/** The header with the token, if requests need one. */
const authorization = () => (!signature && token.get() ? { Authorization: `Bearer ${token.get()}` } : {});

function ask(path) {
  const wait = Math.ceil(Math.min(WAIT_S, Math.max(1, (shown.freshUntil - Date.now()) / 1000)));
  const headers = { ...authorization(), ...(shown.tag ? { "If-None-Match": shown.tag, Prefer: `wait=${wait}` } : {}) };
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

