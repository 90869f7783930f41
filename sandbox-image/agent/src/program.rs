//! A program that has been started: its process and the ends of its pipes that we hold.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use nix::unistd::Pid;
use protocol::message::Start;
use workspace::{beneath, tree};

use crate::{Places, prepare_home, processes, zygote::Link};

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) pid: Pid,
    pub(crate) start: Start,
    pub(crate) begun: Instant,
    /// Where its standard input is written, if it has any.
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Where it says that it is done, if it came from the fork server.
    pub(crate) link: Option<Link>,
}

impl Program {
    /// Starts a new interpreter on the script.
    pub(crate) fn start_cold(places: &Places, stdin: bool) -> io::Result<Self> {
        let mut command = Command::new("python3");
        command
            // The user's own modules come from the data area, and from nowhere else: what an earlier
            // run left beside the script or in its home would stand for a library of its name.
            .args(["-P", "-s"])
            .arg(places.script())
            .env("PYTHONPATH", python_path(&places.data))
            .current_dir(&places.data)
            .stdin(if stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let new_session = || {
            nix::unistd::setsid()?;
            Ok(())
        };
        #[expect(unsafe_code, reason = "between fork and exec only a system call is made")]
        unsafe {
            command.pre_exec(new_session);
        }
        let begun = Instant::now();
        let mut child = processes::with_no_signal_blocked(|| command.spawn())??;
        // If memory runs out, the kernel shall take what the user started and not the agent. From
        // outside, because the child of a process that is not dumpable cannot write its own.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
        let piped = "was asked for";
        Ok(Self {
            pid: Pid::from_raw(child.id().cast_signed()),
            start: Start::Cold,
            begun,
            stdin: child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            stdout: child.stdout.take().expect(piped).into(),
            stderr: child.stderr.take().expect(piped).into(),
            link: None,
        })
    }
}

/// The data area, and then what the image's maker wants.
pub(crate) fn python_path(data: &Path) -> OsString {
    let mut path = data.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("PYTHONPATH").filter(|more| !more.is_empty()) {
        path.push(":");
        path.push(more);
    }
    path
}

/// Puts the code where the interpreter and its tracebacks find it.
pub(crate) fn write_script(places: &Places, code: &[u8]) -> io::Result<()> {
    let path = places.script();
    let write = || {
        // An earlier run may have put anything there, a link too.
        let _ = fs::remove_file(&path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(code)
    };
    // Scratch space outlives a run only as a courtesy. Too full for the next one, or with a folder
    // in its place, it is emptied.
    write().or_else(|_| {
        tree::empty(&beneath::root(&places.scratch)?)?;
        prepare_home();
        write()
    })
}
