//! Where runtimes are: a folder of the user's own, as what is in it is run as this program is.
//!
//! ```text
//! SANDBOX_RUNTIME_DIR or the user's cache
//! |- downloads/        the packages, as they came
//! |- tools/            compiled code of tools of the operator's own
//! |- runtime-<key>/    what sandboxes are made from; another version of this program has another key
//! '- lock              held while one is made
//! ```

use std::{
    env,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Why a folder is not used.
#[derive(Debug, Error)]
pub(crate) enum FolderError {
    /// What is in it may be somebody else's.
    #[error("it belongs to another user")]
    Owner,
    /// What is in it may be anybody's.
    #[error("others can write to it")]
    Mode,
    /// It cannot be made or opened.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FolderError {
    /// What to do about it, in a sentence.
    pub(crate) fn fix(&self, folder: &Path) -> String {
        let path = folder.display();
        match self {
            Self::Owner => "Name a folder of your own, or run as its user.".into(),
            Self::Mode => format!("Take the right from them: `chmod go-w {path}`."),
            Self::Io(_) => {
                format!("See to it that this user can write to {path}, or name another.")
            }
        }
    }
}

impl From<FolderError> for io::Error {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Io(error) => error,
            other => Self::other(other.to_string()),
        }
    }
}

/// What begins the name of a runtime's folder.
const RUNTIME: &str = "runtime-";

/// What begins the name of the folder of a runtime that is being made.
pub(super) const UNFINISHED: &str = "unfinished-";

/// What begins the name of a folder into which packages are being fetched.
const FETCHED: &str = ".tmp";

/// The folder of runtimes.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The one of the settings, or the usual one of this user; `None` if nothing says where that is.
    pub(crate) fn of(setting: Option<&Path>) -> Option<Self> {
        let variable =
            |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || {
            let cache = variable("XDG_CACHE_HOME");
            let cache = cache.or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
            Some(cache.join("llm-sandbox"))
        };
        setting.map(absolute).or_else(usual).map(Self)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Where packages are kept.
    pub(super) fn downloads(&self) -> PathBuf {
        self.0.join("downloads")
    }

    /// The runtime of this version of the program, if it is made.
    pub(super) fn runtime(&self) -> PathBuf {
        self.0.join(format!("{RUNTIME}{}", embedded::key()))
    }

    /// Runtimes of other versions.
    pub(super) fn others(&self) -> Vec<PathBuf> {
        let own = self.runtime();
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(RUNTIME) && *path != own
        });
        paths.collect()
    }

    /// Keeps a runtime from being removed for as long as the file is open.
    ///
    /// # Errors
    /// If it cannot be opened, or is being removed.
    pub(super) fn hold(runtime: &Path) -> io::Result<File> {
        let file = File::open(runtime)?;
        file.try_lock_shared()?;
        Ok(file)
    }

    /// Removes runtimes of other versions that nobody holds.
    pub(super) fn remove_others(&self) {
        for other in self.others() {
            let is_free = |file: &File| file.try_lock().is_ok();
            if let Some(_removed) = File::open(&other).ok().filter(is_free) {
                let _ = fs::remove_dir_all(other);
            }
        }
    }

    /// Removes what installations have left that were ended. Only one that holds the lock may do so.
    pub(super) fn remove_unfinished(&self) {
        for (folder, prefix) in [(self.path(), UNFINISHED), (&self.downloads(), FETCHED)] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(prefix) {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
        }
    }

    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// If it cannot be made, or others could write to it.
    pub(super) fn make(&self) -> Result<(), FolderError> {
        make_private(&self.0)?;
        make_private(&self.downloads())
    }

    /// The folder of compiled tools, made if it is not there.
    ///
    /// # Errors
    /// As with [`make`](Self::make).
    pub(crate) fn make_tools(&self) -> io::Result<PathBuf> {
        make_private(&self.0)?;
        let tools = self.0.join("tools");
        make_private(&tools)?;
        Ok(tools)
    }

    /// Whether nobody but this user can write to it.
    ///
    /// # Errors
    /// If others can, or it is not there.
    pub(super) fn check(&self) -> Result<(), FolderError> {
        check_private(&self.0)
    }
}

/// The same path wherever a process works: sandboxes are started elsewhere.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes a folder that nobody but this user can write to, if it is not there.
///
/// # Errors
/// If it cannot be made, or others could write to it.
pub(super) fn make_private(folder: &Path) -> Result<(), FolderError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_private(folder)
}

/// Whether nobody but this user can write to a folder.
///
/// # Errors
/// If others can, or it is not there.
pub(super) fn check_private(folder: &Path) -> Result<(), FolderError> {
    let found = fs::metadata(folder)?;
    if found.uid() != effective_user() && found.uid() != 0 {
        return Err(FolderError::Owner);
    }
    if found.mode() & 0o022 != 0 {
        return Err(FolderError::Mode);
    }
    Ok(())
}

/// The user whom this process runs as.
fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_runtime_of_another_version_is_removed_unless_a_server_holds_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::of(Some(dir.path())).expect("named");
        let [own, held, free] =
            [folder.runtime(), dir.path().join("runtime-1"), dir.path().join("runtime-2")];
        for runtime in [&own, &held, &free] {
            fs::create_dir(runtime).expect("made");
            fs::write(runtime.join("image"), "x").expect("written");
        }
        let holds = [Folder::hold(&held).expect("held"), Folder::hold(&held).expect("twice")];
        folder.remove_others();
        assert!(own.exists() && held.join("image").exists() && !free.exists());
        drop(holds);
        folder.remove_others();
        assert!(own.exists() && !held.exists());
        assert!(Folder::hold(&held).is_err());
    }

    #[test]
    fn what_an_installation_that_was_ended_has_left_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::of(Some(dir.path())).expect("named");
        folder.make().expect("made");
        let left = [dir.path().join("unfinished-1a"), folder.downloads().join(".tmp2b")];
        let stay = [folder.runtime(), dir.path().join("tools"), folder.downloads().join("pkg-1")];
        for path in left.iter().chain(&stay) {
            fs::create_dir(path).expect("made");
            fs::write(path.join("file"), "x").expect("written");
        }
        folder.remove_unfinished();
        assert!(left.iter().all(|path| !path.exists()));
        assert!(stay.iter().all(|path| path.join("file").exists()));
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let relative = Folder::of(Some(Path::new("cache"))).expect("named");
        assert!(relative.path().is_absolute());
        let folder = Folder::of(Some(&dir.path().join("deep/cache"))).expect("named");
        let missing = folder.check().expect_err("it is not there");
        assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
        folder.make().expect("made");
        folder.check().expect("ours alone");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.downloads())), (0o700, 0o700));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("set");
        let refused = folder.make().expect_err("others can write to it");
        assert!(matches!(refused, FolderError::Mode));
        let fix = refused.fix(folder.path());
        assert!(fix.contains(&format!("`chmod go-w {}`", folder.path().display())), "{fix}");
    }
}
