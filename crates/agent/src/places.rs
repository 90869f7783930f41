//! The folders that the agent works in.

use std::{io, path::PathBuf};

use protocol::limits::DATASETS;
use sandbox_files::{beneath, tree};

use crate::confine::Counted;

/// The initial files of a home. The image cannot contain the home itself, because that is on a tmpfs.
const HOME_SKELETON: &str = "/opt/sandbox/home";

/// Folders that the agent works in.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The user's files; all paths in the protocol are beneath it.
    pub(crate) data: PathBuf,
    /// Scratch space, where the program's text is written.
    pub(crate) scratch: PathBuf,
    /// The folder of shared memory; `None` outside a container.
    pub(crate) shared: Option<PathBuf>,
    /// Files of the runtimes, in a folder for each that has its name.
    pub(crate) runtimes: PathBuf,
    /// Folder of the packages that are installed while the sandbox runs. It may not exist.
    pub(crate) packages: PathBuf,
    /// The folder with the folders of the datasets.
    pub(crate) datasets: PathBuf,
    /// Maximum number of files and folders of each area, if the agent must enforce it.
    pub(crate) max_inodes: Option<u64>,
}

impl Places {
    /// The folders that the agent's arguments name, or else those of the image.
    pub(crate) fn from_args(mut args: impl Iterator<Item = PathBuf>) -> Self {
        Self {
            data: args.next().unwrap_or_else(|| "/mnt/data".into()),
            scratch: args.next().unwrap_or_else(|| "/tmp".into()),
            runtimes: args.next().unwrap_or_else(|| "/opt/sandbox/runtimes".into()),
            packages: args.next().unwrap_or_else(|| "/opt/packages".into()),
            datasets: args.next().unwrap_or_else(|| DATASETS.into()),
            // Outside a container other processes use it, too.
            shared: (std::process::id() == 1).then(|| "/dev/shm".into()),
            max_inodes: None,
        }
    }

    /// Starts to count files; `None` if there is no limit.
    pub(crate) fn count(&self) -> Option<Counted> {
        let areas = [&self.data, &self.scratch].into_iter().chain(&self.shared);
        Some(Counted::start(self.max_inodes?, areas.cloned()))
    }

    /// Empties scratch space and prepares the home anew, which is in it.
    pub(crate) fn clear_scratch(&self) -> io::Result<()> {
        tree::empty(&beneath::root(&self.scratch)?)?;
        prepare_home();
        Ok(())
    }

    /// Empties the folder of shared memory. Its files outlive the processes, and their memory cannot be reclaimed.
    pub(crate) fn clear_shared(&self) -> io::Result<()> {
        if let Some(shared) = &self.shared {
            tree::empty(&beneath::root(shared)?)?;
        }
        Ok(())
    }
}

/// Copies the initial files into the home.
pub(crate) fn prepare_home() {
    if let Some(home) = std::env::var_os("HOME")
        && let Err(error) = tree::copy(HOME_SKELETON.as_ref(), home.as_ref())
    {
        // Not fatal: a home without its font list only costs the user a second.
        eprintln!("agent: home not prepared: {error}");
    }
}
