//! The homes of callers, as Leases: one for each caller that has a home, with the server's name as its holder and the
//! server's address as an annotation.
//!
//! ```text
//! no Lease --take--> held --leave with sessions, or the holder is dead--> without a holder --take--> held
//!    ^                 |                                                       |
//!    '-----------------'-- leave without sessions          no pods for 60 s ---'--> no Lease
//! ```
//!
//! Creating a Lease that exists fails, and so does changing a Lease that another server has changed since it was read.
//! So two servers cannot both take a caller. All servers watch these Leases, so that they rarely have to request one.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::{
    DeleteParams, ListParams, Patch as ApiPatch, PatchParams, PostParams, Preconditions,
};
use parking_lot::Mutex;
use sandbox_container::{APP, LABEL_APP, LABEL_CALLER, LABEL_KEY};
use serde_json::json;
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc, watch},
    time::Instant,
};

use super::{
    Cluster, Inner, Run, ask, is_conflict, is_not_there,
    lease::{self, Judged},
    watch::Watcher,
};
use crate::{BackendError, BackendErrorKind as Kind, CallerKey, Claim, Home, Homes, Life};

/// Annotation: the address at which other servers reach the holder.
const ADDRESS: &str = "llm-sandbox/address";

/// How long a record must be unchanged before `tidy` releases its caller or removes it.
const UNCHANGED_TIME: Duration = Duration::from_secs(60);

/// Maximum number of attempts to take a caller whose Lease other servers change at the same time.
const ATTEMPTS: usize = 5;

/// The homes of callers, as this server knows them.
#[derive(Debug)]
pub(super) struct LeasedHomes {
    /// The address at which other servers reach this one.
    address: SocketAddr,
    /// The fingerprint of the servers' key. Servers with another key have other callers, even with the same names.
    key: String,
    backend: Weak<Inner>,
    known: Arc<Known>,
    taken: AsyncMutex<mpsc::UnboundedReceiver<CallerKey>>,
}

/// The records of homes that the watch or a request has returned.
#[derive(Debug)]
pub(super) struct Known {
    all: Mutex<HashMap<CallerKey, Record>>,
    /// Sends callers whose home was this server and no longer is.
    taken: mpsc::UnboundedSender<CallerKey>,
    /// Whether a list of all homes has been received.
    seen: watch::Sender<bool>,
}

#[derive(Debug)]
struct Record {
    claim: Claim,
    /// Whether this server is the home.
    is_here: bool,
    /// When the record last changed.
    since: Instant,
}

impl LeasedHomes {
    /// Starts without known homes. Other servers reach this one at `address`.
    pub(super) fn new(address: SocketAddr, key: String, backend: Weak<Inner>) -> Self {
        let (sender, taken) = mpsc::unbounded_channel();
        let seen = watch::Sender::default();
        let known = Arc::new(Known { all: Mutex::default(), taken: sender, seen });
        Self { address, key, backend, known, taken: AsyncMutex::new(taken) }
    }

    /// Whether this server's own Lease has not been renewed for so long that others may have taken its callers.
    fn may_be_taken_for_dead(&self) -> bool {
        let Some(backend) = self.backend.upgrade() else { return false };
        backend.run.get().is_some_and(|run| run.lease.lock().renewed.elapsed() > lease::DURATION)
    }

    /// The home of a caller in the newest record.
    fn heard(&self, caller: &CallerKey) -> Option<Home> {
        let all = self.known.all.lock();
        let Record { claim, is_here, .. } = all.get(caller)?;
        Some(match claim {
            _ if *is_here => Home::Here,
            // Another server with this server's address was its predecessor, which has ended.
            it if it.server.is_empty() || it.address == self.address => Home::Left(it.clone()),
            it => Home::At(it.clone()),
        })
    }

    /// The receiver of the watch's events.
    pub(super) fn watcher(&self) -> Arc<Known> {
        self.known.clone()
    }

    /// The label selector of callers' Leases.
    pub(super) fn selector(&self) -> String {
        format!("{LABEL_APP}={APP},{LABEL_CALLER},{LABEL_KEY}={}", self.key)
    }

    /// Releases the callers of dead servers, and removes records without a server whose caller has no sandbox.
    pub(super) async fn tidy(&self, cluster: &Cluster, run: &Run, servers: &[Judged]) {
        let lives = |name: &str| {
            name == run.name || servers.iter().any(|it| it.name == name && it.life != Life::Dead)
        };
        let (mut dead, mut left) = (vec![], vec![]);
        {
            let all = self.known.all.lock();
            // A record that has changed just now may name a server that has started after `servers` was read.
            for (caller, it) in all.iter().filter(|(_, it)| it.since.elapsed() > UNCHANGED_TIME) {
                if it.claim.server.is_empty() {
                    left.push((caller.clone(), it.claim.version.clone()));
                } else if !lives(&it.claim.server) {
                    dead.push((caller.clone(), it.claim.clone()));
                }
            }
        }
        for (caller, claim) in dead {
            tracing::info!(server = claim.server, "released the caller of a dead server");
            self.hand_back(cluster, &caller, &claim).await;
        }
        for (caller, version) in left {
            let pods = ListParams::default().labels(&of_caller(&caller)).limit(1);
            match ask("list pods", cluster.pods.list(&pods)).await {
                Ok(pods) if pods.items.is_empty() => self.forget(cluster, &caller, version).await,
                _ => {}
            }
        }
    }

    /// Releases a caller. The next server that takes the caller takes over its sandboxes.
    async fn hand_back(&self, cluster: &Cluster, caller: &CallerKey, claim: &Claim) {
        let patch = json!({
            "metadata": { "resourceVersion": claim.version },
            "spec": { "holderIdentity": "" },
        });
        let (patch, plain) = (ApiPatch::Merge(patch), PatchParams::default());
        match ask("patch a lease", cluster.leases.patch(&name(caller), &plain, &patch)).await {
            Ok(lease) => self.known.note(&lease, None),
            Err(error) => tracing::debug!(%error, "failed to release a caller"),
        }
    }

    async fn forget(&self, cluster: &Cluster, caller: &CallerKey, version: String) {
        let as_it_was = Preconditions { resource_version: Some(version), uid: None };
        let delete = DeleteParams::background().preconditions(as_it_was);
        if ask("delete a lease", cluster.leases.delete(&name(caller), &delete)).await.is_ok() {
            self.known.all.lock().remove(caller);
        }
    }

    async fn try_take(
        &self,
        caller: &CallerKey,
        mut instead_of: Option<Claim>,
    ) -> Result<Home, BackendError> {
        let gone = || BackendError::new(Kind::Refused, "The server is ending.");
        let backend = self.backend.upgrade().ok_or_else(gone)?;
        let (cluster, run) = (backend.cluster().await?, backend.run().await?);
        let leases = &cluster.leases;
        for _ in 0..ATTEMPTS {
            let plain = PatchParams::default();
            let asked = match &instead_of {
                None => leases.create(&PostParams::default(), &self.new_lease(caller, run)).await,
                Some(claim) => {
                    let patch = json!({
                        "metadata": {
                            "resourceVersion": claim.version,
                            "annotations": { ADDRESS: self.address },
                            // Replaces the previous server's owner, with which the cluster would remove this Lease.
                            "ownerReferences": run.runs_in.as_slice(),
                        },
                        "spec": {
                            "holderIdentity": run.name,
                            "acquireTime": lease::micro(Timestamp::now()),
                        },
                    });
                    leases.patch(&name(caller), &plain, &ApiPatch::Merge(patch)).await
                }
            };
            match asked {
                Ok(lease) => {
                    self.known.note(&lease, Some(&run.name));
                    return Ok(Home::Here);
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) if is_not_there(&error) => {
                    instead_of = None;
                    continue;
                }
                Err(error) => return ask(TAKE, async { Err(error) }).await,
            }
            let lease = match leases.get(&name(caller)).await {
                Ok(lease) => lease,
                Err(error) if is_not_there(&error) => {
                    instead_of = None;
                    continue;
                }
                Err(error) => return ask(TAKE, async { Err(error) }).await,
            };
            self.known.note(&lease, Some(&run.name));
            match self.heard(caller) {
                Some(Home::Left(claim)) => instead_of = Some(claim),
                Some(home) => return Ok(home),
                None => instead_of = None,
            }
        }
        let text = "Several servers take the caller's sessions from each other. Try again.";
        Err(BackendError::new(Kind::Refused, text))
    }

    fn new_lease(&self, caller: &CallerKey, run: &Run) -> Lease {
        let labels =
            [(LABEL_APP, APP), (LABEL_CALLER, caller.as_str()), (LABEL_KEY, self.key.as_str())];
        Lease {
            metadata: ObjectMeta {
                name: Some(name(caller)),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                annotations: Some([(ADDRESS.to_owned(), self.address.to_string())].into()),
                owner_references: run.runs_in.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(run.name.clone()),
                acquire_time: Some(lease::micro(Timestamp::now())),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// The taking of a caller, as errors name it.
const TAKE: &str = "take a caller's sessions (create, get and patch on leases)";

/// The name of a caller's Lease.
fn name(caller: &CallerKey) -> String {
    format!("{APP}-caller-{}", caller.as_str())
}

/// The label selector of a caller's pods.
pub(super) fn of_caller(caller: &CallerKey) -> String {
    format!("{LABEL_APP}={APP},{LABEL_CALLER}={}", caller.as_str())
}

impl Known {
    /// Records a caller's Lease, unless it is older than the recorded one. With `own`, this server's name, the caller's
    /// home is this server if the Lease names it. Without it, only if that was so before and the Lease's server is the
    /// same.
    fn note(&self, lease: &Lease, own: Option<&str>) {
        let Some((caller, claim)) = read(lease) else { return };
        let mut all = self.all.lock();
        let before = all.get(&caller);
        let is_old = |it: &Record| is_older(&claim.version, &it.claim.version);
        let is_same = |it: &Record| own.is_none() && it.claim == claim;
        if before.is_some_and(|it| is_old(it) || is_same(it)) {
            return;
        }
        let was_here = before.filter(|it| it.is_here).map(|it| it.claim.server.clone());
        let is_here = match own {
            Some(own) => claim.server == own,
            None => was_here.as_ref() == Some(&claim.server),
        };
        if was_here.is_some() && !is_here {
            let _ = self.taken.send(caller.clone());
        }
        all.insert(caller, Record { claim, is_here, since: Instant::now() });
    }

    /// Reports a deleted record if the caller's home was this server.
    fn lost(&self, lost: Option<(CallerKey, Record)>) {
        if let Some((caller, _)) = lost.filter(|(_, it)| it.is_here) {
            let _ = self.taken.send(caller);
        }
    }
}

/// Whether a version is older than another. Versions are growing numbers in every API server; a version that is not a
/// number is never older.
fn is_older(version: &str, than: &str) -> bool {
    matches!((version.parse::<u64>(), than.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}

fn read(lease: &Lease) -> Option<(CallerKey, Claim)> {
    let ObjectMeta { labels, annotations, resource_version, .. } = &lease.metadata;
    let caller = CallerKey::parse(labels.as_ref()?.get(LABEL_CALLER)?)?;
    let server = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let address = annotations.as_ref()?.get(ADDRESS)?.parse().ok()?;
    let version = resource_version.clone()?;
    Some((caller, Claim { server: server.unwrap_or_default(), address, version }))
}

impl Watcher<Lease> for Known {
    type Expected = Vec<CallerKey>;

    fn expected(&self) -> Vec<CallerKey> {
        self.all.lock().keys().cloned().collect()
    }

    fn listed(&self, all: &[Lease], expected: Vec<CallerKey>) {
        for lease in all {
            self.note(lease, None);
        }
        let there: HashSet<_> = all.iter().filter_map(|lease| Some(read(lease)?.0)).collect();
        let mut known = self.all.lock();
        for gone in expected.iter().filter(|caller| !there.contains(caller)) {
            self.lost(known.remove_entry(gone));
        }
        self.seen.send_replace(true);
    }

    fn saw(&self, lease: &Lease) {
        self.note(lease, None);
    }

    fn gone(&self, gone: &str) {
        let mut known = self.all.lock();
        let gone = known.keys().find(|caller| name(caller) == gone).cloned();
        self.lost(gone.and_then(|gone| known.remove_entry(&gone)));
    }
}

impl Homes for LeasedHomes {
    fn name(&self) -> Option<String> {
        Some(self.backend.upgrade()?.run.get()?.name.clone())
    }

    fn known(&self, caller: &CallerKey) -> Option<Home> {
        if self.may_be_taken_for_dead() {
            // The newest record may be out of date.
            return None;
        }
        self.heard(caller)
    }

    fn seen(&self) -> BoxFuture<'_, ()> {
        let mut seen = self.known.seen.subscribe();
        async move {
            // The sender exists for as long as `self`.
            let _ = seen.wait_for(|seen| *seen).await;
        }
        .boxed()
    }

    fn beginning_with(&self, prefix: u32) -> Vec<CallerKey> {
        let all = self.known.all.lock();
        all.keys().filter(|caller| caller.prefix() == prefix).cloned().collect()
    }

    fn others(&self) -> Vec<Claim> {
        let all = self.known.all.lock();
        let claims = all.values().filter(|it| !it.is_here).map(|it| &it.claim);
        // Without a server's name, the caller has left its home.
        let by_name: HashMap<_, _> = claims
            .filter(|it| !it.server.is_empty())
            .map(|it| (it.server.as_str(), it.clone()))
            .collect();
        by_name.into_values().collect()
    }

    fn here(&self) -> Vec<CallerKey> {
        let all = self.known.all.lock();
        all.iter().filter(|(_, it)| it.is_here).map(|(caller, _)| caller.clone()).collect()
    }

    fn take<'a>(
        &'a self,
        caller: &'a CallerKey,
        instead_of: Option<Claim>,
    ) -> BoxFuture<'a, Result<Home, BackendError>> {
        Box::pin(async move {
            match tokio::time::timeout(super::ANSWER_TIMEOUT, self.try_take(caller, instead_of))
                .await
            {
                Ok(home) => home,
                Err(_) => Err(super::no_answer(TAKE)),
            }
        })
    }

    fn leave<'a>(&'a self, caller: &'a CallerKey, has_sessions: bool) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let claim = {
                let all = self.known.all.lock();
                all.get(caller).filter(|it| it.is_here).map(|it| it.claim.clone())
            };
            let Some((backend, claim)) = self.backend.upgrade().zip(claim) else { return };
            let Ok(cluster) = backend.cluster().await else { return };
            if has_sessions {
                self.hand_back(cluster, caller, &claim).await;
            } else {
                self.forget(cluster, caller, claim.version).await;
            }
        })
    }

    fn taken(&self) -> BoxFuture<'_, CallerKey> {
        async {
            match self.taken.lock().await.recv().await {
                Some(caller) => caller,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(caller: &CallerKey, server: &str, version: u64) -> Lease {
        let lease = json!({
            "metadata": {
                "name": name(caller),
                "labels": { LABEL_CALLER: caller.as_str() },
                "annotations": { ADDRESS: "10.0.0.1:8081" },
                "resourceVersion": version.to_string(),
            },
            "spec": { "holderIdentity": server },
        });
        serde_json::from_value(lease).expect("a lease")
    }

    #[test]
    fn what_was_here_and_is_elsewhere_is_told_once_whatever_comes_late() {
        let homes =
            LeasedHomes::new("10.0.0.2:8081".parse().expect("valid"), "key".into(), Weak::new());
        let caller = CallerKey::parse(&"ab".repeat(16)).expect("valid");
        let mut taken = homes.taken.try_lock().expect("free");
        homes.known.note(&lease(&caller, "us", 5), Some("us"));
        assert_eq!(homes.known(&caller), Some(Home::Here));
        // A late event of the watch, from before that.
        homes.known.saw(&lease(&caller, "another", 4));
        assert_eq!(homes.known(&caller), Some(Home::Here));
        homes.known.saw(&lease(&caller, "us", 5));
        assert!(taken.try_recv().is_err());
        homes.known.saw(&lease(&caller, "another", 6));
        homes.known.saw(&lease(&caller, "another", 7));
        assert_eq!(taken.try_recv().ok(), Some(caller.clone()));
        assert!(taken.try_recv().is_err());
        assert!(matches!(homes.known(&caller), Some(Home::At(claim)) if claim.server == "another"));
        homes.known.saw(&lease(&caller, "", 8));
        assert!(matches!(homes.known(&caller), Some(Home::Left(_))));
        // If another server releases the caller, or the Lease is deleted, the sessions must continue elsewhere.
        homes.known.note(&lease(&caller, "us", 9), Some("us"));
        homes.known.saw(&lease(&caller, "", 10));
        homes.known.saw(&lease(&caller, "another", 11));
        assert_eq!(taken.try_recv().ok(), Some(caller.clone()));
        homes.known.note(&lease(&caller, "us", 12), Some("us"));
        homes.known.gone(&name(&caller));
        assert_eq!(taken.try_recv().ok(), Some(caller.clone()));
        assert!(taken.try_recv().is_err());
        homes.known.saw(&lease(&caller, "", 13));
        assert_eq!(homes.beginning_with(caller.prefix()), std::slice::from_ref(&caller));
        homes.known.gone(&name(&caller));
        assert_eq!(homes.known(&caller), None);
    }

    #[test]
    fn who_was_here_before_at_the_same_address_is_gone() {
        let homes =
            LeasedHomes::new("10.0.0.1:8081".parse().expect("valid"), "key".into(), Weak::new());
        let caller = CallerKey::parse(&"cd".repeat(16)).expect("valid");
        homes.known.saw(&lease(&caller, "before", 1));
        assert!(
            matches!(homes.known(&caller), Some(Home::Left(claim)) if claim.server == "before")
        );
    }
}
