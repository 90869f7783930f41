//! The limits that an agent sets itself.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use std::process::Command;

use child::Agent;
use nix::sys::{signal::Signal, statvfs::statvfs};
use protocol::{
    frame::Kind,
    message::{End, FailureCode, Put, Run, RunDone},
};

/// A folder that is a tmpfs on every Linux; a tmpfs counts its files.
const TMPFS: &str = "/dev/shm";

fn confined(more: &[&str]) -> Agent {
    let mut agent = Agent::spawn_in(tempfile::tempdir_in(TMPFS).unwrap(), more);
    agent.greet(45_000);
    agent
}

/// Runs a program to its end. Returns how it ended, and its outputs.
fn run(agent: &mut Agent, call: u32, code: &str) -> (RunDone, String) {
    agent.run(call, code);
    let (done, body) = agent.answer::<Run>(call).unwrap();
    let outputs = body.len() - done.changed_len;
    (done, String::from_utf8_lossy(&body[..outputs]).into_owned())
}

#[test]
fn a_program_has_the_limits_of_its_agent() {
    let mut agent = confined(&["--rlimits", "core=0,fsize=1000000,nofile=256"]);
    let code = "import resource as r
print([r.getrlimit(it) for it in (r.RLIMIT_CORE, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE)])
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    open('big', 'wb').truncate(2_000_000)
except OSError as error:
    print(error.strerror)";
    let (done, said) = run(&mut agent, 1, code);
    assert_eq!(done.end, End::Exited { code: 0 }, "{said}");
    assert_eq!(said, "[(0, 0), (1000000, 1000000), (256, 256)]\nFile too large\n");
}

#[test]
fn a_run_that_leaves_too_many_files_is_ended_and_the_next_can_remove_them() {
    let stat = statvfs(TMPFS).unwrap();
    let there = stat.files() - stat.files_free();
    let max = (there + 2000).to_string();
    let mut agent = confined(&["--max-inodes", &max]);
    let (done, said) =
        run(&mut agent, 1, "for n in range(100): open(f'few{n}', 'w').close()\nprint('few')");
    assert_eq!((done.end, &*said), (End::Exited { code: 0 }, "few\n"));
    let many = "n = 0\nwhile True:\n    open(f'many{n}', 'w').close()\n    n += 1";
    let (done, said) = run(&mut agent, 2, many);
    assert_eq!(done.end, End::Signaled { signal: Signal::SIGXFSZ as i32 }, "{said}");
    assert!(said.contains("more than") && said.contains("files and folders"), "{said}");
    let remove = "import os\nfor name in os.listdir(): os.remove(name)\nprint('removed')";
    let (done, said) = run(&mut agent, 3, remove);
    assert_eq!((done.end, &*said), (End::Exited { code: 0 }, "removed\n"));
}

/// A limit of the data area, in bytes. Programs that are never ended stop after ten times as much.
const MOST: u64 = 20_000_000;

/// An agent whose data area is on disk.
fn on_disk() -> Agent {
    let mut agent = Agent::spawn_with(&["--max-bytes", &MOST.to_string()]);
    // Disks can be slow.
    agent.greet(600_000);
    agent
}

/// Bytes that the files with names take.
fn named(agent: &Agent) -> u64 {
    let files = std::fs::read_dir(agent.folder.path().join("data")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_run_that_writes_too_much_is_ended_and_the_next_can_remove_it() {
    let mut agent = on_disk();
    let write =
        "for n in range(200): open(f'{n}', 'wb', 0).write(bytes(1_000_000))\nprint('written')";
    let (done, said) = run(&mut agent, 1, write);
    assert_eq!(done.end, End::Signaled { signal: Signal::SIGXFSZ as i32 }, "{said}");
    assert!(said.contains("no space left") && said.contains("20 MB"), "{said}");
    assert!(named(&agent) <= MOST, "{}", named(&agent));
    let remove = "import os\nfor name in os.listdir(): os.remove(name)\nprint('removed')";
    let (done, said) = run(&mut agent, 2, remove);
    assert_eq!((done.end, &*said), (End::Exited { code: 0 }, "removed\n"));
    let (done, _) = run(&mut agent, 3, "open('a', 'wb').write(bytes(15_000_000))");
    assert_eq!(done.end, End::Exited { code: 0 });
}

#[test]
fn a_program_that_ends_before_it_is_seen_leaves_no_more_than_the_limit() {
    let mut agent = on_disk();
    let (done, _) = run(&mut agent, 1, "open('kept', 'wb').write(bytes(1_000_000))");
    assert_eq!(done.end, End::Exited { code: 0 });
    // A sparse file has its length at once.
    let (done, said) = run(
        &mut agent,
        2,
        "import os; os.truncate('kept', 10**6)\nopen('large', 'wb').truncate(10**9)",
    );
    assert_eq!(done.end, End::Signaled { signal: Signal::SIGXFSZ as i32 }, "{said}");
    assert_eq!(named(&agent), 1_000_000);
}

#[test]
fn room_cannot_be_reserved_without_writing() {
    let mut agent = on_disk();
    let code = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
file = open('a', 'wb')
for mode in (0, 1):
    print(libc.fallocate(file.fileno(), mode, ctypes.c_long(0), ctypes.c_long(1_000_000)), os.strerror(ctypes.get_errno()))
os.posix_fallocate(file.fileno(), 0, 1_000_000)
print(os.path.getsize('a'))";
    let (done, said) = run(&mut agent, 1, code);
    assert_eq!(done.end, End::Exited { code: 0 }, "{said}");
    let refused = "-1 Operation not supported\n";
    assert_eq!(said, format!("{refused}{refused}1000000\n"));
}

#[test]
fn no_file_is_hidden_from_the_limit() {
    const PIECES: &str = "
import ctypes, mmap, os, socket, subprocess, sys, tempfile, threading, time
libc = ctypes.CDLL(None)
def piece():
    file = tempfile.TemporaryFile(dir='.', buffering=0)
    file.write(bytes(2_000_000))
    return file
def rest():
    time.sleep(30)
    print('was not ended', flush=True)
";
    let ways = [
        ("without a name", "held = [piece() for _ in range(100)]\nrest()"),
        (
            "removed",
            "held = []\nfor n in range(100):\n    held.append(open('x', 'wb', 0)); os.remove('x'); held[-1].write(bytes(2_000_000))\nrest()",
        ),
        (
            "of a grandchild",
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        held = [piece() for _ in range(100)]\n        rest()\n    os._exit(0)\nos.wait()\nrest()",
        ),
        (
            "of a process that cannot be looked at",
            "libc.prctl(4, 0)\nheld = [piece() for _ in range(100)]\nrest()",
        ),
        (
            "mapped",
            "held = []\nfor _ in range(100):\n    with piece() as file: held.append(mmap.mmap(file.fileno(), 0))\nrest()",
        ),
        (
            "that a process runs",
            // Fewer bytes than may be hidden: they are found.
            "import shutil\nfor n in range(3):\n    shutil.copy('/bin/sleep', 's')\n    with open('s', 'ab', 0) as file: file.write(bytes(8_000_000))\n    os.chmod('s', 0o700); subprocess.Popen(['./s', '30']); os.remove('s')\nrest()",
        ),
        (
            "on its way through a socket",
            "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nheld = []\nfor _ in range(100):\n    a, b = socket.socketpair()\n    held += [a, b]\n    with piece() as file: socket.send_fds(a, [b'x'], [file.fileno()])\nrest()",
        ),
        (
            "in a folder without rights",
            "os.makedirs('a/b')\nfor n in range(100):\n    open(f'a/b/{n}', 'wb', 0).write(bytes(2_000_000))\n    os.chmod('a/b', 0); os.chmod('a', 0); time.sleep(0.01)\n    os.chmod('a', 0o700); os.chmod('a/b', 0o700)\nrest()",
        ),
        (
            "in deep folders",
            "for n in range(2000): os.mkdir('d'); os.chdir('d')\nfor n in range(100): open(f'{n}', 'wb', 0).write(bytes(2_000_000))\nrest()",
        ),
    ];
    for (way, code) in ways {
        let mut agent = on_disk();
        let (done, said) = run(&mut agent, 1, &format!("{PIECES}{code}"));
        let ended = End::Signaled { signal: Signal::SIGXFSZ as i32 };
        assert!(
            done.end == ended && said.contains("no space left"),
            "{way}: {:?} {said}",
            done.end
        );
    }
}

#[test]
fn what_cells_hide_adds_up() {
    let mut agent = Agent::spawn_with(&["--max-bytes", "100000000"]);
    agent.greet(600_000);
    let (done, said) = agent.cell(1, "import mmap, os\nheld = []");
    assert_eq!(done.end, End::Exited { code: 0 }, "{said}");
    let hide = "file = open('x', 'w+b', 0)\nfile.write(bytes(40_000_000))\n\
                held.append(mmap.mmap(file.fileno(), 4096)); file.close(); os.remove('x')";
    let ended = (2..12).find(|call| {
        let (done, _) = agent.cell(*call, hide);
        done.end == End::Signaled { signal: Signal::SIGXFSZ as i32 }
    });
    assert!(ended.is_some_and(|call| call <= 5), "{ended:?}");
}

#[test]
fn a_run_that_was_faster_than_the_limit_of_files_leaves_no_more_than_that() {
    let mut agent = Agent::spawn_with(&["--max-bytes", "20000000", "--max-inodes", "100"]);
    agent.greet(600_000);
    let (done, said) = run(&mut agent, 1, "open('kept', 'w').write('x')");
    assert_eq!(done.end, End::Exited { code: 0 }, "{said}");
    let names = |agent: &Agent| -> Vec<_> {
        let all = std::fs::read_dir(agent.folder.path().join("data")).unwrap();
        all.map(|entry| entry.unwrap().file_name()).collect()
    };
    for (call, make) in [
        (2, "open(f'{n}', 'w').close()"),
        (3, "os.link('kept', f'{n}')"),
        (4, "os.mkdir(f'{n}')"),
        (5, "os.symlink('kept', f'{n}')"),
    ] {
        let code = format!("import os\nfor n in range(1000): {make}");
        let (done, said) = run(&mut agent, call, &code);
        let is_ended = done.end == End::Signaled { signal: Signal::SIGXFSZ as i32 };
        assert!(is_ended, "{make}: {:?} {said}", done.end);
        let left = names(&agent);
        assert!(left.len() <= 100 && left.contains(&"kept".into()), "{make}: {}", left.len());
    }
}

/// Sends a piece of an upload, whose number is that of the call by hundreds.
fn put(
    agent: &mut Agent,
    call: u32,
    (path, offset, last): (&str, u64, bool),
    len: usize,
) -> Result<(), FailureCode> {
    let put = Put { upload: call / 100, path: path.into(), offset, last, overwrite: false };
    agent.send(call, Kind::Put, &put, &vec![1; len]);
    agent.answer::<Put>(call).map(drop)
}

/// A small file system in memory, until it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` if this user may not mount one.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=8m", "none"];
        let mounted = Command::new("mount").args(mount).arg(folder.path()).output();
        mounted.is_ok_and(|it| it.status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_fails_writes_and_uploads_and_nothing_else() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("skipped: this user may not mount a file system");
    };
    let folder = tempfile::tempdir_in(disk.0.path()).unwrap();
    let mut agent = Agent::spawn_in(folder, &["--max-bytes", "100000000"]);
    agent.greet(600_000);
    let fill = "try:
    with open('fill', 'wb', 0) as file:
        for n in range(20): file.write(bytes(1_000_000))
except OSError as error:
    print(error.strerror)";
    let (done, said) = run(&mut agent, 1, fill);
    assert_eq!((done.end, &*said), (End::Exited { code: 0 }, "No space left on device\n"));
    assert_eq!(put(&mut agent, 100, ("more", 0, true), 1_000_000), Err(FailureCode::Full));
    let (done, said) = run(&mut agent, 2, "import os; os.remove('fill'); print(os.listdir())");
    assert_eq!((done.end, &*said), (End::Exited { code: 0 }, "[]\n"));
    assert_eq!(put(&mut agent, 200, ("more", 0, true), 1_000_000), Ok(()));
}

#[test]
fn an_upload_beyond_the_limit_is_refused_and_takes_no_room() {
    let mut agent = on_disk();
    let mut put = |call, path, offset, last, len| put(&mut agent, call, (path, offset, last), len);
    for n in 0..19 {
        assert_eq!(put(100 + n, "large", u64::from(n) * 1_000_000, n == 18, 1_000_000), Ok(()));
    }
    assert_eq!(put(200, "more", 0, false, 500_000), Ok(()));
    assert_eq!(put(201, "more", 500_000, true, 900_000), Err(FailureCode::Full));
    assert_eq!(put(300, "fits", 0, true, 900_000), Ok(()));
    assert_eq!(named(&agent), 19_900_000);
}
