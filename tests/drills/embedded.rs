//! The embedded engine: its limits, each with the answer that its callers get, and its isolation.

use support::{
    On, Server, assert_fields, key_in, name, text, until,
    web::{Caller, Web},
};

use crate::engine;
use serde_json::{Value, json};

const ALICE_AND_BOB: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");

async fn cell(server: &Server, session: &str, code: &str) -> Value {
    server.cell_for(session, code, 5).await.ok()
}

/// Starts a session with a variable and a file.
async fn begun(settings: &[(&str, &str)]) -> (Server, String) {
    let (server, id) = (Server::start_with(On::Wasm, settings).await, name("embedded"));
    let first = cell(&server, &id, "x = [1, 2]\nopen('kept.txt', 'w').write('kept')\nx").await;
    assert_eq!((&first["status"], &first["result"]), (&json!("success"), &json!("[1, 2]")));
    (server, id)
}

/// Checks that variables and files are as they were before the cell.
async fn all_is_back(server: &Server, id: &str) {
    let look = "import os\n(x, sorted(os.listdir()), open('kept.txt').read())";
    let back = cell(server, id, look).await;
    assert_eq!(back["result"], "([1, 2], ['kept.txt'], 'kept')", "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_stopped_takes_variables_and_files_back() {
    let (server, id) = begun(&[("SANDBOX_MEMORY_LIMIT", "256MB")]).await;
    let change =
        "x.append(3)\nopen('kept.txt', 'w').write('changed')\nopen('new.txt', 'w').write('new')\n";
    for (end, status, exit_code) in [
        ("while True: pass", "timeout", -1),
        ("import time\ntime.sleep(100)", "timeout", -1),
        ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", "timeout", -1),
        ("big = bytearray(10**9)", "out_of_memory", 137),
        ("big = []\nwhile True: big.append(bytearray(10**6))", "out_of_memory", 137),
        ("import os\nos._exit(3)", "execution_error", 3),
        ("import os\nos.abort()", "execution_error", 134),
    ] {
        // Filling the memory takes long on a busy machine.
        let timeout_s = if status == "timeout" { 5 } else { 60 };
        let stopped = server.cell_for(&id, &format!("{change}{end}"), timeout_s).await.ok();
        let told = (&stopped["status"], &stopped["state"], &stopped["exit_code"]);
        assert_eq!(told, (&json!(status), &json!("rolled_back"), &json!(exit_code)), "{stopped}");
        assert!(stopped["error_message"].is_string(), "{stopped}");
        all_is_back(&server, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_fails_keeps_what_it_did() {
    let (server, id) = begun(&[]).await;
    for (end, code) in [("1 / 0", 1), ("import sys\nsys.exit(4)", 4), ("def f(): f()\nf()", 1)] {
        let failed = cell(&server, &id, &format!("x.append(3)\n{end}")).await;
        assert_fields!(failed, { "state": "kept", "exit_code": code });
    }
    let caught = "try:\n    bytearray(10**9)\nexcept MemoryError:\n    print('caught')";
    let caught = cell(&server, &id, caught).await;
    assert_eq!((&caught["state"], &caught["stdout"]), (&json!("kept"), &json!("caught\n")));
    assert_eq!(cell(&server, &id, "len(x)").await["result"], "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn fuel_bounds_a_call() {
    let (server, id) = begun(&[("SANDBOX_FUEL", "2000000000")]).await;
    let stopped = cell(&server, &id, "x.append(3)\nwhile True: pass").await;
    assert_fields!(stopped, { "status": "out_of_fuel", "state": "rolled_back" });
    all_is_back(&server, &id).await;
    let run = server.run(&id, "open('new.txt', 'w')\nwhile True: pass").await;
    assert_eq!((&run["outcome"], &run["exit_code"]), (&json!("out_of_fuel"), &json!(-1)), "{run}");
    all_is_back(&server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_cancelled_is_undone() {
    let (server, id) = begun(&[]).await;
    let endless =
        json!({ "session_id": id, "code": "x.append(3)\nopen('run', 'w')\nwhile True: pass" });
    let (request, answer) = server.begin("execute_code", endless);
    until("it runs", async || server.files(&id).await.iter().any(|(name, _)| name == "run")).await;
    server.upload(&id, "meanwhile.csv", b"a,b").await.ok();
    server.cancel(request);
    drop(answer);
    until("it is over", async || !server.files(&id).await.iter().any(|(name, _)| name == "run"))
        .await;
    let names = "import os\n(x, sorted(os.listdir()))";
    let back = cell(&server, &id, names).await;
    assert_eq!(back["result"], "([1, 2], ['kept.txt', 'meanwhile.csv'])", "an upload stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_a_quota_and_descriptors_a_limit() {
    let server = Server::start_with(On::Wasm, &[("SANDBOX_DATA_LIMIT", "10MB")]).await;
    let id = name("quota");
    let code = "import os\n\
                try:\n    with open('big', 'wb', buffering=0) as f:\n        while True: f.write(b'x' * 1000000)\n\
                except OSError as error: print(error.strerror)\n\
                print(os.path.getsize('big'))\nos.unlink('big')\n\
                try: open('hole', 'wb').truncate(1 << 40)\nexcept OSError as error: print(error.strerror)\n\
                files = []\n\
                try:\n    while True: files.append(open('f', 'a'))\n\
                except OSError as error: print(error.strerror, len(files) > 200)";
    let run = server.run(&id, code).await;
    let full = "No space left on device";
    let expected = format!("{full}\n10000000\n{full}\nNo file descriptors available True\n");
    assert_eq!(run["stdout"], expected, "{run}");
}

/// Bytes of resident memory of a server's agents.
fn resident(server: &Server) -> u64 {
    let resident = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    agents(server).into_iter().map(resident).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_are_being_listed_take_no_memory_that_is_not_counted() {
    let (server, id) = begun(&[("SANDBOX_MEMORY_LIMIT", "256MB")]).await;
    let fill = "import os\nos.mkdir('full')\n\
                for i in range(8000): open(f'full/{i:0200}', 'w').close()\n\
                names = sorted(os.listdir('full'))\n(len(names), names[0] < names[-1])";
    let filled = server.cell_for(&id, fill, 60).await.ok();
    assert_eq!(filled["result"], "(8000, True)", "{filled}");
    let before = resident(&server);
    // 160 MB of names, if each of the 100 listings copied its 8,000 names of 200 characters.
    let list = "listings = None\nlistings = [os.scandir('full') for _ in range(100)]\n\
                len({next(listing).name for listing in listings})";
    for _ in 0..2 {
        let listed = server.cell_for(&id, list, 60).await.ok();
        assert_eq!(listed["result"], "1", "{listed}");
    }
    let more = resident(&server).saturating_sub(before);
    assert!(more < 100 << 20, "{more} bytes");
    let code = "len({entry.name for entry in listings[0]})";
    let rest = json!({ "session_id": id, "code": code, "timeout": 60 });
    let rest = server.call("execute_code", rest).await.ok();
    assert_eq!(rest["result"], "7999", "each goes on where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_host_can_be_reached() {
    let (server, id) = (Server::start(On::Wasm).await, name("probe"));
    let code = "import os, socket\n\
                print(sorted(os.listdir('/')), {'PATH', 'SHELL', 'SANDBOX_ENGINE', 'CARGO'} & os.environ.keys())\n\
                for path in '/etc/passwd', '/proc/self/environ', '/../../etc/passwd', '/dev/null', '/root':\n\
                \x20   try: open(path); print('open', path)\n\
                \x20   except OSError as error: print(error.strerror)\n\
                os.symlink('/etc', 'etc')\n\
                try: open('etc/passwd'); print('open')\n\
                except OSError as error: print(error.strerror)\n\
                try: open('/usr/local/lib/new', 'w'); print('open')\n\
                except OSError as error: print(error.strerror)\n\
                try: socket.create_connection(('127.0.0.1', 80)); print('connected')\n\
                except (OSError, AttributeError): print('no socket')\n\
                try: os.fork(); print('forked')\n\
                except AttributeError: print('no fork')";
    let run = server.run(&id, code).await;
    let none = "No such file or directory\n".repeat(6);
    let expected =
        format!("['mnt', 'tmp', 'usr'] set()\n{none}Read-only file system\nno socket\nno fork\n");
    assert_eq!(run["stdout"], expected, "{run}");
}

/// The agents of a server: its child processes.
pub(crate) fn agents(server: &Server) -> Vec<u32> {
    agents_of(&server.process)
}

fn agents_of(server: &tokio::process::Child) -> Vec<u32> {
    let pid = server.id().expect("running");
    let listed = std::process::Command::new("pgrep")
        .args(["-P", &pid.to_string(), "-f", "embedded-agent"])
        .output()
        .expect("pgrep runs");
    let pids = String::from_utf8(listed.stdout).expect("numbers");
    pids.lines().map(|pid| pid.parse().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_process_that_is_killed_costs_one_session() {
    let (server, id) = begun(&[]).await;
    let killed = agents(&server);
    let other = name("other");
    cell(&server, &other, "y = 7").await;
    for agent in killed {
        std::process::Command::new("kill")
            .args(["-9", &agent.to_string()])
            .status()
            .expect("kill runs");
    }
    let gone = async || {
        server.call("list_artifacts", json!({ "session_id": id })).await.raw["isError"] == true
    };
    until("it is noticed", gone).await;
    assert_eq!(cell(&server, &other, "y").await["result"], "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_no_process() {
    let (mut server, id) = begun(&[]).await;
    let agents = agents(&server);
    assert!(!agents.is_empty());
    // One agent runs an endless cell.
    let endless = json!({ "session_id": id, "code": "while True: pass" });
    let params = json!({ "name": "execute_code", "arguments": endless });
    server.send(&json!({ "jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params }));
    server.kill().await;
    let is_gone = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.map_or(true, |status| status.contains("State:\tZ"))
    };
    until("they are gone", async || agents.iter().all(is_gone)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_given_up_its_rights() {
    let (server, _) = begun(&[]).await;
    for agent in agents(&server) {
        let status = std::fs::read_to_string(format!("/proc/{agent}/status")).expect("running");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim_start_matches(':').trim().to_owned()
        };
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".into(), "2".into()));
        for set in ["CapEff", "CapPrm", "CapInh"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        let filters: u32 = field("Seccomp_filters").parse().expect("a number");
        assert!(filters >= 2, "{filters}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_tables_and_documents_are_made() {
    let (server, id) = (Server::start(On::Wasm).await, name("work"));
    let code = "import pandas as pd, sqlite3, zipfile, io\nimport matplotlib.pyplot as plt\n\
                from zoneinfo import ZoneInfo\n\
                table = pd.DataFrame({'when': pd.date_range('2026-01-01', periods=3, tz='Europe/Berlin'), 'n': [1, 2, 3]})\n\
                table['when'] = table['when'].dt.tz_localize(None)\n\
                table.to_excel('table.xlsx', index=False)\nprint(pd.read_excel('table.xlsx').n.sum())\n\
                base = sqlite3.connect('base.db')\ntable.to_sql('t', base)\n\
                print(base.execute('select sum(n) from t').fetchone())\nbase.close()\n\
                zipfile.ZipFile('all.zip', 'w').writestr('a', 'b')\n\
                plt.bar(['销售', '売上', '매출'], table.n)\nplt.title('CJK')\nplt.savefig('chart.png')\n\
                from reportlab.pdfgen import canvas\npage = canvas.Canvas('report.pdf')\n\
                page.drawString(100, 700, 'report')\npage.save()";
    let run = server.run(&id, code).await;
    assert_eq!((&run["stdout"], &run["stderr"]), (&json!("6\n(6,)\n"), &json!("")), "{run}");
    let names: Vec<_> = server.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["all.zip", "base.db", "chart.png", "report.pdf", "table.xlsx"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_there_is_said_in_a_line() {
    let (server, id) = begun(&[]).await;
    for code in
        ["%pip install yfinance", "!pip install yfinance", "!python -m pip install yfinance"]
    {
        let told = cell(&server, &id, code).await;
        assert!(text(&told["stderr"]).starts_with("pip: there is no network here"), "{told}");
        assert_eq!(text(&told["stderr"]).lines().count(), 1, "{told}");
        assert!(text(&told["notes"][0]).starts_with("The sandbox has no network"), "{told}");
    }
    for code in ["!ls -l", "files = !ls -l"] {
        let told = cell(&server, &id, code).await;
        assert_fields!(told, {
            "status": "execution_error",
            "stderr": "UsageError: !ls -l: wasi does not support processes\n",
        });
        assert!(text(&told["notes"][0]).starts_with("Here are no processes"), "{told}");
    }
    let run = server.run(&id, "import yfinance").await;
    let last = text(&run["stderr"]).trim_end().lines().last().expect("a traceback").to_owned();
    assert_eq!(last, "ModuleNotFoundError: No module named 'yfinance'");
    let told = cell(&server, &id, "import yfinance").await;
    assert!(!text(&told["stderr"]).contains("Site"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_keeps_its_state_and_is_undone_as_well() {
    let (server, id) = (Server::start(On::Wasm).await, name("javascript"));
    let run = async |code: &str| {
        let arguments =
            json!({ "session_id": id, "language": "javascript", "code": code, "timeout": 3 });
        server.call("execute_code", arguments).await.ok()
    };
    let first =
        run("const words = ['a']; class Point {}; console.log({ words }); words.length").await;
    assert_eq!((&first["stdout"], &first["result"]), (&json!("{ words: [ 'a' ] }\n"), &json!("1")));
    assert_eq!(
        run("const words = ['b', 'c']; await Promise.resolve(words.length)").await["result"],
        "2"
    );
    let stopped = run("words.push('d'); for (;;) {}").await;
    assert_eq!((&stopped["status"], &stopped["state"]), (&json!("timeout"), &json!("rolled_back")));
    let code = "const fs = require('fs'); fs.writeFileSync('a.txt', 'é'); \
                `${words} ${fs.readFileSync('a.txt', 'utf8')}`";
    assert_eq!(run(code).await["result"], "'b,c é'");
    let failed = run("null.x").await;
    assert!(text(&failed["stderr"]).starts_with("Uncaught TypeError"), "{failed}");
    assert_eq!(failed["exit_code"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_reads_its_standard_input_as_in_node() {
    let (server, id) = (Server::start(On::Wasm).await, name("input"));
    let run = async |code: &str, stdin: &str| {
        let arguments =
            json!({ "session_id": id, "language": "javascript", "code": code, "stdin": stdin });
        let ran = server.call("execute_code", arguments).await.ok();
        assert_eq!(ran["status"], "success", "{ran}");
        text(&ran["stdout"]).to_owned()
    };
    for code in [
        "console.log(require('fs').readFileSync(0, 'utf8'))",
        "console.log(require('fs').readFileSync('/dev/stdin').toString())",
        "var all = ''; process.stdin.on('data', (part) => { all += part; }); \
         process.stdin.on('end', () => console.log(all)); undefined",
        "process.stdin.setEncoding('utf8'); process.stdin.once('data', (part) => console.log(part)); undefined",
        "var all = ''; process.stdin.on('readable', () => { \
           for (let part; (part = process.stdin.read()) !== null;) all += part; }); \
         process.stdin.on('end', () => console.log(all)); undefined",
        "var all = ''; for await (const part of process.stdin) all += part; console.log(all)",
    ] {
        assert_eq!(run(code, "Zoë\n2\n").await, "Zoë\n2\n\n", "{code}");
        assert_eq!(
            run("require('fs').readFileSync(0).length", "").await,
            "",
            "nothing is left of it"
        );
    }
    // Listeners on an earlier input do not receive this one.
    assert_eq!(
        run(
            "var lines = require('fs').readFileSync(0, 'utf8').split('\\n'); console.log(lines[1])",
            "a\nb"
        )
        .await,
        "b\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_of_javascript_are_shown_and_a_rejection_that_nobody_handles_fails_its_cell() {
    let (server, id) = (Server::start(On::Wasm).await, name("promises"));
    let run = async |code: &str| {
        let arguments = json!({ "session_id": id, "language": "javascript", "code": code });
        server.call("execute_code", arguments).await.ok()
    };
    let shown = [
        ("Promise.resolve({ a: [1] })", "Promise { { a: [ 1 ] } }"),
        ("new Promise(() => {})", "Promise { <pending> }"),
        ("[Promise.resolve('x')]", "[ Promise { 'x' } ]"),
        (
            "const loop = {}; loop.p = Promise.resolve(loop); loop",
            "{ p: Promise { [Circular *1] } }",
        ),
        ("const p = Promise.reject(2); p.catch(() => {}); p", "Promise { <rejected> 2 }"),
        ("Object.create(Promise.prototype)", "Promise {}"),
        ("class P extends Promise {}; P.resolve(1)", "P { 1 }"),
    ];
    for (code, text) in shown {
        let ran = run(code).await;
        assert_eq!((&ran["status"], &ran["result"]), (&json!("success"), &json!(text)), "{ran}");
    }
    for code in [
        "let kept = 1; Promise.reject(new Error('boo'))",
        "Promise.reject(new Error('boo')); await new Promise(r => setTimeout(r, 5)); 1",
        "const late = Promise.reject(new Error('boo')); setTimeout(() => late.catch(() => {}), 5); 1",
        "(async () => { await null; throw new Error('boo') })(); 1",
        "Promise.resolve().then(() => { throw new Error('boo') }); 1",
    ] {
        let failed = run(code).await;
        assert_eq!(failed["status"], "execution_error", "{code}: {failed}");
        assert!(text(&failed["stderr"]).starts_with("Uncaught Error: boo"), "{failed}");
    }
    // An error in a callback of an earlier cell fails neither the cell in which it happens, nor a later one.
    run("setTimeout(() => { throw new Error('boo') }, 1); 1").await;
    let later = run("await new Promise(r => setTimeout(r, 20)); 2").await;
    assert_eq!(
        (&later["result"], text(&later["stderr"]).starts_with("Uncaught Error: boo")),
        (&json!("2"), true),
        "{later}"
    );
    // A rejection that is handled in time fails no cell, and earlier failures do not fail later cells.
    let handled = "let n = 0; try { await Promise.reject(1) } catch { n += 1 }\n\
                   Promise.reject(1).catch(() => { n += 1 }); await null; [kept, n]";
    assert_eq!(run(handled).await["result"], "[ 1, 2 ]");
    assert_eq!(
        run("Promise.allSettled([Promise.reject(1)]).then(all => all.length)").await["status"],
        "success"
    );
}

/// Starts a server that saves sandboxes in a folder.
async fn keeping(folder: &std::path::Path) -> Server {
    let folder = folder.to_str().expect("UTF-8");
    Server::start_with(On::Wasm, &[("SANDBOX_STATE_DIR", folder)]).await
}

/// A path for the folder that a server creates.
pub(crate) fn state_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("states");
    (dir, folder)
}

/// The files of the saved sandboxes.
fn states(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(folder).expect("made").flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|it| it == "state")).collect()
}

/// Flips a bit in the middle of a file.
fn damage(file: &std::path::Path) {
    let mut bytes = std::fs::read(file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).expect("written");
}

/// Waits until the agents of a server that has ended have ended, too.
pub(crate) async fn until_gone(agents: Vec<u32>) {
    let is_gone = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.map_or(true, |status| status.contains("State:\tZ"))
    };
    until("they are gone", async || agents.iter().all(is_gone)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_after_its_server_was_killed_or_ended() {
    let (_dir, folder) = state_folder();
    let own = name("own");
    let mut server = keeping(&folder).await;
    let first = cell(&server, &own, "def count():\n    n = 0\n    while True:\n        n += 1\n        yield n\nit = count()\nnext(it)").await;
    assert_eq!(first["result"], "1");
    let minted = server.call("execute_code", json!({ "code": "x = 41" })).await.ok();
    let minted = text(&minted["session_id"]).to_owned();
    server.upload(&own, "sales.csv", b"a,b\n1,2\n").await.ok();
    let script =
        json!({ "session_id": own, "language": "javascript", "code": "let words = ['a']" });
    server.call("execute_code", script).await.ok();
    let working = agents(&server);
    server.kill().await;
    until_gone(working).await;

    for (round, signal) in [(2, "TERM"), (3, "KILL")] {
        let mut server = keeping(&folder).await;
        let files = server.files(&own).await;
        assert_eq!(files, [("sales.csv".to_owned(), 8)], "a look is enough to wake it");
        let next = cell(&server, &own, "next(it)").await;
        assert_eq!(next["result"], round.to_string(), "{next}");
        assert!(next.get("new_session").is_none() && next.get("new_workspace").is_none(), "{next}");
        assert_eq!(next["execution_count"], round);
        let script =
            json!({ "session_id": own, "language": "javascript", "code": "words.push('b')" });
        assert_eq!(server.call("execute_code", script).await.ok()["result"], round.to_string());
        let more = json!({ "session_id": minted, "code": "x += 1\nx" });
        let more = server.call("execute_code", more).await.ok();
        assert_eq!(
            more["result"],
            (40 + round).to_string(),
            "a name of the server's goes on as well"
        );
        let agents = agents(&server);
        server.signal(signal);
        server.exit_code().await;
        until_gone(agents).await;
    }
}

/// Starts a server whose sessions hibernate soon and are saved.
async fn sleepy(folder: &std::path::Path) -> Server {
    let folder = folder.to_str().expect("UTF-8");
    let settings = [("SANDBOX_STATE_DIR", folder), ("SANDBOX_HIBERNATE_AFTER_M", "0.01")];
    Server::start_with(On::Wasm, &settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_on_disk_takes_a_place_before_its_files_are_read() {
    let (_dir, folder) = state_folder();
    let folder = folder.to_str().expect("UTF-8");
    let settings = [("SANDBOX_STATE_DIR", folder), ("SANDBOX_MAX_SESSIONS", "2")];
    let server = Server::start_with(On::Wasm, &settings).await;
    let ids: Vec<_> = (0..4).map(|_| name("disk")).collect();
    for id in &ids {
        cell(&server, id, "_ = open('a', 'w').write('1')").await;
    }
    for id in &ids {
        assert_eq!(server.files(id).await, [("a".to_owned(), 1)]);
        assert!(agents(&server).len() <= 2, "{:?}", agents(&server));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_another_server_has_kept_is_closed_without_a_place() {
    let (_dir, folder) = state_folder();
    let [kept, busy] = [name("kept"), name("busy")];
    let mut server = keeping(&folder).await;
    cell(&server, &kept, "x = 1").await;
    server.signal("TERM");
    server.exit_code().await;
    assert_eq!(states(&folder).len(), 1);

    let text = folder.to_str().expect("UTF-8");
    let settings = [("SANDBOX_STATE_DIR", text), ("SANDBOX_MAX_SESSIONS", "1")];
    let server = Server::start_with(On::Wasm, &settings).await;
    cell(&server, &busy, "x = 1").await;
    let works = "open('works', 'w').close()\nwhile True: pass";
    let run = server.call("run_python", json!({ "session_id": busy, "code": works }));
    let closing = async {
        until("it works", async || !server.files(&busy).await.is_empty()).await;
        let close =
            async |id: &str| server.call("close_session", json!({ "session_id": id })).await;
        close(&kept).await.ok();
        assert_eq!(close(&kept).await.error(), "session_not_found");
        close(&busy).await.ok();
    };
    let (run, ()) = tokio::join!(run, closing);
    assert_eq!(run.ok()["outcome"], "cancelled");
    assert_eq!(std::fs::read_dir(&folder).expect("made").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_hibernates_has_no_process_and_goes_on() {
    let (_dir, folder) = state_folder();
    let id = name("own");
    let mut server = sleepy(&folder).await;
    let asleep = async |server: &Server| {
        until("it sleeps", async || agents(server).is_empty()).await;
    };
    cell(&server, &id, "it = iter(range(100))\nnext(it)").await;
    server.upload(&id, "sales.csv", b"a,b\n1,2\n").await.ok();
    cell(&server, &id, "file = open('log.txt', 'w')\nfile.write('begun')\nnext(it)").await;
    asleep(&server).await;
    let third = cell(&server, &id, "next(it)").await;
    assert_eq!((&third["result"], &third["execution_count"]), (&json!("2"), &json!(3)), "{third}");
    assert!(third.get("notes").is_none() && third.get("new_session").is_none(), "{third}");
    asleep(&server).await;
    let files = server.files(&id).await;
    assert_eq!(files, [("log.txt".to_owned(), 0), ("sales.csv".to_owned(), 8)]);
    // The undo states of cells hibernate with the session, and survive the server.
    for round in 1..=2 {
        asleep(&server).await;
        let undo = json!({ "session_id": id, "undo": 1 });
        server.call("reset_workspace", undo).await.ok();
        assert_eq!(cell(&server, &id, "next(it)").await["result"], "2", "round {round}");
        asleep(&server).await;
        server.kill().await;
        server.exit_code().await;
        server = sleepy(&folder).await;
    }
    cell(&server, &id, "_ = file.write(', ended'), file.close()").await;
    asleep(&server).await;
    let run = server.run(&id, "print(open('log.txt').read())").await;
    assert_eq!(run["stdout"], "begun, ended\n");
    // Closing a hibernated session does not wake it.
    asleep(&server).await;
    server.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(std::fs::read_dir(&folder).expect("made").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_sleep_was_disturbed_is_told_to_be_lost() {
    let (_dir, folder) = state_folder();
    let id = name("own");
    let server = sleepy(&folder).await;
    cell(&server, &id, "x = 1").await;
    until("it sleeps", async || agents(&server).is_empty()).await;
    for state in states(&folder) {
        damage(&state);
    }
    let lost = server.call("execute_code", json!({ "session_id": id, "code": "x" })).await;
    assert_eq!(lost.error(), "sandbox_died", "{}", lost.json);
    let fresh = cell(&server, &id, "'x' in dir()").await;
    assert_eq!((&fresh["result"], &fresh["new_session"]), (&json!("False"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_its_own_limits() {
    let (_dir, folder) = state_folder();
    let ids @ [used, unused] = &[name("used"), name("unused")];
    let mut server = keeping(&folder).await;
    for id in ids {
        let small = json!({ "session_id": id, "memory_limit_mb": 64, "timeout_seconds": 600 });
        server.call("create_session", small).await.ok();
    }
    assert_eq!(cell(&server, used, "x = 1").await["status"], "success");
    let agents = agents(&server);
    server.kill().await;
    until_gone(agents).await;
    let server = keeping(&folder).await;
    for (id, is_new) in [(used, false), (unused, true)] {
        let big = cell(&server, id, "big = bytearray(100_000_000)").await;
        assert_eq!(big["status"], "out_of_memory", "{big}");
        assert_eq!(big["new_session"] == true, is_new, "{big}");
    }
    assert_eq!(cell(&server, used, "x").await["result"], "1");
    let again = server.call("create_session", json!({ "session_id": used })).await;
    assert_eq!(again.error(), "invalid_argument", "it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_of_a_session_stay_valid_and_show_its_last_state_after_each_restart() {
    for is_archived in [false, true] {
        let (dir, folder) = state_folder();
        let (archive, key) = (dir.path().join("archive").display().to_string(), key_in(dir.path()));
        let states = folder.display().to_string();
        let mut settings =
            vec![("SANDBOX_STATE_DIR", &*states), ("SANDBOX_KEY_FILE", &*key), ALICE_AND_BOB];
        settings.extend(is_archived.then_some(("SANDBOX_ARCHIVE", &*archive)));
        let id = name("urls");
        let write = |text: &str| {
            format!(
                "_ = open('{text}.txt', 'w').write('{text}')\n_ = open('v.txt', 'w').write('{text}')"
            )
        };
        let mut url = String::new();
        for (round, text_now) in ["one", "two", "three"].into_iter().enumerate() {
            let mut web = Web::start(On::Wasm, &settings).await;
            let get = async |url: &str| {
                let answer = web.caller(None).send("GET", url, &[], &[]).await;
                (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
            };
            let alice = web.caller(Some("secret-a"));
            if round > 0 {
                let before = ["one", "two"][round - 1];
                let by_token =
                    alice.send("GET", &format!("/files/{id}/{before}.txt"), &[], &[]).await;
                assert_eq!(
                    by_token.status, 200,
                    "{round}: the state folder is newer than the archive"
                );
                assert_eq!(get(&url).await, (200, before.to_owned()), "{round}, before a call");
            }
            let call = json!({ "session_id": id, "code": write(text_now) });
            let made = alice.call("execute_code", call).await.ok();
            if round == 0 {
                let all = made["artifacts"].as_array().expect("two files");
                let file = all.iter().find(|it| it["filename"] == "v.txt").expect("it was written");
                let path = text(&file["download_url"]).find("/files/").expect("a URL of a file");
                text(&file["download_url"])[path..].clone_into(&mut url);
            }
            assert_eq!(get(&url).await, (200, text_now.to_owned()), "{round}");
            if round == 2 {
                alice.call("close_session", json!({ "session_id": id })).await.ok();
                assert_eq!(get(&url).await.0, 404, "closed");
            }
            let agents = agents_of(&web.process);
            web.signal(if round == 0 { "TERM" } else { "KILL" });
            web.exit_code().await;
            until_gone(agents).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_are_of_their_caller_although_sessions_began_before_there_was_a_key() {
    let (dir, folder) = state_folder();
    let (states, key) = (folder.display().to_string(), key_in(dir.path()));
    let without_key = [("SANDBOX_STATE_DIR", &*states), ALICE_AND_BOB];
    let with_key = [("SANDBOX_KEY_FILE", &*key), without_key[0], ALICE_AND_BOB];
    let id = name("urls");
    let tokens = ["secret-a", "secret-b"];
    // Each server counts its sessions from the same number.
    for token in tokens {
        let mut web = Web::start(On::Wasm, &without_key).await;
        let code = format!("_ = open('a.txt', 'w').write('{token}')");
        let call = json!({ "session_id": id, "code": code });
        web.caller(Some(token)).call("execute_code", call).await.ok();
        web.signal("TERM");
        web.exit_code().await;
    }
    let mut urls = vec![];
    for round in 0..3 {
        let mut web = Web::start(On::Wasm, &with_key).await;
        if round == 0 {
            for token in tokens {
                let call = json!({ "session_id": id });
                let listed = web.caller(Some(token)).call("list_artifacts", call).await.ok();
                let url = text(&listed["artifacts"][0]["download_url"]);
                urls.push(url[url.find("/files/").expect("a URL of a file")..].to_owned());
            }
        }
        for (url, token) in urls.iter().zip(tokens) {
            let answer = web.caller(None).send("GET", url, &[], &[]).await;
            assert_eq!((answer.status, &*answer.body), (200, token.as_bytes()), "{round}");
        }
        web.signal("TERM");
        web.exit_code().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_only_looked_at_hibernates_again() {
    let (_dir, folder) = state_folder();
    let settings = [
        ("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")),
        ("SANDBOX_HIBERNATE_AFTER_M", "0.01"),
        ALICE_AND_BOB,
    ];
    let id = left_behind(&settings, "secret-a").await;
    let web = Web::start(On::Wasm, &settings).await;
    let alice = web.caller(Some("secret-a"));
    let hibernates = async || until("it sleeps", async || agents_of(&web.process).is_empty()).await;
    alice.call("execute_code", json!({ "code": "_ = open('b.txt', 'w').write('new')" })).await.ok();
    hibernates().await;
    let page = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
    assert_eq!(page["artifacts"].as_array().map(Vec::len), Some(2), "{page}");
    hibernates().await;
    goes_on(&alice, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_clients_name_goes_on_with_the_next_server() {
    let (_dir, folder) = state_folder();
    let settings = [("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8"))];
    let places = ["", "?workspace=sales"];
    let count = async |web: &Web, at: &str| {
        let code = json!({ "code": "seen = globals().get('seen', 0) + 1\nseen" });
        web.caller(None).at(at).call("execute_code", code).await.ok()
    };
    let mut sessions = vec![];
    for round in ["1", "2", "3"] {
        let mut web = Web::start(On::Wasm, &settings).await;
        for at in places {
            let seen = count(&web, at).await;
            assert_eq!(seen["result"], round, "{seen}");
            assert_eq!(seen.get("new_workspace").is_some(), round == "1", "{seen}");
            sessions.push(text(&seen["session_id"]).to_owned());
        }
        let agents = agents_of(&web.process);
        web.signal(if round == "1" { "TERM" } else { "KILL" });
        web.exit_code().await;
        until_gone(agents).await;
    }
    assert_eq!((&sessions[..2], &sessions[..2]), (&sessions[2..4], &sessions[4..]));
    assert_ne!(sessions[0], sessions[1]);
}

/// Ends a server that has a workspace with a variable and a file; returns the name of the workspace.
async fn left_behind(settings: &[(&str, &str)], token: &str) -> String {
    let mut web = Web::start(On::Wasm, settings).await;
    let code = json!({ "code": "x = 41\nopen('a.txt', 'w').write('hi')" });
    let made = web.caller(Some(token)).call("execute_code", code).await.ok();
    let agents = agents_of(&web.process);
    web.signal("TERM");
    web.exit_code().await;
    until_gone(agents).await;
    text(&made["session_id"]).to_owned()
}

/// Checks that the workspace still has its variable.
async fn goes_on(caller: &Caller, id: &str) {
    let next = caller.call("execute_code", json!({ "code": "x" })).await.ok();
    assert_eq!((&next["result"], text(&next["session_id"])), (&json!("41"), id), "{next}");
    assert!(next.get("new_workspace").is_none(), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_of_a_workspace_first_wakes_it() {
    for tool in ["get_workspace_info", "reset_workspace", "list_artifacts"] {
        let (_dir, folder) = state_folder();
        let settings = [("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")), ALICE_AND_BOB];
        let id = left_behind(&settings, "secret-a").await;
        let web = Web::start(On::Wasm, &settings).await;
        let alice = web.caller(Some("secret-a"));
        let mut arguments = json!({});
        if tool == "list_artifacts" {
            arguments["session_id"] = id.clone().into();
        }
        let first = alice.call(tool, arguments).await.ok();
        assert_eq!(first["session_id"], *id, "{first}");
        assert!(first.get("new_workspace").is_none(), "{first}");
        if tool == "reset_workspace" {
            let gone = alice.call("execute_code", json!({ "code": "'x' in dir()" })).await.ok();
            assert_eq!((&gone["result"], text(&gone["session_id"])), (&json!("False"), &*id));
        } else {
            goes_on(&alice, &id).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_of_a_session_over_http_first_wakes_it() {
    let targets: [fn(&str) -> String; 5] = [
        |id| format!("/files/{id}/"),
        |id| format!("/files/{id}/?format=zip"),
        |id| format!("/files/{id}/?format=ipynb"),
        |id| format!("/sessions/{id}"),
        |id| format!("/files/{id}/a.txt"),
    ];
    let (_dir, folder) = state_folder();
    let settings = [("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")), ALICE_AND_BOB];
    let id = left_behind(&settings, "secret-a").await;
    for target in targets.map(|target| target(&id)) {
        let (mut web, alice, bob) = Web::of_two(On::Wasm, &settings).await;
        let listed = async |caller: &Caller| {
            let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
            let each = listed["sessions"].as_array().expect("a list").iter();
            each.map(|it| (it["session_id"].clone(), it["state"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(listed(&alice).await, [(json!(id), json!("asleep"))]);
        assert_eq!(agents_of(&web.process).len(), 0, "a list wakes none");
        assert_eq!(bob.send("GET", &target, &[], &[]).await.status, 404);
        assert_eq!(listed(&bob).await, []);
        let answer = alice.send("GET", &target, &[], &[]).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_ne!(listed(&alice).await[0].1, "asleep");
        goes_on(&alice, &id).await;
        let agents = agents_of(&web.process);
        web.signal("TERM");
        web.exit_code().await;
        until_gone(agents).await;
    }
    let web = Web::start(On::Wasm, &settings).await;
    let alice = web.caller(Some("secret-a"));
    assert_eq!(alice.send("DELETE", &format!("/sessions/{id}"), &[], &[]).await.status, 204);
    assert_eq!(alice.send("GET", "/sessions", &[], &[]).await.json()["sessions"], json!([]));
    assert_eq!(std::fs::read_dir(&folder).expect("made").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_at_work_when_the_server_dies_has_not_happened() {
    let (_dir, folder) = state_folder();
    let id = name("own");
    let mut server = keeping(&folder).await;
    cell(&server, &id, "x = 1").await;
    let endless = json!({ "session_id": id, "code": "x = 2\nopen('run', 'w')\nwhile True: pass" });
    let params = json!({ "name": "execute_code", "arguments": endless });
    server.send(&json!({ "jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params }));
    until("it runs", async || !server.files(&id).await.is_empty()).await;
    let agents = agents(&server);
    server.kill().await;
    until_gone(agents).await;
    let server = keeping(&folder).await;
    assert_eq!(cell(&server, &id, "import os\n(x, os.listdir())").await["result"], "(1, [])");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_closed_killed_or_damaged_is_not_gone_on_with() {
    let (_dir, folder) = state_folder();
    let (closed, killed, damaged) = (name("closed"), name("killed"), name("damaged"));
    let mut server = keeping(&folder).await;
    cell(&server, &killed, "x = 1").await;
    for agent in agents(&server) {
        let status = std::process::Command::new("kill").args(["-9", &agent.to_string()]).status();
        status.expect("kill runs");
    }
    let gone = async || {
        server.call("list_artifacts", json!({ "session_id": killed })).await.raw["isError"] == true
    };
    until("it is noticed", gone).await;
    let limited = json!({ "session_id": closed, "memory_limit_mb": 256 });
    server.call("create_session", limited).await.ok();
    for id in [&closed, &damaged] {
        cell(&server, id, "x = 1").await;
    }
    server.call("close_session", json!({ "session_id": closed })).await.ok();
    let agents = agents(&server);
    server.kill().await;
    until_gone(agents).await;
    let states = states(&folder);
    assert_eq!(states.len(), 1, "what was closed or killed leaves nothing: {states:?}");
    let files = std::fs::read_dir(&folder).expect("made").count();
    assert_eq!(files, 2, "and no note either");
    damage(&states[0]);
    let server = keeping(&folder).await;
    for id in [&closed, &killed, &damaged] {
        let fresh = cell(&server, id, "'x' in dir()").await;
        assert_fields!(fresh, { "result": "False", "new_session": true });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_meets_nothing_of_those_before_it_however_they_ended() {
    let (server, id) = begun(&[("SANDBOX_MEMORY_LIMIT", "256MB")]).await;
    let leave = "import builtins, os, random, sys\nbuiltins.left = 1\nos.environ['LEFT'] = '1'\n\
                 sys.path.append('/left')\nsys.modules['left'] = sys\nos.chdir('/tmp')\nbuiltins.file = open('/tmp/left', 'w')\n";
    let look = "import builtins, os, random, sys\nprint(hasattr(builtins, 'left'), os.environ.get('LEFT'), \
                '/left' in sys.path, 'left' in sys.modules, os.getcwd(), open('/tmp/seen', 'w').fileno())\nprint(random.random())";
    let run = async |code: &str| {
        // One program never ends.
        let timeout_s = if code.ends_with("while True: pass") { 2 } else { 30 };
        server.run_for(&id, code, timeout_s).await
    };
    let first = run(look).await;
    let (seen, number) = text(&first["stdout"]).split_once('\n').expect("two lines");
    assert!(seen.starts_with("False None False False /mnt/data "), "{first}");
    let mut numbers = vec![number.to_owned()];
    for (end, outcome) in [
        ("", "ok"),
        ("1 / 0", "error"),
        ("os._exit(3)", "error"),
        ("os.abort()", "killed"),
        ("while True: pass", "timeout"),
        ("big = bytearray(10**9)", "out_of_memory"),
        // The engine does not reset this much memory: the next program gets a new guest.
        ("big = bytearray(b'x') * (50 * 10**6)", "ok"),
        ("def deeper(): deeper()\ndeeper()", "error"),
    ] {
        assert_eq!(run(&format!("{leave}{end}")).await["outcome"], outcome, "{end}");
        let next = run(look).await;
        let (now, number) = text(&next["stdout"]).split_once('\n').expect("two lines");
        assert_eq!(now, seen, "after {end}: {next}");
        assert!(!numbers.contains(&number.to_owned()), "what is drawn at random is drawn anew");
        numbers.push(number.to_owned());
    }
    all_is_back(&server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_finds_every_promise_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = support::runtime_folder();
    let runtime = runtime.to_str().expect("UTF-8");
    let settings = [("SANDBOX_ENGINE", "wasm"), ("SANDBOX_RUNTIME_DIR", runtime)];
    let (code, checks) = engine::probe(folder.path(), &settings).await;
    assert_eq!(code, Some(0), "{checks}");
    let [kept, not_shown] = ["\nok    ", "\nn/a   "].map(|mark| checks.matches(mark).count());
    assert_eq!((kept, not_shown), (17, 2), "{checks}");
}

/// Sends a signal to processes.
fn signal_to(pids: &[u32], signal: &str) {
    let mut kill = std::process::Command::new("kill");
    let kill = kill.arg(format!("-{signal}")).args(pids.iter().map(u32::to_string));
    assert!(kill.status().expect("kill runs").success(), "{pids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_while_a_session_wakes_costs_nothing() {
    let (_dir, folder) = state_folder();
    let id = name("own");
    let mut server = keeping(&folder).await;
    cell(&server, &id, "import os\nx = 41\nbig = os.urandom(20_000_000)").await;
    server.upload(&id, "sales.csv", b"a,b\n1,2\n").await.ok();
    let working = agents(&server);
    server.kill().await;
    until_gone(working).await;
    for _ in 0..2 {
        let mut server = keeping(&folder).await;
        let look = json!({ "session_id": id, "code": "x" });
        let params = json!({ "name": "execute_code", "arguments": look });
        server
            .send(&json!({ "jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params }));
        until("it is being woken", async || !agents(&server).is_empty()).await;
        let waking = agents(&server);
        server.kill().await;
        until_gone(waking).await;
    }
    let server = keeping(&folder).await;
    let next = cell(&server, &id, "(x, len(big), open('sales.csv').read())").await;
    assert_eq!(next["result"], r"(41, 20000000, 'a,b\n1,2\n')", "{next}");
    assert!(next.get("new_session").is_none() && next.get("notes").is_none(), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_before_the_last_sandbox_has_written_waits_for_it() {
    let (_dir, folder) = state_folder();
    let id = name("own");
    let mut server = keeping(&folder).await;
    cell(&server, &id, "x = 41").await;
    let working = agents(&server);
    signal_to(&working, "STOP");
    server.kill().await;
    let server = keeping(&folder).await;
    let look = json!({ "session_id": id, "code": "x" });
    let (_, answer) = server.begin("execute_code", look);
    until("the next one is there", async || !agents(&server).is_empty()).await;
    signal_to(&working, "CONT");
    let answer = tokio::time::timeout(support::PATIENCE, answer).await;
    let answer = answer.expect("in time").expect("answered");
    let next = &answer["result"]["structuredContent"];
    assert_eq!(next["result"], "41", "{answer}");
    assert!(next.get("new_session").is_none(), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_goes_on_from_an_older_state_says_so_once() {
    let (_dir, folder) = state_folder();
    let (older, lost) = (name("older"), name("lost"));
    let mut server = keeping(&folder).await;
    cell(&server, &older, "x = 1").await;
    let working = agents(&server);
    server.kill().await;
    until_gone(working).await;
    let mut server = keeping(&folder).await;
    assert_eq!(cell(&server, &older, "x += 1\nx").await["result"], "2");
    cell(&server, &lost, "x = 1").await;
    // As in a crash of the machine: no process can write anything more.
    let working = agents(&server);
    signal_to(&working, "STOP");
    server.kill().await;
    signal_to(&working, "KILL");
    until_gone(working).await;
    let server = keeping(&folder).await;
    let next = cell(&server, &older, "x").await;
    assert_eq!(next["result"], "1", "{next}");
    assert!(next["notes"].to_string().contains("earlier state"), "{next}");
    assert!(next.get("new_session").is_none(), "{next}");
    assert!(cell(&server, &older, "x").await.get("notes").is_none());
    let fresh = cell(&server, &lost, "'x' in dir()").await;
    assert_eq!((&fresh["result"], &fresh["new_session"]), (&json!("False"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_draws_other_numbers_in_each_session() {
    let server = Server::start(On::Wasm).await;
    let draw = async |id: &str| {
        let code = "`${Math.random()} ${Math.random()} ${Object.keys(Math).length}`";
        let arguments = json!({ "session_id": id, "language": "javascript", "code": code });
        text(&server.call("execute_code", arguments).await.ok()["result"]).to_owned()
    };
    let ids = [name("one"), name("two")];
    let drawn = [draw(&ids[0]).await, draw(&ids[0]).await, draw(&ids[1]).await];
    for (number, one) in drawn.iter().enumerate() {
        assert!(!drawn[..number].contains(one), "{drawn:?}");
        let numbers: Vec<f64> = one
            .trim_matches('\'')
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        assert!(numbers[..2].iter().all(|number| (0.0..1.0).contains(number)), "{one}");
        assert!(numbers[2].abs() < f64::EPSILON, "nothing of it is to be seen: {one}");
    }
}
