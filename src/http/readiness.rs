//! Whether a session could be started now. The engine is asked at most once a second, because clients may ask
//! at any rate.

use std::{sync::Arc, time::Duration};

use backend::Backend;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

/// Time for which an answer is reused.
const CACHE_TIME: Duration = Duration::from_secs(1);

/// Asks a backend, and caches its answer. Clones share the answer.
#[derive(Debug, Clone)]
pub(super) struct Readiness {
    backend: Option<Arc<dyn Backend>>,
    limit: Duration,
    last: Arc<Mutex<Option<(Instant, Answer)>>>,
}

/// The error is a sentence that says why no session could be started.
type Answer = Result<(), Arc<str>>;

impl Readiness {
    /// The engine has `limit` to answer. Without an engine the answer is always yes, because there are no sessions.
    pub(super) fn new(backend: Option<Arc<dyn Backend>>, limit: Duration) -> Self {
        Self { backend, limit, last: Arc::default() }
    }

    /// The answer of the last second. Concurrent callers without one wait for the same new answer.
    ///
    /// # Errors
    /// If no session could be started: the reason, in a sentence.
    pub(super) async fn ask(&self) -> Answer {
        let Some(backend) = &self.backend else { return Ok(()) };
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < CACHE_TIME
        {
            return answer.clone();
        }
        let answer = match timeout(self.limit, backend.ready()).await {
            Ok(answer) => answer.map_err(|error| error.to_string().into()),
            Err(_) => Err("The engine does not answer.".into()),
        };
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use backend::{
        Abilities, BackendError, BackendErrorKind, ListedSandbox, Sandbox, Spec, Template,
    };
    use futures::future::{BoxFuture, FutureExt, join_all};

    use super::*;

    /// Counts how often it is asked, and is never ready.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl Backend for Counting {
        fn start(&self, _: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
            async { Err(BackendError::new(BackendErrorKind::Refused, "not here")) }.boxed()
        }

        fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
            async { Ok(vec![]) }.boxed()
        }

        fn remove(&self, _: String) -> BoxFuture<'_, Result<(), BackendError>> {
            async { Ok(()) }.boxed()
        }

        fn template(&self) -> BoxFuture<'_, Option<Template>> {
            async { None }.boxed()
        }

        fn abilities(&self) -> Abilities<'_> {
            Abilities::default()
        }

        fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(BackendError::new(BackendErrorKind::TemplateMissing, "no image"))
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_is_asked_once_a_second_however_many_ask_us() {
        let backend = Arc::new(Counting::default());
        let readiness = Readiness::new(Some(backend.clone()), Duration::from_secs(10));
        let asked = || backend.0.load(Ordering::Relaxed);
        for answer in join_all((0..1000).map(|_| readiness.ask())).await {
            assert_eq!(answer.expect_err("never").as_ref(), "no image");
        }
        assert_eq!(asked(), 1);
        tokio::time::advance(CACHE_TIME).await;
        assert!(readiness.ask().await.is_err());
        assert_eq!(asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_does_not_answer_is_said_so() {
        let backend = Arc::new(Counting::default());
        let readiness = Readiness::new(Some(backend), Duration::from_millis(10));
        let why = readiness.ask().await.expect_err("too late");
        assert_eq!(why.as_ref(), "The engine does not answer.");
    }
}
