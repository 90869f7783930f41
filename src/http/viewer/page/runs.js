// Runs and variables of a session.

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
  return button("", { className: "quiet", id }, () => {
    change();
    showRuns(runsShown.of);
  });
}

/** A button that stops a run. */
function stopButton(run) {
  return button("Stop", { className: "danger stop", ariaLabel: `Stop ${titleOf(run.code)}` }, async ({ target }) => {
    target.disabled = true;
    const url = `${root}sessions/${one[2]}/runs/${run.run_id}${signature}`;
    const response = await fetch(url, { method: "DELETE", headers: authorization() }).catch(() => null);
    if (response?.ok) return say("The run is being stopped.");
    const { message } = (await response?.json().catch(() => null)) ?? {};
    const why = response?.status === 404 ? "The run has already ended." : message ?? "The server does not answer. Try again.";
    say(why);
    target.after(el("span", { className: "muted" }, why));
    target.disabled = response?.status === 404;
  });
}

const DECISIONS = { once: "Allow once", run: "Allow for this run", session: "Allow for this session", deny: "Refuse" };

/** A call that waits for a person: what is called, with what, and the buttons that decide. */
function approvalCard(approval) {
  const { upstream, tool, description, until } = approval;
  const told = el("p", { role: "status" });
  const buttons = Object.entries(DECISIONS).map(([decision, label]) =>
    button(label, { className: decision === "deny" ? "danger" : "" }, async () => {
      buttons.forEach((it) => (it.disabled = true));
      const url = `${root}sessions/${one[2]}/approvals/${approval.approval_id}${token.get() ? "" : signature}`;
      const headers = { "Content-Type": "application/json", ...(token.get() ? { Authorization: `Bearer ${token.get()}` } : {}) };
      const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ decision }) }).catch(() => null);
      if (response?.ok) return say(decision === "deny" ? "The call is refused." : "The call is allowed.");
      const { message } = (await response?.json().catch(() => null)) ?? {};
      const needsToken = response?.status === 401 || response?.status === 403;
      told.textContent = needsToken ? "Only somebody with a token decides: open the list of sessions, sign in, and open this session there." : message ?? "The server does not answer. Try again.";
      buttons.forEach((it) => (it.disabled = response?.status === 404));
    }),
  );
  return el(
    "section",
    { className: "approval", ariaLabel: `Decide on ${upstream}.${tool}` },
    el("h3", {}, `Waits for you: ${legible(upstream)}.${legible(tool)}`),
    description ? el("p", {}, legible(description)) : null,
    el("pre", { tabIndex: 0 }, approval.arguments),
    el("p", { className: "muted" }, "The code of this run makes the call. The run stands still until you decide, ", time(until), " at the latest."),
    el("p", { className: "row" }, ...buttons),
    told,
  );
}

/** The calls of tools that a run has made. */
function callsOf(run) {
  if (!run.calls) return null;
  const line = ({ upstream, tool, outcome, duration_ms, decision }) => `${upstream}.${tool}: ${outcome}, ${duration(duration_ms)}${decision ? `, a person: ${decision}` : ""}`;
  const more = run.calls_omitted ? [`and ${run.calls_omitted} more`] : [];
  return el("details", { className: "calls" }, el("summary", {}, count(run.calls.length + run.calls_omitted, "call")), el("ul", {}, ...[...run.calls.map(line), ...more].map((text) => el("li", {}, legible(text)))));
}

function turnOrder() {
  runsShown.oldestFirst = !runsShown.oldestFirst;
  sessionStorage.setItem("oldest-first", runsShown.oldestFirst ? "yes" : "no");
}

function foldCode() {
  runsShown.allCode = !runsShown.allCode;
  for (const code of document.querySelectorAll("#runs .code")) code.open = runsShown.allCode;
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
    ? [badge("running"), stopButton(run)]
    : [badge(run.outcome), el("span", {}, duration(run.duration_ms)), run.exit_code ? el("span", { className: "muted" }, `exit code ${run.exit_code}`) : ""];
  if (run.state && run.state !== "kept") facts.push(el("span", { className: "muted" }, STATES[run.state] ?? run.state));
  const name = LANGUAGES[run.language] ?? run.language;
  // The next cell gets the number of a cell that no longer counts.
  const uncounted = run.is_undone ? ", undone" : run.state === "rolled_back" ? ", rolled back" : "";
  const what = run.is_cell ? `${name} cell ${run.execution_count ?? ""}`.trim() + uncounted : `${name} program`;
  const isShown = (file) => run.pictures.includes(file.path);
  const all = run.artifacts ?? [];
  const shots = all.filter(isShown).map((file) => {
    const shot = { className: "shot", ariaHasPopup: "dialog", ariaLabel: legible(file.filename) };
    return el("li", {}, button(picture(file, ""), shot, () => view(file.path)));
  });
  const chip = (file) => el("li", {}, button(legible(file.filename), { ariaHasPopup: "dialog" }, () => view(file.path)));
  const chips = all.filter((file) => !isShown(file)).map(chip);
  if (run.artifacts_omitted) chips.push(el("li", { className: "muted" }, `and ${run.artifacts_omitted} more`));
  const card = el(
    "li",
    { className: "run" },
    el("div", { className: "row" }, el("span", { className: "what" }, what), ...facts, time(run.begun_at), el("span", { className: "grow" }), el("span", { className: "mono muted" }, run.run_id)),
    ...(run.approvals ?? []).map(approvalCard),
    code,
    callsOf(run),
    // Of a running program, the newest output is shown.
    ...output(running ? "Output so far" : "Output", "stdout", run.stdout, run.stdout_truncated && (running ? "before" : "after")),
    ...output("Errors", "stderr", run.stderr, run.stderr_truncated && "before"),
    ...output("Result", "result", run.result, run.result_truncated && "after"),
    run.error_message ? el("p", { className: "message" }, run.error_message) : null,
    run.notes ? el("ul", { className: "notes", ariaLabel: "Notes on this run" }, ...run.notes.map((note) => el("li", {}, note))) : null,
    shots.length ? el("ul", { className: "shots", ariaLabel: "Pictures of this run" }, ...shots) : null,
    chips.length ? el("ul", { className: "chips", ariaLabel: "Files of this run" }, ...chips) : null,
  );
  if (running) card.renew = () => card.querySelectorAll(".stdout, .stderr").forEach((text) => (text.scrollTop = text.scrollHeight));
  return card;
}

function output(title, name, text, cut) {
  if (!text) return [];
  const dots = cut ? "… (there was more)" : "";
  const part = cut === "before" ? `${dots}\n${text}` : cut ? `${text}\n${dots}` : text;
  return [el("h3", {}, title), el("pre", { className: name, tabIndex: 0 }, part)];
}

