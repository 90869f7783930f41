//! The fork server's promise: a run is like a cold `python3 -P -s /tmp/main.py`, to the byte.
//!
//! Each file of `tests/snippets/<topic>` is run twice in one container, in an empty `/mnt/data`: by
//! Each file of `tests/snippets/<topic>` is run twice in one container, in an empty `/mnt/data`: by `run_python`, and
//! by `docker exec` as a script. Output, exit code and files must be the same. Nothing else is expected, so a snippet
//! may show anything that a program can see of itself.
//!
//! A snippet can begin with these lines:
//!
//! ```text
//! # differs: <part>: <reason>   its stdout, stderr, exit or files must differ, for this reason
//! # start: cold: <reason>       it must not be forked from the fork server, and the others must be
//! # given: <path>               a file that lies in /mnt/data when it starts
//! #| <a line of that file>
//! ```
//!
//! If `SNIPPETS` is set in the environment, for example to `tracebacks`, the test takes only snippets with this text in
//! their names, which begin with their topics.
//!
//! Tests at the end cover properties that `docker exec` cannot show, because its processes have no parent in the
//! container, and attacks that would disturb the comparison itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Cursor, Read},
    process::{Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::snippets::{
    self, Differs, assert_none_wrong, nothing_else_is_in, states_difference, wrong_parts,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{
    On, PATIENCE, PRELOADED, Server, containers, name, on_screen, share_of, text, until,
};
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    time::{sleep, timeout},
};

/// A part of a run, compared by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Stdout,
    Stderr,
    Exit,
    Files,
}

impl Part {
    /// The part with this name in the header of a snippet.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "stdout" => Self::Stdout,
            "stderr" => Self::Stderr,
            "exit" => Self::Exit,
            "files" => Self::Files,
            _ => return None,
        })
    }
}

/// The most bytes of each output, also a setting of the server.
const OUTPUT_CAP: usize = 200_000;

/// Prints the data area as an archive, empties it, and unpacks the archive from standard input at the root.
const EXCHANGE: &str = "tar -c . && find . -mindepth 1 -delete && \
                        rm -rf /tmp/main.py && tar -xm -C /";

/// The command that a run must equal.
const COLD: &[&str] = &["python3", "-P", "-s", "/tmp/main.py"];

struct Snippet {
    /// Topic and file, without the ending.
    name: String,
    code: String,
    /// Differences that are right or not worth a fix, each with its reason.
    differs: Differs<Part>,
    /// Files that exist when it starts: paths below the root, and contents.
    given: Vec<(String, String)>,
    start: Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Forked,
    Cold,
}

impl Snippet {
    fn read((name, code): (String, String)) -> Self {
        let mut differs = BTreeMap::new();
        let mut start = Start::Forked;
        let mut given: Vec<(String, String)> = vec![];
        let after_mark = code.strip_prefix('\u{feff}').unwrap_or(&code);
        for line in after_mark.lines().take_while(|line| line.starts_with('#')) {
            if states_difference(line, &name, Part::named, &mut differs) {
                continue;
            }
            if let Some(reason) = line.strip_prefix("# start: cold: ") {
                assert!(!reason.is_empty(), "{name}: why?");
                start = Start::Cold;
            } else if let Some(path) = line.strip_prefix("# given: ") {
                given.push((format!("mnt/data/{path}"), String::new()));
            } else if let Some(line) = line.strip_prefix("#|") {
                let (_, content) = given.last_mut().expect("a path before its content");
                content.push_str(line.strip_prefix(' ').unwrap_or(line));
                content.push('\n');
            }
        }
        Self { name, code, differs, given, start }
    }

    /// All snippets, or those that `SNIPPETS` selects.
    fn all() -> Vec<Self> {
        snippets::all(SNIPPETS, "SNIPPETS").into_iter().map(Self::read).collect()
    }
}

const SNIPPETS: &str = "tests/snippets";

/// An archive to be unpacked at the root.
fn archive<'a>(files: impl IntoIterator<Item = (&'a str, &'a str, u32)>) -> Vec<u8> {
    let mut archive = tar::Builder::new(vec![]);
    for (path, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        archive.append_data(&mut header, path, content.as_bytes()).expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

/// The result of a run, each part as text.
type Seen = BTreeMap<Part, String>;

/// A server, and the folder of its log.
struct Bench {
    server: Server,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("server.log");
        let settings = [
            PRELOADED,
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_FORMAT", "json"),
            ("SANDBOX_LOG_LEVEL", "INFO"),
            // Enough for the fork server and a cold script with all libraries at the same time.
            ("SANDBOX_MEMORY_LIMIT", "1GB"),
            ("SANDBOX_MAX_OUTPUT_BYTES", &OUTPUT_CAP.to_string()),
            // The comparison needs the interpreter's own tracebacks.
            ("SANDBOX_TRACEBACKS", "full"),
        ];
        let server = Server::start_to(On::Docker, &settings, Stdio::null()).await;
        Self { server, folder }
    }

    /// Runs code; returns the run, and how it was started: `warm`, `fork` or `cold`.
    async fn run(&self, session: &str, code: &str) -> Result<(Value, String), Value> {
        let arguments = json!({ "session_id": session, "code": code, "timeout_s": 30 });
        let answer = self.server.call("run_python", arguments).await;
        if answer.raw["isError"] == true {
            return Err(answer.json);
        }
        let run = answer.ok();
        let id = &run["run_id"];
        until("the line of the run in the log", async || self.start_of(id).is_some()).await;
        let start = self.start_of(id).expect("just seen");
        Ok((run, start))
    }

    /// How a run was started; `None` if the log does not have its line yet.
    fn start_of(&self, run_id: &Value) -> Option<String> {
        let log = fs::read_to_string(self.folder.path().join("server.log")).expect("a log");
        // The last line may be incomplete.
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = lines.find(|line| line["run_id"] == *run_id)?;
        Some(text(&line["start"]).to_owned())
    }

    /// Waits until a run is not started cold because the fork server is still loading.
    async fn until_forked(&self, session: &str) {
        until("a run that is not started cold", async || {
            let (run, start) = self.run(session, "print('ready')").await.expect("carried out");
            assert_eq!(run["stdout"], "ready\n", "{run}");
            start != "cold"
        })
        .await;
    }

    /// Starts a session, and waits until its fork server has loaded.
    async fn place(&self, test: &str) -> Place {
        let session = name(test);
        self.until_forked(&session).await;
        let found = containers(&session);
        assert_eq!(found.len(), 1, "{found:?}");
        let place = Place { session, container: found.concat() };
        place.until_idle().await.expect("just forked");
        place
    }

    /// Compares snippets one after another, until none is left; returns all differences.
    async fn compare_all(&self, snippets: &[Snippet], next: &AtomicUsize) -> Vec<String> {
        let mut place = self.place("semantics").await;
        let mut wrong = vec![];
        while let Some(snippet) = snippets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = self.compare(&place, snippet).await;
            let failed = found.is_err();
            let found = found.unwrap_or_else(|error| vec![error]);
            wrong.extend(found.iter().map(|what| format!("{}: {what}", snippet.name)));
            if failed {
                place = self.place("semantics").await;
            }
        }
        wrong
    }

    /// Runs a snippet both ways; returns the differences, or the reason why they are unknown.
    async fn compare(&self, place: &Place, snippet: &Snippet) -> Result<Vec<String>, String> {
        let given = || snippet.given.iter().map(|(path, content)| (&**path, &**content, 0o644));
        let script = [("tmp/main.py", &*snippet.code, 0o600)];
        if !snippet.given.is_empty() {
            place.exchange(&archive(given())).await;
        }
        let ran = self.run(&place.session, &snippet.code).await;
        let (run, start) = ran.map_err(|error| format!("the run came to nothing: {error}"))?;
        place.until_idle().await?;
        let warm_files = place.exchange(&archive(given().chain(script))).await;
        let cold_run = timeout(PATIENCE, place.exec(COLD, None)).await;
        let cold_run = cold_run.map_err(|_| "the cold script does not end".to_owned())?;
        let cold_files = place.exchange(&archive([])).await;
        let cold = seen_cold(&cold_run, &run, &cold_files);
        let warm = seen_warm(&run, &warm_files);

        let mut wrong = vec![];
        match (snippet.start, &*start) {
            (Start::Forked, "warm" | "fork") | (Start::Cold, "cold") => {}
            (wanted, start) => wrong.push(format!("started {start:?} and not {wanted:?}")),
        }
        wrong.extend(wrong_parts(&cold, &warm, &snippet.differs, ["the cold script", "the run"]));
        Ok(wrong)
    }
}

/// A session and its container.
struct Place {
    session: String,
    container: String,
}

impl Place {
    /// Waits until the agent has cleaned up after a run. The agent does so after the caller has the answer, and would
    /// also end a program that `docker exec` started before. Then the container has the agent, the fork servers and the
    /// processes that they have forked, and all of them wait.
    async fn until_idle(&self) -> Result<(), String> {
        let idle = async {
            // The agent, the two fork servers with a spare each, and the process that waits for a cell.
            while self.states().await != ["S"; 6] {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, idle).await.map_err(|_| "it is never idle again".to_owned())
    }

    /// The state of each process in the container, as the host sees it.
    async fn states(&self) -> Vec<String> {
        // With process ids, without which the engine cannot tell which processes are in the container.
        let listed = Command::new("docker").args(["top", &self.container, "-eo", "pid,s"]).output();
        let listed = String::from_utf8(listed.await.expect("the docker client runs").stdout);
        let lines = listed.expect("letters");
        lines
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().last())
            .map(str::to_owned)
            .collect()
    }

    /// Empties the data area and unpacks an archive; returns the previous contents of the data area as an archive.
    async fn exchange(&self, archive: &[u8]) -> Vec<u8> {
        let done = self.exec(&["sh", "-c", EXCHANGE], Some(archive));
        let done = timeout(PATIENCE, done).await.expect("it ends in time");
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }

    /// Runs a program as the user of runs, with the environment that the agent gives them. Without `input` its standard
    /// input is `/dev/null`.
    async fn exec(&self, program: &[&str], input: Option<&[u8]>) -> Output {
        let mut child = Command::new("docker")
            .args(["exec", "--workdir", "/mnt/data", "--env", "PYTHONPATH=/mnt/data"])
            .args(input.is_some().then_some("--interactive"))
            .arg(&self.container)
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the docker client runs");
        let mut stdin = child.stdin.take().expect("piped");
        let feed = async {
            // A program that does not take all input reports that itself.
            let _ = stdin.write_all(input.unwrap_or_default()).await;
            drop(stdin);
        };
        tokio::join!(feed, child.wait_with_output()).1.expect("waited")
    }
}

fn seen_warm(run: &Value, files: &[u8]) -> Seen {
    BTreeMap::from([
        (Part::Stdout, normal(text(&run["stdout"]))),
        (Part::Stderr, normal(text(&run["stderr"]))),
        (Part::Exit, format!("{} {}", run["exit_code"], text(&run["outcome"]))),
        (Part::Files, listing(files)),
    ])
}

/// The result of a script as a run would have it: the server cuts outputs and names the signal that killed a program.
fn seen_cold(script: &Output, run: &Value, files: &[u8]) -> Seen {
    let exit = script.status.code().expect("the docker client ends by itself");
    let mut stderr = capped(&script.stderr);
    let outcome = match exit {
        0 => "ok",
        // A code above 128 means a signal: no snippet exits with such a code itself.
        129..=192 => {
            let said = text(&run["stderr"]).lines().last().unwrap_or_default();
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            let note = format!("Killed by signal {}", exit - 128);
            // Other tests check the words after the note.
            stderr.push_str(if said.starts_with(&note) { said } else { &note });
            "killed"
        }
        _ => "error",
    };
    BTreeMap::from([
        (Part::Stdout, normal(&capped(&script.stdout))),
        (Part::Stderr, normal(&stderr)),
        (Part::Exit, format!("{exit} {outcome}")),
        (Part::Files, listing(files)),
    ])
}

/// An output as the server returns it.
fn capped(output: &[u8]) -> String {
    let bytes = &on_screen(output)[..];
    let omitted = bytes.len().saturating_sub(OUTPUT_CAP);
    if omitted == 0 {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let (mut head, rest) = bytes.split_at(OUTPUT_CAP - OUTPUT_CAP * 2 / 5);
    let mut tail = &rest[omitted..];
    // Lines that the cut goes through are left out, unless they are very long.
    let is_end = |byte: &u8| *byte == b'\n';
    if let Some(part) = head.iter().rev().take(500).position(is_end) {
        head = &head[..head.len() - part - 1];
    }
    if let Some(part) = tail.iter().take(500).position(is_end) {
        tail = &tail[part + 1..];
    }
    let omitted = bytes.len() - head.len() - tail.len();
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}\n[... {omitted} bytes left out ...]\n{tail}")
}

/// A text without addresses and process ids, which are never the same.
fn normal(text: &str) -> String {
    let mut normal = text.to_owned();
    for (mark, digits) in
        [("0x", char::is_ascii_hexdigit as fn(&char) -> bool), ("pid=", char::is_ascii_digit)]
    {
        let mut pieces = normal.split(mark);
        let mut kept = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            kept.push_str(mark);
            kept.push_str(piece.trim_start_matches(|c| digits(&c)));
        }
        normal = kept;
    }
    normal
}

/// An archive as text: each entry with its kind, mode, size and content.
fn listing(files: &[u8]) -> String {
    let mut entries = BTreeMap::new();
    let mut archive = tar::Archive::new(Cursor::new(files));
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let link = entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned());
        let header = entry.header();
        let (kind, mode) = (header.entry_type(), header.mode().expect("a mode"));
        let mut content = vec![];
        entry.read_to_end(&mut content).expect("in memory");
        let lines: Vec<_> = match String::from_utf8(content) {
            Ok(text) => text.lines().map(|line| format!("\n    {line}")).collect(),
            Err(error) => vec![format!("\n    {}", hex::encode(Sha256::digest(error.as_bytes())))],
        };
        let size = entry.size();
        let head = format!("{name}: {kind:?} {mode:o} {size} {}", link.unwrap_or_default());
        entries.insert(name, head + &lines.concat() + "\n");
    }
    entries.into_values().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_run_is_like_a_cold_script() {
    let bench = &Bench::start().await;
    let snippets = &share_of(Snippet::all());
    let next = &AtomicUsize::new(0);
    // As many sessions as the usual machine has processors.
    let sessions = [bench.compare_all(snippets, next), bench.compare_all(snippets, next)];
    let wrong = futures::future::join_all(sessions).await.concat();
    assert_none_wrong(wrong, snippets.len());
}

#[test]
fn the_snippets_are_what_they_are_meant_to_be() {
    let all = Snippet::all();
    assert!(all.len() >= 449 || std::env::var_os("SNIPPETS").is_some(), "{}", all.len());
    nothing_else_is_in(SNIPPETS);
    // Editors and checkouts tend to repair odd characters that are there on purpose.
    for (name, odd) in [
        ("main_module/bom", "\u{feff}\"\"\""),
        ("main_module/crlf", "if True:\r\n"),
        ("main_module/cr", "\rprint"),
        ("main_module/null_byte", "a\0b"),
        ("main_module/form_feed", "\u{b}print"),
        ("tracebacks/tabs", "\n\ty"),
    ] {
        let found = all.iter().find(|snippet| snippet.name == name);
        assert!(found.is_none_or(|snippet| snippet.code.contains(odd)), "{name} lost its {odd:?}");
    }
}

/// Prints values that must be different in every process.
const RANDOM: &str = r#"
import json, multiprocessing, os, random, secrets, sqlite3, ssl, tempfile, uuid
import numpy as np, pandas as pd, pyarrow.compute as pc
from scipy import stats
from seaborn.algorithms import bootstrap
print(json.dumps({
    "random": random.random(),
    "random.Random": random.Random().random(),
    "random.getrandbits": random.getrandbits(64),
    "np.random": float(np.random.rand()),
    "np.random.permutation": np.random.permutation(1000).tolist(),
    "default_rng": float(np.random.default_rng().random()),
    "RandomState": float(np.random.RandomState().rand()),
    "sample": pd.Series(range(10**6)).sample(5).tolist(),
    "scipy": float(stats.norm.rvs()),
    "seaborn": float(bootstrap(range(1000), n_boot=2)[0]),
    "pyarrow": pc.random(1)[0].as_py(),
    "sqlite": sqlite3.connect(":memory:").execute("select random()").fetchone()[0],
    "uuid1": uuid.uuid1().hex,
    "uuid4": uuid.uuid4().hex,
    "secrets": secrets.token_hex(),
    "urandom": os.urandom(8).hex(),
    "ssl": ssl.RAND_bytes(8).hex(),
    "mktemp": tempfile.mktemp(),
    "mkdtemp": tempfile.mkdtemp(),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "child": multiprocessing.get_context("fork").Pool(1).apply(random.random),
}))"#;

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_never_share_randomness() {
    /// Enough runs to find a spare, and to come too soon for one.
    const RUNS: usize = 6;

    let bench = Bench::start().await;
    let session = bench.place("random").await.session;
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for _ in 0..RUNS {
        let (run, start) = bench.run(&session, RANDOM).await.expect("carried out");
        assert_ne!(start, "cold");
        assert_eq!(run["outcome"], "ok", "{run}");
        let values: BTreeMap<String, Value> =
            serde_json::from_str(text(&run["stdout"])).expect("what was printed");
        for (source, value) in values {
            seen.entry(source).or_default().insert(value.to_string());
        }
    }
    seen.retain(|_, values| values.len() < RUNS);
    assert!(seen.is_empty(), "the same in several runs: {seen:#?}");
}

/// Sends a signal to every other process, for long enough to reach the next spare, too, and prints the number of
/// processes that it reached.
const ATTACK: &str = r"
import os, signal, time
met, end = set(), time.monotonic() + 0.5
while time.monotonic() < end:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
        if pid not in (1, os.getpid()):
            try:
                os.kill(pid, signal.SIGNAL)
                met.add(pid)
            except OSError: pass
    time.sleep(0.005)
print(len(met))";

/// Programs to run after an attack, and their usual output.
const LATER: &[(&str, &str)] = &[
    ("print(6 * 7)", "42\n"),
    ("import os; print(os.getppid(), os.getcwd())", "1 /mnt/data\n"),
    (
        "import pandas as pd\n\
         frame = pd.DataFrame({'city': ['Lyon', 'Nice', 'Lyon'], 'spend': [1, 2, 3]})\n\
         print(frame.groupby('city')['spend'].sum().to_dict())",
        "{'Lyon': 4, 'Nice': 2}\n",
    ),
    ("print(open('kept.csv').read())", "kept\n"),
];

/// Runs an attack, and checks that the next runs are correct, and soon warm again.
async fn hurts_no_later_run(attack: &str, ends: impl Fn(&Value) -> bool) {
    let bench = Bench::start().await;
    let session = bench.place("attack").await.session;
    bench.server.upload(&session, "kept.csv", b"kept").await.ok();
    // Twice: after the first attack the container has other processes than before.
    for _ in 0..2 {
        let run = bench.server.run_for(&session, attack, 3).await;
        assert!(ends(&run), "{run}");
        for (code, printed) in LATER.iter().chain(LATER) {
            let (later, start) = bench.run(&session, code).await.expect("carried out");
            assert_eq!(
                (&later["stdout"], &later["stderr"]),
                (&json!(printed), &json!("")),
                "{start}"
            );
            assert_eq!(later["outcome"], "ok");
        }
        bench.until_forked(&session).await;
    }
}

/// Whether an attack ran to its end and reached another process.
fn met_others(run: &Value) -> bool {
    run["outcome"] == "ok" && run["stdout"] != "0\n"
}

support::tests! {
    a_run_that_kills_the_fork_server_hurts_no_later_run =>
        hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGKILL"), met_others);
    a_run_that_stops_the_fork_server_hurts_no_later_run =>
        hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGSTOP"), met_others);
    a_run_that_interrupts_the_fork_server_hurts_no_later_run =>
        hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGINT"), met_others);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_child_kills_everything_hurts_no_later_run() {
    let code = "import os, time\nif os.fork() == 0:\n    os.kill(-1, 9)\ntime.sleep(30)";
    hurts_no_later_run(code, |run| run["outcome"] == "killed" && run["exit_code"] == 137).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_child_stops_everything_hurts_no_later_run() {
    let code = "import os, time\nif os.fork() == 0:\n    os.kill(-1, 19)\ntime.sleep(30)";
    hurts_no_later_run(code, |run| run["outcome"] == "timeout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_parent_hurts_nobody() {
    let code = "import os\nfor number in range(1, 65): os.kill(os.getppid(), number)\n\
                print(os.getppid())";
    let ends = |run: &Value| run["outcome"] == "ok" && run["stdout"] == "1\n";
    hurts_no_later_run(code, ends).await;
}
