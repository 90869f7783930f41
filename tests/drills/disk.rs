//! Drills for files on disk: gigabytes in and out, and programs that hide what they write.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
};

use support::{On, Server, name, rounds, text, web::Web};
use tokio::process::Command;

/// Rows of the file that is uploaded, of 20 bytes each: 100 MB, or 1 GB in a full run.
fn rows() -> u64 {
    rounds(5_000_000, 50_000_000)
}

/// The most by which the server's memory may grow while a file passes through.
const GROWTH: u64 = 48 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_larger_than_the_memory_is_uploaded_summed_and_the_result_downloaded() {
    sums_a_large_file(On::Docker, DUCKDB).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_larger_than_the_memory_is_summed_on_the_embedded_engine() {
    sums_a_large_file(On::Wasm, NUMPY).await;
}

/// Writes the number of rows and the sum of each class to `sums.csv`.
const DUCKDB: &str = "import duckdb
con = duckdb.connect(config={'memory_limit': '150MB', 'threads': 1})
con.sql('''COPY (SELECT class, count(*), sum(number)::BIGINT FROM read_csv('large.csv',
    columns={'class': 'INT', 'number': 'BIGINT', 'x': 'TEXT'}, header=true) GROUP BY class ORDER BY class)
    TO 'sums.csv' (HEADER false)''')";

/// The same by blocks of lines, all of which have the same length.
const NUMPY: &str = "import numpy as np
counts, sums = np.zeros(10, np.int64), np.zeros(10)
with open('large.csv', 'rb') as file:
    file.readline()
    line = len(file.readline())
    file.seek(-line, 1)
    while block := file.read(line * 200_000):
        rows = np.frombuffer(block, np.uint8).reshape(-1, line)
        classes, numbers = rows[:, 0] - 48, np.zeros(len(rows))
        for column in range(2, 14):
            digits = rows[:, column]
            numbers = numbers * 10 + np.where(digits == 32, 0, digits - 48.0)
        counts += np.bincount(classes, minlength=10)
        sums += np.bincount(classes, numbers, 10)
with open('sums.csv', 'w') as file:
    for n in range(10): file.write(f'{n},{counts[n]},{int(sums[n])}\\n')";

async fn sums_a_large_file(on: On, code: &str) {
    let settings = [
        ("SANDBOX_STORAGE", "disk"),
        ("SANDBOX_EXEC_TIMEOUT_S", "300"),
        // Less than the file, also in the gate.
        ("SANDBOX_MEMORY_LIMIT", rounds("300MB", "512MB")),
    ];
    let (web, caller) = Web::open(on, &settings).await;
    let (session, folder) = (name("gigabyte"), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("large.csv");
    let mut file = BufWriter::new(File::create(&path).expect("made"));
    writeln!(file, "class,      number,x").expect("written");
    for n in 0..rows() {
        writeln!(file, "{},{n:>12},abc", n % 10).expect("written");
    }
    drop(file.into_inner().expect("written"));

    caller.send("PUT", &format!("/files/{session}/first"), &[], b"1").await;
    let before = web.peak_memory();
    let url = format!("{}/files/{session}/large.csv", web.base);
    let mut curl = Command::new("curl");
    let curl = curl.args(["-sS", "--fail-with-body", "-T"]).arg(&path).arg(&url).output().await;
    let curl = curl.expect("curl runs");
    assert!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
    let run = caller.run_for(&session, code, 300).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    let sums = caller.send("GET", &format!("/files/{session}/sums.csv"), &[], b"").await;
    let each = rows() / 10;
    let line = |class| format!("{class},{each},{}\n", each * class + 10 * (each * (each - 1) / 2));
    let expected = (0..10).map(line).collect::<Vec<_>>().concat();
    assert_eq!(String::from_utf8_lossy(&sums.body), expected);
    // All of it again, as it was sent.
    let back = folder.path().join("back.csv");
    let mut curl = Command::new("curl");
    let curl = curl.args(["-sS", "--fail", "-o"]).arg(&back).arg(&url).status().await;
    assert!(curl.expect("curl runs").success());
    let same = Command::new("cmp").args([&path, &back]).status().await.expect("cmp runs");
    assert!(same.success());
    let growth = web.peak_memory().saturating_sub(before);
    assert!(growth < GROWTH, "{growth} bytes more");
}

/// Programs that write 400 MB where no list of files shows them, and then wait.
const HIDING: &[(&str, &str)] = &[
    ("files without a name", "held = [piece() for _ in range(200)]"),
    (
        "a process that cannot be looked at",
        "ctypes.CDLL(None).prctl(4, 0)\nheld = [piece() for _ in range(200)]",
    ),
    (
        "a grandchild that left",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        held = [piece() for _ in range(200)]\n        rest()\n    os._exit(0)\nos.wait()",
    ),
    (
        "mapped files",
        "held = []\nfor _ in range(200):\n    with piece() as file: held.append(mmap.mmap(file.fileno(), 0))",
    ),
    (
        "files on their way through a socket",
        "held = []\nfor _ in range(200):\n    a, b = socket.socketpair(); held += [a, b]\n    with piece() as file: socket.send_fds(a, [b'x'], [file.fileno()])",
    ),
    (
        "a folder without rights",
        "os.mkdir('a')\nfd = os.open('a', os.O_RDONLY)\nfiles = [open(f'a/{n}', 'wb', 0) for n in range(200)]\nos.chmod('a', 0)\nfor file in files: file.write(bytes(2_000_000))",
    ),
    (
        "a thread with descriptors of its own",
        "libc = ctypes.CDLL(None)\nlibc.unshare(0x400)\nheld = [piece() for _ in range(200)]",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_program_cannot_hide_files_from_the_limit() {
    let settings = [("SANDBOX_STORAGE", "disk"), ("SANDBOX_DISK_LIMIT", "60MB")];
    let server = Server::start_with(On::Docker, &settings).await;
    for (way, code) in HIDING {
        let id = name("hides");
        let code = format!(
            "import ctypes, mmap, os, socket, tempfile, time
def piece():
    file = tempfile.TemporaryFile(dir='.', buffering=0)
    file.write(bytes(2_000_000))
    return file
def rest(): time.sleep(20); print('was not ended', flush=True)
{code}
rest()"
        );
        let run = server.run(&id, &code).await;
        assert_eq!(run["outcome"], "killed", "{way}: {run}");
        assert!(text(&run["stderr"]).contains("no space left"), "{way}: {run}");
        let next = server.run(&id, "print('next')").await;
        assert_eq!(next["stdout"], "next\n", "{way}: {next}");
        server.close(&id).await;
    }
}
