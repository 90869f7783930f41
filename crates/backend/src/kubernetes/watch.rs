//! Watches of the API, and the followers that receive a pod's state from the watch of this server's pods.
//!
//! ```text
//!   list --> watch --event--> followers
//!    ^         |
//!    '---------'  410 (too old), an error, or silence: list again, after a pause if it keeps failing
//! ```

use std::{
    collections::{HashMap, HashSet},
    fmt,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    ANSWER_TIMEOUT,
    status::{Phase, Seen, seen},
};

/// How long a watch lasts: then the API server ends it, and it is requested again. If the connection was lost
/// silently, this is noticed after that time and [`WATCH_SLACK`].
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// How much longer than [`WATCH_TIMEOUT`] a watch may be silent.
const WATCH_SLACK: Duration = Duration::from_secs(5);

/// Pauses before another attempt: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The HTTP status for a version that the API server no longer has.
const GONE: u16 = 410;

/// The last known states of all followed pods.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<HashMap<String, Followed>>);

#[derive(Debug)]
struct Followed {
    /// Whether the cluster has confirmed the creation: only then does the pod's absence from a list count.
    is_made: bool,
    seen: watch::Sender<Seen>,
}

/// Follows the state of a pod, until it is dropped.
#[derive(Debug)]
pub(super) struct Follower {
    watched: Arc<Watched>,
    pod: String,
    seen: watch::Receiver<Seen>,
}

impl Watched {
    /// Follows a pod, which need not exist yet.
    pub(super) fn follow(self: &Arc<Self>, pod: &str) -> Follower {
        let (sender, receiver) = watch::channel(Seen::default());
        self.0.lock().insert(pod.to_owned(), Followed { is_made: false, seen: sender });
        Follower { watched: self.clone(), pod: pod.to_owned(), seen: receiver }
    }

    /// Whether the pod is followed, which means that it is being started or used.
    pub(super) fn is_followed(&self, pod: &str) -> bool {
        self.0.lock().contains_key(pod)
    }

    /// Notes that the pod exists and belongs to this server.
    pub(super) fn is_made(&self, pod: &str) {
        if let Some(followed) = self.0.lock().get_mut(pod) {
            followed.is_made = true;
        }
    }

    fn set(&self, pod: &str, new: &Seen) {
        if let Some(followed) = self.0.lock().get(pod) {
            // A pod that is over stays so, even if a late event shows an earlier state.
            let changed = |old: &mut Seen| {
                let changes = old != new && old.phase != Phase::Over;
                if changes {
                    *old = new.clone();
                }
                changes
            };
            followed.seen.send_if_modified(changed);
        }
    }
}

impl Follower {
    /// Notes that the cluster has created the pod.
    pub(super) fn is_made(&self) {
        self.watched.is_made(&self.pod);
    }

    /// The pod's name.
    pub(super) fn pod(&self) -> &str {
        &self.pod
    }

    /// Notes a state of the pod that was requested apart from the watch.
    pub(super) fn saw(&self, pod: &Pod) {
        self.watched.saw(pod);
    }

    /// Notes that the cluster no longer has the pod.
    pub(super) fn is_gone(&self) {
        self.watched.gone(&self.pod);
    }

    /// Waits until the pod runs or is over.
    pub(super) async fn started(&mut self) -> Seen {
        self.until(|seen| seen.phase != Phase::Starting).await
    }

    /// Waits until the pod is over.
    pub(super) async fn over(&mut self) -> Seen {
        self.until(|seen| seen.phase == Phase::Over).await
    }

    /// The last known state.
    pub(super) fn last(&self) -> Seen {
        self.seen.borrow().clone()
    }

    async fn until(&mut self, holds: impl FnMut(&Seen) -> bool) -> Seen {
        let held = self.seen.wait_for(holds).await;
        held.map_or_else(|_| Seen::gone(), |seen| seen.clone())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.watched.0.lock().remove(&self.pod);
    }
}

/// The end of a watch.
enum End {
    /// At its regular end. The next watch begins at this version.
    AtVersion(String),
    /// The API server no longer has the version, so that changes may be missing: a new list is needed.
    Lost,
    /// With an error.
    Failed(String),
}

/// A receiver of a watch's events.
pub(super) trait Watcher<K>: Send + Sync {
    /// The objects that a list must contain if it is requested now.
    type Expected: Send;

    /// Returns these objects.
    fn expected(&self) -> Self::Expected;

    /// A list of all existing objects was received, for which `expected` was returned before the request.
    fn listed(&self, all: &[K], expected: Self::Expected);

    /// An object was created or has changed.
    fn saw(&self, one: &K);

    /// The object of this name no longer exists.
    fn gone(&self, name: &str);
}

impl Watcher<Pod> for Watched {
    type Expected = HashSet<String>;

    /// The pods whose creation was confirmed.
    fn expected(&self) -> HashSet<String> {
        let followed = self.0.lock();
        followed.iter().filter(|(_, it)| it.is_made).map(|(name, _)| name.clone()).collect()
    }

    fn listed(&self, all: &[Pod], mut expected: HashSet<String>) {
        for pod in all {
            self.saw(pod);
            if let Some(name) = &pod.metadata.name {
                expected.remove(name);
            }
        }
        for gone in expected {
            self.gone(&gone);
        }
    }

    fn saw(&self, one: &Pod) {
        if let Some(name) = &one.metadata.name {
            self.set(name, &seen(one));
        }
    }

    fn gone(&self, name: &str) {
        self.set(name, &Seen::gone());
    }
}

/// A kind of object that can be watched.
pub(super) trait Watchable: Resource + Clone + DeserializeOwned + fmt::Debug {}

impl<K: Resource + Clone + DeserializeOwned + fmt::Debug> Watchable for K {}

/// Watches all objects that this selector matches. Never returns.
pub(super) async fn keep<K: Watchable>(
    api: Api<K>,
    selector: String,
    watcher: Arc<impl Watcher<K>>,
) {
    let mut pause = PAUSES.0;
    loop {
        let expected = watcher.expected();
        let list = ListParams::default().labels(&selector);
        let failed = match timeout(ANSWER_TIMEOUT, api.list(&list)).await {
            Ok(Ok(list)) => {
                watcher.listed(&list.items, expected);
                let mut version = list.metadata.resource_version.unwrap_or_default();
                loop {
                    match once(&api, &selector, &version, &*watcher, &mut pause).await {
                        End::AtVersion(next) => version = next,
                        End::Lost => break None,
                        End::Failed(why) => break Some(why),
                    }
                }
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer in time".into()),
        };
        if let Some(why) = failed {
            tracing::debug!(why, selector, "failed to watch the cluster");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Watches once, beginning at this version.
async fn once<K: Watchable>(
    api: &Api<K>,
    selector: &str,
    version: &str,
    watcher: &impl Watcher<K>,
    pause: &mut Duration,
) -> End {
    let seconds = u32::try_from(WATCH_TIMEOUT.as_secs()).unwrap_or(u32::MAX);
    let asked = WatchParams::default().labels(selector).timeout(seconds);
    let begun = timeout(ANSWER_TIMEOUT, api.watch(&asked, version)).await;
    let events = match begun {
        Ok(Ok(events)) => events,
        Ok(Err(kube::Error::Api(status))) if status.code == GONE => return End::Lost,
        Ok(Err(error)) => return End::Failed(error.to_string()),
        Err(_) => return End::Failed("no answer in time".into()),
    };
    let mut events = pin!(events);
    let mut version = version.to_owned();
    loop {
        let event = match timeout(WATCH_TIMEOUT + WATCH_SLACK, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => return End::AtVersion(version),
            Err(_) => return End::Failed("silence".into()),
        };
        let newer = match event {
            Ok(WatchEvent::Added(one) | WatchEvent::Modified(one)) => {
                watcher.saw(&one);
                one.meta().resource_version.clone()
            }
            Ok(WatchEvent::Deleted(one)) => {
                watcher.gone(one.meta().name.as_deref().unwrap_or_default());
                one.meta().resource_version.clone()
            }
            Ok(WatchEvent::Bookmark(mark)) => Some(mark.metadata.resource_version),
            Ok(WatchEvent::Error(status)) if status.code == GONE => return End::Lost,
            Ok(WatchEvent::Error(status)) => return End::Failed(status.to_string()),
            Err(error) => return End::Failed(error.to_string()),
        };
        *pause = PAUSES.0;
        version = newer.unwrap_or(version);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str) -> Pod {
        let state = if phase == "Running" { json!({ "running": {} }) } else { json!({}) };
        let container = json!({ "name": "agent", "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0 });
        let pod = json!({
            "metadata": { "name": name },
            "status": { "phase": phase, "containerStatuses": [container] },
        });
        serde_json::from_value(pod).expect("a pod")
    }

    #[tokio::test]
    async fn a_pod_is_missed_only_by_a_list_that_was_asked_for_after_it_was_made() {
        let watched = Arc::new(Watched::default());
        let mut follower = watched.follow("a");
        let before = watched.expected();
        follower.is_made();
        watched.listed(&[], before);
        assert_eq!(follower.last().phase, Phase::Starting, "it may have been made since");
        watched.listed(&[pod("a", "Running")], watched.expected());
        assert_eq!(follower.started().await.phase, Phase::Running);
        watched.listed(&[pod("b", "Running")], watched.expected());
        assert_eq!(follower.over().await, Seen::gone());
    }

    #[tokio::test]
    async fn what_is_over_stays_so_and_is_forgotten_with_its_follower() {
        let watched = Arc::new(Watched::default());
        let follower = watched.follow("a");
        watched.saw(&pod("a", "Failed"));
        watched.saw(&pod("a", "Running"));
        assert_eq!(follower.last().phase, Phase::Over);
        assert!(watched.is_followed("a") && !watched.is_followed("b"));
        drop(follower);
        assert!(!watched.is_followed("a"));
    }
}
