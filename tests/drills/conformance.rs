//! Conformance of the engines: each promise is tested on each engine with the same words; the answers make a table.
//!
//! ```sh
//! UPDATE_DOCS=1 cargo test -p llm-sandbox-tests --test drills conformance     # writes docs/conformance.md
//! ```
//!
//! A cell of the table that is no longer true fails, whether the promise is now broken or now kept. Pods are tested if
//! there is a cluster: `tests/kubernetes/drills.sh`. `tests/vm/run.sh` tests the engines that run in an emulated machine.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    process::Command,
    sync::Mutex,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use support::{On, Server, name, slowness};

use crate::{cluster::Cluster, engine::Engine};

/// A promise that is tested on each engine.
struct Promise {
    about: &'static str,
    what: &'static str,
    how: How,
}

impl Promise {
    /// Plain processes have the libraries and the memory of this machine, and could write to any folder of its user.
    fn is_asked_of(&self, engine: &str) -> bool {
        let is_of_machine = ["Data work", "Datasets", "Isolation"].contains(&self.about);
        engine != PLAIN || !(is_of_machine || self.what.contains("memory"))
    }
}

enum How {
    /// A program prints this and exits with 0.
    Prints(&'static str, &'static str),
    /// A program fails, and its standard error contains this.
    Fails(&'static str, &'static str),
    /// A program ends with this outcome.
    Ends(&'static str, &'static str),
    /// Cells of a language, one after another. The last one has this value.
    Cells(&'static str, &'static [&'static str], &'static str),
    /// As `Cells`, but the last cell but one must end with this status.
    Stopped(&'static str, &'static [&'static str], &'static str, &'static str),
    /// Cells, of which one is undone before the last.
    Undo(&'static [&'static str], &'static str),
    /// A program draws an image, which comes with the result.
    Shows(&'static str),
}

use How::{Cells, Ends, Fails, Prints, Shows, Stopped, Undo};

/// A program that writes a CSV with two regions.
const CSV: &str = "open('a.csv', 'w').write('day,region,revenue\\n2026-01-05,North,10\\n2026-02-01,South,7\\n2026-02-03,North,5\\n')\nimport pandas as pd\nd = pd.read_csv('a.csv', parse_dates=['day'])\n";

/// Draws in Chinese, Japanese and Korean, and counts the warnings about missing characters.
const CJK: &str = "import warnings, matplotlib.pyplot as plt\nwith warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n    plt.title('销售 売上 매출')\n    plt.savefig('c.png')\nprint(len([w for w in said if 'missing' in str(w.message)]))";

macro_rules! promises {
    ($($about:literal: { $($what:literal => $how:expr;)* })*) => {
        vec![$($(Promise { about: $about, what: $what, how: $how },)*)*]
    };
}

fn promises() -> Vec<Promise> {
    let with_csv =
        |code: &str| -> &'static str { Box::leak(format!("{CSV}{code}").into_boxed_str()) };
    promises! {
        "Programs": {
            "print" => Prints("print(2 + 2)", "4\n");
            "an error has its traceback" => Fails("def f(): return 1 / 0\nf()", "ZeroDivisionError");
            "an exit code is the program's own" => Fails("import sys\nsys.exit('no')", "no");
            "a timeout ends a program" => Ends("while True: pass", "timeout");
            "the memory limit ends a program" => Ends("x = []\nfor _ in range(3000): x.append(b'x' * 10**6)", "out_of_memory");
            "endless recursion is an error of the language" => Fails("def f(): f()\nf()", "RecursionError");
            "asyncio" => Prints("import asyncio\nasync def f(): await asyncio.sleep(0.01); return 7\nprint(asyncio.run(f()))", "7\n");
            "threads" => Prints("import threading\nt = threading.Thread(target=print, args=('here',))\nt.start(); t.join()", "here\n");
            "other programs (`subprocess`)" => Prints("import subprocess\nprint(subprocess.run(['echo', 'here'], capture_output=True, text=True).stdout, end='')", "here\n");
            "`multiprocessing`" => Prints("import multiprocessing\nif __name__ == '__main__':\n    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))", "[1, 2]\n");
        }
        "Data work": {
            "pandas reads and groups CSV with dates" => Prints(with_csv("print(d.groupby(d.day.dt.month).revenue.sum().to_dict())"), "{1: 10, 2: 12}\n");
            "Excel files are written and read" => Prints(with_csv("d.to_excel('a.xlsx', index=False)\nprint(pd.read_excel('a.xlsx').revenue.sum())"), "22\n");
            "Parquet" => Prints(with_csv("d.to_parquet('a.parquet')\nprint(pd.read_parquet('a.parquet').revenue.sum())"), "22\n");
            "Polars" => Prints("import polars\nprint(polars.DataFrame({'a': [1, 2]})['a'].sum())", "3\n");
            "DuckDB" => Prints("import duckdb\nprint(duckdb.sql('select 6 * 7').fetchall()[0][0])", "42\n");
            "Plotly" => Prints("import plotly.express as px\nprint(type(px.bar(x=['a'], y=[1])).__name__)", "Figure\n");
            "Word documents (python-docx)" => Prints("import docx\nd = docx.Document(); d.add_paragraph('x'); d.save('a.docx')\nprint(docx.Document('a.docx').paragraphs[0].text)", "x\n");
            "presentations (python-pptx)" => Prints("import pptx\np = pptx.Presentation(); p.slides.add_slide(p.slide_layouts[6]); p.save('a.pptx')\nprint(len(pptx.Presentation('a.pptx').slides))", "1\n");
            "integers have 64 bits unless another width is asked for" => Prints("import numpy, pandas\nprint(numpy.arange(2).dtype, pandas.Series([3e9]).astype(int)[0])", "int64 3000000000\n");
            "SQLite" => Prints("import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t (x)')\nc.execute('insert into t values (5)')\nprint(c.execute('select sum(x) from t').fetchone()[0])", "5\n");
            "ZIP archives" => Prints("import zipfile\nwith zipfile.ZipFile('a.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('b', 'x' * 1000)\nprint(len(zipfile.ZipFile('a.zip').read('b')))", "1000\n");
            "time zones" => Prints("from zoneinfo import ZoneInfo\nfrom datetime import datetime\nprint(datetime(2026, 7, 1, tzinfo=ZoneInfo('Europe/Berlin')).utcoffset())", "2:00:00\n");
            "SciPy, scikit-learn, statsmodels" => Prints("import scipy.stats, sklearn.linear_model, statsmodels.api\nprint(round(scipy.stats.norm.cdf(0), 2), sklearn.linear_model.LinearRegression().fit([[0], [1]], [0, 2]).coef_[0].round(2))", "0.5 2.0\n");
            "PDF (ReportLab)" => Prints("from reportlab.pdfgen.canvas import Canvas\nc = Canvas('a.pdf'); c.drawString(9, 9, 'x'); c.save()\nprint(open('a.pdf', 'rb').read(5))", "b'%PDF-'\n");
            "Chinese, Japanese and Korean in PDF (ReportLab, `UnicodeCIDFont`)" => Prints("from reportlab.pdfgen.canvas import Canvas\nfrom reportlab.pdfbase import pdfmetrics\nfrom reportlab.pdfbase.cidfonts import UnicodeCIDFont\npdfmetrics.registerFont(UnicodeCIDFont('STSong-Light'))\nc = Canvas('k.pdf'); c.setFont('STSong-Light', 12); c.drawString(9, 9, '销售'); c.save()\nprint('STSong' in open('k.pdf', 'rb').read().decode('latin-1'))", "True\n");
            "pictures (Pillow)" => Prints("from PIL import Image\nImage.new('RGB', (9, 9), 'red').save('a.png')\nprint(Image.open('a.png').size)", "(9, 9)\n");
            "charts are returned as images (Matplotlib)" => Shows("import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.savefig('a.png')");
            "charts of seaborn, shown and not saved" => Shows("import seaborn, matplotlib.pyplot as plt\nseaborn.barplot(x=['a', 'b'], y=[1, 2])\nplt.show()");
            "Chinese, Japanese and Korean in charts" => Prints(CJK, "0\n");
        }
        "Cells of Python": {
            "variables persist" => Cells("python", &["x = [1]", "x.append(2)", "x"], "[1, 2]");
            "generators persist" => Cells("python", &["g = iter('abc')\nnext(g)", "next(g)"], "'b'");
            "`await` at the top level" => Cells("python", &["import asyncio\nawait asyncio.sleep(0, 5)"], "5");
            "an error keeps the variables" => Cells("python", &["x = 1", "x = 2; 1 / 0", "x"], "2");
            "a timeout rolls the variables back" => Stopped("python", &["x = [1]", "x.append(2)\nwhile True: pass", "x"], "timeout", "[1]");
            "`os._exit` rolls the variables back" => Stopped("python", &["x = [1]", "import os\nx.append(2)\nos._exit(1)", "x"], "execution_error", "[1]");
            "running out of memory rolls the variables back" => Stopped("python", &["x = [1]", "x.append(2)\ny = []\nfor _ in range(3000): y.append(b'x' * 10**6)", "x"], "out_of_memory", "[1]");
            "a timeout rolls the files back" => Stopped("python", &["open('a', 'w').write('1')", "open('a', 'w').write('22')\nwhile True: pass", "open('a').read()"], "timeout", "'1'");
            "cells can be undone" => Undo(&["x = 1", "x = 2", "x"], "1");
            "`!command`" => Cells("python", &["r = !echo here\nr[0]"], "'here'");
        }
        "Other languages": {
            "JavaScript, with variables that persist" => Cells("javascript", &["let x = [1]", "x.push(2)", "x.length"], "2");
            "a timeout of JavaScript rolls the variables back" => Stopped("javascript", &["let x = 1", "x = 2; while (true);", "x"], "timeout", "1");
            "JavaScript reads and writes files" => Cells("javascript", &["const fs = require('fs'); fs.writeFileSync('a', 'x'); fs.readFileSync('a', 'utf8')"], "'x'");
            "modules of Node, such as `crypto`" => Cells("javascript", &["require('crypto').createHash('sha256').update('').digest('hex').slice(0, 4)"], "'e3b0'");
            "the shell" => Cells("bash", &["x=5", "echo $x"], "");
        }
        "Datasets": {
            "programs read the files" => Prints("print(open('/data/sales/a.csv').read(), end='')", "id\n1\n");
            "pandas reads a folder of them" => Prints("import glob, pandas as pd\nprint(len(pd.concat(map(pd.read_csv, glob.glob('/data/sales/**/*.csv', recursive=True)))))", "2\n");
            "nothing can be written, renamed or removed" => Prints("import os\ndef fails(f, *a):\n    try: f(*a)\n    except OSError: return True\nd = '/data/sales/'\nprint(fails(open, d + 'a.csv', 'a'), fails(open, d + 'b.csv', 'w'), fails(os.rename, d + 'a.csv', d + 'b.csv'), fails(os.remove, d + 'a.csv'), fails(os.mkdir, d + 'b'), fails(os.truncate, d + 'a.csv', 0))", "True True True True True True\n");
            "links do not lead to files of the host" => Prints("print([open(p).read() for p in ('/data/sales/inside',)])\nfor p in ('absolute', 'above'):\n    try: open('/data/sales/' + p).read(); print('read')\n    except OSError: print('no')", "['id\\n1\\n']\nno\nno\n");
            "programs reach no process of the host by a named pipe" => Prints("import os\ntry: os.write(os.open('/data/sales/pipe', os.O_WRONLY | os.O_NONBLOCK), b'x'); print('written')\nexcept OSError: print('no')", "no\n");
        }
        "Isolation": {
            "no network" => Fails("import socket\nsocket.create_connection(('1.1.1.1', 53), 2)", "Error");
            "only /mnt/data and /tmp can be written" => Fails("open('/usr/x', 'w')", "Error");
            "no variables of the host's environment" => Prints("import os\nprint([n for n in os.environ if n.startswith('SANDBOX_') or n == 'DOCKER_HOST'])", "[]\n");
            "a full /mnt/data is an error of the program" => Fails("with open('a', 'wb') as f:\n    for _ in range(400): f.write(bytes(10**6))", "No space left");
            "links do not lead outside" => Fails("import os\nos.symlink('/etc/shadow', 'a')\nopen('a').read()", "Error");
        }
    }
}

/// A dataset of the host: a file, one in a folder, links to a file in it and to one beside it, and a named pipe of which
/// this process reads.
struct Dataset {
    folder: TempDir,
    _reader: fs::File,
}

impl Dataset {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("sales/2026")).expect("made");
        for file in ["sales/a.csv", "sales/2026/b.csv", "secret"] {
            fs::write(path(file), "id\n1\n").expect("written");
        }
        symlink("2026/b.csv", path("sales/inside")).expect("linked");
        symlink(path("secret"), path("sales/absolute")).expect("linked");
        symlink("../secret", path("sales/above")).expect("linked");
        assert!(Command::new("mkfifo").arg(path("sales/pipe")).status().expect("runs").success());
        for (name, mode) in [("", 0o755), ("sales", 0o755), ("sales/pipe", 0o666)] {
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("set");
        }
        // With both rights it does not wait for a writer.
        let reader = fs::File::options().read(true).write(true).open(path("sales/pipe"));
        let reader = reader.expect("opened");
        Self { folder, _reader: reader }
    }

    fn path(&self) -> String {
        self.folder.path().join("sales").display().to_string()
    }

    fn setting(&self) -> String {
        format!("sales={}", self.path())
    }
}

/// The answers of one engine, by promise.
type Column = BTreeMap<&'static str, bool>;

async fn ask(server: &Server, promise: &Promise, shared: &str) -> bool {
    // Programs that must succeed do not affect one another, so they share a session.
    let is_shared = matches!(promise.how, Prints(..) | Shows(_));
    let id = if is_shared { shared.to_owned() } else { name("conformance") };
    let run = async |code: &str| {
        let timeout = 20 * slowness();
        let arguments = json!({ "session_id": id, "code": code, "timeout_s": timeout });
        server.call("run_python", arguments).await
    };
    let cell = async |language: &str, code: &str| {
        let timeout = if code.contains("while") { 2 } else { 30 } * slowness();
        let cell =
            json!({ "session_id": id, "language": language, "code": code, "timeout": timeout });
        server.call("execute_code", cell).await.json
    };
    let answer = match &promise.how {
        Prints(code, expected) => {
            let ran = run(code).await.json;
            (ran["stdout"] == *expected && ran["outcome"] == "ok", ran)
        }
        Fails(code, said) => {
            let ran = run(code).await.json;
            let said = ran["stderr"].as_str().is_some_and(|text| text.contains(said));
            (said && ran["outcome"] == "error", ran)
        }
        Ends(code, outcome) => {
            let timeout = if *outcome == "timeout" { 2 } else { 30 } * slowness();
            let arguments = json!({ "session_id": id, "code": code, "timeout_s": timeout });
            let ran = server.call("run_python", arguments).await.json;
            (ran["outcome"] == *outcome, ran)
        }
        Shows(code) => {
            let ran = run(code).await;
            (!ran.blocks("image").is_empty(), ran.json)
        }
        Cells(language, cells, value) => {
            let mut last = Value::Null;
            for code in *cells {
                last = cell(language, code).await;
            }
            let is_so =
                last["status"] == "success" && (value.is_empty() || last["result"] == *value);
            (is_so, last)
        }
        Stopped(language, cells, status, value) => {
            let mut seen = vec![];
            for code in *cells {
                seen.push(cell(language, code).await);
            }
            let [.., stopped, last] = &seen[..] else { panic!("two cells at least") };
            (stopped["status"] == *status && last["result"] == *value, json!(seen))
        }
        Undo(cells, value) => {
            let (last, before) = cells.split_last().expect("cells");
            for code in before {
                cell("python", code).await;
            }
            server.call("reset_workspace", json!({ "session_id": id, "undo": 1 })).await;
            let last = cell("python", last).await;
            (last["result"] == *value, last)
        }
    };
    if !is_shared {
        server.call("close_session", json!({ "session_id": id })).await;
    }
    let (holds, seen) = answer;
    if !holds {
        println!("{}: {}", promise.what, seen.to_string().chars().take(2000).collect::<String>());
    }
    holds
}

async fn column(engine: &str, server: &Server) -> Column {
    let (mut column, shared) = (Column::new(), name("programs"));
    for promise in promises().into_iter().filter(|promise| promise.is_asked_of(engine)) {
        column.insert(promise.what, ask(server, &promise, &shared).await);
    }
    column
}

/// The engines, in the order of the columns. One that was never tested has no column.
const ENGINES: [&str; 9] = [
    "Docker",
    "Docker with gVisor",
    "Docker, cgroup v2",
    "rootless Docker",
    "Podman",
    "rootless Podman",
    "pods",
    "embedded",
    PLAIN,
];

/// Plain processes, which isolate nothing.
const PLAIN: &str = "plain processes";

fn page() -> PathBuf {
    support::root().join("docs/conformance.md")
}

/// The committed column of an engine.
fn committed(page: &str, engine: &str) -> BTreeMap<String, bool> {
    let rows = page.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    let rows: Vec<Vec<_>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
    let place = |cells: &Vec<_>| cells.iter().position(|cell| *cell == engine);
    let Some(column) = rows.first().and_then(place) else { return BTreeMap::new() };
    let known = rows.iter().map(|cells| (cells[0].to_owned(), cells[column]));
    known
        .filter(|(_, cell)| ["yes", "no"].contains(cell))
        .map(|(what, cell)| (what, cell == "yes"))
        .collect()
}

/// Returns the page with this column replaced or added.
fn write(page: &str, engine: &str, column: &Column) -> String {
    let (head, _) = page.split_once("\n## ").expect("the page begins with words");
    let mut columns = ENGINES.map(|name| (name, committed(page, name))).to_vec();
    columns.retain(|(name, known)| *name == engine || !known.is_empty());
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = format!("{}\n", head.trim_end());
    let mut about = "";
    for promise in promises() {
        if promise.about != about {
            about = promise.about;
            let (names, line) = (names.join(" | "), "---|".repeat(names.len() + 1));
            write!(text, "\n## {about}\n\n| | {names} |\n|{line}\n").expect("written");
        }
        let cell = |(name, known): &(&str, BTreeMap<String, bool>)| {
            let known = known.get(promise.what);
            match if *name == engine { column.get(promise.what) } else { known } {
                _ if !promise.is_asked_of(name) => "-",
                Some(true) => "yes",
                Some(false) => "no",
                None => "?",
            }
        };
        let cells: Vec<_> = columns.iter().map(cell).collect();
        writeln!(text, "| {} | {} |", promise.what, cells.join(" | ")).expect("written");
    }
    text
}

/// Only one engine at a time reads and writes the page.
static PAGE: Mutex<()> = Mutex::new(());

#[track_caller]
fn compare(engine: &str, column: &Column) {
    let _alone = PAGE.lock().expect("no test panics while it holds this");
    let page = fs::read_to_string(page()).expect("the page is there");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(self::page(), write(&page, engine, column)).expect("written");
        return;
    }
    let known = committed(&page, engine);
    let mut changed = String::new();
    for (what, holds) in column {
        if known.get(*what) != Some(holds) {
            writeln!(changed, "{what}: {holds}, and the page says {:?}", known.get(*what))
                .expect("written");
        }
    }
    assert!(changed.is_empty(), "docs/conformance.md is not true of {engine}:\n{changed}");
    assert_eq!(known.len(), column.len(), "docs/conformance.md has other promises than there are");
}

/// Under gVisor copies of processes take a multiple of the memory that they take on other engines.
const SETTINGS: [(&str, &str); 2] =
    [("SANDBOX_MEMORY_LIMIT", "1GB"), ("SANDBOX_DATA_LIMIT", "100MB")];

/// Compares the column of an engine with this dataset.
async fn test(engine: &str, on: On, datasets: &str, more: &[(&str, &str)]) {
    let longest = (60 * slowness()).to_string();
    let own = [("SANDBOX_DATASETS", datasets), ("SANDBOX_EXEC_TIMEOUT_S", &longest)];
    let settings = [&SETTINGS[..], &own, more].concat();
    let server = Server::start_with(on, &settings).await;
    compare(engine, &column(engine, &server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_docker() {
    test("Docker", On::Docker, &Dataset::new().setting(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_the_emulated_machine() {
    let Ok(engine) = env::var("TEST_MACHINE") else {
        return println!("skipped: tests/vm/run.sh runs it");
    };
    assert!(ENGINES.contains(&&*engine), "the table has no engine {engine}");
    test(&engine, On::Docker, &Dataset::new().setting(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_gvisor() {
    if Command::new("runsc").arg("--version").output().is_err() {
        return println!("skipped: there is no runsc on this machine");
    }
    let Some(engine) = Engine::start() else { return };
    let more = [("DOCKER_HOST", &*engine.host()), ("SANDBOX_RUNTIME", "runsc")];
    test("Docker with gVisor", On::Docker, &Dataset::new().setting(), &more).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_pods() {
    let Some(cluster) = Cluster::there() else { return };
    let data = Dataset::new();
    let file = data.folder.path().join("config.yaml");
    let volume = "volume: { persistentVolumeClaim: { claimName: sales } }";
    fs::write(&file, format!("datasets: [{{ name: sales, {volume} }}]")).expect("written");
    cluster.claim_folder("sales", &data.path());
    let file = ("SANDBOX_CONFIG_FILE", file.to_str().expect("UTF-8"));
    test("pods", On::Kubernetes, "", &[&[file][..], &cluster.settings()].concat()).await;
    cluster.release_folder("sales");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_the_embedded_engine() {
    test("embedded", On::Wasm, &Dataset::new().setting(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_true_of_plain_processes() {
    test(PLAIN, On::Local, &Dataset::new().setting(), &[]).await;
}
