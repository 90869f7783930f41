//! Limits that the agent sets itself if its starter cannot: the pods of a cluster have neither ulimits nor a limit on
//! the number of files.
//!
//! ```text
//! --rlimits core=0,nofile=1024    set before anything else; all processes that are started inherit them
//! --max-inodes 16384              for each area; a run that makes more files is ended
//! ```
//!
//! Files are counted ten times a second while something runs, so that a run can exceed the limit by the files that it
//! makes in a tenth of a second. Their inodes take kernel memory, which cgroup version 2 counts as the sandbox's; with
//! version 1 it is the host's. One limit has no substitute here: that programs cannot be started from `/tmp` takes a
//! mount option.

use std::{
    ffi::OsString,
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    statvfs::statvfs,
};

/// How often files are counted.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// Limits from the command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Confine {
    rlimits: Vec<(Resource, u64)>,
    /// Maximum number of files and folders in each area.
    pub(crate) max_inodes: Option<u64>,
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
        let max_inodes = take("--max-inodes")?.map(|value| {
            value.parse().map_err(|_| format!("--max-inodes: {value} is not a number"))
        });
        Ok(Self {
            rlimits: rlimits.collect::<Result<_, _>>()?,
            max_inodes: max_inodes.transpose()?,
        })
    }

    /// Sets the limits of this process and of all that it starts. No hard limit is raised.
    pub(crate) fn apply(&self) -> nix::Result<()> {
        for &(resource, value) in &self.rlimits {
            let (_, hard) = getrlimit(resource)?;
            let value = value.min(hard);
            setrlimit(resource, value, value)?;
        }
        Ok(())
    }
}

/// Parses a limit such as `nofile=1024`.
fn rlimit(pair: &str) -> Result<(Resource, u64), String> {
    let wrong = || format!("--rlimits: {pair} is not a limit");
    let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
    let resource = match name {
        "core" => Resource::RLIMIT_CORE,
        "fsize" => Resource::RLIMIT_FSIZE,
        "memlock" => Resource::RLIMIT_MEMLOCK,
        "msgqueue" => Resource::RLIMIT_MSGQUEUE,
        "nofile" => Resource::RLIMIT_NOFILE,
        "sigpending" => Resource::RLIMIT_SIGPENDING,
        _ => return Err(wrong()),
    };
    Ok((resource, value.parse().map_err(|_| wrong())?))
}

/// Counts the files of areas while a program or cell runs.
#[derive(Debug)]
pub(crate) struct Counted {
    /// Maximum number of files and folders in each area.
    max: u64,
    /// Each area with the number of files that it had at the start.
    areas: Vec<(PathBuf, u64)>,
    looked: Instant,
}

impl Counted {
    /// Counts the files that the areas have now.
    pub(crate) fn start(max: u64, areas: impl IntoIterator<Item = PathBuf>) -> Self {
        let areas = areas.into_iter().map(|area| {
            let before = used(&area).unwrap_or(0);
            (area, before)
        });
        Self { max, areas: areas.collect(), looked: Instant::now() }
    }

    /// The message for the run if an area has too many files. Counts at most once per [`INTERVAL`].
    pub(crate) fn look(&mut self) -> Option<String> {
        if self.looked.elapsed() < INTERVAL {
            return None;
        }
        self.looked = Instant::now();
        let max = self.max;
        let is_over = |(area, before): &&(PathBuf, u64)| {
            used(area).is_some_and(|now| is_over(max, *before, now))
        };
        let (area, _) = self.areas.iter().find(is_over)?;
        let area = area.display();
        Some(format!(
            "\nsandbox: ended, as {area} has more than {max} files and folders; remove some\n"
        ))
    }
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
        assert_eq!(confine, Ok(Confine { rlimits, max_inodes: Some(16_384) }));
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
        ] {
            assert!(take(args).0.is_err(), "{args:?}");
        }
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
