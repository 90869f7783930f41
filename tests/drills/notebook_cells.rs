//! The promise of `execute_code`: a Python cell does what it does in a notebook.
//!
//! Each file of `tests/cells/<topic>` is some cells that follow one another. They are run twice in one container, in
//! an empty `/mnt/data`: by `execute_code`, in a workspace that has just been reset, and by `docker exec` in a shell
//! of IPython that is set up as a Jupyter kernel sets up its own (`notebook.py`). Output, value, end and number of each
//! cell must be the same, and so must the files after the last one.
//! ```text
//! # %%                              begins a cell
//! # stdin: <line>                   what the cell can read
//! # differs: <part>: <reason>       its stdout, stderr, result, status, count or files must differ, for this
//!                                   reason
//! ```
//!
//! If `CELLS` is set in the environment, for example to `errors`, the test takes only files with this text in their
//! names, which begin with their topics.
//!
//! Addresses, durations and the names of cells as files are never compared: in a notebook these names are different in
//! each process.

use std::{collections::BTreeMap, fmt::Write as _, process::Stdio};

use crate::snippets::{
    self, Differs, assert_none_wrong, nothing_else_is_in, states_difference, wrong_parts,
};
use serde_json::{Value, json};
use support::{
    On, PATIENCE, PRELOADED, Server, containers, name, on_screen, share_of, text, until,
};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// A part of a cell's result, compared by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Stdout,
    Stderr,
    Result,
    Status,
    Count,
    Files,
}

impl Part {
    /// The part with this name in a header of a cell.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "stdout" => Self::Stdout,
            "stderr" => Self::Stderr,
            "result" => Self::Result,
            "status" => Self::Status,
            "count" => Self::Count,
            "files" => Self::Files,
            _ => return None,
        })
    }
}

/// The program that runs cells as a notebook does.
const NOTEBOOK: &str = include_str!("notebook.py");

/// The line that begins a cell.
const MARK: &str = "# %%\n";

/// Cells that follow one another.
struct Snippet {
    /// Topic and file, without the ending.
    name: String,
    cells: Vec<Cell>,
}

#[derive(Default)]
struct Cell {
    code: String,
    stdin: Option<String>,
    /// Differences that are right or not worth a fix, each with its reason.
    differs: Differs<Part>,
}

impl Snippet {
    fn read((name, content): (String, String)) -> Self {
        let cells = content.split(MARK).skip(1).map(|cell| Cell::read(&name, cell)).collect();
        Self { name, cells }
    }

    /// All snippets, or those that `CELLS` selects.
    fn all() -> Vec<Self> {
        snippets::all(CELLS, "CELLS").into_iter().map(Self::read).collect()
    }
}

impl Cell {
    fn read(snippet: &str, content: &str) -> Self {
        let mut cell = Self::default();
        let mut rest = content;
        while let Some((line, after)) = rest.split_once('\n') {
            if states_difference(line, snippet, Part::named, &mut cell.differs) {
                rest = after;
                continue;
            }
            if let Some(line) = line.strip_prefix("# stdin: ") {
                let stdin = cell.stdin.get_or_insert_default();
                stdin.push_str(line);
                stdin.push('\n');
            } else {
                break;
            }
            rest = after;
        }
        // A notebook's cells have no line end after the last line.
        rest.trim_end_matches('\n').clone_into(&mut cell.code);
        cell
    }
}

const CELLS: &str = "tests/cells";

/// The result of a cell, each part as text.
type Seen = BTreeMap<Part, String>;

/// A session and its container.
struct Place<'a> {
    server: &'a Server,
    session: String,
    container: String,
}

impl<'a> Place<'a> {
    /// Starts a session and waits until its fork server has loaded, so that forked processes run the cells.
    async fn make(server: &'a Server) -> Self {
        let session = name("notebook");
        let arguments = json!({ "session_id": session, "code": "0" });
        server.call("run_python", arguments).await.ok();
        let container = containers(&session).concat();
        let place = Self { server, session, container };
        // The agent, the two fork servers with a spare each, and the process that waits for a cell.
        until("nothing but those who wait", async || place.states().await == ["S"; 6]).await;
        place
    }

    /// The state of each process in the container, as the host sees it.
    async fn states(&self) -> Vec<String> {
        // With process ids, without which the engine cannot tell which processes are in the container.
        let listed = Command::new("docker").args(["top", &self.container, "-eo", "pid,s"]).output();
        let listed = String::from_utf8(listed.await.expect("the docker client runs").stdout);
        let listed = listed.expect("letters");
        let states = listed.lines().skip(1).filter_map(|line| line.split_whitespace().last());
        states.map(str::to_owned).collect()
    }

    /// Runs cells as a notebook does; returns for each snippet the results of its cells, and its files.
    async fn as_notebook(&self, snippets: &[&Snippet]) -> Vec<Value> {
        let cells = |snippet: &&Snippet| {
            let cell = |cell: &Cell| json!({ "code": cell.code, "stdin": cell.stdin });
            snippet.cells.iter().map(cell).collect::<Vec<_>>()
        };
        let given = json!(snippets.iter().map(cells).collect::<Vec<_>>()).to_string();
        let mut child = Command::new("docker")
            .args(["exec", "--workdir", "/mnt/data", "--env", "PYTHONPATH=/mnt/data", "-i"])
            .args([&*self.container, "python3", "-P", "-s", "-c", NOTEBOOK])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the docker client runs");
        let mut stdin = child.stdin.take().expect("piped");
        let feed = async {
            stdin.write_all(given.as_bytes()).await.expect("it reads");
            drop(stdin);
        };
        let run = async { tokio::join!(feed, child.wait_with_output()).1.expect("waited") };
        // The program itself ends each snippet in time.
        let output = timeout(PATIENCE * 3, run).await.expect("in time").stdout;
        serde_json::from_slice(&output).expect("what it tells")
    }

    /// Runs snippets both ways; returns all differences.
    async fn compare(&self, snippets: &[&Snippet]) -> Vec<String> {
        let notebook = self.as_notebook(snippets).await;
        let mut wrong = vec![];
        for (snippet, notebook) in snippets.iter().zip(notebook) {
            let reset = json!({ "session_id": self.session, "files": true });
            self.server.call("reset_workspace", reset).await.ok();
            let found = self.compare_one(snippet, &notebook).await;
            wrong.extend(found.iter().map(|what| format!("{} {what}", snippet.name)));
        }
        wrong
    }

    async fn compare_one(&self, snippet: &Snippet, notebook: &Value) -> Vec<String> {
        let Some(told) = notebook["cells"].as_array() else {
            return vec![format!(": the notebook fails: {}", notebook["cells"])];
        };
        let mut wrong = vec![];
        for (number, (cell, told)) in (1..).zip(snippet.cells.iter().zip(told)) {
            let arguments = json!({
                "session_id": self.session,
                "code": cell.code,
                "stdin": cell.stdin.as_deref().unwrap_or_default(),
                "timeout": 30,
            });
            let answer = self.server.call("execute_code", arguments).await;
            if answer.raw["isError"] == true || answer.json["state"] != "kept" {
                wrong.push(format!("cell {number}: {}", answer.json));
                break;
            }
            let mut seen = seen(&answer.json);
            let mut wanted = seen_in_notebook(told);
            if number == snippet.cells.len() {
                seen.insert(Part::Files, self.files().await);
                wanted.insert(Part::Files, lines(&notebook["files"]));
            }
            let sides = ["the notebook", "the workspace"];
            let found = wrong_parts(&wanted, &seen, &cell.differs, sides);
            wrong.extend(found.iter().map(|what| format!("cell {number}: {what}")));
        }
        wrong
    }

    /// Names of the session's files.
    async fn files(&self) -> String {
        let files = self.server.files(&self.session).await;
        let mut names: Vec<_> = files.into_iter().map(|(name, _)| name).collect();
        names.sort();
        lines(&json!(names))
    }
}

fn lines(names: &Value) -> String {
    let names = names.as_array().expect("names").iter();
    names.map(|name| [text(name), "\n"].concat()).collect()
}

fn seen(answer: &Value) -> Seen {
    BTreeMap::from([
        (Part::Stdout, normal(text(&answer["stdout"]))),
        (Part::Stderr, normal(text(&answer["stderr"]))),
        (Part::Result, normal(answer["result"].as_str().unwrap_or_default())),
        (Part::Status, format!("{} {}", text(&answer["status"]), answer["exit_code"])),
        (Part::Count, answer["execution_count"].to_string()),
    ])
}

fn seen_in_notebook(told: &Value) -> Seen {
    let status = match (told["success"].as_bool(), told["exit"].as_i64()) {
        (Some(true), _) => "success 0".to_owned(),
        (_, code) => format!("execution_error {}", code.unwrap_or(1)),
    };
    BTreeMap::from([
        (Part::Stdout, normal(&screen(&told["stdout"]))),
        (Part::Stderr, normal(&screen(&told["stderr"]))),
        (Part::Result, normal(told["result"].as_str().unwrap_or_default())),
        (Part::Status, status),
        (Part::Count, told["count"].to_string()),
    ])
}

/// The text that a screen shows after a notebook's output.
fn screen(output: &Value) -> String {
    String::from_utf8(on_screen(text(output).as_bytes())).expect("whole characters")
}

/// A text without the parts that are never the same: addresses, times, and the names that cells have as files.
fn normal(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit() || c == '<') {
        normal.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("<ipython-input-") {
            let (number, after) = after.split_once('-').expect("a number and a hash");
            let (_, after) = after.split_once('>').expect("an end");
            let _ = write!(normal, "Cell In[{number}]");
            rest = after;
        } else if let Some(address) = rest.strip_prefix("0x") {
            normal.push_str("0x");
            rest = address.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        } else if let Some(after) = after_time(rest) {
            normal.push_str("[time]");
            rest = after;
        } else {
            let number =
                rest.len() - rest[1..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
            normal.push_str(&rest[..number]);
            rest = &rest[number..];
        }
    }
    normal + rest
}

/// The text after the unit of a time, such as `1.5 ms` or `1e+03 ns`, if the text begins with one.
fn after_time(text: &str) -> Option<&str> {
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let after = after
        .strip_prefix("e+")
        .map_or(after, |exponent| exponent.trim_start_matches(|c: char| c.is_ascii_digit()));
    let unit = after.strip_prefix(' ').filter(|_| after.len() < text.len())?;
    let (unit, after) =
        unit.split_at(unit.find(|c: char| !c.is_alphabetic()).unwrap_or(unit.len()));
    ["s", "ms", "μs", "us", "ns"].contains(&unit).then_some(after)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_does_what_it_does_in_a_notebook() {
    // The comparison needs IPython's own tracebacks.
    let settings = [
        PRELOADED,
        ("SANDBOX_TRACEBACKS", "full"),
        ("SANDBOX_MEMORY_LIMIT", "1GB"),
        ("SANDBOX_MAX_OUTPUT_BYTES", "200000"),
    ];
    let server = &Server::start_with(On::Docker, &settings).await;
    let snippets = &share_of(Snippet::all());
    // As many sessions as the usual machine has processors.
    let halves = (0..2).map(async |half| {
        let snippets: Vec<_> = snippets.iter().skip(half).step_by(2).collect();
        Place::make(server).await.compare(&snippets).await
    });
    let wrong = futures::future::join_all(halves).await.concat();
    assert_none_wrong(wrong, snippets.len());
}

#[test]
fn the_cells_are_what_they_are_meant_to_be() {
    let all = Snippet::all();
    let count: usize = all.iter().map(|snippet| snippet.cells.len()).sum();
    assert!(count >= 490 || std::env::var_os("CELLS").is_some(), "{count}");
    for snippet in &all {
        assert!(!snippet.cells.is_empty(), "{}: no cell", snippet.name);
    }
    nothing_else_is_in(CELLS);
}
