//! The list of a server's tools. One task at a time asks for it, however many callers wait, and goes on without them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use rmcp::{Peer, RoleClient, model::PaginatedRequestParams};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::{
    super::{
        CallError,
        catalogue::{Catalogue, MAX_BYTES, MAX_TOOLS, Tool, size},
        rights,
    },
    Client, Failures, NOT_AVAILABLE, unavailable,
};

/// Time limit for a list of tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a list is asked for again, though nothing is said to have changed.
const LIST_AGE: Duration = Duration::from_secs(300);

/// The maximum number of pages of a list.
const MAX_PAGES: usize = 200;

type Answer = Result<Arc<Catalogue>, CallError>;

/// The list as it is known, and the attempt to get it.
#[derive(Default)]
pub(super) struct Listing {
    listed: Option<Listed>,
    asking: Option<Asking>,
    /// Attempts in a row to which a connected server gave no list.
    failures: Failures,
    /// Whether the log has the patterns of the settings that no tool has.
    is_checked: bool,
}

/// A list of tools.
struct Listed {
    catalogue: Arc<Catalogue>,
    at: Instant,
    /// The count of changes before it was asked for.
    change: u64,
}

/// An attempt to get the list. It starts the server if necessary.
#[derive(Clone)]
struct Asking {
    since: Instant,
    answer: Shared<BoxFuture<'static, Answer>>,
}

impl Client {
    /// The tools, as they were listed last unless that was long ago or the server reported a change.
    pub(in crate::upstream) async fn catalogue(self: &Arc<Self>) -> Answer {
        match self.known() {
            Some(catalogue) => Ok(catalogue),
            None => self.asking()?.answer.await,
        }
    }

    /// The tools as they were listed last, however long ago. If they never were, those of an attempt that succeeds
    /// within this time after its begin: callers do not wait for a silent server again and again.
    pub(in crate::upstream) async fn overview(self: &Arc<Self>, within: Duration) -> Answer {
        if let Some(catalogue) = self.last() {
            return Ok(catalogue);
        }
        let Asking { since, answer } = self.asking()?;
        timeout_at(since + within, answer).await.unwrap_or_else(|_| {
            let why = format!("no list of tools for {} s", since.elapsed().as_secs());
            Err(unavailable(&why))
        })
    }

    /// The tools as they were listed last, unless the server reported a change since.
    fn last(&self) -> Option<Arc<Catalogue>> {
        let listing = self.listing.lock();
        let change = self.changes.load(Ordering::Relaxed);
        let listed = listing.listed.as_ref().filter(|listed| listed.change == change);
        listed.map(|it| it.catalogue.clone())
    }

    fn known(&self) -> Option<Arc<Catalogue>> {
        let is_new = self.listing.lock().listed.as_ref()?.at.elapsed() < LIST_AGE;
        self.last().filter(|_| is_new)
    }

    /// The attempt in progress, or a new one.
    ///
    /// # Errors
    /// If the last one failed, until it is time for the next.
    fn asking(self: &Arc<Self>) -> Result<Asking, CallError> {
        let mut listing = self.listing.lock();
        if let Some(asking) = &listing.asking {
            return Ok(asking.clone());
        }
        if let Some((why, left)) = listing.failures.left() {
            return Err(unavailable(&format!("{why}; it is asked again in {left} s")));
        }
        let task = tokio::spawn(self.clone().ask());
        let client = self.clone();
        let answer = async move {
            task.await.unwrap_or_else(|_| {
                let why = "its list could not be read".to_owned();
                let error = unavailable(&why);
                client.end_asking(Some(why));
                Err(error)
            })
        };
        let asking = Asking { since: Instant::now(), answer: answer.boxed().shared() };
        listing.asking = Some(asking.clone());
        Ok(asking)
    }

    async fn ask(self: Arc<Self>) -> Answer {
        // A server that cannot be started has a waiting time of its own.
        let using = self.connection().await.inspect_err(|_| self.end_asking(None))?;
        // Read before the request: a change during it makes the list old.
        let change = self.changes.load(Ordering::Relaxed);
        let listed = timeout(LIST_TIMEOUT, self.list(&using.0.peer)).await;
        let listed =
            listed.unwrap_or_else(|_| Err(unavailable("it did not list its tools in time")));
        match listed {
            Ok(catalogue) => {
                self.check_patterns(&catalogue);
                let catalogue = Arc::new(catalogue);
                let listed = Listed { catalogue: catalogue.clone(), at: Instant::now(), change };
                self.listing.lock().listed = Some(listed);
                self.end_asking(None);
                Ok(catalogue)
            }
            Err(error) => {
                let why = error.message.strip_prefix(NOT_AVAILABLE).unwrap_or(&error.message);
                self.end_asking(Some(why.to_owned()));
                Err(error)
            }
        }
    }

    /// Notes that an attempt has ended, and why a connected server gave no list if it gave none.
    fn end_asking(&self, failed: Option<String>) {
        let mut listing = self.listing.lock();
        listing.asking = None;
        listing.failures = failed.map_or_else(Failures::default, |why| listing.failures.and(why));
    }

    /// Writes the patterns of the settings that no tool has to the log, once.
    fn check_patterns(&self, catalogue: &Catalogue) {
        if std::mem::replace(&mut self.listing.lock().is_checked, true) {
            return;
        }
        let unmatched = rights::unmatched(&self.settings, catalogue.tools());
        if !unmatched.is_empty() {
            let patterns = unmatched.join(", ");
            warn!(upstream = %self.settings.name, patterns, "no tool has the names of these patterns in allow and ask");
        }
    }

    /// Asks for all pages of the list.
    async fn list(&self, peer: &Peer<RoleClient>) -> Result<Catalogue, CallError> {
        let (mut tools, mut bytes, mut cursor) = (vec![], 0, None);
        let mut is_cut = false;
        for page in 0.. {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let listed = peer.list_tools(Some(params)).await.map_err(|error| self.failed(error))?;
            for tool in listed.tools {
                let schemas = [Some(&tool.input_schema), tool.output_schema.as_ref()];
                let schemas = schemas.into_iter().flatten().map(|schema| size(schema));
                let description = tool.description.as_deref();
                bytes += tool.name.len() + description.map_or(0, str::len) + schemas.sum::<usize>();
                if tools.len() == MAX_TOOLS || bytes > MAX_BYTES {
                    is_cut = true;
                    break;
                }
                let hints = tool.annotations.as_ref();
                let listed = Tool::listed(
                    &tool.name,
                    tool.title.as_deref().or(hints.and_then(|it| it.title.as_deref())),
                    description,
                    tool.input_schema.clone(),
                    tool.output_schema.clone(),
                    hints.is_some_and(|it| it.read_only_hint == Some(true)),
                );
                tools.extend(listed);
            }
            is_cut |= page == MAX_PAGES && listed.next_cursor.is_some();
            cursor = listed.next_cursor;
            if cursor.is_none() || is_cut {
                break;
            }
        }
        if is_cut {
            warn!(upstream = %self.settings.name, tools = tools.len(), "its list of tools is cut: it is too long");
        }
        Ok(Catalogue::new(tools))
    }
}
