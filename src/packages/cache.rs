//! The cache of checked archives, by the hash of their contents, and of answers to recent requests. The archives are in
//! files without a name, so that none remains when the server ends, however it ends.

use std::{
    collections::HashMap,
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use model::package::Ecosystem;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{archive::Named, wheel::InstalledFile};

/// The time for which an answer is reused. A new version may go unnoticed for this long.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The maximum number of answers in the cache.
const MAX_ANSWERS: usize = 1000;

/// An archive that was fetched and checked.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) ecosystem: Ecosystem,
    pub(super) sha256: [u8; 32],
    pub(super) file: File,
    pub(super) bytes: u64,
    /// Bytes that its files take when installed, in whole pages.
    pub(super) room: u64,
    /// The files that the archive installs, if it is a wheel; otherwise empty.
    pub(super) installs: Vec<InstalledFile>,
}

/// The result of a fetch, and the answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    /// The version of the requested package.
    pub(crate) version: String,
    /// The packages to install.
    pub(crate) packages: Vec<CachedPackage>,
    /// npm's lock file, for the next request.
    pub(crate) lock: Option<Arc<str>>,
    /// Names of packages with install scripts, which were not run.
    pub(crate) scripts: Vec<String>,
}

/// A package whose archive may be shared. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CachedPackage {
    pub(super) archive: Arc<Fetched>,
    /// The names from the index: another package may have the same archive under another name.
    pub(super) named: Named,
    /// The package's own folder below the folder of packages, if it is for JavaScript: several versions of a package
    /// may be installed.
    pub(super) place: String,
}

/// The hash of everything that the answer to a request depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Question([u8; 32]);

impl Question {
    /// Hashes these parts.
    pub(super) fn of(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

/// The cache. All sessions share it.
#[derive(Debug)]
pub(super) struct Cache {
    max_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    archives: HashMap<(Ecosystem, [u8; 32]), (Instant, Arc<Fetched>)>,
    answers: HashMap<Question, (Instant, Obtained)>,
}

impl Cache {
    /// Creates an empty cache for at most `max_bytes` bytes of archives.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, held: Mutex::default() }
    }

    /// The answer to a request, if it is at most [`MAX_AGE`] old and all its archives are still in the cache.
    pub(super) fn answer(&self, question: Question) -> Option<Obtained> {
        let mut held = self.held.lock();
        let (at, obtained) = held.answers.get(&question)?.clone();
        let now = Instant::now();
        let hashes: Vec<_> = obtained.packages.iter().map(|it| it.archive.key()).collect();
        let is_whole = hashes.iter().all(|hash| held.archives.contains_key(hash));
        if now.duration_since(at) > MAX_AGE || !is_whole {
            held.answers.remove(&question);
            return None;
        }
        for hash in &hashes {
            if let Some((used, _)) = held.archives.get_mut(hash) {
                *used = now;
            }
        }
        Some(obtained)
    }

    /// Adds an answer, and those of its archives that are not in the cache yet. The least recently used archives are
    /// removed to make room.
    pub(super) fn keep(&self, question: Question, mut obtained: Obtained) -> Obtained {
        let now = Instant::now();
        let mut held = self.held.lock();
        for CachedPackage { archive, .. } in &mut obtained.packages {
            let entry = held.archives.entry(archive.key());
            let (used, kept) = entry.or_insert_with(|| (now, archive.clone()));
            *used = now;
            *archive = kept.clone();
        }
        held.make_room(self.max_bytes);
        if held.answers.len() >= MAX_ANSWERS {
            held.answers.retain(|_, (at, _)| now.duration_since(*at) <= MAX_AGE);
        }
        if held.answers.len() < MAX_ANSWERS {
            held.answers.insert(question, (now, obtained.clone()));
        }
        obtained
    }
}

impl Fetched {
    /// The archive's key in the cache.
    fn key(&self) -> (Ecosystem, [u8; 32]) {
        (self.ecosystem, self.sha256)
    }
}

impl Held {
    fn make_room(&mut self, max_bytes: u64) {
        let mut bytes: u64 = self.archives.values().map(|(_, archive)| archive.bytes).sum();
        while bytes > max_bytes {
            let oldest = self.archives.iter().min_by_key(|(_, (used, _))| *used);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else { return };
            bytes -= self.archives.remove(&hash).map_or(0, |(_, archive)| archive.bytes);
            let is_whole =
                |it: &Obtained| it.packages.iter().all(|package| package.archive.key() != hash);
            self.answers.retain(|_, (_, obtained)| is_whole(obtained));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(number: u8, bytes: u64) -> CachedPackage {
        let (name, version) = (format!("p{number}"), "1".to_owned());
        let named = Named { file: format!("{name}-1-py3-none-any.whl"), name, version };
        let file = tempfile::tempfile().expect("a file");
        let (ecosystem, installs) = (Ecosystem::PyPi, vec![]);
        let sha256 = [number; 32];
        let archive = Fetched { ecosystem, sha256, file, bytes, room: bytes, installs };
        CachedPackage { archive: Arc::new(archive), named, place: String::new() }
    }

    fn got(packages: Vec<CachedPackage>) -> Obtained {
        Obtained { version: "1".into(), packages, lock: None, scripts: vec![] }
    }

    fn asked(question: &str) -> Question {
        Question::of(&[question])
    }

    #[test]
    fn what_was_used_longest_ago_makes_room_and_its_answers_go_with_it() {
        let cache = Cache::new(100);
        let keep = |question, archives| cache.keep(asked(question), got(archives));
        keep("a", vec![archive(1, 40), archive(2, 10)]);
        keep("b", vec![archive(2, 10), archive(3, 40)]);
        let is_known = |question| cache.answer(asked(question)).is_some();
        assert!(is_known("b") && is_known("a"));
        keep("c", vec![archive(4, 40)]);
        assert!(is_known("a") && is_known("c"), "the third archive was unused for longest");
        assert!(!is_known("b"));
        let held = cache.held.lock();
        assert!(held.archives.values().map(|(_, archive)| archive.bytes).sum::<u64>() <= 100);
    }

    #[test]
    fn what_has_the_same_archive_keeps_its_own_name() {
        let cache = Cache::new(100);
        cache.keep(asked("a"), got(vec![archive(1, 10)]));
        let mut other = archive(1, 10);
        "other".clone_into(&mut other.named.name);
        let obtained = cache.keep(asked("b"), got(vec![other]));
        assert_eq!(obtained.packages[0].named.name, "other");
    }

    #[test]
    fn what_is_larger_than_the_cache_is_handed_out_and_not_kept() {
        let cache = Cache::new(100);
        let obtained = cache.keep(asked("a"), got(vec![archive(1, 101)]));
        assert_eq!(obtained.packages.len(), 1);
        assert!(cache.answer(asked("a")).is_none());
        assert!(cache.held.lock().archives.is_empty());
    }
}
