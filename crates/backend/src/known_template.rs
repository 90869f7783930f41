//! A cache of the backend's template, for callers that need it without delay.

use std::{sync::Arc, time::Duration};

use model::World;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{Backend, template::Template};

/// How long an answer of the backend is used.
const CACHE_TIME: Duration = Duration::from_secs(10);

/// Longest that a caller waits for the backend's answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The template of a backend, which is asked for it at most every ten seconds.
#[derive(Debug)]
pub struct KnownTemplate {
    backend: Arc<dyn Backend>,
    last: Mutex<Option<(Instant, Template)>>,
    last_id: parking_lot::Mutex<Option<Arc<str>>>,
}

impl KnownTemplate {
    /// A cache that does not know the template yet.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, last: Mutex::default(), last_id: parking_lot::Mutex::default() }
    }

    /// The template if the backend has never answered: the image that this program would build, or for the embedded
    /// engine only the languages.
    fn usual(&self) -> Template {
        let world = self.backend.world();
        let mut template = Template { world, ..Template::built_in("") };
        if world == World::Interpreter {
            template.runtimes.retain(|runtime| runtime.name != "bash");
            for runtime in &mut template.runtimes {
                (runtime.version, runtime.libraries) = (None, vec![]);
            }
        }
        template
    }

    /// The template of new sandboxes. If the backend does not answer, its last answer, or if it has never answered, the
    /// image that this program would build.
    pub async fn get(&self) -> Template {
        let mut last = self.last.lock().await;
        if let Some((at, template)) = &*last
            && at.elapsed() < CACHE_TIME
        {
            return template.clone();
        }
        let told = timeout(TIMEOUT, self.backend.template()).await.ok().flatten();
        if let Some(template) = &told {
            *self.last_id.lock() = Some((*template.id).into());
        }
        let template = told
            .or_else(|| last.take().map(|(_, template)| template))
            .unwrap_or_else(|| self.usual());
        *last = Some((Instant::now(), template.clone()));
        template
    }

    /// The template's id in the backend's last answer. Does not ask the backend.
    pub fn last_id(&self) -> Option<Arc<str>> {
        self.last_id.lock().clone()
    }
}
