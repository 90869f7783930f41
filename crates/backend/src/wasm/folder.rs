//! The folder of runtimes. Other users must not be able to write to it, because its contents run as part of this
//! program.
//!
//! ```text
//! SANDBOX_RUNTIME_DIR or the user's cache
//! |- downloads/        the packages, as they were fetched
//! |- tools/            compiled code of the operator's own tools
//! |- runtime-<key>/    the runtime of sandboxes; another version of this program has another key
//! '- lock              locked while a runtime is made
//! ```

use std::{
    env,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use thiserror::Error;

/// A reason not to use a folder.
#[derive(Debug, Error)]
pub(super) enum FolderError {
    /// Another user owns it, and may have written its contents.
    #[error("it belongs to another user")]
    Owner,
    /// Other users can write to the folder, and may have written its contents.
    #[error("others can write to it")]
    Mode,
    /// The folder cannot be created or opened.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FolderError {
    /// The fix, in a sentence.
    pub(super) fn fix(&self, folder: &Path) -> String {
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

/// Prefix of the name of a runtime's folder.
const RUNTIME: &str = "runtime-";

/// Prefix of the name of the folder of a runtime that is being made.
pub(super) const UNFINISHED: &str = "unfinished-";

/// Prefix of the name of a folder into which packages are being fetched.
const FETCHED: &str = ".tmp";

/// The folder of runtimes.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of the setting, or else in the user's cache; `None` if neither `XDG_CACHE_HOME` nor `HOME` is an
    /// absolute path.
    pub fn of(setting: Option<&Path>) -> Option<Self> {
        let variable =
            |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || {
            let cache = variable("XDG_CACHE_HOME");
            let cache = cache.or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
            Some(cache.join("llm-sandbox"))
        };
        setting.map(absolute).or_else(usual).map(Self)
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of fetched packages.
    pub(super) fn downloads(&self) -> PathBuf {
        self.0.join("downloads")
    }

    /// The folder of the runtime for this version of the program, whether or not it exists.
    pub(super) fn runtime(&self) -> PathBuf {
        self.0.join(format!("{RUNTIME}{}", embedded::key()))
    }

    /// The folders of runtimes for other versions.
    pub(super) fn others(&self) -> Vec<PathBuf> {
        let own = self.runtime();
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(RUNTIME) && *path != own
        });
        paths.collect()
    }

    /// Prevents the removal of a runtime for as long as the file is open.
    ///
    /// # Errors
    /// If the runtime cannot be opened, or is being removed.
    pub(super) fn hold(runtime: &Path) -> io::Result<File> {
        let file = File::open(runtime)?;
        file.try_lock_shared()?;
        Ok(file)
    }

    /// Removes runtimes for other versions that no server uses.
    pub(super) fn remove_others(&self) {
        for other in self.others() {
            let is_free = |file: &File| file.try_lock().is_ok();
            if let Some(_removed) = File::open(&other).ok().filter(is_free) {
                let _ = fs::remove_dir_all(other);
            }
        }
    }

    /// Removes the temporary folders of interrupted installations. The caller must have the lock.
    pub(super) fn remove_unfinished(&self) {
        for (folder, prefix) in [(self.path(), UNFINISHED), (&self.downloads(), FETCHED)] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(prefix) {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
        }
    }

    /// Makes the folder, if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or other users can write to it.
    pub(super) fn make(&self) -> Result<(), FolderError> {
        make_private(&self.0)?;
        make_private(&self.downloads())
    }

    /// The folder of compiled tools, which is made if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or other users can write to it.
    pub fn make_tools(&self) -> io::Result<PathBuf> {
        make_private(&self.0)?;
        let tools = self.0.join("tools");
        make_private(&tools)?;
        Ok(tools)
    }

    /// Checks that only this user or root can write to the folder.
    ///
    /// # Errors
    /// If other users can, or the folder does not exist.
    pub(super) fn check(&self) -> Result<(), FolderError> {
        check_private(&self.0)
    }
}

/// The same path as an absolute one, because sandboxes start in another working directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes a folder to which only this user can write, if it does not exist.
///
/// # Errors
/// If it cannot be made, or other users can write to it.
pub(super) fn make_private(folder: &Path) -> Result<(), FolderError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_private(folder)
}

/// Checks that only this user or root can write to a folder.
///
/// # Errors
/// If other users can, or the folder does not exist.
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
