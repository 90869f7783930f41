//! Files with the allowed system calls, for an engine that takes the path of a profile instead of a profile.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{Owner, options::SECCOMP};

/// Beginning of the name of each folder. The owner and a random number follow.
const FOLDER: &str = "llm-sandbox-profiles_";

/// A private folder with a file for each profile. It is removed with this value.
#[derive(Debug)]
pub struct Profiles {
    within: PathBuf,
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    /// The folder's device and inode.
    identity: (u64, u64),
    /// The profiles that the folder has, in the order of their files' numbers.
    written: Vec<String>,
}

impl Profiles {
    /// Makes the folder of this owner in a folder that the engine sees, and removes those of owners that are dead.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(within: &Path, owner: &Owner) -> io::Result<Self> {
        for found in fs::read_dir(within)?.flatten() {
            let name = found.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
            let owner = owner.and_then(|name| name.rsplit_once('_')).map(|(owner, _)| owner);
            let owner = owner.and_then(|owner| owner.replace('_', "/").parse().ok());
            if owner.is_some_and(|owner: Owner| owner.is_alive() == Some(false)) {
                remove(&found.path());
            }
        }
        let state = Mutex::new(State::new(within, owner)?);
        Ok(Self { within: within.to_owned(), owner: owner.clone(), state })
    }

    /// Replaces the profile in a container's security options by the path of a file that contains it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn place(&self, options: &mut [String]) -> io::Result<()> {
        for option in options {
            if let Some(profile) = option.strip_prefix(SECCOMP) {
                *option = format!("{SECCOMP}{}", self.path(profile)?);
            }
        }
        Ok(())
    }

    fn path(&self, profile: &str) -> io::Result<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that tidies up may have removed the folder, and another user may have made one of its name.
        if identity(&state.folder) != Some(state.identity) {
            *state = State::new(&self.within, &self.owner)?;
        }
        let number = state.written.iter().position(|known| known == profile);
        let path = state.folder.join(format!("{}.json", number.unwrap_or(state.written.len())));
        if number.is_none() || !path.is_file() {
            // Engines read only whole files.
            let mut file = tempfile::NamedTempFile::new_in(&state.folder)?;
            file.write_all(profile.as_bytes())?;
            file.persist(&path)?;
        }
        if number.is_none() {
            state.written.push(profile.to_owned());
        }
        Ok(path.to_str().ok_or(io::ErrorKind::InvalidFilename)?.to_owned())
    }
}

impl State {
    fn new(within: &Path, owner: &Owner) -> io::Result<Self> {
        let owner = owner.to_string().replace('/', "_");
        let random = uuid::Uuid::new_v4().simple();
        let folder = within.join(format!("{FOLDER}{owner}_{random}"));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let identity = identity(&folder).ok_or(io::ErrorKind::PermissionDenied)?;
        Ok(Self { folder, identity, written: vec![] })
    }
}

/// The device and the inode of a folder of this user.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(folder).ok()?;
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    is_own.then(|| (found.dev(), found.ino()))
}

/// Removes a folder of this user, and the files in it. There are no folders in it.
fn remove(folder: &Path) {
    if identity(folder).is_some() {
        for file in fs::read_dir(folder).into_iter().flatten().flatten() {
            let _ = fs::remove_file(file.path());
        }
        let _ = fs::remove_dir(folder);
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if identity(&state.folder) == Some(state.identity) {
            remove(&state.folder);
        }
    }
}

/// The folder for files of this user that an engine of this machine reads: that of the service or of the user's session,
/// if nobody else can change it, otherwise the one for temporary files.
pub fn folder_for_engine() -> PathBuf {
    let is_private = |folder: &PathBuf| {
        let found = fs::metadata(folder);
        identity(folder).is_some() && found.is_ok_and(|found| found.mode() & 0o022 == 0)
    };
    let named = ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"].into_iter().filter_map(std::env::var_os);
    named.map(PathBuf::from).find(is_private).unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_profile_is_a_private_file_that_is_written_once_and_removed_at_the_end() {
        let within = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::new(within.path(), &Owner::current()).expect("made");
        let options = || vec!["no-new-privileges:true".into(), "seccomp={\"a\":1}".to_owned()];
        let (mut first, mut second) = (options(), options());
        profiles.place(&mut first).expect("written");
        profiles.place(&mut second).expect("written");
        assert_eq!(first, second);
        assert_eq!(first[0], "no-new-privileges:true");
        let path = PathBuf::from(first[1].strip_prefix("seccomp=").expect("a path"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "{\"a\":1}");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
        drop(profiles);
        assert_eq!(fs::read_dir(within.path()).expect("read").count(), 0);
    }

    #[test]
    fn folders_of_dead_owners_are_removed_and_no_others() {
        let within = tempfile::tempdir().expect("a folder");
        let keep = |owner| std::mem::forget(Profiles::new(within.path(), owner).expect("made"));
        let alive = Owner::current();
        let elsewhere = Owner { boot: "a-b".into(), ..alive.clone() };
        let dead = Owner { started: alive.started + 1, ..alive.clone() };
        keep(&elsewhere);
        keep(&dead);
        fs::create_dir(within.path().join("llm-sandbox-profiles_own")).expect("made");
        keep(&alive);
        let names = || fs::read_dir(within.path()).expect("read").flatten();
        let there = |owner: &Owner| {
            let name = format!("{FOLDER}{}_", owner.to_string().replace('/', "_"));
            names().any(|found| found.file_name().to_string_lossy().starts_with(&name))
        };
        assert!(there(&elsewhere) && there(&alive) && !there(&dead));
        assert_eq!(fs::read_dir(within.path()).expect("read").count(), 3);
    }

    #[test]
    fn a_folder_that_another_has_replaced_is_not_used() {
        let within = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::new(within.path(), &Owner::current()).expect("made");
        let placed = || {
            let mut options = vec!["seccomp={\"a\":1}".to_owned()];
            profiles.place(&mut options).expect("written");
            PathBuf::from(options[0].strip_prefix("seccomp=").expect("a path"))
        };
        let first = placed();
        let folder = first.parent().expect("a folder");
        fs::rename(folder, within.path().join("away")).expect("moved");
        fs::create_dir(folder).expect("made");
        fs::write(&first, "{}").expect("written");
        let second = placed();
        assert_ne!(second.parent(), Some(folder));
        assert_eq!(fs::read_to_string(&second).expect("read"), "{\"a\":1}");
        // A file that is missing is written again.
        fs::remove_file(&second).expect("removed");
        assert_eq!(fs::read_to_string(placed()).expect("read"), "{\"a\":1}");
        drop(profiles);
        assert!(first.exists(), "it is another's");
    }
}
