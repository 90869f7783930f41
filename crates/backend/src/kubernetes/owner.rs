//! The object in the cluster that runs this server and so owns its sandboxes: they end with it.
//!
//! Inside the cluster a server knows its pod by `POD_NAME` and `POD_UID`, which the downward API sets. Above the pod
//! are its ReplicaSet and the ReplicaSet's Deployment, if the server may read them.

use std::env;

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client};
use tokio::time::timeout;

use super::ANSWER_TIMEOUT;

/// The level of the object with which sandboxes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The server's own pod, if other servers cannot continue its sandboxes.
    OwnPod,
    /// The topmost controller of the pod that the server can read, if other servers can continue its sandboxes.
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
    /// Reads the pod from the environment; `None` outside a cluster, or if the variables are not set.
    pub(super) fn from_env(namespace: &str) -> Option<Self> {
        let var = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let own = var("POD_NAMESPACE").unwrap_or_else(|| namespace.to_owned());
        Some(Self { name: var("POD_NAME")?, uid: var("POD_UID")?, namespace: own })
    }

    /// The owner for sandboxes in this namespace; `None` if the server's pod is in another one, because an owner must
    /// be in the same namespace.
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

/// The metadata of the requested object, if the server may read it.
async fn metadata<K: k8s_openapi::Metadata<Ty = ObjectMeta>>(
    asked: impl Future<Output = Result<K, kube::Error>>,
) -> Option<ObjectMeta> {
    Some(timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?.metadata().clone())
}

/// The controller of an object. The reference does not block the controller's deletion, which would need a further
/// right.
fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference { block_owner_deletion: None, controller: None, ..owner.clone() })
}
