//! Programs that start as new processes: writes the file with their text, and starts them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use nix::unistd::Pid;
use protocol::message::Start;

use super::program::{Program, Stdin};
use crate::{places::Places, processes};

/// Writes bytes to a new file in scratch space.
pub(super) fn write(places: &Places, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = || {
        // An earlier run may have left any kind of file at this path, also a link.
        let _ = fs::remove_file(path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
    };
    // The content of scratch space is not guaranteed to outlive a run: if it is too full for the next one, or has a
    // folder in the file's place, it is emptied.
    write().or_else(|_| {
        places.clear_scratch()?;
        write()
    })
}

/// Starts a process with no signal blocked, in a session of its own. The higher `oom_score` is, the sooner the system
/// kills it when memory runs out.
pub(super) fn spawn(command: &mut Command, oom_score: u32) -> io::Result<Child> {
    let new_session = || {
        nix::unistd::setsid()?;
        Ok(())
    };
    #[expect(unsafe_code, reason = "between fork and exec only a system call is made")]
    unsafe {
        command.pre_exec(new_session);
    }
    let child = processes::spawn(command)?;
    // Set by the agent, because a child of a process that is not dumpable cannot write its own.
    processes::set_oom_score(Pid::from_raw(child.id().cast_signed()), oom_score);
    Ok(child)
}

/// Starts a program in this folder.
pub(super) fn start(command: &mut Command, folder: &Path, stdin: Stdin) -> io::Result<Program> {
    command
        .current_dir(folder)
        .stdin(match stdin {
            Stdin::Pipe => Stdio::piped(),
            Stdin::Null => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = spawn(command, 1000)?;
    let piped = "was asked for";
    Ok(Program {
        pid: Pid::from_raw(child.id().cast_signed()),
        start: Start::Cold,
        begun,
        stdin: child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))),
        stdout: child.stdout.take().expect(piped).into(),
        stderr: child.stderr.take().expect(piped).into(),
        channel: None,
        stack: None,
    })
}
