//! The fork server in the container: which calls it makes faster, which faults it survives, and that runs do not notice
//! it. (`semantics.rs` tests that a run is like a cold script.)

use std::{
    fs,
    process::{Command, Output, Stdio},
    time::Instant,
};

use futures::future::join_all;
use serde_json::{Value, json};
use support::{
    Image, On, PATIENCE, PRELOADED, Server, answered, assert_fields, containers, docker, name,
    program, text, until,
};
use tokio::{io::AsyncWriteExt, time::timeout};

/// A server and its log.
struct Bench {
    server: Server,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join(LOG);
        let mut all = vec![
            // Two of the default's libraries, which load in a third of the time.
            ("SANDBOX_PRELOAD", "numpy,pandas"),
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_FORMAT", "json"),
            ("SANDBOX_LOG_LEVEL", "INFO"),
        ];
        all.extend(settings);
        Self { server: Server::start_to(On::Docker, &all, Stdio::null()).await, folder }
    }

    /// The log lines that meet a condition.
    fn log_where(&self, so: impl Fn(&Value) -> bool) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        // The last line may be incomplete.
        let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(so).collect()
    }

    /// The log lines with this message.
    fn log(&self, message: &str) -> Vec<Value> {
        self.log_where(|line| line["message"] == message)
    }

    /// The log lines of this session.
    fn log_of(&self, session: &str) -> Vec<Value> {
        self.log_where(|line| line["session_id"] == session)
    }

    /// Waits for a line with this message about a session; returns the first one.
    async fn logged(&self, message: &str, session: &str) -> Value {
        let find = || self.log(message).into_iter().find(|line| line["session_id"] == session);
        until(message, async || find().is_some()).await;
        find().expect("just seen")
    }

    /// Runs code; returns the run, and how it was started: `warm`, `fork` or `cold`.
    async fn run(&self, session: &str, code: &str) -> (Value, String) {
        self.run_for(session, code, 60).await
    }

    async fn run_for(&self, session: &str, code: &str, timeout_s: u32) -> (Value, String) {
        let run = self.server.run_for(session, code, timeout_s).await;
        let find =
            || self.log("tool call").into_iter().find(|line| line["run_id"] == run["run_id"]);
        until("the run is logged", async || find().is_some()).await;
        let start = text(&find().expect("just seen")["start"]).to_owned();
        (run, start)
    }

    /// Runs endless code, and cancels it when it has created this file.
    async fn cancel(&self, session: &str, file: &str, code: &str) {
        let code = format!("open('{file}', 'w').close()\n{code}");
        let (request, _answer) =
            self.server.begin("run_python", json!({ "session_id": session, "code": code }));
        until("it runs", async || {
            self.server.files_if_any(session).await.iter().any(|(name, _)| name == file)
        })
        .await;
        self.server.cancel(request);
    }

    /// A session whose next run starts warm, with one file.
    async fn warm_session(&self) -> String {
        let session = name("fork");
        self.server.upload(&session, "kept.csv", b"kept").await.ok();
        assert_eq!(self.logged("session is warm", &session).await["ready"], true);
        session
    }

    /// A session that is awake and hibernates soon, with one file.
    async fn awake_session(&self) -> String {
        let session = name("rest");
        self.server.upload(&session, "kept.csv", b"kept").await.ok();
        self.until_warm(&session).await;
        session
    }

    /// Waits until a session that is awake hibernates.
    async fn until_at_rest(&self, session: &str) {
        until("it has given up its fork server", async || !has_fork_server(session)).await;
        assert!(!self.log("session hibernated").is_empty());
    }

    /// Waits until a run starts warm. The runs before it must be correct as well.
    async fn until_warm(&self, session: &str) {
        until("a run starts warm", async || {
            let (run, start) = self.run(session, "import numpy; print(6 * 7)").await;
            assert_eq!((&run["stdout"], &run["stderr"]), (&json!("42\n"), &json!("")));
            start == "warm"
        })
        .await;
    }

    /// Identifies the fork server by its process id and start time; empty if there is none.
    async fn fork_server(&self, session: &str) -> String {
        text(&self.run(session, &format!("{FIND}print(*found)")).await.0["stdout"])
            .trim()
            .to_owned()
    }

    /// Checks that the last run left nothing but files, and that the next runs are correct, forked from the same fork
    /// server, and warm.
    async fn nothing_is_left(&self, session: &str, fork_server: &str) {
        let code = format!(
            "{FIND}
others -= {{1, os.getpid(), *pids}}
def parent(pid):
    try: return int(open(f'/proc/{{pid}}/stat').read().rsplit(') ', 1)[1].split()[1])
    except OSError: return None
# What the fork server has just used for this run, and will reap; and what the engine has started from outside, which
# may be about to bring a stream.
others = [pid for pid in others if parent(pid) not in (None, 0, *pids)]
print(*found)
print(others, open('kept.csv').read(), os.listdir('/dev/shm'))"
        );
        let (run, start) = self.run(session, &code).await;
        let expected = format!("{fork_server}\n[] kept []\n");
        assert_eq!((&run["stdout"], &run["stderr"]), (&json!(expected), &json!("")));
        assert_ne!(start, "cold");
        self.until_warm(session).await;
    }

    /// Ends the server as a client does; checks that these sessions have no container afterwards.
    async fn end(mut self, sessions: &[&str]) {
        self.server.close_input();
        assert_eq!(self.server.exit_code().await, Some(0));
        for session in sessions {
            assert_eq!(containers(session), Vec::<String>::new());
        }
    }
}

/// Finds the fork server: `found` identifies the process.
const FIND: &str = r"
import os
others = {int(name) for name in os.listdir('/proc') if name.isdigit()}
def command(pid):
    try: return open(f'/proc/{pid}/cmdline', 'rb').read()
    except OSError: return b''
def started(pid): return int(open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()[19])
# The fork servers, and what waits for a program or a cell.
pids = [pid for pid in others - {1, os.getpid()} if b'zygote.py' in command(pid)]
# The first with the libraries is the fork server itself.
heavy = sorted((started(pid), pid) for pid in pids if command(pid).endswith(b'cells\0'))
found = [f'{pid}:{when}' for when, pid in heavy[:1]]
";

const LOG: &str = "server.log";

/// Command lines of the processes in a session's container, as its host sees them.
fn processes(session: &str) -> Vec<String> {
    let listed = docker(&["top", &containers(session)[0], "-eo", "pid,args"]);
    listed.lines().skip(1).map(str::to_owned).collect()
}

/// Whether a session has a fork server that has loaded the libraries.
fn has_fork_server(session: &str) -> bool {
    processes(session).iter().any(|line| line.contains("zygote.py") && line.ends_with(" cells"))
}

/// Bytes of memory of a session's container that the kernel cannot reclaim: anonymous memory of its processes, and its
/// files. `None` if they cannot be read now.
fn memory(session: &str) -> Option<u64> {
    // The first file is of cgroup v2, the second of v1.
    let stat = "/sys/fs/cgroup/memory.stat";
    let stat_v1 = "/sys/fs/cgroup/memory/memory.stat";
    let read = format!("cat {stat} 2>/dev/null || cat {stat_v1}");
    let container = &containers(session)[0];
    let output =
        Command::new("docker").args(["exec", container, "sh", "-c", &read]).output().ok()?;
    // The agent may kill `cat` in its clean-up after a run: then the caller asks again.
    let stat = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let value = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse::<u64>().ok())
    };
    Some(value("anon").or(value("rss"))? + value("shmem")?)
}

/// Far less than the memory of a fork server that has loaded pandas, and more than the agent's.
const RESTED: u64 = 40_000_000;

const PANDAS: &str = "import pandas as pd\n\
                      frame = pd.DataFrame({'city': ['Lyon', 'Nice', 'Lyon'], 'spend': [1, 2, 3]})\n\
                      print(frame.groupby('city')['spend'].sum().to_dict())";

const PANDAS_SAYS: &str = "{'Lyon': 4, 'Nice': 2}\n";

// --- loading, resting ----------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_first_run_is_answered_before_everything_is_loaded() {
    let bench = Bench::start(&[PRELOADED]).await;
    let (plain, data) = (name("plain"), name("data"));
    assert_eq!(bench.run(&plain, "print(2 + 2)").await.0["stdout"], "4\n");
    let (run, start) = bench.run(&data, PANDAS).await;
    assert_eq!(run["stdout"], PANDAS_SAYS);
    assert!(matches!(&*start, "fork" | "warm"), "{start}");
    for session in [&plain, &data] {
        bench.logged("session is warm", session).await;
        let log = bench.log_of(session);
        let at = |message| log.iter().position(|line| line["message"] == message);
        assert!(at("tool call") < at("session is warm"), "{log:#?}");
        bench.until_warm(session).await;
        assert_eq!(bench.run(session, PANDAS).await.0["stdout"], PANDAS_SAYS);
    }
    bench.end(&[&plain, &data]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_run_that_waits_for_its_libraries_can_be_cancelled_or_closed() {
    let bench = Bench::start(&[]).await;
    let (cancelled, closed) = (name("cancelled"), name("closed"));
    for session in [&cancelled, &closed] {
        let code = format!("{PANDAS}\nopen('ended', 'w')\nwhile True: pass");
        let (request, answer) =
            bench.server.begin("run_python", json!({ "session_id": session, "code": code }));
        bench.logged("session started", session).await;
        if *session == closed {
            bench.server.close(session).await;
            let answer = answered(answer).await;
            assert!(answer["result"].is_object(), "{answer}");
            assert_eq!(containers(session), Vec::<String>::new());
        } else {
            bench.server.cancel(request);
        }
        let (run, _) = bench.run(session, PANDAS).await;
        assert_eq!(run["stdout"], PANDAS_SAYS);
        bench.until_warm(session).await;
    }
    bench.end(&[&cancelled, &closed]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_rests_has_given_up_its_memory_and_works_on() {
    let bench = Bench::start(&[PRELOADED, ("SANDBOX_HIBERNATE_AFTER_M", "0.02")]).await;
    let session = bench.awake_session().await;
    // Twice: the fork server after the first wake-up is another one.
    for round in 1..=2 {
        bench.until_at_rest(&session).await;
        until("its memory is free", async || memory(&session).is_some_and(|n| n < RESTED)).await;
        let (run, start) = bench.run(&session, PANDAS).await;
        assert_eq!((&run["stdout"], &run["stderr"]), (&json!(PANDAS_SAYS), &json!("")));
        assert_eq!(start, "fork", "round {round}");
        assert_eq!(bench.server.files(&session).await, [("kept.csv".to_owned(), 4)]);
        bench.until_warm(&session).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_wants_nothing_does_not_wait_for_a_session_that_rests() {
    let bench = Bench::start(&[("SANDBOX_HIBERNATE_AFTER_M", "0.02")]).await;
    let session = bench.awake_session().await;
    bench.until_at_rest(&session).await;
    let (run, start) = bench.run(&session, "print(open('kept.csv').read())").await;
    assert_eq!((&run["stdout"], &*start), (&json!("kept\n"), "cold"));
    bench.until_warm(&session).await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_wakes_a_session_that_rests() {
    let bench = Bench::start(&[("SANDBOX_HIBERNATE_AFTER_M", "0.05")]).await;
    let session = bench.awake_session().await;
    bench.until_at_rest(&session).await;
    // Listing and reading do not wake a session.
    bench.server.files(&session).await;
    let read = json!({ "session_id": session, "path": "kept.csv" });
    bench.server.call("read_artifact", read).await.ok();
    assert!(!has_fork_server(&session));
    bench.server.upload(&session, "more.csv", b"more").await.ok();
    until("it is awake", async || has_fork_server(&session)).await;
    let (run, _) = bench.run(&session, "print(open('more.csv').read())").await;
    assert_eq!(run["stdout"], "more\n");
    bench.until_warm(&session).await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_the_image_lacks_is_told_and_passed_over() {
    let bench = Bench::start(&[("SANDBOX_PRELOAD", "nosuchmodule, numpy,json.nosuchpart")]).await;
    let session = name("lacks");
    bench.server.upload(&session, "a", b"").await.ok();
    let told = bench.logged("some modules were not preloaded", &session).await;
    assert_eq!((&told["level"], &told["ready"]), (&json!("WARN"), &json!(true)));
    for name in ["nosuchmodule", "json.nosuchpart"] {
        let problem = format!("{name}: ModuleNotFoundError");
        assert!(text(&told["problems"]).contains(&problem), "{told}");
    }
    let (run, start) = bench.run(&session, "import numpy; print(numpy.arange(4).sum())").await;
    assert_eq!((&run["stdout"], &*start), (&json!("6\n"), "warm"));
    let (run, start) = bench.run(&session, "import nosuchmodule").await;
    assert!(text(&run["stderr"]).contains("ModuleNotFoundError: No module named 'nosuchmodule'"));
    assert_ne!(start, "cold");
    assert_eq!(bench.log("some modules were not preloaded").len(), 1);
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_run_once_whatever_lies_beside_it() {
    let bench = Bench::start(&[]).await;
    let session = name("once");
    // The file has the name of a module that the fork server uses: its processes find that they cannot work, and run
    // nothing without an order.
    bench.server.upload(&session, "heapq.py", b"").await.ok();
    for n in 1..=8 {
        let (run, start) = bench.run(&session, "open('ran', 'a').write('x')").await;
        assert_eq!((&run["outcome"], &*start), (&json!("ok"), "cold"));
        if n == 1 {
            bench.logged("session is warm", &session).await;
        }
        assert_eq!(bench.server.files(&session).await[1], ("ran".to_owned(), n));
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_users_is_loaded_before_a_run() {
    for preload in ["numpy", "json", "pandas,seaborn"] {
        let bench = Bench::start(&[("SANDBOX_PRELOAD", preload)]).await;
        let session = name("early");
        // Modules that the libraries, and so the fork server, may import late.
        let modules = ["secrets", "pandas", "bottleneck", "numexpr", "decimal", "threading"];
        for module in modules {
            let code = format!("open('/mnt/data/loaded-{module}', 'w')");
            bench.server.upload(&session, &format!("{module}.py"), code.as_bytes()).await.ok();
        }
        // The second run is the first that had a spare process of its own; neither imports any of them.
        for _ in 0..2 {
            until("it is known whether it is warm", async || {
                let told = ["session is warm", "some modules were not preloaded"];
                bench.log_of(&session).iter().any(|line| told.iter().any(|m| line["message"] == *m))
            })
            .await;
            let files = bench.server.files(&session).await;
            let loaded: Vec<_> =
                files.iter().filter(|(name, _)| name.starts_with("loaded")).collect();
            assert!(loaded.is_empty(), "{preload}: {loaded:?}");
            assert_eq!(bench.run(&session, "print(1)").await.0["stdout"], "1\n");
        }
        bench.end(&[&session]).await;
    }
}

/// An image with `code` as the module `extra` among its libraries.
fn with_module(code: &str) -> Image {
    let lines: Vec<_> = code.lines().map(|line| format!("'{line}'")).collect();
    let image = Image::named("fork");
    image.build(&format!(
        "USER root\nRUN printf '%s\\n' {} > \"$(python3 -c 'import sysconfig; \
         print(sysconfig.get_path(\"purelib\"))')/extra.py\"\nUSER 1000:1000",
        lines.join(" ")
    ));
    image
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_starts_threads_means_no_fork_server() {
    let image = with_module(
        "import threading\n\
         thread = threading.Thread(target=threading.Event().wait, daemon=True)\n\
         thread.start()",
    );
    let settings = [("SANDBOX_IMAGE", &*image.0), ("SANDBOX_PRELOAD", "numpy,extra")];
    let bench = Bench::start(&settings).await;
    let session = name("threads");
    bench.server.upload(&session, "a", b"").await.ok();
    let told = bench.logged("some modules were not preloaded", &session).await;
    assert_eq!((&told["level"], &told["ready"]), (&json!("WARN"), &json!(false)));
    assert!(text(&told["problems"]).contains("start 1 thread"), "{told}");
    until("it is given up", async || !has_fork_server(&session)).await;
    for n in 0..5 {
        let code = format!("import extra, numpy\nprint(extra.thread.is_alive(), {n})");
        let (run, start) = bench.run(&session, &code).await;
        assert_eq!((&run["stdout"], &*start), (&json!(format!("True {n}\n")), "cold"));
    }
    assert!(!has_fork_server(&session), "it is not tried again");
    bench.end(&[&session]).await;
}

/// Checks that a module of the image does no harm, whatever it does when it is loaded.
async fn does_no_harm(module: &str, problem: &str) {
    let image = with_module(module);
    let settings = [("SANDBOX_IMAGE", &*image.0), ("SANDBOX_PRELOAD", "extra")];
    let bench = Bench::start(&settings).await;
    let session = name("harm");
    bench.server.upload(&session, "a", b"").await.ok();
    let told = bench.logged("some modules were not preloaded", &session).await;
    assert!(text(&told["problems"]).contains(problem), "{told}");
    for n in 0..5 {
        let (run, _) = bench.run(&session, &format!("print({n})")).await;
        assert_eq!((&run["stdout"], &run["stderr"]), (&json!(format!("{n}\n")), &json!("")));
    }
    bench.end(&[&session]).await;
}

support::tests! {
    a_module_that_fails_when_it_is_loaded_does_no_harm =>
        does_no_harm("raise ValueError(1)", "extra: ValueError: 1");
    a_module_that_exits_when_it_is_loaded_does_no_harm => does_no_harm("raise SystemExit(3)", "");
    a_module_that_ends_the_process_when_it_is_loaded_does_no_harm =>
        does_no_harm("import os\nos._exit(3)", "died");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_preloading_every_run_is_cold_and_right() {
    let bench = Bench::start(&[("SANDBOX_PRELOAD", "none")]).await;
    let session = name("none");
    for n in 0..4 {
        let (run, start) = bench.run(&session, &format!("print({n})")).await;
        assert_eq!((&run["stdout"], &*start), (&json!(format!("{n}\n")), "cold"));
    }
    let (run, start) = bench.run(&session, PANDAS).await;
    assert_eq!((&run["stdout"], &*start), (&json!(PANDAS_SAYS), "cold"));
    assert!(!has_fork_server(&session));
    for message in ["session is warm", "some modules were not preloaded"] {
        assert_eq!(bench.log(message), Vec::<Value>::new());
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_what_to_preload_stop_the_start() {
    for mistake in ["numpy,no such", "numpy;pandas", "numpy..core", "../evil", "--version"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = program(folder.path(), &[("SANDBOX_PRELOAD", mistake)]);
        let (code, _, told) = support::ended(&mut server).await;
        assert_eq!(code, Some(64), "{mistake}");
        assert!(told.contains("SANDBOX_PRELOAD: ") && told.contains("not the name of a module"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_server_leaves_room_for_runs_or_there_is_none() {
    // The memory that a run can use at least: without a fork server, and with one.
    for (memory, megabytes, forks) in [("128MB", 50, false), ("500MB", 200, true)] {
        let bench = Bench::start(&[PRELOADED, ("SANDBOX_MEMORY_LIMIT", memory)]).await;
        let session = name("room");
        if forks {
            bench.until_warm(&session).await;
        }
        for n in 0..10 {
            let code = format!("import numpy\nprint({n}, numpy.ones({megabytes} * 125_000).sum())");
            let (run, start) = bench.run(&session, &code).await;
            let expected = format!("{n} {}.0\n", megabytes * 125_000);
            assert_eq!(run["stdout"], expected, "{memory}, {start}: {run}");
            assert_eq!(start != "cold", forks, "{memory}, {start}");
        }
        assert_eq!(has_fork_server(&session), forks);
        bench.end(&[&session]).await;
    }
}

// --- what a run may do ---------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fills_memory_leaves_the_fork_server_alive() {
    let bench = Bench::start(&[PRELOADED, ("SANDBOX_MEMORY_LIMIT", "500MB")]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    assert!(fork_server.contains(':') && !fork_server.contains(' '), "{fork_server}");
    for code in [
        "hoard = []\nwhile True: hoard.append(bytearray(10_000_000))",
        // As many processes as are allowed, each with less memory than the fork server.
        "import os, time\nwhile True:\n    try: pid = os.fork()\n    except OSError: break\n    \
         if pid == 0:\n        hoard = b'x' * 20_000_000\n        time.sleep(600)\n\
         hoard = []\nwhile True: hoard.append(bytearray(10_000_000))",
        // The kernel kills a run first; here the run changes that.
        "open('/proc/self/oom_score_adj', 'w').write('500')\n\
         hoard = []\nwhile True: hoard.append(bytearray(10_000_000))",
    ] {
        let (run, start) = bench.run(&session, &format!("print('before')\n{code}")).await;
        assert_fields!(run, { "outcome": "out_of_memory", "exit_code": 137, "stdout": "before\n" });
        assert_ne!(start, "cold");
        bench.nothing_is_left(&session, &fork_server).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_need_most_of_the_memory_follow_each_other() {
    let bench = Bench::start(&[PRELOADED, ("SANDBOX_MEMORY_LIMIT", "512MB")]).await;
    let session = bench.warm_session().await;
    // The memory limit has no room for two of these arrays at the same time.
    for n in 0..15 {
        let code = format!("import numpy\nprint({n}, numpy.ones(30_000_000).sum())");
        let run = bench.server.run(&session, &code).await;
        assert_eq!(run["stdout"], format!("{n} 30000000.0\n"), "{run}");
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_or_times_out_is_followed_by_a_warm_one() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    for (n, code) in [
        "while True: pass",
        "import time; time.sleep(600)",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
         while True: pass",
        "import subprocess\nwhile True: subprocess.run(['sleep', '0.01'])",
    ]
    .into_iter()
    .enumerate()
    {
        let (run, start) = bench.run_for(&session, code, 1).await;
        assert_eq!(run["outcome"], "timeout");
        assert_ne!(start, "cold");
        bench.nothing_is_left(&session, &fork_server).await;
        bench.cancel(&session, &format!("started-{n}"), code).await;
        bench.nothing_is_left(&session, &fork_server).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_leaves_threads_and_children_behind_leaves_none() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    let code = r"
import os, subprocess, sys, threading, time
def count(name):
    with open(name, 'w', 1) as file:
        n = 0
        while True:
            n += 1
            file.seek(0)
            file.write(f'{n:020}')
def has_begun(name):
    while not os.path.exists(name) or not open(name).read(): time.sleep(0.001)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: count('grandchild')
    os._exit(0)
os.wait()
threading.Thread(target=count, args=['thread'], daemon=True).start()
subprocess.Popen(['sleep', '1000'], start_new_session=True)
ended = threading.Event()
def last():
    ended.wait()
    time.sleep(0.1)
    print('joined')
threading.Thread(target=last).start()
has_begun('thread')
has_begun('grandchild')
print('main')
ended.set()
";
    for _ in 0..3 {
        let (run, start) = bench.run(&session, code).await;
        assert_fields!(run, { "outcome": "ok", "stdout": "main\njoined\n", "stderr": "" });
        assert_ne!(start, "cold");
        let look = "print(open('thread').read(), open('grandchild').read())";
        let (before, _) = bench.run(&session, look).await;
        assert!(text(&before["stdout"]).len() == 42, "{before}");
        bench.nothing_is_left(&session, &fork_server).await;
        assert_eq!(bench.run(&session, look).await.0["stdout"], before["stdout"]);
        bench.run(&session, "import os; os.remove('thread'); os.remove('grandchild')").await;
        bench.until_warm(&session).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_there_between_runs_meets_none() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    for _ in 0..3 {
        docker(&["exec", "--detach", &containers(&session)[0], "sleep", "1000"]);
        let is_there = || processes(&session).iter().any(|line| line.contains("sleep 1000"));
        until("somebody is there", async || is_there()).await;
        bench.nothing_is_left(&session, &fork_server).await;
    }
    bench.end(&[&session]).await;
}

/// Finds `link`, the socket on which a run reports its end.
const LINK: &str = r"
import array, os, socket, struct, threading, time
links = []
for fd in map(int, os.listdir('/proc/self/fd')):
    try:
        if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:'): links.append(fd)
    except OSError: pass
[link] = links
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=link)
def word(code, us): return struct.pack('=iQ', code, us)
def go_on():
    n = 0
    while True:
        n += 1
        with open('gone-on', 'w') as file: file.write(f'{n:020}')
print('before', flush=True)
";

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_word_on_the_link_ends_only_its_own_run() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    // The code, and the outcome and exit code of its run.
    for (code, outcome, exit_code) in [
        ("link.send(word(0, 0)); go_on()", "ok", 0),
        ("link.send(word(7, 10**6)); go_on()", "error", 7),
        ("link.send(word(255, 2**64 - 1)); go_on()", "error", 255),
        (
            "for _ in range(5): threading.Thread(target=go_on).start()\n\
             for _ in range(5):\n    if os.fork() == 0: go_on()\n\
             link.send(word(0, 0)); go_on()",
            "ok",
            0,
        ),
        ("if os.fork() == 0:\n    link.send(word(9, 0)); go_on()\ngo_on()", "error", 9),
        (
            "null = os.open('/dev/null', os.O_RDONLY)\n\
             rights = array.array('i', [null] * 200)\n\
             link.sendmsg([word(0, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]); go_on()",
            "ok",
            0,
        ),
        ("for _ in range(5): link.send(word(3, 0))\ngo_on()", "error", 3),
        // These messages are not valid, so the program's own end counts.
        ("link.send(b'abc'); os._exit(5)", "error", 5),
        ("link.send(b''); os._exit(5)", "error", 5),
        ("link.send(b'1'); os._exit(5)", "error", 5),
        (
            "link.send(b'1')\ntry: link.send(word(0, 0))\nexcept OSError: pass\nos._exit(5)",
            "error",
            5,
        ),
        ("link.send(word(256, 0)); os._exit(5)", "error", 5),
        ("link.send(word(-9, 0)); os._exit(5)", "error", 5),
        ("link.send(struct.pack('=i', os.getpid())); os._exit(5)", "error", 5),
        ("link.send(word(0, 0) + b'!'); os._exit(5)", "error", 5),
        ("link.send(word(0, 0) + bytes(100_000)); os._exit(5)", "error", 5),
        ("link.shutdown(socket.SHUT_RDWR); os._exit(5)", "error", 5),
        ("link.close(); os._exit(5)", "error", 5),
        ("link.close()", "ok", 0),
        ("link.close(); raise SystemExit(6)", "error", 6),
        (
            "link.setblocking(False)\ntry:\n    while True: link.send(bytes(4096))\n\
          except OSError: os._exit(5)",
            "error",
            5,
        ),
        ("link.send(b'abc'); go_on()", "timeout", -1),
        ("link.send(b'1'); go_on()", "timeout", -1),
        ("link.close(); go_on()", "timeout", -1),
    ] {
        let timeout_s = if outcome == "timeout" { 1 } else { 60 };
        let (run, _) = bench.run_for(&session, &format!("{LINK}{code}"), timeout_s).await;
        let came = (&run["outcome"], &run["exit_code"]);
        assert_eq!(came, (&json!(outcome), &json!(exit_code)), "{code}: {run}");
        assert_eq!(run["stdout"], "before\n", "{code}: {run}");
        let look = "import os; print(os.path.exists('gone-on') and open('gone-on').read())";
        let (before, _) = bench.run(&session, look).await;
        bench.nothing_is_left(&session, &fork_server).await;
        let (after, _) = bench.run(&session, look).await;
        assert_eq!(after["stdout"], before["stdout"], "{code}");
        bench.until_warm(&session).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_cannot_reach_into_the_fork_server() {
    let code = format!(
        "{FIND}
reached = []
def attempt(what, act):
    try: reached.append((what, act()))
    except OSError: pass
for pid in pids:
    attempt('memory', lambda: os.close(os.open(f'/proc/{{pid}}/mem', os.O_RDWR)))
    attempt('memory', lambda: os.close(os.open(f'/proc/{{pid}}/mem', os.O_RDONLY)))
    attempt('maps', lambda: len(open(f'/proc/{{pid}}/maps').read()))
    attempt('files', lambda: len(os.listdir(f'/proc/{{pid}}/fd')))
    attempt('environment', lambda: len(open(f'/proc/{{pid}}/environ').read()))
print(len(pids), reached)"
    );
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    // Both fork servers, the spare of the fork server that did not start this run, and the process that waits for a
    // cell.
    until("all are there", async || {
        let (run, _) = bench.run(&session, &code).await;
        assert!(text(&run["stdout"]).ends_with(" []\n"), "{run}");
        run["stdout"] == "4 []\n"
    })
    .await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_cannot_reach_into_a_fork_server_that_is_still_loading() {
    let code = format!(
        "{FIND}
reached = []
for pid in pids:
    try:
        os.close(os.open(f'/proc/{{pid}}/mem', os.O_RDWR))
        reached.append('memory')
    except OSError: pass
print(bool(heavy), reached)"
    );
    let bench = Bench::start(&[]).await;
    let session = name("loading");
    // The first run may find none: a fork server that cannot protect itself yet is ended before a run.
    until("a run beside it", async || {
        let (run, _) = bench.run(&session, &code).await;
        assert!(run["stdout"] == "False []\n" || run["stdout"] == "True []\n", "{run}");
        run["stdout"] == "True []\n"
    })
    .await;
    bench.until_warm(&session).await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_server_reads_no_fonts_or_styles_that_a_run_has_left() {
    let plant = format!(
        r"{FIND}
import glob, json, shutil, matplotlib
folder = matplotlib.get_configdir()
[path] = glob.glob(folder + '/fontlist-*.json')
fonts = json.load(open(path))
for font in fonts['ttflist']:
    if font['name'] == 'DejaVu Sans':
        shutil.copy('/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf', '/tmp/planted.ttf')
        font['fname'] = '/tmp/planted.ttf'
json.dump(fonts, open(path, 'w'))
os.mkdir(folder + '/stylelib')
open(folder + '/stylelib/planted.mplstyle', 'w').write('lines.linewidth: 9')
print(os.path.exists('/tmp/planted.ttf'))
for pid in pids: os.kill(pid, 9)"
    );
    let look = r"
import matplotlib
from matplotlib import font_manager, pyplot, style
print(any(font.fname == '/tmp/planted.ttf' for font in font_manager.fontManager.ttflist),
      'planted' in style.available, style.USER_LIBRARY_PATHS, matplotlib.get_cachedir())";
    let own = "['/tmp/home/.config/matplotlib/stylelib'] /tmp/home/.config/matplotlib\n";
    let bench = Bench::start(&[PRELOADED]).await;
    let session = bench.warm_session().await;
    let before = bench.fork_server(&session).await;
    assert_eq!(bench.run(&session, &plant).await.0["stdout"], "True\n");
    // A run reads the files in its home folder; a fork server does not.
    until("another fork server", async || {
        bench.run(&session, "pass").await;
        let now = bench.fork_server(&session).await;
        !now.is_empty() && now != before
    })
    .await;
    let (run, start) = bench.run(&session, look).await;
    assert_eq!((&run["stdout"], &*start), (&json!(format!("True True {own}")), "cold"));
    let forget = "import shutil; shutil.rmtree('/tmp/home/.config/matplotlib/stylelib')";
    bench.run(&session, forget).await;
    bench.until_warm(&session).await;
    let (run, start) = bench.run(&session, look).await;
    assert_eq!(run["stdout"], format!("False False {own}"));
    assert_ne!(start, "cold");
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_without_a_pause_do_not_keep_a_session_cold() {
    let bench = Bench::start(&[]).await;
    let session = name("busy");
    until("a run that is not cold", async || {
        for _ in 0..50 {
            assert_eq!(bench.server.run(&session, "print(1)").await["stdout"], "1\n");
        }
        bench.log("tool call").iter().any(|line| line["start"] == "warm" || line["start"] == "fork")
    })
    .await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_places_leave_room_for_a_warm_run() {
    let fill = "for place in '/mnt/data', '/tmp', '/dev/shm':
    try:
        with open(place + '/fill', 'wb', 0) as file:
            while file.write(bytes(10**6)) == 10**6: pass
            file.write(b'1')
    except OSError as error: print(place, error.strerror)";
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let (run, start) = bench.run(&session, fill).await;
    assert_eq!((run["exit_code"].as_i64(), &*start), (Some(0), "warm"), "{run}");
    assert_eq!(text(&run["stdout"]).lines().count(), 3, "{run}");
    let (run, _) = bench.run(&session, "import os; os.remove('fill'); print('room')").await;
    assert_eq!(run["stdout"], "room\n");
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_every_descriptor_still_tells_the_exit_code() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    for (code, outcome, exit_code) in [
        ("os._exit(7)", "error", 7),
        ("os._exit(0)", "ok", 0),
        ("raise SystemExit(3)", "error", 3),
        ("raise ValueError", "error", 1),
        ("os.kill(os.getpid(), 15)", "killed", 143),
        ("", "ok", 0),
    ] {
        let code = format!("import os\nprint('said')\nos.closerange(0, 1024)\n{code}");
        let (run, _) = bench.run(&session, &code).await;
        let came = (&run["outcome"], &run["exit_code"]);
        assert_eq!(came, (&json!(outcome), &json!(exit_code)), "{code}: {run}");
        assert_eq!(run["stdout"], "said\n");
        bench.nothing_is_left(&session, &fork_server).await;
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_largest_size_runs() {
    for (setting, size) in [("100KB", 100_000), ("1MiB", 1 << 20)] {
        let bench = Bench::start(&[("SANDBOX_MAX_CODE_BYTES", setting)]).await;
        let session = bench.warm_session().await;
        for round in 0..3 {
            let end = format!("\nprint(len(data), 'round', {round})");
            let start = "data = '";
            let padding = size - start.len() - 1 - end.len();
            let code = format!("{start}{}'{end}", "x".repeat(padding));
            assert_eq!(code.len(), size);
            let (run, start) = bench.run(&session, &code).await;
            assert_eq!(run["stdout"], format!("{padding} round {round}\n"));
            assert_ne!(start, "cold");
        }
        bench.end(&[&session]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_megabytes_right_before_the_end_is_complete_within_the_cap() {
    const CAP: usize = 100 << 10;
    const MUCH: usize = 5_000_000;
    let bench = Bench::start(&[("SANDBOX_MAX_OUTPUT_BYTES", "100KiB")]).await;
    let session = bench.warm_session().await;
    // Exactly the limit of each output, at once on both, directly before the end.
    let lines = |of: &str, len: usize| -> String {
        let all: String = (0..).map(|n| format!("{of} {n}\n")).take(len / 8).collect();
        all[..len].to_owned()
    };
    let make = "def lines(of, size):\n    \
                return ''.join(f'{of} {n}\\n' for n in range(size // 8))[:size]\n";
    for (write, ends) in [
        ("sys.stdout.write(out); sys.stderr.write(err)", ""),
        ("os.write(1, out.encode()); os.write(2, err.encode())", ""),
        ("os.write(1, out.encode()); os.write(2, err.encode())", "os._exit(0)"),
        // Written by Python and by C from buffers, at exit.
        ("open(1, 'w', 10**6, closefd=False).write(out); sys.stderr.write(err)", ""),
        (
            "import ctypes; libc = ctypes.CDLL(None); sys.stderr.write(err)\n\
             for n in range(0, len(out), 4096): libc.printf(b'%s', out[n:n + 4096].encode())",
            "",
        ),
    ] {
        let code = format!(
            "import os, sys\n{make}out, err = lines('out', {CAP}), lines('err', {CAP})\n\
             {write}\n{ends}"
        );
        let (run, _) = bench.run(&session, &code).await;
        assert_eq!(run["outcome"], "ok", "{write}");
        assert!(text(&run["stdout"]) == lines("out", CAP), "{write}");
        assert!(text(&run["stderr"]) == lines("err", CAP), "{write}");
        assert_eq!((run.get("stdout_truncated"), run.get("stderr_truncated")), (None, None));
    }
    // More than the limit: the beginning and the end are returned, with the number of bytes between.
    let code = format!(
        "import os, sys\n{make}os.write(1, lines('out', {MUCH}).encode())\n\
         sys.stderr.write(lines('err', {MUCH}))"
    );
    let (run, start) = bench.run(&session, &code).await;
    for (output, of) in [("stdout", "out"), ("stderr", "err")] {
        let all = lines(of, MUCH);
        // Three fifths of the limit from the beginning and two from the end, without the lines that are cut.
        let (head, _) = all[..CAP - CAP * 2 / 5].rsplit_once('\n').expect("lines");
        let (_, tail) = all[MUCH - CAP * 2 / 5..].split_once('\n').expect("lines");
        let between = format!("\n[... {} bytes left out ...]\n", MUCH - head.len() - tail.len());
        assert!(text(&run[output]) == format!("{head}{between}{tail}"), "{start}, {output}");
    }
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn back_to_back_runs_are_right() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let fork_server = bench.fork_server(&session).await;
    let mut starts = vec![];
    for n in 0..200 {
        let code = format!(
            "import os, sys\nprint({n}, os.path.exists('{n}'), 'left' in globals())\nleft = {n}\n\
             open('{n}', 'w').write('{n}')\nprint({n}, file=sys.stderr)\nraise SystemExit({n} % 3)"
        );
        let run = bench.server.run(&session, &code).await;
        assert_fields!(run, {
            "stdout": format!("{n} False False\n"), "stderr": format!("{n}\n"), "exit_code": n % 3,
        });
        let made = if n % 3 == 0 { vec![json!(n.to_string())] } else { vec![] };
        let artifacts = run["artifacts"].as_array().expect("an array").iter();
        let artifacts: Vec<_> = artifacts.map(|file| file["filename"].clone()).collect();
        assert_eq!(artifacts, made);
        starts.push(run["run_id"].clone());
    }
    let log = bench.log("tool call");
    let cold =
        log.iter().filter(|line| starts.contains(&line["run_id"]) && line["start"] == "cold");
    assert_eq!(cold.count(), 0);
    assert_eq!(bench.server.files(&session).await.len(), 201);
    bench.nothing_is_left(&session, &fork_server).await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_sees_what_the_fork_server_does_for_it() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    // Besides the agent and the run, the container has both fork servers, the spare of the one that did not start this
    // run, and the process that waits for a cell, and no other process, not even a zombie.
    let code = format!(
        "{FIND}
def parent(pid): return int(open(f'/proc/{{pid}}/stat').read().rsplit(') ', 1)[1].split()[1])
# While it prepares, what waits for a cell has a child, of which it sees nothing as long as a run goes on.
kernels = [pid for _, pid in heavy[1:]]
print(len(pids), [pid for pid in others - {{1, os.getpid(), *pids}} if parent(pid) not in kernels])"
    );
    let look = async || {
        let run = bench.server.run(&session, &code).await;
        assert_eq!(run["stderr"], "");
        let expected = ["3 []\n", "4 []\n", "5 []\n"];
        assert!(expected.contains(&text(&run["stdout"])), "{run}");
        run["stdout"] == "4 []\n"
    };
    for _ in 0..200 {
        look().await;
    }
    until("what waits for a cell is prepared", look).await;
    bench.end(&[&session]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_in_parallel_do_not_mix() {
    let bench = &Bench::start(&[]).await;
    let sessions: Vec<_> = (0..4).map(|_| name("mix")).collect();
    join_all(sessions.iter().enumerate().map(|(who, session)| async move {
        for n in 0..50 {
            match n % 10 {
                3 => {
                    let code = format!("print('{who}-{n}', flush=True)\nwhile True: pass");
                    let (run, _) = bench.run_for(session, &code, 1).await;
                    assert_fields!(run, { "outcome": "timeout", "stdout": format!("{who}-{n}\n") });
                }
                6 => bench.cancel(session, &format!("cancelled-{n}"), "while True: pass").await,
                8 => {
                    let code = format!("print('{who}-{n}', flush=True)\nimport os; os.abort()");
                    let (run, _) = bench.run(session, &code).await;
                    assert_fields!(run, {
                        "outcome": "killed", "exit_code": 134, "stdout": format!("{who}-{n}\n"),
                    });
                }
                _ => {
                    let code = format!(
                        "import os, pandas\n\
                         count = len(open('mine').read()) if os.path.exists('mine') else 0\n\
                         open('mine', 'a').write('{who}')\n\
                         print('{who}-{n}', count, set(open('mine').read()), \
                         pandas.Series([{who}, {n}]).sum())"
                    );
                    let (run, start) = bench.run(session, &code).await;
                    let count = (0..n).filter(|n| !matches!(n % 10, 3 | 6 | 8)).count();
                    let expected = format!("{who}-{n} {count} {{'{who}'}} {}\n", who + n);
                    assert_eq!(
                        (&run["stdout"], &run["stderr"]),
                        (&json!(expected), &json!("")),
                        "{start}"
                    );
                }
            }
        }
        bench.until_warm(session).await;
        bench.server.close(session).await;
        assert_eq!(containers(session), Vec::<String>::new());
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_server_that_keeps_dying_costs_no_correct_answer() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    let (mut met, mut n) = (0, 0);
    // On a busy machine most programs end before the next fork server is ready, and find none.
    let begun = Instant::now();
    while n < 8 || met < 2 && begun.elapsed() < PATIENCE {
        n += 1;
        // Killing the first process may end others, too.
        let code = format!(
            "{FIND}{PANDAS}
for pid in pids:
    try: os.kill(pid, 9)
    except ProcessLookupError: pass
print({n}, len(pids))"
        );
        let (run, start) = bench.run(&session, &code).await;
        let stdout = text(&run["stdout"]);
        let killed = stdout.strip_prefix(&format!("{PANDAS_SAYS}{n} ")).map(str::trim);
        let killed = killed.unwrap_or_else(|| panic!("{start}: {run}")).parse::<u32>();
        met += killed.expect("a number");
        assert_eq!((&run["outcome"], &run["stderr"]), (&json!("ok"), &json!("")));
    }
    assert!(met >= 2, "{met}");
    bench.until_warm(&session).await;
    bench.nothing_is_left(&session, &bench.fork_server(&session).await).await;
    bench.end(&[&session]).await;
}

// --- standard input ------------------------------------------------------------------------------

/// Runs `llm-sandbox run` with this standard input.
async fn run_with_stdin(code: &str, input: &[u8]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("script.py"), code).expect("written");
    let mut child = program(folder.path(), &[])
        .args(["run", "script.py", "--stdin", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input).await.expect("written");
    drop(stdin);
    timeout(PATIENCE, child.wait_with_output()).await.expect("ends in time").expect("waited")
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_reaches_a_program_however_it_is_started() {
    let read = "import sys\ntext = sys.stdin.read()\nprint(len(text), text[:5], text[-5:])";
    let check = "import hashlib, sys\n\
                 data = sys.stdin.buffer.read()\n\
                 print(len(data), hashlib.sha256(data).hexdigest())";
    let much: Vec<u8> =
        (0..500_000u32).flat_map(|n| [n.to_le_bytes()[0], n.to_le_bytes()[1]]).collect();
    let hash = {
        use sha2::Digest;
        hex::encode(sha2::Sha256::digest(&much))
    };
    // A program that needs a library waits for the fork server; any other is started without it.
    for wants in ["", "import pandas\n"] {
        let output = run_with_stdin(&format!("{wants}{read}"), b"given by a test").await;
        assert_eq!(String::from_utf8_lossy(&output.stdout), "15 given  test\n", "{output:?}");
        let output = run_with_stdin(&format!("{wants}{check}"), &much).await;
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{} {hash}\n", much.len()));
        let output = run_with_stdin(&format!("{wants}{read}"), b"").await;
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0  \n", "{output:?}");
        // A program that does not read its input.
        let output = run_with_stdin(&format!("{wants}print('done')"), &much).await;
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
        let code = format!("{wants}input()\nraise SystemExit(3)");
        assert_eq!(run_with_stdin(&code, b"line\n").await.status.code(), Some(3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_standard_input_reads_its_end_at_once() {
    let bench = Bench::start(&[]).await;
    let session = bench.warm_session().await;
    for _ in 0..3 {
        let code = "import os, sys\nprint(repr(sys.stdin.read()), os.path.samestat(os.fstat(0), \
                    os.stat('/dev/null')))\ninput()";
        let (run, start) = bench.run(&session, code).await;
        assert_eq!(run["stdout"], "'' True\n");
        assert!(text(&run["stderr"]).ends_with("EOFError: EOF when reading a line\n"));
        assert_ne!(start, "cold");
    }
    bench.end(&[&session]).await;
}
