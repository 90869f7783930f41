//! Files without a name, which take room for as long as a process has them.

use std::{fs, io, path::Path};

use nix::{
    errno::Errno,
    sys::stat::{SFlag, stat},
    unistd::{Pid, getsid},
};
use sandbox_files::usage::Tally;

use super::proc::descendants;

/// Adds the files without a name in an area that the agent's descendants have open. Its own are not among them: uploads
/// are counted as they come, and stored outputs have a limit of their own.
///
/// Returns whether that was certainly all: false if a process cannot be looked at, if a file is mapped into its memory,
/// or if descriptors are on their way through a socket.
pub(crate) fn add_to(tally: &mut Tally, area: &Path) -> bool {
    let own = std::process::id().cast_signed();
    let mut all = true;
    let deleted = format!(" {}/", area.display());
    for pid in descendants().pids.into_iter().filter(|pid| *pid != own) {
        let added = add_of_process(tally, pid, &deleted).or_else(ended);
        all &= added.unwrap_or_else(|_| runs_no_user_code(pid));
    }
    all
}

/// Whether a process runs no code of the user's, such as fork servers and spares, which cannot be looked at. They are in
/// the agent's session. Every program and kernel has a session of its own before it runs any, and cannot join another.
fn runs_no_user_code(pid: i32) -> bool {
    getsid(Some(Pid::from_raw(pid))).is_ok_and(|session| getsid(None) == Ok(session))
}

/// A process that has ended meanwhile has no files.
fn ended(error: io::Error) -> io::Result<bool> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ESRCH) => Ok(true),
        _ => Err(error),
    }
}

fn add_of_process(tally: &mut Tally, pid: i32, deleted: &str) -> io::Result<bool> {
    let (mut all, mut last) = (true, None);
    // A program that runs needs no descriptor, and can unmap its own file.
    match stat(&*format!("/proc/{pid}/exe")) {
        Ok(stat) => tally.add_open(&stat),
        Err(Errno::ENOENT | Errno::ESRCH) => {}
        Err(error) => return Err(error.into()),
    }
    // Threads can have descriptors of their own.
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        all &= add_of_task(tally, &task).or_else(ended)?;
        last = Some(task);
    }
    // Threads share their memory; the first one may have ended.
    let maps =
        last.map(|task| fs::read(task.join("maps")).or_else(|error| ended(error).map(|_| vec![])));
    let maps = maps.transpose()?.unwrap_or_default();
    let is_deleted = |line: &str| line.contains(deleted) && line.ends_with(" (deleted)");
    Ok(all && !String::from_utf8_lossy(&maps).lines().any(is_deleted))
}

fn add_of_task(tally: &mut Tally, task: &Path) -> io::Result<bool> {
    let mut all = true;
    for entry in fs::read_dir(task.join("fd"))? {
        let entry = entry?;
        // A descriptor may have been closed meanwhile.
        let Ok(stat) = stat(&entry.path()) else { continue };
        if stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFSOCK.bits() {
            all &= !carries_descriptors(&task.join("fdinfo").join(entry.file_name()));
        } else {
            tally.add_open(&stat);
        }
    }
    Ok(all)
}

/// Whether a socket has descriptors that were sent and not received.
fn carries_descriptors(info: &Path) -> bool {
    let info = fs::read_to_string(info).unwrap_or_default();
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}
