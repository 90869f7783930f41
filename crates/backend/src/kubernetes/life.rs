//! Whether servers are alive: this server's Lease, and the removal of what dead servers have left.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    DeleteParams, ListParams, Patch as ApiPatch, PatchParams, PostParams, Preconditions,
};
use sandbox_container::{APP, LABEL_APP, LABEL_OWNER};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{
    ANSWER_TIMEOUT, Cluster, Held, Inner, ask,
    found::holds,
    is_not_there,
    lease::{self, Judged},
    status::{self, Phase},
};
use crate::{BackendError, BackendErrorKind as Kind, Life};

impl Inner {
    /// Renews the Lease, or recreates it if it was deleted.
    pub(super) async fn renew(&self) {
        let (Some(cluster), Some(run)) = (self.cluster.get(), self.run.get()) else { return };
        let renewal = json!({ "spec": { "renewTime": lease::micro(Timestamp::now()) } });
        let (patch, plain) = (ApiPatch::Merge(renewal), PatchParams::default());
        let asked = Instant::now();
        let patched = cluster.leases.patch(&run.name, &plain, &patch);
        let renewed = match timeout(ANSWER_TIMEOUT, patched).await {
            Ok(Ok(lease)) => {
                lease::reference(&lease).map(|reference| Held { renewed: asked, reference })
            }
            Ok(Err(error)) if is_not_there(&error) => {
                tracing::warn!("the server's Lease was deleted; Kubernetes now deletes its pods");
                let key = self.settings.key.as_deref();
                cluster.hold(&run.name, run.runs_in.as_ref(), key).await.ok()
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to renew the server's Lease");
                None
            }
            Err(_) => {
                tracing::warn!("the server's Lease was not renewed in time");
                None
            }
        };
        if let Some(renewed) = renewed {
            *run.lease.lock() = renewed;
        }
    }

    /// Removes the pods and then the Leases of dead servers.
    pub(super) async fn bury(&self) {
        let (Some(cluster), Some(run)) = (self.cluster.get(), self.run.get()) else { return };
        let judged = match self.judge(cluster).await {
            Ok(judged) => judged,
            Err(error) => return tracing::debug!(%error, "failed to list the Leases of servers"),
        };
        if let Some(homes) = &self.homes {
            self.warn_of_others(&judged);
            homes.tidy(cluster, run, &judged).await;
        }
        for dead in judged.into_iter().filter(|it| it.life == Life::Dead) {
            let pods = ListParams::default()
                .labels(&format!("{LABEL_APP}={APP},{LABEL_OWNER}={}", dead.name));
            let Ok(pods) = ask("list pods", cluster.pods.list(&pods)).await else { return };
            let mut removed = true;
            for pod in pods.items {
                // Another server may continue the sandbox. If none does, the sandbox ends by itself.
                let is_held = holds(&pod) && status::seen(&pod).phase == Phase::Running;
                let name = pod.metadata.name.unwrap_or_default();
                removed &= !is_held && cluster.remove(&name).await.is_ok();
            }
            // If the Lease was renewed meanwhile, its version has changed and it stays.
            let unchanged = Preconditions { resource_version: dead.version.clone(), uid: None };
            let delete = DeleteParams::background().preconditions(unchanged);
            if removed && cluster.leases.delete(&dead.name, &delete).await.is_ok() {
                tracing::info!(
                    server = dead.name,
                    "removed the pods and the Lease of a dead server"
                );
            }
        }
    }

    /// Servers that are alive and share their callers, but have another secret than this one. This server cannot share
    /// callers with them.
    pub(super) fn others<'a>(&'a self, judged: &'a [Judged]) -> impl Iterator<Item = &'a str> {
        let differs = |it: &&Judged| it.key.is_some() && it.key != self.settings.key;
        judged.iter().filter(|it| it.life == Life::Alive).filter(differs).map(|it| &*it.name)
    }

    fn warn_of_others(&self, judged: &[Judged]) {
        let others: Vec<_> = self.others(judged).collect();
        if !others.is_empty() {
            tracing::warn!(
                servers = others.join(", "),
                "servers in this namespace have another key (SANDBOX_KEY_FILE): callers have other sessions there"
            );
        }
    }

    pub(super) async fn judge(&self, cluster: &Cluster) -> Result<Vec<Judged>, BackendError> {
        let ours = ListParams::default().labels(&format!("{LABEL_APP}={APP},{LABEL_OWNER}"));
        let leases = ask("list leases", cluster.leases.list(&ours)).await?;
        Ok(self.sightings.judge(&leases.items, Timestamp::now()))
    }
}

impl Cluster {
    /// Makes a Lease with this name and owner, for a server whose secret has the fingerprint `key`.
    pub(super) async fn hold(
        &self,
        name: &str,
        ends_with: Option<&OwnerReference>,
        key: Option<&str>,
    ) -> Result<Held, BackendError> {
        let renewed = Instant::now();
        let lease = lease::new_lease(name, ends_with.cloned(), key, Timestamp::now());
        let lease =
            ask("create a lease", self.leases.create(&PostParams::default(), &lease)).await?;
        let nameless =
            || BackendError::new(Kind::Refused, "The cluster made a Lease without a name.");
        Ok(Held { renewed, reference: lease::reference(&lease).ok_or_else(nameless)? })
    }
}
