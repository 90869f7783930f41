//! Limits that the agent sets itself if its starter cannot: the pods of a cluster have neither ulimits nor a limit on
//! the number of files, Podman has no limit on the number of files and no ulimits without root, and a data area on disk
//! has no limit at all on most file systems.
//!
//! ```text
//! --rlimits core=0,nofile=1024    set before anything else; all processes that are started inherit them
//! --max-inodes 16384              for each area; a run that makes more files is ended
//! --max-bytes 10000000000         of the data area, which is no file system of its own ([`space`](crate::space))
//! ```
//!
//! A thread watches the areas while something runs. It counts files ten times a second, so that a run can exceed the
//! limit by the files that it makes in a tenth of a second. Their inodes take kernel memory, which cgroup version 2 counts as the sandbox's; with
//! version 1 it is the host's. One limit has no substitute here: that programs cannot be started from `/tmp` takes a
//! mount option.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc::SYS_fallocate,
    sys::{
        eventfd::{EfdFlags, EventFd},
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        statvfs::statvfs,
    },
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::space::{Space, Watched, too_many_files};

/// How often files are counted.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// Limits from the command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Confine {
    rlimits: Vec<(Resource, u64)>,
    /// Maximum number of files and folders in each area.
    pub(crate) max_inodes: Option<u64>,
    /// Maximum number of bytes of the data area, if that is no file system of its own.
    pub(crate) max_bytes: Option<u64>,
}

impl Confine {
    /// Parses and removes the options of this module from the arguments.
    pub(crate) fn take(args: &mut Vec<OsString>) -> Result<Self, String> {
        let mut take = |name: &str| -> Result<Option<String>, String> {
            let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(None) };
            if at + 1 == args.len() {
                return Err(format!("{name} has no value"));
            }
            let value = args.drain(at..=at + 1).next_back();
            Ok(value.map(|value| value.to_string_lossy().into_owned()))
        };
        let rlimits = take("--rlimits")?.unwrap_or_default();
        let rlimits = rlimits.split(',').filter(|pair| !pair.is_empty()).map(rlimit);
        let mut number = |name: &str| {
            let value = take(name)?
                .map(|value| value.parse().map_err(|_| format!("{name}: {value} is not a number")));
            value.transpose()
        };
        Ok(Self {
            max_inodes: number("--max-inodes")?,
            max_bytes: number("--max-bytes")?,
            rlimits: rlimits.collect::<Result<_, _>>()?,
        })
    }

    /// Sets the limits of this process and of all that it starts. No hard limit is raised. Must be called before there
    /// is a second thread.
    pub(crate) fn apply(&self) -> Result<(), Box<dyn std::error::Error>> {
        for &(resource, value) in &self.rlimits {
            let (_, hard) = getrlimit(resource)?;
            let value = value.min(hard);
            setrlimit(resource, value, value)?;
        }
        if self.max_bytes.is_some() {
            prctl::set_no_new_privs()?;
            apply_filter(&no_reservations()?)?;
        }
        Ok(())
    }
}

/// A filter without the system call that reserves room in a file without writing: it would fill a disk in no time, also
/// beyond the length of the file. The C library then writes zeros instead.
fn no_reservations() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = BTreeMap::from([(SYS_fallocate, vec![])]);
    let refuse = SeccompAction::Errno((Errno::EOPNOTSUPP as i32).cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

/// Parses a limit such as `nofile=1024`.
fn rlimit(pair: &str) -> Result<(Resource, u64), String> {
    let wrong = || format!("--rlimits: {pair} is not a limit");
    let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
    let resource = match name {
        "core" => Resource::RLIMIT_CORE,
        "data" => Resource::RLIMIT_DATA,
        "fsize" => Resource::RLIMIT_FSIZE,
        "memlock" => Resource::RLIMIT_MEMLOCK,
        "msgqueue" => Resource::RLIMIT_MSGQUEUE,
        "nofile" => Resource::RLIMIT_NOFILE,
        "nproc" => Resource::RLIMIT_NPROC,
        "sigpending" => Resource::RLIMIT_SIGPENDING,
        _ => return Err(wrong()),
    };
    Ok((resource, value.parse().map_err(|_| wrong())?))
}

/// A run that uses more than its areas may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    /// The message for the run.
    pub(crate) message: String,
    /// Whether the run must end at once, instead of in good order.
    pub(crate) is_final: bool,
}

/// Watches the areas of a run, in a thread of its own, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    breaches: mpsc::Receiver<Breach>,
    /// Readable when there is a breach.
    bell: Arc<EventFd>,
    /// Ends the thread when it is dropped.
    _until: mpsc::Sender<()>,
}

impl Watch {
    /// Begins to watch. `counted` are areas that are file systems of their own.
    pub(crate) fn start(
        space: Option<Arc<Space>>,
        counted: impl IntoIterator<Item = PathBuf>,
        max: u64,
    ) -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Arc::new(bell);
        let mut space = space.map(Watched::start);
        let counted = counted.into_iter().map(|area| {
            let before = used(&area).unwrap_or(0);
            (area, before)
        });
        let counted: Vec<_> = counted.collect();
        let (sender, breaches) = mpsc::channel();
        let (until, ended) = mpsc::channel();
        let rings = bell.clone();
        let watch = move || {
            let mut next = Duration::ZERO;
            // The last breach that was reported; the same is not reported again.
            let mut last: Option<bool> = None;
            while ended.recv_timeout(next) == Err(mpsc::RecvTimeoutError::Timeout) {
                let (breach, wait) = space.as_mut().map_or((None, INTERVAL), Watched::look);
                next = wait;
                let breach = breach.or_else(|| look(&counted, max));
                if let Some(breach) =
                    breach.filter(|it| last.is_none_or(|was_final| it.is_final && !was_final))
                {
                    last = Some(breach.is_final);
                    let _ = sender.send(breach);
                    let _ = rings.write(1);
                }
            }
        };
        thread::Builder::new().name("space".into()).spawn(watch)?;
        Ok(Self { breaches, bell, _until: until })
    }

    /// The next breach, which may be more serious than the one before it.
    pub(crate) fn breach(&self) -> Option<Breach> {
        let _ = self.bell.read();
        self.breaches.try_recv().ok()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The breach of an area that has too many files.
fn look(areas: &[(PathBuf, u64)], max: u64) -> Option<Breach> {
    let is_over =
        |(area, before): &&(PathBuf, u64)| used(area).is_some_and(|now| is_over(max, *before, now));
    let (area, _) = areas.iter().find(is_over)?;
    Some(Breach { message: too_many_files(area, max), is_final: false })
}

/// Whether an area has too many files. An area that had too many before the run may not grow, but may keep them: a run
/// must be able to remove files from it.
fn is_over(max: u64, before: u64, now: u64) -> bool {
    now > max.max(before)
}

/// Number of files and folders of the filesystem; `None` if it does not count them.
fn used(area: &PathBuf) -> Option<u64> {
    let stat = statvfs(area).ok()?;
    let (all, free) = (stat.files(), stat.files_free());
    (all > 0).then(|| all.saturating_sub(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(args: &[&str]) -> (Result<Confine, String>, Vec<OsString>) {
        let mut args = args.iter().map(OsString::from).collect();
        (Confine::take(&mut args), args)
    }

    #[test]
    fn what_is_not_meant_for_it_is_left() {
        let (confine, left) = take(&[
            "--hold",
            "0",
            "--rlimits",
            "core=0,nofile=1024",
            "--max-inodes",
            "16384",
            "/data",
        ]);
        let rlimits = vec![(Resource::RLIMIT_CORE, 0), (Resource::RLIMIT_NOFILE, 1024)];
        assert_eq!(confine, Ok(Confine { rlimits, max_inodes: Some(16_384), max_bytes: None }));
        assert_eq!(left, ["--hold", "0", "/data"]);
        assert_eq!(take(&["/data"]).0, Ok(Confine::default()));
    }

    #[test]
    fn limits_that_it_does_not_understand_are_not_passed_over() {
        for args in [
            &["--rlimits"][..],
            &["--max-inodes"],
            &["--rlimits", "core"],
            &["--rlimits", "core=no"],
            &["--rlimits", "stack=0"],
            &["--max-inodes", "-1"],
            &["--max-bytes", "10GB"],
        ] {
            assert!(take(args).0.is_err(), "{args:?}");
        }
    }

    #[test]
    fn the_limits_of_every_engine_are_understood() {
        let all =
            "nofile=1024,fsize=1,core=0,memlock=0,msgqueue=0,sigpending=1024,nproc=128,data=1";
        assert_eq!(take(&["--rlimits", all]).0.map(|it| it.rlimits.len()), Ok(8));
    }

    #[test]
    fn an_area_that_was_full_before_may_shrink() {
        for (before, now, over) in [
            (0, 10, false),
            (0, 11, true),
            (10, 11, true),
            (20, 20, false),
            (20, 15, false),
            (20, 21, true),
        ] {
            assert_eq!(is_over(10, before, now), over, "{before} {now}");
        }
    }
}
