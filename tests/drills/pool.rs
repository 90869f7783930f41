//! The pool: sandboxes that wait for sessions without a given name, and never take a place that another session needs.

use std::{
    fs,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use futures::future::join_all;
use serde_json::{Value, json};
use support::{
    Answer, Image, On, Server, containers, docker, name, on_both, text, until, until_sessions,
};

on_both! {
    a_session_that_is_not_named_is_given_a_sandbox_that_waited,
    an_upload_without_a_session_takes_from_the_pool_too,
    a_workspace_and_a_session_for_one_call_take_from_the_pool_too,
    a_named_session_never_comes_from_the_pool,
    a_cancelled_first_call_leaves_no_sandbox_that_is_neither_pooled_nor_known,
}

/// A server and its log.
struct Bench {
    server: Server,
    folder: tempfile::TempDir,
}

/// A container of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Container {
    id: String,
    session: String,
    state: String,
}

impl Bench {
    async fn start(on: On, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = log_of(folder.path());
        let mut all = vec![
            ("SANDBOX_POOL_SIZE", "1"),
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_FORMAT", "json"),
            ("SANDBOX_LOG_LEVEL", "INFO"),
        ];
        all.extend(settings);
        Self { server: Server::start_to(on, &all, Stdio::null()).await, folder }
    }

    /// All lines of the log.
    fn log(&self) -> Vec<Value> {
        let log = fs::read_to_string(log_of(self.folder.path())).unwrap_or_default();
        // The last line may be incomplete.
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Sessions with a log line of this message, in its order.
    fn sessions_of(&self, message: &str) -> Vec<String> {
        let lines = self.log().into_iter().filter(|line| line["message"] == message);
        lines.map(|line| text(&line["session_id"]).to_owned()).collect()
    }

    fn is_warm(&self, session: &str) -> bool {
        self.log().iter().any(|line| {
            line["message"] == "session is warm"
                && line["session_id"] == session
                && line["ready"] == true
        })
    }

    /// The reason why a session has ended, when the log has it.
    async fn until_ended(&self, session: &str) -> String {
        until("the end is logged", async || self.end_of(session).is_some()).await;
        self.end_of(session).expect("just seen")
    }

    /// The reason why a session has ended, if the log has it. The log may be behind an answer.
    fn end_of(&self, session: &str) -> Option<String> {
        let log = self.log();
        let line = log
            .iter()
            .find(|line| line["message"] == "session ended" && line["session_id"] == session)?;
        Some(text(&line["why"]).to_owned())
    }

    /// How a run was started, when the log has it.
    async fn start_of(&self, run: &Value) -> String {
        let find = || self.log().into_iter().find(|line| line["run_id"] == run["run_id"]);
        until("the run is logged", async || find().is_some()).await;
        text(&find().expect("just seen")["start"]).to_owned()
    }

    /// Waits until exactly `N` pooled sandboxes are warm; returns them, the oldest first. Pooled are all that have
    /// started, without the sessions in `known` and those that have ended.
    async fn until_waiting<const N: usize>(&self, known: &[&str]) -> [String; N] {
        let mut waiting = Vec::new();
        until("so many are warm and wait", async || {
            waiting = self.sessions_of("session started");
            waiting.retain(|id| !known.contains(&&**id) && self.end_of(id).is_none());
            waiting.len() == N && waiting.iter().all(|id| self.is_warm(id))
        })
        .await;
        waiting.try_into().expect("just counted")
    }

    async fn call_unnamed(&self, code: &str) -> Answer {
        self.server.call("run_python", json!({ "code": code })).await
    }

    /// Runs code in a session without a given name; returns its name and the run.
    async fn run_unnamed(&self, code: &str) -> (String, Value) {
        let run = self.call_unnamed(code).await.ok();
        (text(&run["session_id"]).to_owned(), run)
    }

    /// Runs a cell in the workspace, or in the session that `arguments` name; returns its name.
    async fn cell(&self, arguments: Value) -> String {
        let result = self.server.call("execute_code", arguments).await.ok();
        text(&result["session_id"]).to_owned()
    }

    async fn close(&self, session: &str) {
        self.server.close(session).await;
        assert_eq!(self.until_ended(session).await, "closed");
    }

    fn pid(&self) -> u32 {
        self.server.process.id().expect("running")
    }

    /// All containers of this server.
    fn containers(&self) -> Vec<Container> {
        containers_of(self.pid())
    }

    /// Ends the server as a client does; checks that no container of it is left.
    async fn end(mut self) {
        let pid = self.pid();
        self.server.close_input();
        assert_eq!(self.server.exit_code().await, Some(0));
        assert_eq!(containers_of(pid), []);
    }
}

fn log_of(folder: &Path) -> std::path::PathBuf {
    folder.join("server.log")
}

/// Containers, in any state, of the server with this process id.
fn containers_of(pid: u32) -> Vec<Container> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
    let owner = |label: &str| {
        let parts: Vec<_> = label.split('/').collect();
        parts.get(1) == Some(&boot.trim()) && parts.get(3) == Some(&&*pid.to_string())
    };
    let format = r#"{{.ID}} {{.Label "session_id"}} {{.State}} {{.Label "llm-sandbox.owner"}}"#;
    let filter = "label=app=llm-sandbox";
    let listed = docker(&["ps", "--all", "--no-trunc", "--filter", filter, "--format", format]);
    let containers = listed.lines().filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
        // A busy engine lists a container a while after it was removed.
        [id, session, state, label] if owner(label) && state != "removing" => Some(Container {
            id: id.to_owned(),
            session: session.to_owned(),
            state: state.to_owned(),
        }),
        _ => None,
    });
    containers.collect()
}

fn id_of(image: &Image) -> String {
    docker(&["image", "inspect", "--format", "{{.Id}}", &image.0])
}

/// Counts a server's containers repeatedly, in a thread of its own.
struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<usize>>,
}

impl Watch {
    fn start(pid: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let count = move || {
            let mut most = 0;
            while !until.load(Ordering::Relaxed) {
                most = most.max(containers_of(pid).len());
            }
            most
        };
        Self { over, thread: Some(thread::spawn(count)) }
    }

    /// The most containers that existed at the same time.
    fn most(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("counted")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The image from which a container was made.
fn image_of(container: &str) -> String {
    docker(&["inspect", "--format", "{{.Image}}", container])
}

async fn a_session_that_is_not_named_is_given_a_sandbox_that_waited(on: On) {
    let bench = Bench::start(on, &[]).await;
    let [first] = bench.until_waiting(&[]).await;
    let before = if on == On::Docker { containers(&first) } else { vec![] };
    assert_eq!(before.len(), usize::from(on == On::Docker), "it is there before anybody asks");

    let (session, run) = bench.run_unnamed("open('a', 'w'); print('first')").await;
    assert_eq!((&*session, &run["stdout"]), (&*first, &json!("first\n")));
    assert_eq!(bench.start_of(&run).await, "warm");

    let [second] = bench.until_waiting(&[&first]).await;
    if on == On::Docker {
        assert_eq!(containers(&first), before, "it is the same container");
        assert_eq!(containers(&second).len(), 1);
    }
    let (session, run) = bench.run_unnamed("import os; print(os.listdir())").await;
    assert_eq!((&*session, &run["stdout"]), (&*second, &json!("[]\n")));
    assert_eq!(bench.start_of(&run).await, "warm");
    assert_eq!(bench.server.files(&first).await, [("a".to_owned(), 0)]);

    // Now it is a session like any other.
    bench.close(&first).await;
    let gone = bench.server.call("list_artifacts", json!({ "session_id": first })).await;
    assert_eq!(gone.error(), "session_not_found");
    bench.until_waiting::<1>(&[&second]).await;
    bench.end().await;
}

async fn an_upload_without_a_session_takes_from_the_pool_too(on: On) {
    let bench = Bench::start(on, &[]).await;
    let [first] = bench.until_waiting(&[]).await;
    let arguments = json!({ "filename": "a.txt", "content_base64": "aGVsbG8=" });
    let uploaded = bench.server.call("upload_file", arguments).await.ok();
    assert_eq!(uploaded["session_id"], *first);
    let run = bench.server.run(&first, "print(open('a.txt').read())").await;
    assert_eq!(run["stdout"], "hello\n");
    assert_eq!(bench.start_of(&run).await, "warm");
    let [second] = bench.until_waiting(&[&first]).await;
    assert_eq!(bench.run_unnamed("1").await.0, second);
    bench.end().await;
}

async fn a_workspace_and_a_session_for_one_call_take_from_the_pool_too(on: On) {
    let bench = Bench::start(on, &[]).await;
    let [first] = bench.until_waiting(&[]).await;
    let workspace = bench.cell(json!({ "code": "1" })).await;
    assert_eq!(workspace, first);
    let [second] = bench.until_waiting(&[&first]).await;
    assert_eq!(bench.cell(json!({ "code": "1" })).await, first, "it has its session");
    let stateless = json!({ "code": "1", "session_id": "__stateless__" });
    assert_eq!(bench.cell(stateless).await, second);
    assert_eq!(bench.until_ended(&second).await, "closed");
    bench.end().await;
}

async fn a_named_session_never_comes_from_the_pool(on: On) {
    let bench = Bench::start(on, &[]).await;
    let [waiting] = bench.until_waiting(&[]).await;
    let before = if on == On::Docker { containers(&waiting) } else { vec![] };
    let (ran, uploaded) = (name("ran"), name("uploaded"));
    assert_eq!(bench.server.run(&ran, "print(1)").await["stdout"], "1\n");
    bench.server.upload(&uploaded, "a", b"1").await.ok();
    until("all are logged", async || bench.sessions_of("session started").len() >= 3).await;
    assert_eq!(bench.sessions_of("session started"), [&*waiting, &ran, &uploaded]);
    assert_eq!(bench.until_waiting(&[&ran, &uploaded]).await, [&*waiting]);
    if on == On::Docker {
        assert_eq!(bench.containers().len(), 3);
        assert_eq!(containers(&waiting), before);
    }
    assert_eq!(bench.run_unnamed("1").await.0, waiting);
    bench.end().await;
}

async fn a_cancelled_first_call_leaves_no_sandbox_that_is_neither_pooled_nor_known(on: On) {
    let port = support::free_port();
    let bench = Bench::start(on, &[("SANDBOX_HTTP_PORT", &*port)]).await;
    let [first] = bench.until_waiting(&[]).await;
    until_sessions(&port, 0).await;
    let (request, _answer) =
        bench.server.begin("run_python", json!({ "code": "while True: pass" }));
    until_sessions(&port, 1).await;
    bench.server.cancel(request);
    until_sessions(&port, 0).await;
    assert_eq!(bench.until_ended(&first).await, "closed");
    let [second] = bench.until_waiting(&[]).await;
    assert_eq!(bench.run_unnamed("1").await.0, second);
    bench.end().await;
}

/// Settings for only one place, which the pool takes.
const ONE: &[(&str, &str)] = &[("SANDBOX_MAX_SESSIONS", "1"), ("SANDBOX_MAX_HIBERNATED", "0")];

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_makes_room_at_the_maximum() {
    let bench = Bench::start(On::Docker, ONE).await;
    let [waiting] = bench.until_waiting(&[]).await;
    let (id, other) = (name("room"), name("no-room"));
    assert_eq!(bench.server.run(&id, "print('at once')").await["stdout"], "at once\n");
    let sessions: Vec<_> = bench.containers().into_iter().map(|found| found.session).collect();
    assert_eq!(sessions, [&*id]);
    assert_eq!(bench.until_ended(&waiting).await, "closed");

    let refused =
        bench.server.call("run_python", json!({ "session_id": other, "code": "1" })).await;
    assert_eq!(refused.error(), "max_sessions");
    assert_eq!(bench.server.upload(&other, "a", b"").await.error(), "max_sessions");
    assert_eq!(bench.call_unnamed("1").await.error(), "max_sessions");
    assert_eq!(bench.server.run(&id, "print('still')").await["stdout"], "still\n");

    bench.close(&id).await;
    let [next] = bench.until_waiting(&[]).await;
    // The pool does not make room for a session without a name: that session takes the pooled sandbox itself.
    let (session, run) = bench.run_unnamed("print('pooled')").await;
    assert_eq!((session, &run["stdout"]), (next, &json!("pooled\n")));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_first_in_the_first_moment_too() {
    for round in 0..6 {
        let bench = Bench::start(On::Docker, ONE).await;
        let run = if round % 2 == 0 {
            bench.server.run(&name("first"), "print('named')").await
        } else {
            bench.run_unnamed("print('unnamed')").await.1
        };
        assert_eq!(run["stdout"], ["named\n", "unnamed\n"][round % 2]);
        assert_eq!(bench.containers().len(), 1);
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_first_whatever_the_pool_is_doing() {
    let bench = Bench::start(On::Docker, ONE).await;
    // The pool begins to fill a second after each close: each round meets another moment.
    for round in 0..15 {
        let id = name("again");
        let run = bench.server.run(&id, &format!("print({round})")).await;
        assert_eq!(run["stdout"], format!("{round}\n"));
        bench.close(&id).await;
    }
    bench.until_waiting::<1>(&[]).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_and_the_sessions_are_never_more_than_the_maximum() {
    let settings = [
        ("SANDBOX_MAX_SESSIONS", "3"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_POOL_SIZE", "5"),
    ];
    let bench = Bench::start(On::Docker, &settings).await;
    let watch = Watch::start(bench.pid());
    let ids: Vec<_> = (0..4).map(|_| name("most")).collect();
    bench.until_waiting::<3>(&[]).await;
    for (n, id) in ids.iter().take(2).enumerate() {
        let run = bench.server.run(id, &format!("print({n})")).await;
        assert_eq!(run["stdout"], format!("{n}\n"));
    }
    let [last] = bench.until_waiting(&[&ids[0], &ids[1]]).await;
    bench.server.upload(&ids[2], "a", b"").await.ok();
    assert_eq!(bench.server.upload(&ids[3], "a", b"").await.error(), "max_sessions");
    assert_eq!(bench.until_ended(&last).await, "closed");
    for id in &ids[..3] {
        assert_eq!(bench.server.run(id, "print('well')").await["stdout"], "well\n");
    }
    bench.close(&ids[1]).await;
    let [next] = bench.until_waiting(&[&ids[0], &ids[2]]).await;
    assert_eq!(bench.run_unnamed("1").await.0, next);
    assert_eq!(bench.server.upload(&ids[3], "a", b"").await.error(), "max_sessions");
    assert_eq!(watch.most(), 3);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_sandbox_that_died_is_replaced_and_never_handed_out() {
    let bench = Bench::start(On::Docker, &[]).await;
    let [noticed] = bench.until_waiting(&[]).await;
    docker(&["kill", &containers(&noticed)[0]]);
    assert_eq!(bench.until_ended(&noticed).await, "died");
    let [at_once] = bench.until_waiting(&[]).await;

    // The server has not had the time to replace it.
    docker(&["kill", &containers(&at_once)[0]]);
    let (session, run) = bench.run_unnamed("print('well')").await;
    assert_eq!(run["stdout"], "well\n");
    assert!(session != noticed && session != at_once);
    let [next] = bench.until_waiting(&[&session]).await;
    assert_eq!(bench.run_unnamed("1").await.0, next);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_sandbox_that_does_not_answer_is_not_handed_out() {
    let bench = Bench::start(On::Docker, &[("SANDBOX_POOL_SIZE", "2")]).await;
    let [frozen, well] = bench.until_waiting(&[]).await;
    docker(&["pause", &containers(&frozen)[0]]);
    let (session, run) = bench.run_unnamed("print('well')").await;
    assert_eq!((&*session, &run["stdout"]), (&*well, &json!("well\n")));
    until("the frozen one is removed", async || containers(&frozen).is_empty()).await;
    bench.until_waiting::<2>(&[&well]).await;
    bench.end().await;
}

/// A pooled sandbox has the only place; `what_happens` is done to its container directly before the call.
async fn makes_room_for(session: Option<&str>, what_happens: &str) {
    let bench = Bench::start(On::Docker, ONE).await;
    let [useless] = bench.until_waiting(&[]).await;
    docker(&[what_happens, &containers(&useless)[0]]);
    let mut arguments = json!({ "code": "print('well')" });
    if let Some(session) = session {
        arguments["session_id"] = session.into();
    }
    let run = bench.server.call("run_python", arguments).await.ok();
    assert_eq!(run["stdout"], "well\n");
    assert_ne!(run["session_id"], *useless);
    until("it is gone", async || containers(&useless).is_empty()).await;
    bench.end().await;
}

support::tests! {
    a_frozen_pool_at_the_maximum_makes_room_for_a_session_that_is_not_named =>
        makes_room_for(None, "pause");
    a_frozen_pool_at_the_maximum_makes_room_for_a_named_session =>
        makes_room_for(Some(&name("frozen")), "pause");
    a_dead_pool_at_the_maximum_makes_room_for_a_session_that_is_not_named =>
        makes_room_for(None, "kill");
    a_dead_pool_at_the_maximum_makes_room_for_a_named_session =>
        makes_room_for(Some(&name("dead")), "kill");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_is_rebuilt_when_the_image_changes() {
    let image = Image::named("pool");
    let bench = Bench::start(On::Docker, &[("SANDBOX_IMAGE", &*image.0)]).await;
    let [old] = bench.until_waiting(&[]).await;
    let kept = name("kept");
    bench.server.upload(&kept, "a", b"1").await.ok();
    let before = id_of(&image);
    assert_eq!(image_of(&containers(&old)[0]), before);

    image.build(&format!("LABEL changed={}", image.0));
    let after = id_of(&image);
    assert_ne!(before, after);
    bench.until_ended(&old).await;
    let [new] = bench.until_waiting(&[&kept]).await;
    assert_eq!(image_of(&containers(&new)[0]), after);
    let (session, run) = bench.run_unnamed("print('new')").await;
    assert_eq!((&*session, &run["stdout"]), (&*new, &json!("new\n")));
    assert_eq!(bench.start_of(&run).await, "warm");
    // The server does not replace the sandbox of a session that is in use.
    assert_eq!(bench.server.files(&kept).await, [("a".to_owned(), 1)]);
    assert_eq!(image_of(&containers(&kept)[0]), before);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_fills_when_the_image_appears() {
    let image = Image::named("pool");
    docker(&["rmi", &image.0]);
    let bench = Bench::start(On::Docker, &[("SANDBOX_IMAGE", &*image.0)]).await;
    assert_eq!(bench.call_unnamed("1").await.error(), "sandbox_unavailable");
    docker(&["tag", &support::image(), &image.0]);
    let [waiting] = bench.until_waiting(&[]).await;
    assert_eq!(bench.run_unnamed("1").await.0, waiting);
    bench.end().await;
}

/// A way for a server to end, and the exit code that it leads to.
type Ending = (fn(&mut Server), Option<i32>);

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_goes_with_its_server() {
    let endings: [Ending; 3] = [
        (|server| server.signal("TERM"), Some(0)),
        (Server::close_input, Some(0)),
        (|server| server.signal("KILL"), None),
    ];
    for (end, code) in endings {
        for waits in [true, false] {
            let mut bench = Bench::start(On::Docker, &[("SANDBOX_POOL_SIZE", "2")]).await;
            let pid = bench.pid();
            if waits {
                bench.until_waiting::<2>(&[]).await;
            } else {
                until("the first is made", async || !containers_of(pid).is_empty()).await;
            }
            end(&mut bench.server);
            assert_eq!(bench.server.exit_code().await, code);
            if code.is_some() {
                assert_eq!(containers_of(pid), []);
            }
            until("nothing is left", async || containers_of(pid).is_empty()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_sandbox_is_not_expired_and_does_not_rest() {
    let settings = [
        ("SANDBOX_SESSION_TTL_M", "0.03"),
        ("SANDBOX_HIBERNATE_AFTER_M", "0.01"),
        ("SANDBOX_CLEANUP_INTERVAL_M", "0.01"),
    ];
    let bench = Bench::start(On::Docker, &settings).await;
    let [waiting] = bench.until_waiting(&[]).await;
    let before = containers(&waiting);
    let rested = |id: &str| bench.sessions_of("session hibernated").iter().any(|rests| rests == id);
    let expired = |id: &str| bench.end_of(id).as_deref() == Some("expired");
    // The pooled sandbox is older than these sessions, so it would hibernate and expire before them.
    for _ in 0..2 {
        let id = name("idle");
        bench.server.upload(&id, "a", b"").await.ok();
        until("a session hibernated", async || rested(&id)).await;
        until("and expires", async || expired(&id)).await;
    }
    assert_eq!(bench.end_of(&waiting), None);
    assert_eq!(containers(&waiting), before);
    assert!(!rested(&waiting));

    let (session, run) = bench.run_unnamed("print('well')").await;
    assert_eq!((&*session, &run["stdout"]), (&*waiting, &json!("well\n")));
    assert_eq!(bench.start_of(&run).await, "warm");
    // The idle time begins with its first use.
    until("then it rests", async || rested(&waiting)).await;
    until("and expires", async || expired(&waiting)).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_unnamed_sessions_at_once_each_get_their_own() {
    const MANY: usize = 10;
    let bench =
        Bench::start(On::Docker, &[("SANDBOX_POOL_SIZE", "2"), ("SANDBOX_MAX_HIBERNATED", "0")])
            .await;
    let pooled: [_; 2] = bench.until_waiting(&[]).await;
    let codes: Vec<_> = (0..MANY)
        .map(|n| {
            format!("import os\nprint(os.listdir())\nopen('file-{n}', 'w').write('{n}' * {n})")
        })
        .collect();
    let ran = join_all(codes.iter().map(|code| bench.run_unnamed(code))).await;
    let mut ids: Vec<_> = ran.iter().map(|(id, _)| &**id).collect();
    let listings = join_all(ids.iter().map(|id| bench.server.files(id))).await;
    for (n, ((_, run), files)) in ran.iter().zip(listings).enumerate() {
        assert_eq!((&run["outcome"], &run["stdout"]), (&json!("ok"), &json!("[]\n")), "{run}");
        assert_eq!(files, [(format!("file-{n}"), n as u64)]);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), MANY);
    assert!(pooled.iter().all(|id| ids.contains(&&**id)), "those that waited were used");
    assert_eq!(bench.containers().len(), MANY);
    assert_eq!(bench.call_unnamed("1").await.error(), "max_sessions");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_docker() {
    let cases = [
        ("SANDBOX_IMAGE", "llm-sandbox-does-not-exist:latest"),
        ("DOCKER_HOST", "unix:///nonexistent/docker.sock"),
    ];
    let tests = cases.map(|setting| async move {
        let mut bench = Bench::start(On::Docker, &[setting, ("SANDBOX_POOL_SIZE", "3")]).await;
        for _ in 0..20 {
            let arguments = json!({ "session_id": name("none"), "code": "1" });
            let answer = bench.server.call("run_python", arguments).await;
            assert_eq!(answer.error(), "sandbox_unavailable");
            assert_eq!(bench.call_unnamed("1").await.error(), "sandbox_unavailable");
        }
        // Failed starts of the pool; those of calls are not counted.
        let failures = || -> Vec<jiff::Timestamp> {
            let log = bench.log();
            let called: Vec<_> = log
                .iter()
                .filter(|line| line["message"] == "tool call")
                .map(|line| &line["session_id"])
                .collect();
            log.iter()
                .filter(|line| line["message"] == "sandbox not started")
                .filter(|line| !called.contains(&&line["session_id"]))
                .map(|line| text(&line["timestamp"]).parse().expect("a time"))
                .collect()
        };
        // A failure belongs to a call if the line of that call names its session; that line is written later.
        let calls = || bench.log().iter().filter(|line| line["message"] == "tool call").count();
        until("all calls are in the log", async || calls() == 40).await;
        until("the pool has tried again", async || failures().len() >= 2).await;
        for pair in failures().windows(2) {
            let pause = pair[1].duration_since(pair[0]).as_secs();
            assert!(pause >= 4, "{pause} s between two failures");
        }
        bench.server.close_input();
        assert_eq!(bench.server.exit_code().await, Some(0));
    });
    join_all(tests).await;
}
