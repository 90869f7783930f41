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
//!                keeps the runtimes ready
//! ```
//!
//! User code runs under the same uid. The agent is therefore not dumpable, which keeps its memory,
//! its descriptors and so the stream out of that code's reach.

mod memory;
mod places;
mod processes;
mod run;
mod runner;
mod runtimes;
mod serve;
mod transfer;

use std::{path::PathBuf, process::ExitCode};

use nix::sys::prctl;

use places::{Places, prepare_home};

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

    let args = std::env::args_os().skip(1).map(PathBuf::from);
    prepare_home();
    serve::serve(Places::from_args(args))
}

/// Ends the agent and all that it started.
fn end() -> ! {
    // As PID 1 the kernel does this for us; elsewhere nobody would.
    let _ = processes::kill_all();
    std::process::exit(0)
}
