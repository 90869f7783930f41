//! The agent of containers and pods, which is their PID 1. It runs programs as processes, and moves bytes over its
//! standard input and output.
//!
//! It enforces the caps and the deadlines and ends all processes that a run leaves behind, so that these hold even if
//! the server is slow, frozen or dead. It does not know sessions, callers, URLs or MIME types, and does not decide
//! which request may be answered when: `agent-core` does, and calls [`serve`] and [`runner`].
//!
//! ```text
//! main thread    frames in -> answers requests for files, lists, pings and peeks itself
//!   |- watch     ends the agent if the stream is lost or the server is silent for too long; with a hold, if no other
//!   |            stream comes within the time that the server has set ([`hold`])
//!   `- runner    one run after another: start, capture, deadline, sweep, reply; in between it
//!                keeps the runtimes ready
//!
//! states         waiting for the hello --> connected <--> lost ([`hold`])
//!                                              |            |
//!                                              '--- end <---'  all processes are killed
//! ```
//!
//! User code runs under the same uid. The agent is therefore not dumpable, which keeps its memory,
//! its descriptors and so the stream out of that code's reach.

mod confine;
mod gate;
mod hold;
mod memory;
mod places;
mod processes;
mod runner;
mod runtimes;
mod serve;
mod space;
mod summary;
mod tool;
mod transfer;
mod usage;

use std::{ffi::OsString, num::ParseIntError, path::PathBuf, process::ExitCode, time::Duration};

use nix::{sys::prctl, unistd::Pid};

use confine::Confine;
use places::{Places, prepare_home};

fn main() -> ExitCode {
    if let Some(args) = tool::args() {
        return tool::main(&args);
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            // If the agent is PID 1, the kernel kills all other processes; otherwise the agent must do it.
            processes::kill_all();
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1).collect();
    let confine = Confine::take(&mut args)?;
    let (first_within, places) = match Arguments::of(args.into_iter())? {
        Arguments::Connect(agent) => return hold::connect::connect(agent),
        Arguments::Serve { first_within, places } => (first_within, places),
    };
    prctl::set_dumpable(false)?;
    confine.apply()?;
    if std::process::id() != 1 {
        // Outside a container (tests), the processes that a run leaves behind must still become children of the agent.
        prctl::set_child_subreaper(true)?;
    }
    // Blocked before any thread starts, so that all threads leave SIGCHLD to the runner's signalfd.
    processes::block_signals()?;
    prepare_home();
    let places = Places::from_args(places.into_iter());
    serve::serve(places.limited(&confine)?, first_within)
}

/// The ways to start the agent.
enum Arguments {
    /// Serves a sandbox, usually as its PID 1.
    Serve {
        /// If set, standard input and output are not the stream, which must come within this time.
        first_within: Option<Duration>,
        /// The folders to use outside a container.
        places: Vec<PathBuf>,
    },
    /// Connects a new stream to the agent with this process id, by default PID 1: `--connect [PID]`.
    Connect(Pid),
}

impl Arguments {
    fn of(args: impl Iterator<Item = OsString>) -> Result<Self, Box<dyn std::error::Error>> {
        let mut args = args.peekable();
        let number = |arg: Option<OsString>| -> Result<Option<u32>, ParseIntError> {
            arg.map(|arg| arg.to_string_lossy().parse()).transpose()
        };
        if args.next_if(|arg| arg == "--connect").is_some() {
            let agent = number(args.next())?.unwrap_or(1);
            return Ok(Self::Connect(Pid::from_raw(agent.cast_signed())));
        }
        let first_within = match args.next_if(|arg| arg == "--hold") {
            Some(_) => Some(number(args.next())?.ok_or("--hold takes a number of seconds")?),
            None => None,
        };
        Ok(Self::Serve {
            first_within: first_within.map(|seconds| Duration::from_secs(seconds.into())),
            places: args.map(PathBuf::from).collect(),
        })
    }
}

/// Ends the agent and all processes that it has started.
fn end() -> ! {
    // If the agent is PID 1, the kernel kills all other processes; otherwise the agent must do it.
    processes::kill_all();
    std::process::exit(0)
}
