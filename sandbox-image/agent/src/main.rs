//! The agent: PID 1 of a sandbox.
//!
//! It runs programs and moves bytes over its standard input and output, and knows nothing else:
//! no sessions, no URLs, no MIME types. It is what holds the caps, ends whatever a run leaves
//! behind and keeps the deadlines, so that these hold even when the server is slow, frozen or dead.
//!
//! ```text
//! main thread    frames in -> files, lists, pings and looks at a run answered in place
//!   |- watch     ends the agent when the stream closes or the server falls silent
//!   `- runner    one run after another: start, capture, deadline, sweep, reply; in between it
//!                keeps the fork server and its spare
//! ```
//!
//! User code runs under the same uid. The agent is therefore not dumpable, which keeps its memory,
//! its descriptors and so the stream out of that code's reach.

mod fork_server;
mod memory;
mod processes;
mod program;
mod reply;
mod run;
mod runner;
mod serve;
mod watch;
mod zygote;

use std::{path::PathBuf, process::ExitCode};

use nix::sys::prctl;
use workspace::tree;

/// Folders that the agent works in.
#[derive(Debug, Clone)]
struct Places {
    /// The user's files; all paths in the protocol are beneath it.
    data: PathBuf,
    /// Where the program's text is put.
    scratch: PathBuf,
    /// What programs share memory by, in a container of their own.
    shared: Option<PathBuf>,
    /// The fork server's program. Without it every run is a new interpreter.
    zygote: PathBuf,
}

impl Places {
    /// The program's text.
    fn script(&self) -> PathBuf {
        self.scratch.join("main.py")
    }
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            // As PID 1 the kernel does this for us; elsewhere nobody would.
            let _ = processes::kill_all();
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Box<dyn std::error::Error>> {
    prctl::set_dumpable(false)?;
    if std::process::id() != 1 {
        // Outside a container of its own (tests), what a run leaves behind must still come to us.
        prctl::set_child_subreaper(true)?;
    }
    // Blocked here, before any thread starts, so that all of them leave SIGCHLD to the runner's signalfd.
    processes::block_signals()?;

    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let places = Places {
        data: args.next().unwrap_or_else(|| "/mnt/data".into()),
        scratch: args.next().unwrap_or_else(|| "/tmp".into()),
        zygote: args.next().unwrap_or_else(|| "/opt/sandbox/zygote.py".into()),
        // Outside a container it is everybody's.
        shared: (std::process::id() == 1).then(|| "/dev/shm".into()),
    };
    prepare_home();
    serve::serve(places)
}

/// Fills the home with what it holds from the start.
fn prepare_home() {
    if let Some(home) = std::env::var_os("HOME")
        && let Err(error) = tree::copy(HOME_SKELETON.as_ref(), home.as_ref())
    {
        // A home without its font list costs the user a second, not the sandbox.
        eprintln!("agent: home not prepared: {error}");
    }
}

/// What a home holds from the start. The image cannot hold the home itself, as it is on a tmpfs.
const HOME_SKELETON: &str = "/opt/sandbox/home";
