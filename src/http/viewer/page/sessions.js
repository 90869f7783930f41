// The list of the caller's sessions, the list of all callers' sessions, and the end of a session.

const WITHOUT_SANDBOX = { asleep: "kept", archived: "archived" };

const sessionList = longList(
  "sessions",
  ({ session_id, client = "", state }) => `${session_id} ${client} ${state}`,
  (shown) => sync($("sessions"), shown, (session) => session.session_id + session.since, sessionCard),
);

function showSessions({ sessions, can_list_all }) {
  document.title = "Sessions · llm-sandbox";
  if (!$("sessions")) {
    const all = can_list_all ? el("a", { href: "?all" }, "All callers and what they use") : null;
    $("main").replaceChildren(
      el("h1", {}, "Sessions"),
      el("p", { className: "row" }, el("span", { className: "muted", id: "how-many" }), all, el("span", { className: "grow" }), sessionList.search),
      el("ul", { className: "cards", id: "sessions" }),
      sessionList.more,
    );
  }
  $("how-many").textContent = sessions.length
    ? `${count(sessions.length, "session")}, most recently used first.`
    : "No sessions yet. When a client starts one, it appears here with its charts, files and runs.";
  sessionList.set(sessions.toSorted((a, b) => b.changed_at.localeCompare(a.changed_at)));
}

/** The client of a session, its memory and when it expires, as far as they are known. */
function sessionFacts({ client, memory_bytes, memory_limit_bytes, expires_at }) {
  const memory = memory_bytes === undefined ? null : `${size(memory_bytes)} of ${size(memory_limit_bytes)} memory`;
  const facts = [client && legible(client), memory, expires_at && `expires in ${until(expires_at)}`];
  return facts.filter(Boolean).map((fact) => el("span", { title: fact }, fact));
}

function sessionCard(session) {
  const pictures = session.pictures.map((file) => picture(file, "", session.session_id));
  const none = WITHOUT_SANDBOX[session.state] ?? (session.runs ? "no charts" : "new");
  const thumb = pictures.length ? el("div", { className: "strip" }, ...pictures) : el("span", { className: "kind" }, none);
  const outcome = session.state === "idle" && session.last_outcome ? session.last_outcome : session.state;
  return el(
    "li",
    { className: "card" },
    el("div", { className: "thumb", ariaHidden: "true" }, thumb),
    el(
      "div",
      { className: "about" },
      el("span", { className: "row" }, el("a", { className: "name", href: `${root}files/${session.session_id}/` }, session.session_id), badge(outcome)),
      el("span", { className: "extra muted" }, ...sessionFacts(session)),
      el(
        "span",
        { className: "row facts muted" },
        WITHOUT_SANDBOX[session.state] ? null : el("span", {}, count(session.runs, "run")),
        time(session.changed_at),
        el("span", { className: "grow" }),
        endButton(session.session_id, "End", "quiet danger end"),
      ),
    ),
  );
}

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
  return button(text, { className, ariaLabel: `End session ${id}`, ariaHasPopup: "dialog" }, () => {
    $("end-title").textContent = `End ${id}?`;
    Object.assign($("end").dataset, { session: id, caller });
    $("end-failed").hidden = true;
    $("end-now").disabled = false;
    $("end").showModal();
    $("end-not").focus();
  });
}

/** Ends a session. The list shows this like any other change. */
async function end({ session: id, caller }) {
  $("end-now").disabled = true;
  const whose = caller ? `?caller=${encodeURIComponent(caller)}` : signature;
  const response = await fetch(`${root}sessions/${id}${whose}`, { method: "DELETE", headers: authorization() }).catch(() => null);
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
