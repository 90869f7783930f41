//! The folder of sandboxes that are saved so that they survive their server, each with the record of its session.
//!
//! ```text
//! SANDBOX_STATE_DIR
//! |- <key>.state    a sandbox, replaced when a newer state of it is complete
//! '- <key>.note     the record of its session, for the next server
//! ```

use std::{
    env,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use model::SessionKey;
use tempfile::TempDir;

use super::folder::{FolderError, absolute, check_private, make_private};
use crate::{BackendError, BackendErrorKind, Finding, SavesSandboxes};

/// How long a saved sandbox stays that no server has restored.
const SAVED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a note stays without a saved sandbox, which may not have been written yet.
const MADE_WITHIN: Duration = Duration::from_secs(60);

/// Prefix of the name of a folder that is there as long as its server.
const TEMPORARY: &str = "llm-sandbox-states-";

/// Removes the temporary folders beside `own` that servers have left that were killed.
pub(super) fn remove_left(own: &Path) {
    let beside = own.parent().and_then(|parent| fs::read_dir(parent).ok());
    for path in beside.into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let is_named = name.is_some_and(|name| name.starts_with(TEMPORARY));
        let age = path.symlink_metadata().and_then(|found| found.modified());
        // A new one may not be locked yet.
        let is_old = age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MADE_WITHIN));
        if is_named
            && is_old
            && check_private(&path).is_ok()
            && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok())
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The folder of saved sandboxes.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

impl StateFolder {
    /// The folder at this path. Does not access it.
    pub(super) fn named(path: &Path) -> Self {
        Self(absolute(path))
    }

    /// A temporary folder in `parent`, or in the usual place.
    pub(super) fn temporary(parent: Option<&Path>) -> io::Result<TempDir> {
        let usual = env::temp_dir();
        tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(parent.unwrap_or(&usual))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Locks the folder for as long as the returned file is open. Makes it if it does not exist, and removes old
    /// sandboxes.
    ///
    /// # Errors
    /// If it cannot be made, other users can write to it, or another server has locked it.
    pub(super) fn lock(&self) -> Result<File, BackendError> {
        self.make()?;
        let lock = File::open(&self.0).map_err(|error| self.unusable(error.into()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(self.is_anothers()),
            Err(TryLockError::Error(error)) => return Err(self.unusable(error.into())),
        }
        self.sweep();
        Ok(lock)
    }

    /// Makes the folder, if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or other users can write to it.
    pub(super) fn make(&self) -> Result<(), BackendError> {
        make_private(&self.0).map_err(|error| self.unusable(error))
    }

    /// Checks the folder for `llm-sandbox doctor`, without changing it.
    pub(super) fn look(&self) -> Finding {
        let path = self.0.display();
        match check_private(&self.0) {
            Ok(()) => {}
            Err(FolderError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Finding::Good(format!("in {path}, which a server will make"));
            }
            Err(error) => return self.unusable(error).into(),
        }
        match File::open(&self.0).map(|folder| folder.try_lock_shared()) {
            Ok(Err(TryLockError::WouldBlock)) => Finding::Good(format!(
                "in {path}, which a server is using: another one needs a folder of its own"
            )),
            _ => Finding::Good(format!("in {path}")),
        }
    }

    fn is_anothers(&self) -> BackendError {
        let text = format!("SANDBOX_STATE_DIR, {}, is another server's.", self.0.display());
        BackendError::new(BackendErrorKind::Denied, text)
            .with_fix("End that server, or name a folder of its own for each.")
    }

    /// The error for a folder that cannot be used.
    fn unusable(&self, error: FolderError) -> BackendError {
        let text = format!("SANDBOX_STATE_DIR, {}, cannot be used: {error}.", self.0.display());
        let fix = error.fix(&self.0);
        BackendError::new(BackendErrorKind::Denied, text).with_fix(fix).caused_by(error)
    }

    /// The file of a saved sandbox.
    pub(super) fn state(&self, key: &SessionKey) -> PathBuf {
        self.0.join(format!("{}.state", key.as_str()))
    }

    fn record_path(&self, key: &SessionKey) -> PathBuf {
        self.0.join(format!("{}.note", key.as_str()))
    }

    fn write_record(&self, key: &SessionKey, text: &str) -> Result<(), FolderError> {
        make_private(&self.0)?;
        let path = self.record_path(key);
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, path)?)
    }

    /// Removes old sandboxes with their notes, notes without a sandbox, and files of sandboxes that were never saved.
    fn sweep(&self) {
        for path in self.files() {
            let Ok(found) = path.metadata() else { continue };
            let age = found.modified().ok().and_then(|time| time.elapsed().ok());
            let stays = match path.extension().and_then(|it| it.to_str()) {
                Some("state") => SAVED_FOR,
                Some("note") if path.with_extension("state").exists() => continue,
                Some("note" | "new") => MADE_WITHIN,
                _ => continue,
            };
            if age.is_some_and(|age| age > stays) {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(path.with_extension("note"));
            } else if stays == SAVED_FOR {
                embedded::truncate_unkept(&path);
            }
        }
    }

    /// The files that have the name of a key. All others are not the server's.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let all = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(|path| {
            let name = path.file_stem().and_then(|it| it.to_str());
            name.and_then(SessionKey::parse).is_some()
        })
    }
}

impl SavesSandboxes for StateFolder {
    fn has(&self, key: &SessionKey) -> bool {
        embedded::is_kept(&self.state(key))
    }

    fn path(&self, key: &SessionKey) -> PathBuf {
        self.state(key)
    }

    fn forget(&self, key: &SessionKey) {
        for path in [self.state(key), self.record_path(key)] {
            let _ = fs::remove_file(path);
        }
    }

    fn store_record(&self, key: &SessionKey, text: &str) {
        if let Err(error) = self.write_record(key, text) {
            tracing::warn!(%error, "failed to write to SANDBOX_STATE_DIR");
        }
    }

    fn record(&self, key: &SessionKey) -> Option<String> {
        fs::read_to_string(self.record_path(key)).ok()
    }

    fn records(&self) -> Vec<String> {
        let notes = self.files().filter(|path| path.extension().is_some_and(|it| it == "note"));
        notes.filter_map(|path| fs::read_to_string(path).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::Principal;
    use std::{fs::File, time::SystemTime};

    use super::*;

    #[test]
    fn what_nobody_came_back_for_is_removed_with_its_note() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = StateFolder::named(dir.path());
        let held = folder.lock().expect("made");
        let key = |name: &str| SessionKey::of(&Principal::local(), &name.parse().expect("a name"));
        let [old, new, alone, being_made] = ["old", "new", "alone", "being_made"].map(key);
        let age = |path: &Path, age: Duration| {
            let file = File::options().write(true).open(path).expect("there");
            file.set_modified(SystemTime::now() - age).expect("set");
        };
        for kept in [&old, &new] {
            fs::write(folder.state(kept), "state").expect("written");
        }
        for noted in [&old, &new, &alone, &being_made] {
            folder.store_record(noted, noted.as_str());
        }
        for kept in [&old, &new, &alone] {
            age(&folder.record_path(kept), SAVED_FOR * 2);
        }
        age(&folder.state(&old), SAVED_FOR * 2);
        let others = ["thesis.new", "thesis.note", "game.state", "f00d.state"]
            .map(|name| dir.path().join(name));
        for other in &others {
            fs::write(other, "somebody's").expect("written");
            age(other, SAVED_FOR * 2);
        }
        age(&folder.state(&new), SAVED_FOR / 2);
        let refused = folder.lock().expect_err("it is held").to_string();
        assert!(refused.contains("another server's"), "{refused}");
        drop(held);
        let _held = folder.lock().expect("there");
        assert!(!folder.state(&old).exists() && folder.state(&new).exists());
        for other in &others {
            assert!(other.exists(), "{}", other.display());
        }
        for gone in [&old, &alone] {
            assert_eq!(folder.record(gone), None);
        }
        let mut left = folder.records();
        left.sort();
        let mut right = [new.as_str(), being_made.as_str()];
        right.sort_unstable();
        assert_eq!(left, right);
        folder.forget(&new);
        assert!(!folder.state(&new).exists() && folder.record(&new).is_none());
    }

    #[test]
    fn folders_of_servers_that_were_killed_are_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let make = || StateFolder::temporary(Some(dir.path())).expect("made");
        let (own, of_a_running_one, new, left) = (make(), make(), make(), make());
        let other = dir.path().join("llm-sandbox-thesis");
        fs::create_dir(&other).expect("made");
        let running = StateFolder::named(of_a_running_one.path());
        let locks = [StateFolder::named(own.path()), running].map(|it| it.lock().expect("locked"));
        for folder in [own.path(), of_a_running_one.path(), left.path(), &other] {
            fs::write(folder.join("file"), "x").expect("written");
            let folder = File::open(folder).expect("there");
            folder.set_modified(SystemTime::now() - MADE_WITHIN * 2).expect("set");
        }
        remove_left(own.path());
        assert!(!left.path().exists());
        for folder in [own.path(), of_a_running_one.path(), new.path(), &other] {
            assert!(folder.exists(), "{}", folder.display());
        }
        drop(locks);
    }
}
