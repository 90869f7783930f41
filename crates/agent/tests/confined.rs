//! The limits that an agent sets itself.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use child::Agent;
use nix::sys::{signal::Signal, statvfs::statvfs};
use protocol::message::{End, Run, RunDone};

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
