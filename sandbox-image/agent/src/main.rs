//! The agent: PID 1 of a sandbox.
//!
//! It runs programs and moves bytes over its standard input and output, and knows nothing else:
//! no sessions, no URLs, no MIME types. It is what holds the caps, ends whatever a run leaves
//! behind and keeps the deadlines, so that these hold even when the server is slow, frozen or dead.
//!
//! ```text
//! main thread    frames in -> files, lists, pings and looks at a run answered in place
//!   |- watch     ends the agent when the stream closes or the server falls silent, or when that has lasted for as
//!   |            long as the server wants it to hold out ([`hold`])
//!   `- runner    one run after another: start, capture, deadline, sweep, reply; in between it
//!                keeps the runtimes ready
//! ```
//!
//! User code runs under the same uid. The agent is therefore not dumpable, which keeps its memory,
//! its descriptors and so the stream out of that code's reach.

mod confine;
mod hold;
mod memory;
mod places;
mod processes;
mod run;
mod runner;
mod runtimes;
mod serve;
mod transfer;

use std::{ffi::OsString, num::ParseIntError, path::PathBuf, process::ExitCode, time::Duration};

use nix::{sys::prctl, unistd::Pid};

use confine::Confine;
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
    let mut args = std::env::args_os().skip(1).collect();
    let confine = Confine::take(&mut args)?;
    let (first_within, places) = match Arguments::of(args.into_iter())? {
        Arguments::Connect(agent) => return hold::connect::connect(agent),
        Arguments::Serve { first_within, places } => (first_within, places),
    };
    prctl::set_dumpable(false)?;
    confine.apply()?;
    if std::process::id() != 1 {
        // Outside a container of its own (tests), what a run leaves behind must still come to us.
        prctl::set_child_subreaper(true)?;
    }
    // Blocked here, before any thread starts, so that all of them leave SIGCHLD to the runner's signalfd.
    processes::block_signals()?;
    prepare_home();
    let places = Places::from_args(places.into_iter());
    serve::serve(Places { max_inodes: confine.max_inodes, ..places }, first_within)
}

/// What the agent is started for.
enum Arguments {
    /// To be PID 1.
    Serve {
        /// Its standard input and output are not its stream. That comes within this time.
        first_within: Option<Duration>,
        /// Its folders, other than in a container.
        places: Vec<PathBuf>,
    },
    /// To bring the agent with this number, PID 1 if none is given, a new stream: `--connect [PID]`.
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

/// Ends the agent and all that it started.
fn end() -> ! {
    // As PID 1 the kernel does this for us; elsewhere nobody would.
    let _ = processes::kill_all();
    std::process::exit(0)
}
