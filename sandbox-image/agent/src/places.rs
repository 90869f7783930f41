//! The folders that the agent works in.

use std::{io, path::PathBuf};

use workspace::{beneath, tree};

use crate::confine::Counted;

/// What a home holds from the start. The image cannot hold the home itself, as it is on a tmpfs.
const HOME_SKELETON: &str = "/opt/sandbox/home";

/// Folders that the agent works in.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The user's files; all paths in the protocol are beneath it.
    pub(crate) data: PathBuf,
    /// Where the program's text is put.
    pub(crate) scratch: PathBuf,
    /// What programs share memory by, in a container of their own.
    pub(crate) shared: Option<PathBuf>,
    /// Files of the runtimes' own, a folder for each, by its name.
    pub(crate) runtimes: PathBuf,
    /// Where packages are put that are installed while the sandbox runs. It may not be there.
    pub(crate) packages: PathBuf,
    /// Most files and folders of each area that a run may leave, where nothing else bounds them.
    pub(crate) max_inodes: Option<u64>,
}

impl Places {
    /// As the agent's arguments name them, or as they are in the image.
    pub(crate) fn from_args(mut args: impl Iterator<Item = PathBuf>) -> Self {
        Self {
            data: args.next().unwrap_or_else(|| "/mnt/data".into()),
            scratch: args.next().unwrap_or_else(|| "/tmp".into()),
            runtimes: args.next().unwrap_or_else(|| "/opt/sandbox/runtimes".into()),
            packages: args.next().unwrap_or_else(|| "/opt/packages".into()),
            // Outside a container it is everybody's.
            shared: (std::process::id() == 1).then(|| "/dev/shm".into()),
            max_inodes: None,
        }
    }

    /// Counts files from now on, if they are to be counted.
    pub(crate) fn count(&self) -> Option<Counted> {
        let areas = [&self.data, &self.scratch].into_iter().chain(&self.shared);
        Some(Counted::start(self.max_inodes?, areas.cloned()))
    }

    /// Empties scratch space, and makes the home anew, which is there.
    pub(crate) fn clear_scratch(&self) -> io::Result<()> {
        tree::empty(&beneath::root(&self.scratch)?)?;
        prepare_home();
        Ok(())
    }

    /// Empties the memory that programs share. It outlives its processes, and counts as memory that
    /// nothing could free.
    pub(crate) fn clear_shared(&self) -> io::Result<()> {
        if let Some(shared) = &self.shared {
            tree::empty(&beneath::root(shared)?)?;
        }
        Ok(())
    }
}

/// Fills the home with what it holds from the start.
pub(crate) fn prepare_home() {
    if let Some(home) = std::env::var_os("HOME")
        && let Err(error) = tree::copy(HOME_SKELETON.as_ref(), home.as_ref())
    {
        // A home without its font list costs the user a second, not the sandbox.
        eprintln!("agent: home not prepared: {error}");
    }
}
