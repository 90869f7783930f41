//! Wheels that were fetched and found to be right, by what they hold, and what became of a request a while ago. In
//! files without a name, so that nothing of them is left when the server is gone, however it ends.

use std::{
    collections::HashMap,
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::wheel::{InstalledFile, Named};

/// How long an answer stands: so long a new version may not be seen.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Most answers that are remembered.
const MAX_ANSWERS: usize = 1000;

/// A wheel.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) named: Named,
    pub(super) sha256: [u8; 32],
    pub(super) file: File,
    pub(super) bytes: u64,
    /// The files that it installs.
    pub(super) installs: Vec<InstalledFile>,
}

/// What a request has come to.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    /// The version of the package itself.
    pub(crate) version: String,
    /// What has to be installed for it.
    pub(crate) wheels: Vec<CachedWheel>,
}

/// A wheel that may be shared. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CachedWheel(pub(super) Arc<Fetched>);

/// Shared by all sessions.
#[derive(Debug)]
pub(super) struct Cache {
    max_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    wheels: HashMap<[u8; 32], (Instant, Arc<Fetched>)>,
    /// By what they depend on: all that their fetchers were told, and what those were made from.
    answers: HashMap<String, (Instant, Obtained)>,
}

impl Cache {
    /// An empty one, of so many bytes at most.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, held: Mutex::default() }
    }

    /// What was answered to this not long ago, as far as it is still here.
    pub(super) fn answer(&self, question: &str) -> Option<Obtained> {
        let mut held = self.held.lock();
        let (at, obtained) = held.answers.get(question)?.clone();
        let now = Instant::now();
        let hashes: Vec<_> = obtained.wheels.iter().map(|wheel| wheel.0.sha256).collect();
        let is_whole = hashes.iter().all(|hash| held.wheels.contains_key(hash));
        if now.duration_since(at) > MAX_AGE || !is_whole {
            held.answers.remove(question);
            return None;
        }
        for hash in &hashes {
            if let Some((used, _)) = held.wheels.get_mut(hash) {
                *used = now;
            }
        }
        Some(obtained)
    }

    /// Keeps an answer, and of its wheels what is not here. What was used longest ago makes room.
    pub(super) fn keep(
        &self,
        question: String,
        version: String,
        fetched: Vec<Fetched>,
    ) -> Obtained {
        let now = Instant::now();
        let mut held = self.held.lock();
        let wheels = fetched.into_iter().map(|wheel| {
            let hash = wheel.sha256;
            let (used, kept) = held.wheels.entry(hash).or_insert_with(|| (now, Arc::new(wheel)));
            *used = now;
            CachedWheel(kept.clone())
        });
        let obtained = Obtained { version, wheels: wheels.collect() };
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

impl Held {
    fn make_room(&mut self, max_bytes: u64) {
        let mut bytes: u64 = self.wheels.values().map(|(_, wheel)| wheel.bytes).sum();
        while bytes > max_bytes {
            let oldest = self.wheels.iter().min_by_key(|(_, (used, _))| *used);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else { return };
            bytes -= self.wheels.remove(&hash).map_or(0, |(_, wheel)| wheel.bytes);
            let is_whole = |it: &Obtained| it.wheels.iter().all(|wheel| wheel.0.sha256 != hash);
            self.answers.retain(|_, (_, obtained)| is_whole(obtained));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wheel(number: u8, bytes: u64) -> Fetched {
        let (name, version) = (format!("p{number}"), "1".to_owned());
        let named = Named { file: format!("{name}-1-py3-none-any.whl"), name, version };
        let file = tempfile::tempfile().expect("a file");
        Fetched { named, sha256: [number; 32], file, bytes, installs: vec![] }
    }

    #[test]
    fn what_was_used_longest_ago_makes_room_and_its_answers_go_with_it() {
        let cache = Cache::new(100);
        let keep = |question: &str, wheels| cache.keep(question.to_owned(), "1".into(), wheels);
        keep("a", vec![wheel(1, 40), wheel(2, 10)]);
        keep("b", vec![wheel(2, 10), wheel(3, 40)]);
        let is_known = |question: &str| cache.answer(question).is_some();
        assert!(is_known("b") && is_known("a"));
        keep("c", vec![wheel(4, 40)]);
        assert!(is_known("a") && is_known("c"), "the third wheel was unused for longest");
        assert!(!is_known("b"));
        let held = cache.held.lock();
        assert!(held.wheels.values().map(|(_, wheel)| wheel.bytes).sum::<u64>() <= 100);
    }

    #[test]
    fn what_is_larger_than_the_cache_is_handed_out_and_not_kept() {
        let cache = Cache::new(100);
        let obtained = cache.keep("a".into(), "1".into(), vec![wheel(1, 101)]);
        assert_eq!(obtained.wheels.len(), 1);
        assert!(cache.answer("a").is_none());
        assert!(cache.held.lock().wheels.is_empty());
    }
}
