//! Starting a pod: it is created, followed until it runs, and its agent's stream is opened.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use sandbox_container::{CONNECT, CONNECT_READABLE, Uid};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ANSWER_TIMEOUT, Cluster, Inner, Run, Started, ask, datasets,
    explain::{explain, no_answer},
    is_not_there,
    pod::{self, Wanted},
    status::{Phase, Why},
    stream::{self, Wire},
    watch::Follower,
};
use crate::{BackendError, BackendErrorKind as Kind, Sandbox, Spec};

/// Longest start of a pod: a node may have to pull the image first, or have to be started itself.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// If the watch reports nothing of a starting pod for this long, the pod is requested, because the watch may have
/// failed.
const NEWS_TIMEOUT: Duration = Duration::from_secs(10);

/// The opening of a stream, as errors name it.
const OPEN: &str = "run a process in the sandbox (create and get on pods/exec)";

impl Inner {
    /// Starts a sandbox and sends it to the caller. If the caller no longer waits, the sandbox is removed.
    pub(super) async fn start(self: Arc<Self>, spec: Spec, mut waiting: oneshot::Sender<Started>) {
        let started = Box::pin(self.launch(&spec, &mut waiting)).await;
        // If the receiver has been dropped, so is the sandbox, and the end of its stream removes it.
        let _ = waiting.send(started);
    }

    async fn launch(
        self: &Arc<Self>,
        spec: &Spec,
        waiting: &mut oneshot::Sender<Started>,
    ) -> Started {
        let (cluster, run) = (self.cluster().await?, self.run().await?);
        let name = pod::name(spec.session.as_str(), self.next.fetch_add(1, Ordering::Relaxed));
        let mut follower = run.watched.follow(&name);
        let pod = self.pod(&name, spec, Uid::random(), run)?;
        let created = ask("create a pod", cluster.pods.create(&PostParams::default(), &pod)).await;
        if let Err(error) = created {
            // Without an answer, the pod may have been created.
            if matches!(error.kind, Kind::Timeout | Kind::Unreachable) {
                tokio::spawn(self.clone().remove_surely(name));
            }
            return Err(error);
        }
        follower.is_made();
        let connected = async {
            self.until_running(cluster, &name, &mut follower).await?;
            // A resumable pod outlives its stream, so the end of the stream must not remove it.
            let ended = spec.hold.is_none().then(|| self.clone().remove_surely(name.clone()));
            Box::pin(self.open(cluster, &name, ended)).await
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = waiting.closed() => {
                Err(BackendError::new(Kind::Refused, "Nobody waits for the sandbox any more."))
            }
        };
        match connected {
            Ok(wire) => {
                let gone = async move {
                    let seen = follower.over().await;
                    let why = seen.why.map(|why| why.to_string());
                    tracing::debug!(sandbox = follower.pod(), why, "sandbox ended");
                };
                // The task follows the pod for as long as `gone` exists, even if nothing polls it.
                let gone = AbortOnDropHandle::new(tokio::spawn(gone)).map(drop);
                Ok(Sandbox {
                    id: name,
                    reader: wire.reader,
                    writer: Box::new(wire.writer),
                    gone: gone.boxed().shared(),
                })
            }
            Err(error) => {
                tokio::spawn(self.clone().remove_surely(name));
                Err(error)
            }
        }
    }

    /// Opens a stream to the agent in a pod. `ended` runs when the stream has ended.
    pub(super) async fn open(
        &self,
        cluster: &Cluster,
        name: &str,
        ended: Option<impl Future<Output = ()> + Send + 'static>,
    ) -> Result<Wire, BackendError> {
        let ended = async move {
            if let Some(ended) = ended {
                ended.await;
            }
        };
        let program = if self.settings.is_gvisor() { CONNECT_READABLE } else { CONNECT };
        let open = stream::open(&cluster.client, &cluster.namespace, name, program, ended);
        timeout(ANSWER_TIMEOUT, open)
            .await
            .map_err(|_| no_answer(OPEN))?
            .map_err(|error| explain(error, OPEN))
    }

    /// Describes the pod of a session of this run.
    pub(super) fn pod(
        &self,
        name: &str,
        spec: &Spec,
        uid: Uid,
        run: &Run,
    ) -> Result<Pod, BackendError> {
        let ends_with = run.ends_with();
        let datasets = datasets::datasets(spec, &self.settings.patch)?;
        let pod = pod::pod(&Wanted {
            name,
            session: spec.session.as_str(),
            owner: &run.name,
            ends_with: &ends_with,
            image: &self.settings.image,
            runtime_class: self.settings.runtime_class.as_deref(),
            limits: spec.limits,
            hold: spec.hold,
            caller: spec.caller.as_ref(),
            packages: self.settings.packages,
            gpus: &self.settings.gpus,
            datasets: &datasets,
            purpose: spec.purpose,
            key: self.settings.key.as_deref(),
            uid,
            deadline: self.settings.deadline,
            patch: &self.settings.patch,
        });
        serde_json::from_value(pod).map_err(|error| {
            BackendError::new(Kind::Refused, format!("The pod cannot be described: {error}."))
        })
    }

    /// Waits until the pod runs.
    async fn until_running(
        &self,
        cluster: &Cluster,
        name: &str,
        follower: &mut Follower,
    ) -> Result<(), BackendError> {
        let started = async {
            loop {
                match timeout(NEWS_TIMEOUT, follower.started()).await {
                    Ok(seen) => return seen,
                    Err(_) => match timeout(ANSWER_TIMEOUT, cluster.pods.get(name)).await {
                        Ok(Ok(pod)) => follower.saw(&pod),
                        Ok(Err(error)) if is_not_there(&error) => follower.is_gone(),
                        _ => {}
                    },
                }
            }
        };
        let seen = timeout(START_TIMEOUT, started).await.unwrap_or_else(|_| follower.last());
        if seen.phase == Phase::Running {
            return Ok(());
        }
        if seen.is_deleted {
            // The pod's owner may have been deleted. Renewing recreates the Lease, so that the next pod has an owner.
            self.renew().await;
        }
        Err(Why::explain(seen.why.as_ref(), &self.settings.image))
    }
}
