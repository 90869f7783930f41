//! What in the cluster runs this server, so that its sandboxes end with that.
//!
//! Inside the cluster a server knows its pod by `POD_NAME` and `POD_UID`, which the downward API sets. From there the
//! way up is its ReplicaSet and that one's Deployment, as far as the server may read them.

use std::env;

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client};
use tokio::time::timeout;

use super::ANSWER_TIMEOUT;

/// With what sandboxes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The server's own pod: its sandboxes are of no use to another server.
    OwnPod,
    /// Whatever makes such pods, as far up as can be seen: another server goes on with them.
    Topmost,
}

/// The pod that this process runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnPod {
    name: String,
    uid: String,
    namespace: String,
}

impl OwnPod {
    /// As the environment says; `None` outside a cluster, or where that was not set up.
    pub(super) fn from_env(namespace: &str) -> Option<Self> {
        let var = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let own = var("POD_NAMESPACE").unwrap_or_else(|| namespace.to_owned());
        Some(Self { name: var("POD_NAME")?, uid: var("POD_UID")?, namespace: own })
    }

    /// What sandboxes of this namespace end with; nothing in another one, as owners do not reach across.
    pub(super) async fn owner(
        &self,
        client: &Client,
        namespace: &str,
        level: Level,
    ) -> Option<OwnerReference> {
        if self.namespace != namespace {
            return None;
        }
        let pod = OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        };
        if level == Level::OwnPod {
            return Some(pod);
        }
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let above = metadata(pods.get(&self.name)).await.and_then(|it| controller(&it));
        let Some(above) = above else { return Some(pod) };
        if above.kind != "ReplicaSet" {
            return Some(above);
        }
        let sets = Api::<ReplicaSet>::namespaced(client.clone(), namespace);
        let top = metadata(sets.get(&above.name)).await.and_then(|it| controller(&it));
        Some(top.unwrap_or(above))
    }
}

/// The metadata of what is asked for, if it may be read.
async fn metadata<K: k8s_openapi::Metadata<Ty = ObjectMeta>>(
    asked: impl Future<Output = Result<K, kube::Error>>,
) -> Option<ObjectMeta> {
    Some(timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?.metadata().clone())
}

/// What made it and looks after it. Nothing waits for its dependents, so that no right to do that is needed.
fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference { block_owner_deletion: None, controller: None, ..owner.clone() })
}
