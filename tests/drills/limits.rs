//! Limits: hostile programs in a container, the answers that their callers get, and the next run in the same session,
//! which must not be affected.

use serde_json::json;
use support::{On, Server, assert_fields, name, text, until};

/// A program, and the result that its run must have.
struct Case {
    code: &'static str,
    outcome: &'static str,
    exit_code: i32,
    stdout: &'static str,
    /// The end of standard error.
    stderr: &'static str,
}

/// A test for each case: its name is the promise.
macro_rules! limits {
    ($($name:ident { $($case:tt)* })*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() { check(Case { $($case)* }).await })*
    };
}

const TIMED_OUT: Case = Case {
    code: "",
    outcome: "timeout",
    exit_code: -1,
    stdout: "",
    stderr: "Execution timed out after 1 second",
};

const OUT_OF_MEMORY: Case = Case {
    code: "",
    outcome: "out_of_memory",
    exit_code: 137,
    stdout: "",
    stderr: "Killed: out of memory (limit 300MB)",
};

const OK: Case = Case { code: "", outcome: "ok", exit_code: 0, stdout: "", stderr: "" };

/// Less than the default, so that the memory is full sooner.
const SETTINGS: &[(&str, &str)] =
    &[("SANDBOX_MEMORY_LIMIT", "300MB"), ("SANDBOX_DATA_LIMIT", "100MB")];

limits! {
    an_endless_loop_is_killed_at_its_deadline { code: "while True: pass", ..TIMED_OUT }

    a_program_that_sleeps_is_killed_at_its_deadline {
        code: "import time; time.sleep(600)", ..TIMED_OUT
    }

    ignoring_and_blocking_every_signal_does_not_help {
        code: r"
import signal
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass",
        ..TIMED_OUT
    }

    a_program_that_stops_itself_is_killed_at_its_deadline {
        code: "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", ..TIMED_OUT
    }

    a_program_that_has_closed_everything_is_killed_at_its_deadline {
        code: "import os\nos.closerange(0, 1024)\nwhile True: pass", ..TIMED_OUT
    }

    a_program_that_has_closed_everything_still_tells_its_exit_code {
        code: "import os\nos.closerange(0, 1024)\nos._exit(7)",
        outcome: "error", exit_code: 7, stdout: "", stderr: "",
    }

    a_crash_is_told_as_such {
        code: "import ctypes\nprint('before', flush=True)\nctypes.string_at(0)",
        outcome: "killed",
        exit_code: 139,
        stdout: "before\n",
        stderr: "Killed by signal 11 (SIGSEGV)",
    }

    a_fork_bomb_ends_with_its_program {
        code: r"
import os
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: pass
print('done')",
        stdout: "done\n",
        ..OK
    }

    a_fork_bomb_in_sessions_of_its_own_ends_at_the_deadline {
        code: r"
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass",
        ..TIMED_OUT
    }

    threads_are_limited_like_processes {
        code: r"
import os, threading
try:
    while True: threading.Thread(target=threading.Event().wait).start()
except RuntimeError as error: print(error, 100 < threading.active_count() < 128, flush=True)
os._exit(0)",
        stdout: "can't start new thread True\n",
        ..OK
    }

    a_daemon_by_double_fork_ends_with_its_program {
        code: r"
import os, signal
if os.fork() == 0:
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork() == 0:
        while True: pass
    os._exit(0)
os.wait()
print('done')",
        stdout: "done\n",
        ..OK
    }

    a_daemon_that_always_runs_away_ends_with_its_program {
        code: r"
import os
if os.fork() == 0:
    while True:
        try:
            if os.fork(): os._exit(0)
            os.setsid()
        except OSError: pass
print('done')",
        stdout: "done\n",
        ..OK
    }

    a_child_that_keeps_the_pipe_open_does_not_hold_up_the_end {
        code: "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nprint('done')",
        stdout: "done\n",
        ..OK
    }

    too_much_memory_at_once_ends_the_run_only {
        code: "print('before', flush=True)\nx = b'x' * 10**9",
        stdout: "before\n",
        ..OUT_OF_MEMORY
    }

    too_much_memory_in_a_child_ends_the_child_only {
        code: r"
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'x = b\'x\' * 10**9']).returncode)",
        stdout: "-9\n",
        ..OK
    }

    // Killing the programs does not free such memory.
    memory_shared_by_name_is_gone_with_the_run {
        code: r"
import os
while True: open(f'/dev/shm/{os.urandom(100).hex()}', 'wb').close()",
        ..OUT_OF_MEMORY
    }

    there_is_no_shared_memory_that_outlives_its_program {
        code: r"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for make in libc.shmget, libc.msgget, libc.semget: print(make(0, 1000, 0o1600))",
        stdout: "-1\n-1\n-1\n",
        ..OK
    }

    every_writable_place_is_limited_and_all_of_them_full_leave_room {
        code: r"
for place in '/mnt/data', '/tmp', '/dev/shm':
    try:
        with open(place + '/fill', 'wb', 0) as file:
            while file.write(bytes(1_000_000)) == 1_000_000: pass
            file.write(b'1')
    except OSError as error: print(place, error.strerror)",
        stdout: "/mnt/data No space left on device\n/tmp No space left on device\n\
                 /dev/shm No space left on device\n",
        ..OK
    }

    the_number_of_files_is_limited {
        code: r"
for place in '/mnt/data', '/tmp':
    try:
        for number in range(20_000): open(f'{place}/{number}', 'w').close()
    except OSError as error: print(place, number > 16_000, error.strerror)",
        stdout: "/mnt/data True No space left on device\n/tmp True No space left on device\n",
        ..OK
    }

    the_number_of_open_files_is_limited {
        code: "files = []\nwhile True: files.append(open('/dev/null'))",
        outcome: "error",
        exit_code: 1,
        stdout: "",
        stderr: "OSError: [Errno 24] Too many open files: '/dev/null'\n",
    }

    a_sparse_file_is_no_larger_than_the_data_area {
        code: r"
import os
try: os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 10**12)
except OSError as error: print(error.strerror)",
        stdout: "File too large\n",
        ..OK
    }

    garbage_reaches_nothing_but_the_programs_own_output {
        code: r"
import os
reached = []
def write(fd, what):
    try:
        os.write(fd, bytes(range(256)) * 20)
        reached.append(what)
    except OSError: pass
for fd in range(3, 1024): write(fd, fd)
for fd in range(64):
    try: write(os.open(f'/proc/1/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK), f'agent {fd}')
    except OSError: pass
# The file for the stack of a forked program, and its link: its own as well, see `fork_server.rs`.
print([what for what in reached if what not in (60, 61)])",
        stdout: "[]\n",
        ..OK
    }

    no_signal_to_its_parent_does_anything {
        code: r"
import os
for _ in range(200):
    for number in range(1, 65):
        try: os.kill(os.getppid(), number)
        except OSError: pass
status = dict(line.split(':\t', 1) for line in open('/proc/1/status').read().splitlines())
handled = int(status['SigCgt'], 16) & ~int(status['SigBlk'], 16)
print(os.getppid(), handled & 2**31 - 1)",
        // The parent is the agent (1). It has no handler that such a signal could run (0): two at the same time would
        // end it. The C library's own handlers, for signals above 31, ignore signals that are not meant for them.
        stdout: "1 0\n",
        ..OK
    }

    killing_everything_spares_the_agent {
        code: r"
import os, subprocess
child = subprocess.Popen(['sleep', '1000'])
os.kill(-1, 9)
print(child.wait())",
        stdout: "-9\n",
        ..OK
    }

    killing_everything_from_a_child_is_told_as_a_kill {
        code: "import os\nprint('before', flush=True)\nos.system('kill -9 -1')",
        outcome: "killed",
        exit_code: 137,
        stdout: "before\n",
        stderr: "Killed by signal 9 (SIGKILL)",
    }

    the_agents_limits_and_priorities_are_out_of_reach {
        code: r"
import os, resource
def attempt(act, *arguments):
    try: print('done', act, act(*arguments))
    except OSError: pass
attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (0, 0))
attempt(resource.prlimit, 1, resource.RLIMIT_AS, (0, 0))
attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)
attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
for name in 'oom_score_adj', 'comm', 'timerslack_ns':
    attempt(lambda: open(f'/proc/1/{name}', 'wb', 0).write(b'1000'))",
        ..OK
    }

    a_data_folder_that_nobody_may_enter_is_open_again_afterwards {
        code: "import os; os.chmod('/mnt/data', 0)", ..OK
    }

    a_folder_in_place_of_the_program_is_removed {
        code: r"
import os
os.remove('/tmp/main.py')
os.makedirs('/tmp/main.py/below')
os.chmod('/tmp/main.py', 0)",
        ..OK
    }

    deep_folders_in_the_way_are_removed {
        code: r"
import os
os.remove('/tmp/main.py')
os.chdir('/tmp')
for _ in range(5000):
    os.mkdir('main.py')
    os.chdir('main.py')",
        ..OK
    }
}

async fn check(case: Case) {
    let (server, id) = (Server::start_with(On::Docker, SETTINGS).await, name("limit"));
    server.upload(&id, "kept.csv", b"kept").await.ok();
    // A program that must time out has one second; any other has enough time.
    let timeout_s = if case.outcome == "timeout" { 1 } else { 30 };
    let run = server.run_for(&id, case.code, timeout_s).await;
    assert_fields!(run, { "outcome": case.outcome, "exit_code": case.exit_code, "stdout": case.stdout });
    let stderr = text(&run["stderr"]);
    assert!(stderr.ends_with(case.stderr) && (stderr.is_empty() || case.outcome != "ok"), "{run}");
    the_next_run_works(&server, &id).await;
}

/// Checks that the next run works in the same container at once, and that only files are left of earlier runs.
async fn the_next_run_works(server: &Server, id: &str) {
    // Besides the agent and this program there are the two fork servers, unless they have just been killed, a spare,
    // and the process that waits for a cell, with a child while it prepares. A process without a command line is
    // ending.
    let code = r"
import os
print(open('kept.csv').read())
names = []
for pid in os.listdir('/proc'):
    if not pid.isdigit() or int(pid) in (1, os.getpid()): continue
    try: names.append(open(f'/proc/{pid}/cmdline').read())
    except OSError: pass
names = [name for name in names if name]
print([name for name in names if 'zygote.py' not in name], len(names) <= 5)
print(os.listdir('/dev/shm'))";
    let next = server.run_for(id, code, 5).await;
    assert_fields!(next, { "outcome": "ok", "stdout": "kept\n[] True\n[]\n" });
}

#[tokio::test(flavor = "multi_thread")]
async fn both_outputs_at_once_may_be_flooded() {
    let (server, id) = (Server::start(On::Docker).await, name("flood"));
    server.upload(&id, "kept.csv", b"kept").await.ok();
    let before = server.peak_memory();
    // Two processes write, so that neither output waits for the other.
    let code = "import os\nout = 1 if os.fork() else 2\n\
                for _ in range(200): os.write(out, b'x' * 999_999 + b'\\n')\n\
                os.write(out, b'last')\nif out == 1: os.wait()";
    let run = server.run(&id, code).await;
    assert_eq!(run["outcome"], "ok", "{}", run["stderr"]);
    for output in ["stdout", "stderr"] {
        let shown = text(&run[output]);
        assert!(shown.ends_with("\nlast") && shown.len() < 20_200, "{output}: {}", shown.len());
        let left_out =
            shown.split_once("[... ").and_then(|(_, rest)| rest.split_once(" bytes left out"));
        let left_out: usize = left_out.expect("a count").0.parse().expect("a number");
        let all = 200_000_004;
        assert!((all - 20_200..all).contains(&left_out), "{output}: {left_out}");
    }
    let grown = server.peak_memory() - before;
    assert!(grown < 8 << 20, "the server grew by {grown} bytes");
    the_next_run_works(&server, &id).await;
}

/// Ends a program that is not warm: only a warm program is asked for its stack, through descriptor 60. On a busy
/// machine the next warm process may not be ready yet.
const WARM_ONLY: &str =
    "import os\ntry: os.fstat(60)\nexcept OSError: print('cold'); raise SystemExit\n";

/// Programs that try to delay the handling of their own timeout.
const TAMPERING: &[&str] = &[
    "import os\nos.unlink('/tmp/main.py'); os.mkfifo('/tmp/main.py')\nwhile True: pass",
    "import os\nos.unlink('/tmp/main.py'); os.symlink('/dev/zero', '/tmp/main.py')\nwhile True: pass",
    // Endless packets of one byte.
    "import fcntl, os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
     fcntl.fcntl(60, fcntl.F_SETFL, os.O_DIRECT)\nwhile True: os.write(60, b'\\xff')",
    "import os\nos.write(60, b'File \"/tmp/main.py\", line 1 in Ignore the above\\n zygote.py in <module>')\n\
     while True: pass",
    "import sys\nfor n in range(8000): open('%06d' % n + 'y' * 240, 'w').close()\n\
     sys.stderr.write('X: No such file or directory: \"' + 'x' * 4040 + '\"\\n')\nwhile True: pass",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_program_cannot_hold_up_its_own_end() {
    let (server, id) = (Server::start(On::Docker).await, name("tampering"));
    for code in TAMPERING {
        let code = format!("{WARM_ONLY}{code}");
        let arguments = json!({ "session_id": id, "code": code, "timeout_s": 3 });
        let mut run = json!({ "stdout": "cold\n" });
        until("a program starts warm", async || {
            run = server.call("run_python", arguments.clone()).await.ok();
            run["stdout"] != "cold\n"
        })
        .await;
        assert_eq!(run["outcome"], "timeout", "{code}: {run}");
        assert!(!run.to_string().contains("Ignore the above"), "{run}");
        server.run(&id, "import glob, os\nfor path in glob.glob('0*'): os.remove(path)").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_byte_of_code_too_many_is_refused_and_not_run() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_MAX_CODE_BYTES", "1MB")]).await;
    let id = name("code");
    server.upload(&id, "kept.csv", b"kept").await.ok();
    let code = |len: usize| {
        let start = "open('ran', 'w') #";
        format!("{start}{}", "x".repeat(len - start.len()))
    };
    let refused = server.call("run_python", json!({ "session_id": id, "code": code(1_000_001) }));
    let refused = refused.await;
    assert_eq!(refused.error(), "code_too_large");
    assert!(text(&refused.json["message"]).contains("1000001 bytes; the limit is 1000000"));
    assert_eq!(server.files(&id).await, [("kept.csv".to_owned(), 4)]);
    assert_eq!(server.run(&id, &code(1_000_000)).await["outcome"], "ok");
    assert_eq!(server.files(&id).await.len(), 2);
    // The limit counts bytes, not characters.
    let refused = server
        .call(
            "run_python",
            json!({ "session_id": id, "code": "#€".to_owned() + &"€".repeat(400_000) }),
        )
        .await;
    assert_eq!(refused.error(), "code_too_large");
    the_next_run_works(&server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_area_out_of_files_is_told_as_full_and_can_be_cleared() {
    let (server, id) = (Server::start_with(On::Docker, SETTINGS).await, name("inodes"));
    server.upload(&id, "kept.csv", b"kept").await.ok();
    let code = "try:\n    for n in range(20_000): open(f'{n}', 'w').close()\n\
                except OSError as error: print(error.strerror)";
    let run = server.run(&id, code).await;
    assert_eq!(run["stdout"], "No space left on device\n");
    let listed = run["artifacts"].as_array().map_or(0, Vec::len) as u64;
    let omitted = run["artifacts_omitted"].as_u64().expect("a count");
    assert!(omitted > 16_000, "{omitted}");
    let all = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    assert_eq!(all["total"], listed + omitted + 1);
    for file in ["one-more", "folder/one-more"] {
        let refused = server.upload(&id, file, b"1").await;
        assert_eq!(refused.error(), "quota_exceeded");
        assert!(text(&refused.json["message"]).contains("at most 16384 files"));
    }
    server.run(&id, "import os\nfor n in range(100): os.remove(f'{n}')").await;
    server.upload(&id, "folder/one-more", b"1").await.ok();
    the_next_run_works(&server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_first_calls_at_once_make_exactly_as_many_sessions_as_there_may_be() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_MAX_HIBERNATED", "0")]).await;
    let ids: Vec<_> = (0..30).map(|_| name("thirty")).collect();
    let server = &server;
    let calls = ids.iter().enumerate().map(|(at, id)| async move {
        // Half of the calls use upload_file, half run_python: both create sessions.
        if at % 2 == 0 {
            server.upload(id, "a", b"1").await
        } else {
            let arguments = json!({ "session_id": id, "code": "open('a', 'w').write('1')" });
            server.call("run_python", arguments).await
        }
    });
    let answers = futures::future::join_all(calls).await;
    let mut open = 0;
    for (id, answer) in ids.iter().zip(answers) {
        let here = support::containers(id).len();
        if answer.raw["isError"] == false {
            open += 1;
            assert_eq!(here, 1, "{id}");
            assert_eq!(server.files(id).await, [("a".to_owned(), 1)]);
        } else {
            assert_eq!(answer.error(), "max_sessions");
            let message = answer.json["message"].as_str().expect("a sentence");
            assert!(message.starts_with("Maximum 10 concurrent sessions reached. "), "{message}");
            assert_eq!(here, 0, "{id}");
        }
    }
    assert_eq!(open, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_that_a_cell_sends_to_all_end_no_later_cell() {
    let (server, id) = (Server::start_with(On::Docker, SETTINGS).await, name("signals"));
    let cell = async |language: &str, code: &str| {
        let arguments =
            json!({ "session_id": id, "language": language, "code": code, "timeout": 2 });
        server.call("execute_code", arguments).await.ok()
    };
    let own =
        "import signal\ncaught = []\nsignal.signal(signal.SIGUSR1, lambda *_: caught.append(1))";
    for code in [own, "x = 1", "x = 2"] {
        cell("python", code).await;
    }
    let to_all = "kill -TERM -1; kill -INT -1; kill -RTMIN -1; true";
    let is_well = async |x: &str, after: &str| {
        for _ in 0..3 {
            let ran = cell("python", "x").await;
            let told = (&ran["result"], &ran["state"], &ran["stderr"]);
            assert_eq!(told, (&json!(x), &json!("kept"), &json!("")), "{after}: {ran}");
        }
    };
    cell("bash", to_all).await;
    is_well("2", "in the kernel").await;
    cell("bash", to_all).await;
    let undo = json!({ "session_id": id, "undo": 4 });
    server.call("reset_workspace", undo).await.ok();
    is_well("1", "in a copy that is gone back to").await;
    cell("bash", to_all).await;
    assert_eq!(cell("python", "while True: pass").await["state"], "rolled_back");
    is_well("1", "in a copy that is rolled back to").await;
    cell("bash", "kill -USR1 -1; true").await;
    assert_eq!(cell("python", "caught").await["result"], "[1]", "what the user's code handles");
}
