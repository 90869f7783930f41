//! Whether a session could be started now, asked of the engine once a second at most: anybody may ask us,
//! as often as they like.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::backend::Backend;

/// How long an answer holds.
const FRESH: Duration = Duration::from_secs(1);

/// Asks a backend, and remembers what it said. Clones share the answer.
#[derive(Debug, Clone)]
pub(super) struct Readiness {
    backend: Arc<dyn Backend>,
    limit: Duration,
    last: Arc<Mutex<Option<(Instant, Answer)>>>,
}

/// What is in the way, in a sentence, if something is.
type Answer = Result<(), Arc<str>>;

impl Readiness {
    /// The engine has so long to say something.
    pub(super) fn new(backend: Arc<dyn Backend>, limit: Duration) -> Self {
        Self { backend, limit, last: Arc::default() }
    }

    /// The answer of the last second. Those who ask while there is none wait for the same one.
    pub(super) async fn ask(&self) -> Answer {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = match timeout(self.limit, self.backend.ready()).await {
            Ok(answer) => answer.map_err(|error| error.to_string().into()),
            Err(_) => Err("The engine does not answer.".into()),
        };
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
