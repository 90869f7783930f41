//! Pods that exist already: listing them, taking them over from another server, and removing them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch as ApiPatch, PatchParams, Preconditions};
use sandbox_container::{APP, LABEL_APP, LABEL_CALLER, LABEL_HOLD, LABEL_KEY, LABEL_OWNER};
use serde_json::json;
use tokio::time::sleep;

use super::{
    Inner, Kubernetes, PODS_PER_PAGE, Started, ask, homes, is_conflict, is_not_there,
    lease::Judged,
    owner::Level,
    status::{self, Phase},
    watch::Watcher,
};
use crate::{
    Backend, BackendError, CallerKey, Homes, Life, ListedSandbox, Resumable, Sandbox, SandboxOwner,
    SandboxState, SharesCallers,
};

/// Maximum number of attempts to remove a pod whose session has ended, before a sweep has to do it, and to label a pod
/// with its caller.
pub(super) const ATTEMPTS: u32 = 4;

/// The run of a server that owns a pod.
pub(super) fn owner(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(LABEL_OWNER)
}

/// Whether a pod outlives its stream.
pub(super) fn holds(pod: &Pod) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_HOLD))
}

impl Inner {
    /// Opens another stream to the agent in a pod, which may belong to another server.
    pub(super) async fn reattach(self: &Arc<Self>, name: String) -> Started {
        let (cluster, run) = (self.cluster().await?, self.run().await?);
        let wire = self.open(cluster, &name, None::<future::Ready<()>>).await?;
        let gone = if run.watched.is_followed(&name) {
            // The existing follower reports the end of the pod.
            future::pending().boxed()
        } else {
            let mut follower = run.watched.follow(&name);
            async move { drop(follower.over().await) }.boxed()
        };
        Ok(Sandbox {
            id: name,
            reader: wire.reader,
            writer: Box::new(wire.writer),
            gone: gone.shared(),
        })
    }

    /// Makes this run the owner of a pod of another run.
    pub(super) async fn claim(self: &Arc<Self>, name: &str) {
        let (Some(cluster), Some(run)) = (self.cluster.get(), self.run.get()) else { return };
        let claim = json!({ "metadata": {
            "labels": { LABEL_OWNER: run.name },
            "ownerReferences": [run.ends_with()],
        } });
        let (patch, plain) = (ApiPatch::Merge(claim), PatchParams::default());
        let patched = cluster.pods.patch(name, &plain, &patch);
        match ask("claim a pod", patched).await {
            Ok(pod) => {
                run.watched.is_made(name);
                run.watched.saw(&pod);
            }
            // The session continues all the same. The end of the stream shows the end of the pod.
            Err(error) => tracing::warn!(sandbox = name, %error, "failed to claim a pod"),
        }
    }

    /// Labels a pod with its caller.
    pub(super) async fn assign(&self, name: &str, caller: &CallerKey) {
        let Ok(cluster) = self.cluster().await else { return };
        let label = json!({ "metadata": { "labels": { LABEL_CALLER: caller.as_str() } } });
        let (patch, plain) = (ApiPatch::Merge(label), PatchParams::default());
        for attempt in 1..=ATTEMPTS {
            match ask("patch a pod", cluster.pods.patch(name, &plain, &patch)).await {
                Ok(_) => return,
                // A server that takes the pod over then reads its caller from the note in its agent.
                Err(error) if attempt == ATTEMPTS => {
                    tracing::warn!(sandbox = name, %error, "failed to label a pod with its caller");
                }
                Err(_) => sleep(Duration::from_millis(500) * attempt).await,
            }
        }
    }

    /// Removes a pod if it still belongs to this run. A server that was suspended for so long that another one took
    /// over its pods finds that out only here.
    pub(super) async fn dispose(self: &Arc<Self>, name: &str) -> Result<(), BackendError> {
        let (cluster, run) = (self.cluster().await?, self.run().await?);
        for _ in 0..ATTEMPTS {
            let pod = ask("get a pod", cluster.pods.get_opt(name)).await?;
            let Some(pod) = pod.filter(|pod| owner(pod) == Some(&run.name)) else { break };
            let as_it_is = Preconditions {
                resource_version: pod.metadata.resource_version,
                uid: pod.metadata.uid,
            };
            let delete = DeleteParams::background().grace_period(0).preconditions(as_it_is);
            let deleted = cluster.pods.delete(name, &delete).map(|deleted| match deleted {
                Ok(_) => Ok(true),
                Err(error) if is_not_there(&error) => Ok(true),
                // The pod has changed meanwhile.
                Err(error) if is_conflict(&error) => Ok(false),
                Err(error) => Err(error),
            });
            if ask("delete a pod", deleted).await? {
                break;
            }
        }
        Ok(())
    }

    /// Removes a pod that is no longer needed, with retries.
    pub(super) async fn remove_surely(self: Arc<Self>, name: String) {
        let Some(cluster) = self.cluster.get() else { return };
        for attempt in 1..=ATTEMPTS {
            match cluster.remove(&name).await {
                Ok(()) => {
                    if let Some(run) = self.run.get() {
                        run.watched.gone(&name);
                    }
                    return;
                }
                Err(error) if attempt == ATTEMPTS => {
                    tracing::warn!(sandbox = name, %error, "failed to remove a sandbox; the next sweep removes it");
                }
                Err(_) => sleep(Duration::from_millis(500) * attempt).await,
            }
        }
    }

    /// Lists resumable sandboxes whose server is not known to be alive. The selector excludes those of servers that
    /// were seen to renew their Lease: with many servers they are the majority, and the API server need not send
    /// them.
    pub(super) async fn orphans(
        self: &Arc<Self>,
        own_too: bool,
    ) -> Result<Vec<ListedSandbox>, BackendError> {
        if self.homes.is_some() {
            // Begins watching the homes of callers.
            self.run().await?;
        }
        let leases = self.judge(self.cluster().await?).await?;
        let own = self.run.get().map(|run| &run.name);
        let alive = leases.iter().filter(|it| it.life == Life::Alive);
        let seen = alive
            .filter(|it| it.renews && Some(&it.name) != own || Some(&it.name) == own && !own_too);
        let others = seen.map(|it| format!("{LABEL_OWNER}!={}", it.name));
        let of_key = self.settings.key.iter().map(|key| format!("{LABEL_KEY}={key}"));
        let terms = [format!("{LABEL_APP}={APP}"), LABEL_HOLD.to_owned()];
        let terms = terms.into_iter().chain(of_key).chain(others);
        let found = self.found(&terms.collect::<Vec<_>>().join(",")).await?;
        Ok(found.into_iter().filter(ListedSandbox::is_orphan).collect())
    }

    /// Lists the sandboxes that this selector matches.
    pub(super) async fn found(&self, selector: &str) -> Result<Vec<ListedSandbox>, BackendError> {
        let cluster = self.cluster().await?;
        let mut selected = ListParams::default().labels(selector).limit(PODS_PER_PAGE);
        let mut found = vec![];
        loop {
            // Pods before Leases, because a server makes its Lease before its pods.
            let pods = ask("list pods", cluster.pods.list(&selected)).await?;
            let leases = self.judge(cluster).await.ok();
            let page = pods.items.into_iter();
            found.extend(page.filter_map(|pod| self.as_found(pod, leases.as_deref())));
            match pods.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => selected = selected.continue_token(&more),
                None => return Ok(found),
            }
        }
    }

    fn as_found(&self, pod: Pod, leases: Option<&[Judged]>) -> Option<ListedSandbox> {
        let id = pod.metadata.name.clone()?;
        let owner = owner(&pod);
        let holds = holds(&pod);
        let is_in_use = self.run.get().is_some_and(|run| {
            owner.is_some_and(|owner| *owner == run.name) && run.watched.is_followed(&id)
        });
        let caller = pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_CALLER));
        let caller = caller.and_then(|caller| CallerKey::parse(caller));
        let owner = owner.cloned().map(|owner| SandboxOwner {
            life: match (self.run.get().filter(|run| run.name == owner), leases) {
                // A pod of this run is dead if no session has it any more.
                (Some(run), _) if run.watched.is_followed(&id) => Life::Alive,
                (Some(_), _) => Life::Dead,
                (None, None) => Life::Unknown,
                // A server without a Lease is dead: it has deleted the Lease at its end, or another server has.
                (None, Some(leases)) => {
                    let lease = leases.iter().find(|it| it.name == owner);
                    match lease {
                        // The server may have died since its last renewal. The agent knows whether it has a stream.
                        Some(it) if holds && it.life == Life::Alive && !it.renews => Life::Unknown,
                        _ => lease.map_or(Life::Dead, |it| it.life),
                    }
                }
            },
            id: owner.into(),
        });
        let created = pod.metadata.creation_timestamp.as_ref();
        let is_over = status::seen(&pod).phase == Phase::Over;
        Some(ListedSandbox {
            id,
            created: created.map_or_else(SystemTime::now, |at| at.0.into()),
            state: if is_over { SandboxState::Stopped } else { SandboxState::Running },
            owner,
            is_resumable: holds,
            caller,
            is_in_use,
        })
    }
}

impl Resumable for Kubernetes {
    fn reattach(&self, id: String) -> BoxFuture<'_, Started> {
        async move { self.0.reattach(id).await }.boxed()
    }

    fn orphans(&self, own_too: bool) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        async move { self.0.orphans(own_too).await }.boxed()
    }

    fn claim(&self, id: String) -> BoxFuture<'_, ()> {
        async move { self.0.claim(&id).await }.boxed()
    }

    fn dispose(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        if self.0.settings.level == Level::OwnPod {
            return self.remove(id);
        }
        Box::pin(async move {
            self.0.dispose(&id).await?;
            if let Some(run) = self.0.run.get() {
                run.watched.gone(&id);
            }
            Ok(())
        })
    }
}

impl SharesCallers for Kubernetes {
    fn homes(&self) -> &dyn Homes {
        self.0.homes.as_ref().expect("`abilities` offers this trait only with homes")
    }

    fn list_of<'a>(
        &'a self,
        caller: &'a CallerKey,
    ) -> BoxFuture<'a, Result<Vec<ListedSandbox>, BackendError>> {
        async move { self.0.found(&homes::of_caller(caller)).await }.boxed()
    }

    fn assign(&self, id: String, caller: CallerKey) -> BoxFuture<'_, ()> {
        async move { self.0.assign(&id, &caller).await }.boxed()
    }
}
