//! Drills for files on disk with the embedded engine: exact limits, rollbacks, sandboxes that are saved, processes that
//! are killed at any time, and programs that try to take more than they may.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use support::{On, Server, key_in, name, noise, text, until};

use crate::embedded::{agents, state_folder, until_gone};

const DISK: (&str, &str) = ("SANDBOX_STORAGE", "disk");

/// Defines `known(name)`, the size of a file and a hash of its bytes, and `fill(name, seed, size)`, which makes a file
/// of bytes that nothing compresses.
const TOOLS: &str = "
import hashlib, os, random
def known(name):
    with open(name, 'rb') as file:
        return os.stat(name).st_size, hashlib.file_digest(file, 'sha256').hexdigest()[:16]
def fill(name, seed, size):
    drawn = random.Random(seed)
    with open(name, 'wb') as file:
        while size > 0:
            file.write(drawn.randbytes(min(size, 1 << 20)))
            size -= 1 << 20
def all_known(): return {name: known(name) for name in sorted(os.listdir())}
";

async fn start(settings: &[(&str, &str)]) -> Server {
    Server::start_with(On::Wasm, &[&[DISK], settings].concat()).await
}

async fn cell(server: &Server, id: &str, code: &str) -> Value {
    let cell = server.cell_for(id, code, 60).await.ok();
    assert_eq!(cell["status"], "success", "{code}: {cell}");
    cell
}

/// The result of an expression.
async fn value(server: &Server, id: &str, code: &str) -> String {
    text(&cell(server, id, code).await["result"]).to_owned()
}

/// Bytes that the files of saved sandboxes take on the disk.
fn on_disk(folder: &Path) -> u64 {
    states(folder).iter().map(|path| fs::metadata(path).map_or(0, |it| it.blocks() * 512)).sum()
}

fn states(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("made").flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|it| it == "state")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_takes_the_limit_of_bytes_and_of_files_and_not_one_more() {
    let server = start(&[("SANDBOX_DISK_LIMIT", "40MB")]).await;
    let id = name("exact");
    let code = "import errno, os
def why(act):
    try: return act()
    except OSError as error: return errno.errorcode[error.errno]
file = open('a', 'wb', 0)
print(sum(file.write(bytes(1_000_000)) for _ in range(39)), file.write(bytes(2_000_000)))
print(why(lambda: file.write(b'x')), why(lambda: os.truncate('a', 40_000_001)))
print(why(lambda: os.pwrite(file.fileno(), b'yz', 5)), os.stat('a').st_size)
os.truncate('a', 39_999_999)
print(file.seek(0, 2), file.write(b'xx'), why(lambda: file.write(b'x')))
os.remove('a')
print(why(lambda: open('b', 'wb', 0).write(b'x')))
file.close()
def many():
    for n in range(20_000): open(f'{n}', 'wb', 0).write(b'x')
print(open('b', 'wb', 0).write(b'x'), why(many), len(os.listdir()))
os.remove('77')
print(why(lambda: open('c', 'wb', 0).write(b'x')), why(lambda: open('d', 'wb')))";
    let run = server.run_for(&id, code, 60).await;
    let expected = "39000000 1000000\nENOSPC ENOSPC\n2 40000000\n39999999 1 ENOSPC\nENOSPC\n\
                    1 ENOSPC 16384\n1 ENOSPC\n";
    assert_eq!(run["stdout"], expected, "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_stopped_takes_large_files_back_exactly() {
    let server = start(&[("SANDBOX_DISK_LIMIT", "200MB")]).await;
    let id = name("back");
    cell(&server, &id, TOOLS).await;
    let make = "for seed, name in enumerate(['over', 'cut', 'gone', 'more', 'same', 'moved']):
    fill(name, seed, 9_999_999)
open('hollow', 'wb').truncate(20_000_000)
held = open('held', 'w+b', 0); held.write(b'before')";
    cell(&server, &id, make).await;
    let before = value(&server, &id, "all_known()").await;
    let change = "with open('over', 'r+b') as file:
    for at in range(0, 9_999_000, 150_000):
        file.seek(at); file.write(b'new' * 100)
os.truncate('cut', 1_234_567)
os.remove('gone')
with open('more', 'ab') as file: file.write(bytes(3_000_000))
os.rename('moved', 'elsewhere')
with open('hollow', 'r+b') as file: file.seek(19_000_000); file.write(b'x')
held.write(b' and after')
fill('new', 7, 9_999_999)
while True: pass";
    for _ in 0..3 {
        let stopped = server.cell_for(&id, change, 3).await.ok();
        assert_eq!(stopped["state"], "rolled_back", "{stopped}");
        assert_eq!(stopped["status"], "timeout", "{stopped}");
        assert_eq!(value(&server, &id, "all_known()").await, before);
    }
    // The same changes stay if the cell ends by itself, and can be read by the server.
    let change = change.replace("while True: pass", "all_known()");
    let after = value(&server, &id, &change).await;
    assert_ne!(after, before);
    assert_eq!(
        value(&server, &id, "held.seek(0); (held.read(), all_known() == _)").await,
        "(b'before and after', True)"
    );
    let files = server.files(&id).await;
    let size = |name: &str| files.iter().find(|(path, _)| path == name).map(|(_, size)| *size);
    assert_eq!(
        (size("cut"), size("more"), size("gone")),
        (Some(1_234_567), Some(12_999_999), None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_take_no_memory() {
    let server = start(&[("SANDBOX_MEMORY_LIMIT", "128MB")]).await;
    let id = name("memory");
    let used = async || {
        let info = server.call("get_workspace_info", json!({ "session_id": id })).await.ok();
        info["memory_used_bytes"].as_u64().expect("a number")
    };
    cell(&server, &id, TOOLS).await;
    let before = used().await;
    cell(&server, &id, "for n in range(6): fill(f'{n}', n, 100_000_000)").await;
    assert_eq!(
        value(&server, &id, "sum(os.stat(n).st_size for n in os.listdir())").await,
        "600000000"
    );
    let after = used().await;
    assert!(after < before + 50_000_000, "{before} before, {after} after");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_written_again_and_again_take_the_disk_once() {
    let (_dir, folder) = state_folder();
    let settings = [
        ("SANDBOX_DISK_LIMIT", "40MB"),
        ("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")),
        ("SANDBOX_HIBERNATE_AFTER_M", "60"),
    ];
    let server = start(&settings).await;
    let id = name("again");
    cell(&server, &id, TOOLS).await;
    // Small files after each large one, so that freed slots are used again for less than they had.
    for round in 0..200 {
        let code =
            format!("fill('a', {round}, 5_000_000); open('{round}', 'w').write('x'); x = {round}");
        cell(&server, &id, &code).await;
    }
    // One file of 5 MB, 200 small ones in blocks of 4 KiB, freed slots of 16 MiB at most, and the metadata.
    let taken = on_disk(&folder);
    assert!(taken < 30_000_000, "{taken} bytes for a file of 5 MB");
    let undone = json!({ "session_id": id, "undo": 3 });
    server.call("reset_workspace", undone).await.ok();
    assert_eq!(
        value(&server, &id, "(x, known('a')[0], len(os.listdir()))").await,
        "(196, 5000000, 201)"
    );
    server.close(&id).await;
    until("its file is removed", async || states(&folder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sparse_files_and_many_small_ones_take_what_they_have() {
    let (_dir, folder) = state_folder();
    let settings = [
        ("SANDBOX_DISK_LIMIT", "11GB"),
        ("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")),
        ("SANDBOX_EXEC_TIMEOUT_S", "300"),
    ];
    let server = start(&settings).await;
    let id = name("sparse");
    let code = "import os
size = 2_000_000_000
fd = os.open('sparse', os.O_CREAT | os.O_RDWR)
for at in range(0, size, 65536): os.pwrite(fd, b'x', at)
os.truncate(fd, size)
print(os.stat('sparse').st_size, os.pread(fd, 3, 65536 * 1000 - 1), os.pread(fd, 10, size - 2))
for n in range(2_000): open(f'{n}', 'wb', 0).write(b'small')
print(sum(open(f'{n}', 'rb').read() == b'small' for n in range(2_000)))";
    let run = server.run_for(&id, code, 300).await;
    assert_eq!(run["stdout"], "2000000000 b'\\x00x\\x00' b'\\x00\\x00'\n2000\n", "{run}");
    // A block of 4 KiB for each byte, and for each small file.
    let taken = on_disk(&folder);
    assert!(taken < 4096 * (30_518 + 2_000) + 100_000_000, "{taken} bytes");
    let removed = server.run_for(&id, "import os\nfor n in os.listdir(): os.remove(n)", 300).await;
    assert_eq!(removed["outcome"], "ok", "{removed}");
    until("the disk has its space back", async || on_disk(&folder) < 20_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_files_on_disk_goes_on_after_its_server_was_killed_or_ended() {
    let (_dir, folder) = state_folder();
    let settings = [
        ("SANDBOX_DISK_LIMIT", "100MB"),
        ("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8")),
        ("SANDBOX_HIBERNATE_AFTER_M", "0.01"),
    ];
    let mut server = start(&settings).await;
    let id = name("goes-on");
    cell(&server, &id, TOOLS).await;
    cell(
        &server,
        &id,
        "fill('a', 1, 30_000_000); held = open('a', 'r+b', 0); held.seek(29_999_998)",
    )
    .await;
    let mut expected = value(&server, &id, "all_known()").await;
    for (round, signal) in ["KILL", "TERM", "KILL", "TERM"].into_iter().enumerate() {
        let working = agents(&server);
        server.signal(signal);
        server.exit_code().await;
        until_gone(working).await;
        server = start(&settings).await;
        assert_eq!(value(&server, &id, "all_known()").await, expected, "{signal}");
        // It hibernates, and wakes up with the same files.
        until("it hibernates", async || agents(&server).is_empty()).await;
        assert_eq!(value(&server, &id, "all_known()").await, expected);
        let change = format!("held.write(b'{round}'); fill('b', {round}, 10_000_000); all_known()");
        let changed = value(&server, &id, &change).await;
        assert_ne!(changed, expected);
        expected = changed;
    }
    let taken = on_disk(&folder);
    assert!(taken < 160_000_000, "{taken} bytes for 40 MB of files and two states");
    server.close(&id).await;
    until("its file is removed", async || states(&folder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_killed_while_it_writes_goes_on_from_its_saved_state() {
    let (_dir, folder) = state_folder();
    let settings =
        [("SANDBOX_DISK_LIMIT", "200MB"), ("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8"))];
    let mut server = start(&settings).await;
    let id = name("killed");
    cell(&server, &id, TOOLS).await;
    cell(&server, &id, "fill('a', 1, 20_000_000); fill('b', 2, 20_000_000)").await;
    let expected = value(&server, &id, "all_known()").await;
    let working = agents(&server);
    server.signal("TERM");
    server.exit_code().await;
    until_gone(working).await;
    for round in 0..3 {
        server = start(&settings).await;
        assert_eq!(value(&server, &id, "all_known()").await, expected, "round {round}");
        // Changes of a cell that has ended, and of one that is killed meanwhile, and new files in freed slots.
        let change = format!(
            "fill('a', {}, 15_000_000); os.remove('b'); fill('c', {round}, 30_000_000)",
            round + 10
        );
        cell(&server, &id, &change).await;
        let working = agents(&server);
        let endless = "n = 0\nwhile True:\n    n += 1\n    fill('a', n, 9_000_000)\n    open('begun', 'w').close()";
        let (_, _answer) =
            server.begin("execute_code", json!({ "session_id": id, "code": endless }));
        until("it writes", async || {
            server.files_if_any(&id).await.iter().any(|(path, _)| path == "begun")
        })
        .await;
        // A server that sees its sandbox end ends the session, and removes the state.
        server.signal("STOP");
        for agent in &working {
            let killed =
                std::process::Command::new("kill").args(["-9", &agent.to_string()]).status();
            assert!(killed.expect("kill runs").success());
        }
        server.kill().await;
        until_gone(working).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_no_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path().to_str().expect("UTF-8");
    let mut server = start(&[("TMPDIR", here)]).await;
    let id = name("nothing");
    server.run(&id, "open('a', 'wb').write(bytes(30_000_000))").await;
    let sizes = || {
        let entries = fs::read_dir(dir.path()).expect("there").flatten();
        entries.map(|entry| entry.metadata().map_or(0, |it| it.len())).sum::<u64>()
    };
    assert!(sizes() < 1_000_000, "the file has no name");
    let working = agents(&server);
    server.kill().await;
    until_gone(working).await;
    assert!(sizes() < 1_000_000);
    // Files of a sandbox that was killed before it was saved go at the next start.
    let (_dir, folder) = state_folder();
    let state = [("SANDBOX_STATE_DIR", folder.to_str().expect("UTF-8"))];
    let mut server = start(&state).await;
    server.run(&id, "open('a', 'wb').write(bytes(30_000_000))").await;
    assert!(on_disk(&folder) >= 30_000_000);
    let working = agents(&server);
    for agent in &working {
        let _ = std::process::Command::new("kill").args(["-9", &agent.to_string()]).status();
    }
    server.kill().await;
    until_gone(working).await;
    let _server = start(&state).await;
    assert!(on_disk(&folder) < 1_000_000, "{}", on_disk(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_on_disk_come_back_from_the_archive() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (archive, key) = (path("archive"), key_in(dir.path()));
    let settings = [("SANDBOX_ARCHIVE", &*archive), ("SANDBOX_KEY_FILE", &*key)];
    let mut server = start(&settings).await;
    let (id, plain) = (name("archived"), name("plain"));
    cell(&server, &id, TOOLS).await;
    cell(&server, &id, "fill('a', 1, 20_000_000); held = open('a', 'rb'); held.read(5) and None")
        .await;
    let expected = value(&server, &id, "all_known()").await;
    let rest = value(&server, &id, "at = held.tell(); r = held.read(9); held.seek(at); r").await;
    // Only its files are archived.
    server.upload(&plain, "p.bin", &noise(3_000_000)).await.ok();
    server.signal("TERM");
    server.exit_code().await;
    for storage in ["disk", "memory"] {
        let settings = [&settings[..], &[("SANDBOX_STORAGE", storage)]].concat();
        let mut server = Server::start_with(On::Wasm, &settings).await;
        assert_eq!(value(&server, &id, "all_known()").await, expected, "{storage}");
        assert_eq!(value(&server, &id, "r = held.read(9); held.seek(at); r").await, rest);
        assert_eq!(server.files(&plain).await, [("p.bin".to_owned(), 3_000_000)]);
        server.signal("TERM");
        server.exit_code().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_session_goes_on_with_files_in_memory_and_on_disk() {
    let (_dir, folder) = state_folder();
    let folder = folder.to_str().expect("UTF-8");
    let id = name("both");
    let mut expected = String::new();
    for storage in ["memory", "disk", "disk", "memory", "memory", "disk"] {
        let settings = [("SANDBOX_STATE_DIR", folder), ("SANDBOX_STORAGE", storage)];
        let mut server = Server::start_with(On::Wasm, &settings).await;
        if expected.is_empty() {
            cell(&server, &id, TOOLS).await;
            cell(&server, &id, "fill('a', 0, 3_000_000)").await;
        } else {
            assert_eq!(value(&server, &id, "all_known()").await, expected, "{storage}");
        }
        let change = "fill(f'n{len(os.listdir())}', len(os.listdir()), 1_500_000)
with open('a', 'r+b') as file: file.seek(1_000_000); file.write(bytes(len(os.listdir())))
all_known()";
        expected = value(&server, &id, change).await;
        let working = agents(&server);
        server.signal("TERM");
        server.exit_code().await;
        until_gone(working).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_while_a_run_writes_gigabytes() {
    let server = start(&[("SANDBOX_EXEC_TIMEOUT_S", "120")]).await;
    let id = name("busy");
    cell(&server, &id, "pass").await;
    let code = "import os
piece = bytes(64 << 20)
with open('a', 'wb', 0) as file:
    for n in range(24):
        file.seek(n % 8 * len(piece)); file.write(piece)
os.stat('a').st_size";
    let run = tokio::time::timeout(Duration::from_secs(120), server.cell_for(&id, code, 110));
    let run = run.await.expect("it ends").ok();
    assert_eq!(run["result"], (8u64 * (64 << 20)).to_string(), "{run}");
}
