//! Files with the allowed system calls, for an engine that takes the path of a profile instead of a profile.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{Owner, options::SECCOMP};

/// Beginning of the name of each folder.
const FOLDER: &str = "llm-sandbox-profiles_";

/// A private folder with a file for each profile. It is removed with this value.
#[derive(Debug)]
pub struct Profiles {
    folder: PathBuf,
    written: Mutex<Vec<(String, String)>>,
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
            let owner = owner.and_then(|owner| owner.replace('_', "/").parse().ok());
            if owner.is_some_and(|owner: Owner| owner.is_alive() == Some(false)) {
                // It may be another user's.
                let _ = fs::remove_dir_all(found.path());
            }
        }
        let folder = within.join(format!("{FOLDER}{}", owner.to_string().replace('/', "_")));
        // One of this name is another's.
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self { folder, written: Mutex::default() })
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
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, path)) = written.iter().find(|(known, _)| known == profile) {
            return Ok(path.clone());
        }
        let path = self.folder.join(format!("{}.json", written.len()));
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(profile.as_bytes())?;
        let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        written.push((profile.to_owned(), path.clone()));
        Ok(path)
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
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
        let there = |owner: &Owner| {
            within.path().join(format!("{FOLDER}{}", owner.to_string().replace('/', "_"))).exists()
        };
        assert!(there(&elsewhere) && there(&alive) && !there(&dead));
        assert_eq!(fs::read_dir(within.path()).expect("read").count(), 3);
    }
}
