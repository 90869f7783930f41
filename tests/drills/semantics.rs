//! The fork server's promise: a run is like a cold `python3 -P -s /tmp/main.py`, to the byte.
//!
//! Each file of `tests/snippets/<topic>` is run twice in one container, in an empty `/mnt/data`: by
//! `run_python`, and by `docker exec` as a script. Both must print, end and leave the same. Nothing
//! is expected of either beyond that, so a snippet may show whatever a program can see of itself.
//!
//! At the top of a snippet there may be
//!
//! ```text
//! # differs: <part>: <reason>   its stdout, stderr, exit or files are not alike, and have to differ
//! # start: cold: <reason>       it must not be forked from the fork server, and the others must be
//! # given: <path>               a file that lies in /mnt/data when it starts
//! #| <a line of that file>
//! ```
//!
//! With `SNIPPETS=tracebacks` in its environment the test takes only the snippets that have this in
//! their names, which begin with their topics.
//!
//! What `docker exec` cannot show, because its processes have no parent in the container, and what
//! would hurt the comparison itself, has tests of its own at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Cursor, Read},
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{
    On, PATIENCE, PRELOADED, Server, containers, name, on_screen, root, share_of, text, until,
};
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    time::{sleep, timeout},
};

/// What two runs of a snippet are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Stdout,
    Stderr,
    Exit,
    Files,
}

impl Part {
    /// As a snippet writes it.
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

/// Bytes kept of each output, as the server is told.
const OUTPUT_CAP: usize = 200_000;

/// Gives all in the data area as an archive, and puts there what the archive on standard input has.
const EXCHANGE: &str = "tar -c . && find . -mindepth 1 -delete && \
                        rm -rf /tmp/main.py && tar -xm -C /";

/// What a run is to be like.
const COLD: &[&str] = &["python3", "-P", "-s", "/tmp/main.py"];

struct Snippet {
    /// Topic and file, without the ending.
    name: String,
    code: String,
    /// Differences that are right or not worth their cure, each with the reason why.
    differs: BTreeMap<Part, String>,
    /// Files that are there when it starts: paths below the root, and contents.
    given: Vec<(String, String)>,
    start: Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Forked,
    Cold,
}

impl Snippet {
    fn read(path: &Path) -> Self {
        let name =
            path.strip_prefix(root().join(SNIPPETS)).expect("in the folder").with_extension("");
        let name = name.to_str().expect("a name").to_owned();
        let code = fs::read_to_string(path).expect("UTF-8");
        let mut differs = BTreeMap::new();
        let mut start = Start::Forked;
        let mut given: Vec<(String, String)> = vec![];
        let after_mark = code.strip_prefix('\u{feff}').unwrap_or(&code);
        for line in after_mark.lines().take_while(|line| line.starts_with('#')) {
            if let Some(difference) = line.strip_prefix("# differs: ") {
                let (part, reason) = difference.split_once(": ").unwrap_or((difference, ""));
                let part = Part::named(part)
                    .unwrap_or_else(|| panic!("{name}: there is no such part: {line}"));
                assert!(!reason.is_empty(), "{name}: why?");
                let twice = differs.insert(part, reason.to_owned());
                assert_eq!(twice, None, "{name}: {part:?} twice");
            } else if let Some(reason) = line.strip_prefix("# start: cold: ") {
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

    /// All of them, or those that were asked for.
    fn all() -> Vec<Self> {
        let wanted = std::env::var("SNIPPETS").unwrap_or_default();
        let mut all: Vec<_> =
            files_by_topic(SNIPPETS).iter().map(|path| Self::read(path)).collect();
        all.retain(|snippet| snippet.name.contains(&wanted));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

const SNIPPETS: &str = "tests/snippets";

/// All files below a folder of the repository, in the folders of their topics.
pub(crate) fn files_by_topic(folder: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries =
            fs::read_dir(folder).unwrap_or_else(|_| panic!("no topic: {}", folder.display()));
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    entries(&root().join(folder)).iter().flat_map(|topic| entries(topic)).collect()
}

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

/// What came of a run, each part as a text.
type Seen = BTreeMap<Part, String>;

/// A server, its log, and where it is written.
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
            // The fork server and a cold script with all libraries side by side.
            ("SANDBOX_MEMORY_LIMIT", "1GB"),
            ("SANDBOX_MAX_OUTPUT_BYTES", &OUTPUT_CAP.to_string()),
            // What is compared is what the interpreter says.
            ("SANDBOX_TRACEBACKS", "full"),
        ];
        let server = Server::start_to(On::Docker, &settings, Stdio::null()).await;
        Self { server, folder }
    }

    /// Runs code, and says how it was started: `warm`, `fork` or `cold`.
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

    /// How the log says that a run was started, once its line is there.
    fn start_of(&self, run_id: &Value) -> Option<String> {
        let log = fs::read_to_string(self.folder.path().join("server.log")).expect("a log");
        // Half a line may be the last.
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = lines.find(|line| line["run_id"] == *run_id)?;
        Some(text(&line["start"]).to_owned())
    }

    /// Waits until a run does not find the fork server still on its way.
    async fn until_forked(&self, session: &str) {
        until("a run that is not started cold", async || {
            let (run, start) = self.run(session, "print('ready')").await.expect("carried out");
            assert_eq!(run["stdout"], "ready\n", "{run}");
            start != "cold"
        })
        .await;
    }

    /// A new session, its fork server loaded.
    async fn place(&self, test: &str) -> Place {
        let session = name(test);
        self.until_forked(&session).await;
        let found = containers(&session);
        assert_eq!(found.len(), 1, "{found:?}");
        let place = Place { session, container: found.concat() };
        place.until_idle().await.expect("just forked");
        place
    }

    /// Compares snippets, one after the other, until there are none left.
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

    /// Runs a snippet both ways, and says all that is wrong with it, or why that cannot be said.
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
        for (part, cold) in &cold {
            match (difference(cold, &warm[part]), snippet.differs.get(part)) {
                (Some(difference), None) => wrong.push(format!("{part:?} differs:\n{difference}")),
                (None, Some(reason)) => {
                    wrong.push(format!("{part:?} no longer differs, as it might: {reason}"));
                }
                _ => {}
            }
        }
        Ok(wrong)
    }
}

/// A session and the container that it is.
struct Place {
    session: String,
    container: String,
}

impl Place {
    /// Waits until the agent has swept up after a run, which it does when the caller has the answer
    /// already: what `docker exec` starts before that would be swept up too. Then there are the
    /// agent, the fork servers and what they have forked, and all of them wait.
    async fn until_idle(&self) -> Result<(), String> {
        let idle = async {
            // The agent, the two fork servers with a spare each, and what waits for a cell.
            while self.states().await != ["S"; 6] {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, idle).await.map_err(|_| "it is never idle again".to_owned())
    }

    /// What each process in the container does, seen from outside.
    async fn states(&self) -> Vec<String> {
        // With the number, without which the engine cannot tell whose they are.
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

    /// Empties the data area and unpacks an archive; what was in the data area is given as one too.
    async fn exchange(&self, archive: &[u8]) -> Vec<u8> {
        let done = self.exec(&["sh", "-c", EXCHANGE], Some(archive));
        let done = timeout(PATIENCE, done).await.expect("it ends in time");
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }

    /// Runs a program as the user that runs have and with all that the agent gives them. Without any
    /// input that is `/dev/null`.
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
            // What is not taken is for the other end to complain about.
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

/// What a script's end is to be like as a run: the server caps outputs and says what killed it.
fn seen_cold(script: &Output, run: &Value, files: &[u8]) -> Seen {
    let exit = script.status.code().expect("the docker client ends by itself");
    let mut stderr = capped(&script.stderr);
    let outcome = match exit {
        0 => "ok",
        // Beyond 128 it was a signal: no snippet ends itself with such a code.
        129..=192 => {
            let said = text(&run["stderr"]).lines().last().unwrap_or_default();
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            let note = format!("Killed by signal {}", exit - 128);
            // The words after it are for other tests.
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

/// An output as the server gives it.
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

/// A text without the addresses and process ids in it, which are never the same.
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

/// An archive as a text: each entry with its kind, mode and size, and what is in it.
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

/// The lines between the first and the last that differ, if any do.
fn difference(cold: &str, warm: &str) -> Option<String> {
    /// Lines shown of each side, and characters of each line.
    const LINES: usize = 30;
    const WIDTH: usize = 300;

    if cold == warm {
        return None;
    }
    let [cold, warm] = [cold, warm].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let same_head = cold.iter().zip(&warm).take_while(|(cold, warm)| cold == warm).count();
    let (cold, warm) = (&cold[same_head..], &warm[same_head..]);
    let ends = cold.iter().rev().zip(warm.iter().rev());
    let same_tail = ends.take_while(|(cold, warm)| cold == warm).count();
    let shown = |sign: &str, lines: &[&str]| {
        let lines = &lines[..lines.len() - same_tail];
        let line = |line: &&str| {
            let line: String = line.escape_debug().take(WIDTH).collect();
            format!("    {sign} {line}\n")
        };
        let mut shown: Vec<_> = lines.iter().take(LINES).map(line).collect();
        if lines.len() > LINES {
            shown.push(format!("    {sign} and {} more\n", lines.len() - LINES));
        }
        shown.concat()
    };
    let head = format!("    after {same_head} equal lines, - is the cold script, + the run\n");
    Some(head + &shown("-", cold) + &shown("+", warm))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_run_is_like_a_cold_script() {
    let bench = &Bench::start().await;
    let snippets = &share_of(Snippet::all());
    let next = &AtomicUsize::new(0);
    // As many sessions as the usual machine has processors.
    let sessions = [bench.compare_all(snippets, next), bench.compare_all(snippets, next)];
    let mut wrong = futures::future::join_all(sessions).await.concat();
    wrong.sort();
    assert!(
        wrong.is_empty(),
        "{} of {} snippets:\n\n{}",
        wrong.iter().filter_map(|line| line.split(':').next()).collect::<BTreeSet<_>>().len(),
        snippets.len(),
        wrong.join("\n"),
    );
}

#[test]
fn the_snippets_are_what_they_are_meant_to_be() {
    let all = Snippet::all();
    assert!(all.len() >= 449 || std::env::var_os("SNIPPETS").is_some(), "{}", all.len());
    for path in files_by_topic(SNIPPETS) {
        assert!(path.extension().is_some_and(|end| end == "py"), "{} is never run", path.display());
    }
    // Editors and checkouts like to mend what is odd on purpose.
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

/// Everything that is different in every process, or should be.
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
    /// Enough for runs that find a spare and runs that come too soon for one.
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

/// Sends a signal to every process but itself, for long enough to meet the next spare too, and
/// counts those it has met.
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

/// What runs print after an attack, as they would have before.
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

/// Lets a run do its worst, and sees to it that the next ones are right and soon warm again.
async fn hurts_no_later_run(attack: &str, ends: impl Fn(&Value) -> bool) {
    let bench = Bench::start().await;
    let session = bench.place("attack").await.session;
    bench.server.upload(&session, "kept.csv", b"kept").await.ok();
    // A second time: what was mended after the first may be another thing.
    for _ in 0..2 {
        let arguments = json!({ "session_id": session, "code": attack, "timeout_s": 3 });
        let run = bench.server.call("run_python", arguments).await.ok();
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

/// It went on to its end, and met somebody.
fn met_others(run: &Value) -> bool {
    run["outcome"] == "ok" && run["stdout"] != "0\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_the_fork_server_hurts_no_later_run() {
    hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGKILL"), met_others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_stops_the_fork_server_hurts_no_later_run() {
    hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGSTOP"), met_others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_interrupts_the_fork_server_hurts_no_later_run() {
    hurts_no_later_run(&ATTACK.replace("SIGNAL", "SIGINT"), met_others).await;
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
