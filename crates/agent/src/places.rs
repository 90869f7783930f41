//! The folders that the agent works in.

use std::{io, path::PathBuf, sync::Arc};

use protocol::limits::{DATASETS, MAX_FILES};
use sandbox_files::{beneath, tree, usage::Usage};

use crate::{
    confine::{Confine, Watch},
    space::Space,
};

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
    /// The data area, if the agent must enforce its limits.
    pub(crate) space: Option<Arc<Space>>,
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
            space: None,
        }
    }

    /// Sets the limits that the agent must enforce.
    pub(crate) fn limited(self, limits: &Confine) -> io::Result<Self> {
        let files = limits.max_inodes.unwrap_or(MAX_FILES.into());
        let space = limits.max_bytes.map(|bytes| Space::open(&self.data, Usage { bytes, files }));
        Ok(Self { max_inodes: limits.max_inodes, space: space.transpose()?.map(Arc::new), ..self })
    }

    /// Starts to watch the areas; `None` if there is no limit that the agent must enforce.
    pub(crate) fn watch(&self) -> io::Result<Option<Watch>> {
        if self.space.is_none() && self.max_inodes.is_none() {
            return Ok(None);
        }
        let own = self.space.is_none().then_some(&self.data);
        let counted = own.into_iter().chain([&self.scratch]).chain(&self.shared).cloned();
        // Scratch space outside a container is part of a file system that others use, too.
        let counted = counted.filter(|_| self.space.is_none() || self.shared.is_some());
        let max = self.max_inodes.unwrap_or(u64::MAX);
        Watch::start(self.space.clone(), counted, max).map(Some)
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
