//! A sandbox on disk: its state when its server ended, so that the next server can restore it.
//!
//! ```text
//! agent starts   opens the file, waits until its last owner has ended and unlocked it, and reads it
//! first change   marks the state in the file as outdated
//! saving         writes the new state beside the old one, and replaces the old one when the new one is complete
//! ```
//!
//! So if a process dies at any time, the file has one complete state, and the next agent can tell whether it is the
//! last.

mod file;

use std::{
    fs::File,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use protocol::message::WentOn;
use serde::{Deserialize, Serialize};

pub(crate) use self::file::{StateFile, open};
pub use self::file::{is_kept, truncate_unkept};
use crate::{
    files::{SavedFiles, Store},
    state::SavedState,
};

/// Longest time that an agent waits for the last owner of the file to write its state.
const LOCK_TIMEOUT: Duration = Duration::from_secs(40);

/// Time between two attempts to lock the file.
const LOCK_TICK: Duration = Duration::from_millis(25);

/// A saved sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Key of the runtime that its states belong to.
    pub(crate) key: String,
    pub(crate) files: SavedFiles,
    /// The states of the interpreters.
    pub(crate) kernels: Vec<KeptKernel>,
}

/// An interpreter with variables.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptKernel {
    /// Name of its language.
    pub(crate) language: String,
    /// The interpreter's states, the oldest first, each with its number of cells. Each state is saved as the difference
    /// from the one before.
    pub(crate) states: Vec<(u64, SavedState)>,
}

/// Takes over a state file: locks it, and reads its state of at most `most` bytes. The state remains in the file. If
/// another process keeps the lock for longer than [`LOCK_TIMEOUT`], there is no file. `store` is in the same file.
pub(crate) fn take_over(
    file: Arc<File>,
    store: Option<Arc<Store>>,
    most: u64,
) -> (Option<StateFile>, WentOn, Option<Kept>) {
    let begun = Instant::now();
    while file.try_lock().is_err() {
        if begun.elapsed() >= LOCK_TIMEOUT {
            return (None, WentOn::Taken, None);
        }
        thread::sleep(LOCK_TICK);
    }
    let (file, has_state) = StateFile::take(file, store);
    let kept = file.read(most).and_then(|body| postcard::from_bytes::<Kept>(&body).ok());
    let kept = kept.filter(|kept| kept.key == crate::key());
    let went_on = match &kept {
        Some(_) if file.is_left() => WentOn::Older,
        Some(_) => WentOn::Last,
        None if has_state || file.is_left() => WentOn::Unusable,
        None => WentOn::Nothing,
    };
    (Some(file), went_on, kept)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use proptest::prelude::*;

    use super::*;
    use crate::files::{DATA, FileSystem, Library, contents};

    const MOST: u64 = 1 << 20;

    fn kept(number: u64) -> Kept {
        let language = number.to_string().repeat(5000);
        let kernels = vec![KeptKernel { language, states: vec![] }];
        Kept { key: crate::key(), files: SavedFiles::default(), kernels }
    }

    fn opened(path: &Path) -> Arc<File> {
        Arc::new(open(path).expect("opened"))
    }

    /// The result of [`take_over`] for an agent that starts now.
    fn found(path: &Path) -> (StateFile, WentOn, Option<String>) {
        let (file, went_on, kept) = take_over(opened(path), None, MOST);
        let kept = kept.map(|kept| kept.kernels[0].language.chars().take(1).collect());
        (file.expect("nobody else has it"), went_on, kept)
    }

    #[test]
    fn a_state_is_there_until_a_newer_one_is_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let (mut file, went_on, none) = found(&path);
        assert_eq!((went_on, none), (WentOn::Nothing, None));
        file.leave();
        drop(file);
        let (mut file, went_on, _) = found(&path);
        assert_eq!(went_on, WentOn::Unusable, "there was something, and it was not written");
        let mut sizes = vec![];
        for number in 1..8 {
            file.write(kept(number)).expect("written");
            drop(file);
            assert!(is_kept(&path));
            let known = Some(number.to_string());
            // An agent that dies before the first change leaves the state as it was.
            for _ in 0..2 {
                let (_, went_on, kept) = found(&path);
                assert_eq!((went_on, kept.as_ref()), (WentOn::Last, known.as_ref()));
            }
            file = found(&path).0;
            file.leave();
            drop(file);
            let (next, went_on, kept) = found(&path);
            assert_eq!((went_on, kept), (WentOn::Older, known), "and it can be told");
            file = next;
            sizes.push(fs::metadata(&path).expect("there").len());
        }
        assert!(sizes.iter().all(|size| *size < 30_000), "no more than two lie there: {sizes:?}");
    }

    #[test]
    fn a_state_that_cannot_be_written_leaves_the_one_before() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let (mut file, ..) = found(&path);
        file.write(kept(1)).expect("written");
        let len = fs::metadata(&path).expect("there").len();
        file.fail_after(3000);
        file.leave();
        file.write(kept(2)).expect_err("the disk is full");
        drop(file);
        assert_eq!(fs::metadata(&path).expect("there").len(), len, "what was written is given up");
        let (_, went_on, kept) = found(&path);
        assert_eq!((went_on, kept), (WentOn::Older, Some("1".into())));
    }

    #[test]
    fn what_is_torn_changed_or_of_another_runtime_is_not_used_and_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let (mut file, ..) = found(&path);
        file.write(kept(1)).expect("written");
        drop(file);
        let whole = fs::read(&path).expect("read");
        for len in [1, 600, 4095, 4096, 5000, whole.len() - 1] {
            fs::write(&path, &whole[..len]).expect("written");
            assert!(!is_kept(&path), "{len} bytes of it");
        }
        for at in (4096..whole.len()).step_by(97).chain(512..616) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).expect("written");
            let (_, went_on, kept) = found(&path);
            assert_eq!((went_on, kept), (WentOn::Unusable, None), "byte {at}");
        }
        fs::remove_file(&path).expect("removed");
        let (mut file, ..) = found(&path);
        file.write(Kept { key: "another".into(), ..kept(1) }).expect("written");
        drop(file);
        assert!(!is_kept(&path));
        assert_eq!(found(&path).1, WentOn::Unusable);
        let (mut file, ..) = found(&path);
        file.write(Kept { files: SavedFiles::default(), ..kept(3) }).expect("written");
        drop(file);
        let (_, went_on, _) = take_over(opened(&path), None, 100);
        assert_eq!(went_on, WentOn::Unusable, "more than a sandbox can be");
    }

    #[test]
    fn only_a_file_is_opened_and_only_one_agent_has_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let precious = dir.path().join("precious");
        fs::write(&precious, "precious").expect("written");
        std::os::unix::fs::symlink(&precious, &path).expect("linked");
        assert!(open(&path).is_err() && !is_kept(&path));
        fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(open(&path).is_err() && !is_kept(&path));
        fs::remove_file(&path).expect("removed");
        let (first, ..) = found(&path);
        assert!(is_kept(&path), "whoever has it may be about to write");
        drop(first);
        assert!(!is_kept(&path));
    }

    #[test]
    fn only_a_file_without_any_state_is_truncated() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let len = || fs::metadata(&path).expect("there").len();
        let (mut file, ..) = found(&path);
        file.leave();
        fs::write(&path, [fs::read(&path).expect("read"), vec![0; 100_000]].concat())
            .expect("written");
        truncate_unkept(&path);
        assert_eq!(len(), 100_008, "its agent may be about to write");
        drop(file);
        truncate_unkept(&path);
        assert_eq!((len(), found(&path).1), (4096, WentOn::Unusable));
        let (mut file, ..) = found(&path);
        file.write(kept(1)).expect("written");
        drop(file);
        let mut bytes = fs::read(&path).expect("read");
        truncate_unkept(&path);
        assert_eq!(found(&path).1, WentOn::Last);
        // A record of another version.
        bytes[512..528].copy_from_slice(b"llm-sandbox kept");
        fs::write(&path, &bytes).expect("written");
        truncate_unkept(&path);
        assert_eq!((len(), found(&path).1), (bytes.len() as u64, WentOn::Unusable));
    }

    /// The files of a new agent with this state file, and the file.
    fn agent(path: &Path) -> (FileSystem, StateFile, WentOn) {
        let file = opened(path);
        let store = Store::new(file.clone(), 10_000);
        let (file, went_on, kept) = take_over(file, Some(store.clone()), MOST);
        let mut file = file.expect("nobody else has it");
        let files = FileSystem::new(Arc::new(Library::new([])), 1 << 30, 1 << 20);
        let mut files = files.with_store(Some(store));
        match kept {
            Some(mut kept) => {
                assert!(file.attach(&mut kept.files) && files.load(kept.files));
            }
            None => file.discard().expect("truncated"),
        }
        (files, file, went_on)
    }

    #[test]
    fn a_state_on_disk_stays_until_a_newer_one_in_memory_is_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let kept =
            |files: &FileSystem| Kept { key: crate::key(), files: files.save(), kernels: vec![] };
        let (mut files, mut file, _) = agent(&path);
        change(&mut files, (1, 0, 1_000_000), 7);
        file.write(kept(&files)).expect("written");
        let expected = contents(&files);
        drop((files, file));
        // Files are in memory from now on.
        let in_memory = || {
            let (file, _, found) = take_over(opened(&path), None, 1 << 30);
            let (mut file, mut found) = (file.expect("nobody else has it"), found.expect("there"));
            let mut files = FileSystem::new(Arc::new(Library::new([])), 1 << 30, 1 << 20);
            assert!(file.attach(&mut found.files) && files.load(found.files));
            (files, file)
        };
        let (mut files, mut file) = in_memory();
        assert_eq!(contents(&files), expected);
        change(&mut files, (1, 0, 500_000), 8);
        file.fail_after(300_000);
        file.write(kept(&files)).expect_err("the disk is full");
        drop((files, file));
        let (files, file, went_on) = agent(&path);
        assert_eq!((contents(&files), went_on), (expected, WentOn::Last));
        drop((files, file));
        let (mut files, mut file) = in_memory();
        change(&mut files, (1, 0, 500_000), 9);
        for _ in 0..2 {
            file.write(kept(&files)).expect("written");
        }
        let expected = contents(&files);
        drop((files, file));
        let (files, _file) = in_memory();
        assert_eq!(contents(&files), expected);
    }

    fn change(files: &mut FileSystem, (name, at, len): (usize, u64, usize), byte: u8) {
        let (file, _) = files.find_or_create(DATA, &name.to_string(), true).expect("made");
        if len % 3 == 0 {
            files.resize(file, at).expect("resized");
        } else {
            files.write(file, at, &vec![byte; len]).expect("written");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn a_state_on_disk_is_whole_whenever_its_agent_is_killed(
            steps in proptest::collection::vec(
                (0..6u8, (0..4usize, 0..300_000u64, 0..200_000usize)), 1..25
            )
        ) {
            let dir = tempfile::tempdir().expect("a folder");
            let (path, copy) = (dir.path().join("state"), dir.path().join("copy"));
            let (mut files, mut file, _) = agent(&path);
            let (mut has_state, mut saved) = (false, BTreeMap::new());
            for (number, (kind, act)) in steps.into_iter().enumerate() {
                let byte = u8::try_from(number + 1).expect("few");
                match kind {
                    0 => {
                        let _ = files.remove_file(DATA, &act.0.to_string());
                        files.collect(|_| false);
                    }
                    1 => {
                        let kept = Kept {
                            key: crate::key(), files: files.save(), kernels: vec![],
                        };
                        file.write(kept).expect("written");
                        (has_state, saved) = (true, contents(&files));
                    }
                    2 => {
                        let (before, were) = (files.clone(), contents(&files));
                        change(&mut files, act, byte);
                        files.restore(&before);
                        prop_assert_eq!(contents(&files), were);
                    }
                    3 if number % 2 == 0 => {
                        // It ends without having been saved.
                        drop((files, file));
                        (files, file, _) = agent(&path);
                        prop_assert_eq!(&contents(&files), &saved);
                    }
                    _ => change(&mut files, act, byte),
                }
                // A copy of the file is what a kill at this moment would leave.
                fs::copy(&path, &copy).expect("copied");
                let (found, _, went_on) = agent(&copy);
                prop_assert_eq!(went_on == WentOn::Last, has_state);
                prop_assert_eq!(&contents(&found), &saved);
            }
        }
    }
}
