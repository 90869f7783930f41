// One session: its head, its parts, and the cards of its files.

let files = [];

const fileList = longList("files", (file) => file.path, (shown) => sync($("files"), shown, (file) => file.path, fileCard));

/** The parts of a session. On a small screen they are tabs, of which one is shown. */
const PARTS = { files: "Files", runs: "Runs", variables: "Variables" };

function showPart(part) {
  $("main").dataset.part = part;
  for (const tab of document.querySelectorAll("#tabs button")) tab.ariaPressed = String(tab.dataset.part === part);
}

function sessionFrame(session) {
  const tab = ([part, title]) => button(title, { className: "quiet", data: { part } }, () => showPart(part));
  const part = (name, ...children) => el("section", { data: { part: name } }, ...children);
  $("main").replaceChildren(
    el("p", { className: "row" }, el("a", { href: root }, "← All sessions"), el("span", { className: "grow" }), endButton(session.session_id, "End session", "danger")),
    el("div", { className: "row", id: "head" }),
    el("p", { className: "muted extra", id: "facts" }),
    el("nav", { id: "tabs", ariaLabel: "Parts of the session" }, ...Object.entries(PARTS).map(tab)),
    part(
      "files",
      el("div", { className: "row titled" }, el("h2", { id: "files-title" }), el("span", { className: "grow" }), fileList.search, uploadButton, picker),
      uploads,
      el("ul", { className: "cards", id: "files", "aria-labelledby": "files-title" }),
      fileList.more,
    ),
    part("variables", el("h2", { className: "unseen" }, "Variables"), el("div", { id: "variables" }), el("p", { className: "muted", id: "no-variables" }, "No variables. Programs leave none; cells of a workspace do.")),
    part(
      "runs",
      el("div", { className: "row titled" }, el("h2", { id: "runs-title" }), el("span", { className: "grow" }), runsButton("order", turnOrder), runsButton("all-code", foldCode)),
      el("ol", { id: "runs", "aria-labelledby": "runs-title", reversed: true }),
      el("p", { className: "muted", id: "older" }),
    ),
  );
  showPart("files");
}

function showSession(session, first) {
  document.title = `${session.session_id} · llm-sandbox`;
  if (!$("files")) sessionFrame(session);
  const [heard, seen] = [files.length, files.find((file) => file.path === viewed)];
  files = session.artifacts.toSorted((a, b) => b.modified_at.localeCompare(a.modified_at));
  const save = (href, text) => (href ? el("a", { className: "button", href: local(href), download: "" }, text) : "");
  $("head").replaceChildren(
    el("h1", {}, session.session_id),
    badge(session.state),
    el("span", { className: "muted" }, session.state === "archived" ? "archived " : "started ", time(session.since)),
    el("span", { className: "grow" }),
    files.length ? save(session.download_all_url, "Download all (ZIP)") : "",
    ...(session.runs.length ? [save(session.notebook_url, "Notebook"), save(session.script_url, "Script")] : []),
  );
  $("facts").replaceChildren(...sessionFacts(session));
  sync($("variables"), session.interpreters, (one) => one.language, interpreterPanel);
  $("no-variables").hidden = session.interpreters.length > 0;
  const more = session.artifacts_omitted ? " (some are not shown)" : "";
  $("files-title").textContent = files.length ? `${count(files.length, "file")}${more}` : "No files yet";
  allowUploads(session);
  fileList.set(files);
  const runs = session.runs.length + session.runs_omitted;
  const none = session.state === "archived" ? "No runs in the archive" : "No runs yet";
  $("runs-title").textContent = runs ? count(runs, "run") : none;
  showRuns(session);
  $("older").textContent = session.runs_omitted ? `${count(session.runs_omitted, "older run")} not shown. The notebook has those that are kept.` : "";
  $("older").hidden = !session.runs_omitted;
  if (first) viewLinked();
  else tellNews(session, files.length - heard);
  const now = files.find((file) => file.path === viewed);
  if (viewed && now?.modified_at !== seen?.modified_at && !first) view(viewed);
  else if (viewed && now) $("viewer-save").href = local(now.download_url);
}

let told = "";

function tellNews(session, more) {
  const [run] = session.runs;
  const what = !run ? "" : run.outcome ? `Run ended: ${run.outcome}, ${duration(run.duration_ms)}.` : "A program is running.";
  const news = more > 0 ? `${what} ${count(more, "new file")}.` : what;
  // The output of a running program is no news.
  if (news !== told) say(news);
  told = news;
}

function fileCard(file) {
  const thumb = el("div", { className: "thumb", ariaHidden: "true", inert: true });
  const open = button(legible(file.filename), { className: "name", ariaHasPopup: "dialog" }, () => view(file.path));
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
