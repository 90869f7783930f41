//! The results of a session's runs as their callers got them, or would have got them: bounded, and removed with the
//! session.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use model::RunId;
use tokio::sync::watch;

/// The results of a session. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results(Arc<watch::Sender<VecDeque<Stored>>>);

/// The result of a run.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) run_id: RunId,
    /// Whether nobody has got it yet, because the run's call was answered before its end.
    pub(crate) is_awaited: bool,
    /// The result as the caller's edge has written it.
    pub(crate) result: Bytes,
}

impl Results {
    /// Stores a result. If all take more than so many bytes, the oldest are removed, those that were not asked for last
    /// first; the newest is always stored.
    pub(crate) fn add(&self, stored: Stored, max_bytes: usize) {
        self.0.send_modify(|all| {
            all.push_back(stored);
            while all.len() > 1 && all.iter().map(|it| it.result.len()).sum::<usize>() > max_bytes {
                let older = all.iter().take(all.len() - 1);
                let next = older.clone().position(|it| !it.is_awaited).unwrap_or_default();
                drop(all.remove(next));
            }
        });
    }

    /// The result of this run, if it is stored.
    pub(crate) fn of(&self, run_id: &str) -> Option<Bytes> {
        let all = self.0.borrow();
        all.iter().rev().find(|it| it.run_id.as_str() == run_id).map(|it| it.result.clone())
    }

    /// All results, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<Stored> {
        self.0.borrow().iter().rev().cloned().collect()
    }

    /// Waits until the result of this run is stored.
    pub(crate) async fn wait_for(&self, run_id: &str) -> Bytes {
        let mut news = self.0.subscribe();
        loop {
            news.mark_unchanged();
            if let Some(result) = self.of(run_id) {
                return result;
            }
            if news.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bounded_and_those_that_nobody_has_got_stay_longest() {
        let (results, ids) = (Results::default(), [(); 4].map(|()| RunId::mint()));
        let add = |at: usize, is_awaited| {
            let result = Bytes::from(vec![0; 40]);
            results.add(Stored { run_id: ids[at].clone(), is_awaited, result }, 100);
        };
        let there = || ids.each_ref().map(|id| results.of(id.as_str()).is_some());
        add(0, true);
        add(1, false);
        add(2, false);
        assert_eq!(there(), [true, false, true, false]);
        add(3, true);
        assert_eq!(there(), [true, false, false, true]);
        results.add(
            Stored { run_id: RunId::mint(), is_awaited: false, result: Bytes::from(vec![0; 400]) },
            100,
        );
        assert_eq!(there(), [false; 4], "the newest is stored, whatever its size");
    }
}
