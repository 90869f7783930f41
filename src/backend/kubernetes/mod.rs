//! Sandboxes as pods of a Kubernetes cluster. Only this module and its submodules use kube and k8s-openapi.
//!
//! ```text
//!   create the pod -> wait for Running -> run a process in it, whose stream is the agent's
//!                        (watch)             (pods/exec)
//! ```
//!
//! Sandboxes are bare pods in one namespace: nothing has to be installed in the cluster. The stream is `pods/exec` and
//! never `attach`: an attached stream misses the agent's output before the attach, and every byte through it is
//! written to the node's disk.
//!
//! There is no guard process, as it would have to outlive the server's container. The cluster removes the pods of a
//! dead server with their owner (see [`owner`]), and other servers remove them by its Lease (see [`lease`]).

mod checks;
mod explain;
mod homes;
mod lease;
mod owner;
mod patch;
mod pod;
mod status;
mod stream;
mod watch;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch as ApiPatch, PatchParams, PostParams, Preconditions},
};
use parking_lot::Mutex;
use sandbox_container::{
    APP, CONNECT, CONNECT_READABLE, LABEL_APP, LABEL_CALLER, LABEL_HOLD, LABEL_KEY, LABEL_OWNER,
    UIDS, Uid,
};
use serde_json::json;
use tokio::{
    sync::{OnceCell, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::{
    explain::{explain, no_answer},
    homes::LeasedHomes,
    lease::{Judged, Sightings},
    owner::{Level, OwnPod},
    patch::Patch,
    pod::Wanted,
    status::{Phase, Why},
    stream::Wire,
    watch::{Follower, Watched},
};
use super::{
    Abilities, Backend, BackendError, BackendErrorKind as Kind, CallerKey, Check, Diagnosable,
    Found, FoundOwner, FoundState, Greeting, Homes, Life, Limits, PackageKind, Probe, Purpose,
    Resumable, Sandbox, SharesCallers, Spec, Template,
};
use crate::{config::Config, server_key::ServerKey};

/// Longest wait for one answer of the API server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest start of a pod: a node may have to pull the image first, or have to be started itself.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// If the watch reports nothing of a starting pod for this long, the pod is requested, because the watch may have
/// failed.
const NEWS_TIMEOUT: Duration = Duration::from_secs(10);

/// Pods that start at a time. The number does not depend on this machine's processors, as pods start elsewhere.
const CONCURRENT_STARTS: usize = 32;

/// Pods in one page of a list: a thousand pods are 40 MB.
const PAGE: u32 = 500;

/// How long a pod may live beyond the longest time that a session may be unused. No session is in use for that long
/// without a break, and a pooled sandbox is replaced earlier.
const MAX_USE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Attempts to remove a pod whose session has ended, before a sweep has to do it, and to label a pod with its caller.
const ATTEMPTS: u32 = 4;

/// The probe for pods.
const PROBE: &str = include_str!("../../../sandbox-image/runtimes/python/probe.py");

/// The opening of a stream, as errors name it.
const OPEN: &str = "run a process in the sandbox (create and get on pods/exec)";

/// The Kubernetes backend. Connects at its first use, so that a server starts without a cluster and can report what is
/// missing.
#[derive(Debug)]
pub struct Kubernetes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    cluster: OnceCell<Cluster>,
    run: OnceCell<Run>,
    sightings: Sightings,
    /// The homes of callers, if this server shares them with others.
    homes: Option<LeasedHomes>,
    next: AtomicU32,
}

/// Settings that are the same for all pods of this server.
#[derive(Debug)]
struct Settings {
    /// The API server's URL; `None` to infer it from the environment.
    url: Option<String>,
    namespace: Option<String>,
    image: String,
    runtime_class: Option<String>,
    patch: Patch,
    deadline: Duration,
    /// Bytes of packages in a session, if packages may be installed.
    packages: Option<u64>,
    canary_target: Option<String>,
    /// The object with which sandboxes end, if the server runs inside a cluster.
    level: Level,
    /// The fingerprint of the servers' secret, if several servers share their callers.
    key: Option<String>,
}

impl Settings {
    /// Whether pods run under gVisor, judged by the name of their RuntimeClass.
    fn is_gvisor(&self) -> bool {
        let class = self.runtime_class.as_deref();
        class.is_some_and(|class| class.contains("gvisor") || class.contains("runsc"))
    }
}

/// The connection to the cluster.
struct Cluster {
    client: Client,
    namespace: String,
    pods: Api<Pod>,
    leases: Api<Lease>,
    /// The API server's host and port, as this server reaches it.
    address: Option<(String, u16)>,
}

/// This run of the server, which the cluster knows by its Lease.
#[derive(Debug)]
struct Run {
    /// Name of the Lease.
    name: String,
    /// The object in the cluster that runs this server, if it is known.
    runs_in: Option<OwnerReference>,
    lease: Mutex<Held>,
    watched: Arc<Watched>,
    /// The tasks that renew the Lease and watch; dropping the set ends them.
    tasks: Mutex<JoinSet<()>>,
}

impl Run {
    /// The object with which the cluster removes the sandboxes of this run.
    fn ends_with(&self) -> OwnerReference {
        self.runs_in.clone().unwrap_or_else(|| self.lease.lock().reference.clone())
    }
}

/// The Lease at its last renewal.
#[derive(Debug)]
struct Held {
    renewed: Instant,
    /// The reference for objects that the Lease owns.
    reference: OwnerReference,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// A backend with these settings.
    ///
    /// # Errors
    /// All mistakes in the file of `SANDBOX_KUBERNETES_POD`.
    pub fn new(config: &Config) -> Result<Self, BackendError> {
        Self::reached_at(None, config)
    }

    /// The same for the API server at this URL, without credentials, for tests.
    ///
    /// # Errors
    /// As with [`new`](Self::new).
    pub fn at(url: &str, config: &Config) -> Result<Self, BackendError> {
        Self::reached_at(Some(url.to_owned()), config)
    }

    fn reached_at(url: Option<String>, config: &Config) -> Result<Self, BackendError> {
        let settings = Settings {
            url,
            namespace: config.kubernetes_namespace.clone(),
            image: config.image.clone(),
            runtime_class: config.runtime.clone(),
            patch: read_patch(config)?,
            deadline: config.session_ttl + config.exec_timeout + MAX_USE,
            packages: config.packages_within(),
            canary_target: config.kubernetes_canary_target.clone(),
            key: config.peer_address.and(config.server_key.as_ref()).map(ServerKey::fingerprint),
            level: if config.sessions_outlive_server() { Level::Topmost } else { Level::OwnPod },
        };
        Ok(Self(Arc::new_cyclic(|inner| Inner {
            cluster: OnceCell::new(),
            run: OnceCell::new(),
            sightings: Sightings::default(),
            homes: config.peer_address.map(|address| {
                LeasedHomes::new(address, settings.key.clone().unwrap_or_default(), inner.clone())
            }),
            next: AtomicU32::new(uuid::Uuid::new_v4().as_fields().0),
            settings,
        })))
    }
}

/// Reads the operator's patch of the pod, and checks that the patched pod is valid.
fn read_patch(config: &Config) -> Result<Patch, BackendError> {
    let Some(file) = &config.kubernetes_pod else { return Ok(Patch::default()) };
    let wrong = |mistakes: Vec<String>| {
        let mistakes = mistakes.join("\n  ");
        let text =
            format!("SANDBOX_KUBERNETES_POD, {}, cannot be used:\n  {mistakes}", file.display());
        BackendError::new(Kind::Denied, text)
    };
    let patch = Patch::read(file).map_err(wrong)?;
    let sample = Wanted {
        name: "sandbox",
        session: "session",
        owner: "owner",
        ends_with: &OwnerReference::default(),
        image: &config.image,
        runtime_class: config.runtime.as_deref(),
        limits: config.into(),
        hold: None,
        caller: None,
        packages: config.packages_within(),
        purpose: Purpose::Session,
        key: None,
        uid: Uid::random(),
        deadline: MAX_USE,
        patch: &patch,
    };
    let typed = serde_json::from_value::<Pod>(pod::pod(&sample));
    typed.map_err(|error| wrong(vec![format!("is no pod with that: {error}")]))?;
    Ok(patch)
}

/// Waits for the client's answer, and converts an error or a timeout. `asked` names the request in the error.
async fn ask<T>(
    asked: &str,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, BackendError> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| explain(error, asked)),
        Err(_) => Err(no_answer(asked)),
    }
}

/// Whether the object was changed meanwhile, or exists already.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_already_exists())
}

/// Whether the object does not exist.
fn is_not_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

impl Inner {
    async fn cluster(&self) -> Result<&Cluster, BackendError> {
        self.cluster
            .get_or_try_init(|| async {
                let config = match self.settings.url.as_ref().map(|url| url.parse()) {
                    Some(Ok(url)) => kube::Config::new(url),
                    Some(Err(error)) => {
                        let text = format!("The API server's address is no URL: {error}.");
                        return Err(BackendError::new(Kind::Unreachable, text));
                    }
                    None => {
                        let config = kube::Config::infer().await.map_err(kube::Error::InferConfig);
                        config.map_err(|error| explain(error, "connect"))?
                    }
                };
                let url = &config.cluster_url;
                let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
                let address = url.host().map(|host| {
                    let host = host.trim_matches(['[', ']']).to_owned();
                    (host, url.port_u16().unwrap_or(usual))
                });
                let client = Client::try_from(config).map_err(|error| explain(error, "connect"))?;
                let namespace = self.settings.namespace.clone();
                let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
                Ok(Cluster {
                    pods: Api::namespaced(client.clone(), &namespace),
                    leases: Api::namespaced(client.clone(), &namespace),
                    namespace,
                    client,
                    address,
                })
            })
            .await
    }

    /// This run of the server. The first call makes its Lease.
    async fn run(self: &Arc<Self>) -> Result<&Run, BackendError> {
        let cluster = self.cluster().await?;
        self.run
            .get_or_try_init(|| async {
                let runs_in = match OwnPod::from_env(cluster.client.default_namespace()) {
                    Some(pod) => {
                        pod.owner(&cluster.client, &cluster.namespace, self.settings.level).await
                    }
                    None => None,
                };
                let name = lease::new_name();
                let held =
                    cluster.hold(&name, runs_in.as_ref(), self.settings.key.as_deref()).await?;
                let watched = Arc::new(Watched::default());
                let mut tasks = JoinSet::new();
                let selector = format!("{LABEL_APP}={APP},{LABEL_OWNER}={name}");
                tasks.spawn(watch::keep(cluster.pods.clone(), selector, watched.clone()));
                if let Some(homes) = &self.homes {
                    let leases = cluster.leases.clone();
                    tasks.spawn(watch::keep(leases, homes.selector(), homes.watcher()));
                }
                // Weak, so that this task does not keep the backend alive.
                let backend = Arc::downgrade(self);
                tasks.spawn(async move {
                    loop {
                        sleep(lease::RENEWAL).await;
                        let Some(backend) = backend.upgrade() else { return };
                        backend.renew().await;
                        backend.bury().await;
                    }
                });
                Ok(Run {
                    name,
                    runs_in,
                    lease: Mutex::new(held),
                    watched,
                    tasks: Mutex::new(tasks),
                })
            })
            .await
    }

    /// Renews the Lease, or makes it again if it was deleted.
    async fn renew(&self) {
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
                tracing::warn!("the server's Lease was deleted; what was to end with it does");
                let key = self.settings.key.as_deref();
                cluster.hold(&run.name, run.runs_in.as_ref(), key).await.ok()
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the server's Lease was not renewed");
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
    async fn bury(&self) {
        let (Some(cluster), Some(run)) = (self.cluster.get(), self.run.get()) else { return };
        let judged = match self.judge(cluster).await {
            Ok(judged) => judged,
            Err(error) => return tracing::debug!(%error, "the Leases of servers cannot be listed"),
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
                // Another server may continue it, and if none does, it ends by itself.
                let is_held = holds(&pod) && status::seen(&pod).phase == Phase::Running;
                let name = pod.metadata.name.unwrap_or_default();
                removed &= !is_held && cluster.remove(&name).await.is_ok();
            }
            // If the Lease was renewed meanwhile, its version has changed and it stays.
            let unchanged = Preconditions { resource_version: dead.version.clone(), uid: None };
            let delete = DeleteParams::background().preconditions(unchanged);
            if removed && cluster.leases.delete(&dead.name, &delete).await.is_ok() {
                tracing::info!(server = dead.name, "what a dead server left is removed");
            }
        }
    }

    /// Servers that are alive and share their callers, but have another secret than this one. This server cannot share
    /// callers with them.
    fn others<'a>(&'a self, judged: &'a [Judged]) -> impl Iterator<Item = &'a str> {
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

    async fn judge(&self, cluster: &Cluster) -> Result<Vec<Judged>, BackendError> {
        let ours = ListParams::default().labels(&format!("{LABEL_APP}={APP},{LABEL_OWNER}"));
        let leases = ask("list leases", cluster.leases.list(&ours)).await?;
        Ok(self.sightings.judge(&leases.items, Timestamp::now()))
    }

    /// Starts a sandbox and sends it to the caller. If the caller no longer waits, the sandbox is removed.
    async fn start(self: Arc<Self>, spec: Spec, mut waiting: oneshot::Sender<Started>) {
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
                    tracing::debug!(sandbox = follower.pod(), why, "sandbox gone");
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
    async fn open(
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

    /// Opens another stream to the agent in a pod, which may belong to another server.
    async fn reattach(self: &Arc<Self>, name: String) -> Started {
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
    async fn claim(self: &Arc<Self>, name: &str) {
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
            Err(error) => tracing::warn!(sandbox = name, %error, "pod not claimed"),
        }
    }

    /// Labels a pod with its caller.
    async fn give(&self, name: &str, caller: &CallerKey) {
        let Ok(cluster) = self.cluster().await else { return };
        let label = json!({ "metadata": { "labels": { LABEL_CALLER: caller.as_str() } } });
        let (patch, plain) = (ApiPatch::Merge(label), PatchParams::default());
        for attempt in 1..=ATTEMPTS {
            match ask("patch a pod", cluster.pods.patch(name, &plain, &patch)).await {
                Ok(_) => return,
                // A server that takes the pod over then reads its caller from the note in its agent.
                Err(error) if attempt == ATTEMPTS => {
                    tracing::warn!(sandbox = name, %error, "pod has no label of its caller");
                }
                Err(_) => sleep(Duration::from_millis(500) * attempt).await,
            }
        }
    }

    /// Describes the pod of a session of this run.
    fn pod(&self, name: &str, spec: &Spec, uid: Uid, run: &Run) -> Result<Pod, BackendError> {
        let ends_with = run.ends_with();
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
            // The pod's owner may have been deleted. Renewing makes the Lease again, so that the next pod has an owner.
            self.renew().await;
        }
        Err(Why::explain(seen.why.as_ref(), &self.settings.image))
    }

    /// Removes a pod if it still belongs to this run. A server that was suspended for so long that another one took
    /// over its pods finds that out only here.
    async fn dispose(self: &Arc<Self>, name: &str) -> Result<(), BackendError> {
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
    async fn remove_surely(self: Arc<Self>, name: String) {
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
                    tracing::warn!(sandbox = name, %error, "sandbox not removed; a sweep will");
                }
                Err(_) => sleep(Duration::from_millis(500) * attempt).await,
            }
        }
    }

    /// Lists resumable sandboxes whose server is not known to be alive. The selector excludes those of servers that
    /// were seen to renew their Lease: with many servers they are the majority, and the API server need not send
    /// them.
    async fn left(self: &Arc<Self>, own_too: bool) -> Result<Vec<Found>, BackendError> {
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
        Ok(found.into_iter().filter(Found::is_left).collect())
    }

    /// Lists the sandboxes that this selector matches.
    async fn found(&self, selector: &str) -> Result<Vec<Found>, BackendError> {
        let cluster = self.cluster().await?;
        let mut selected = ListParams::default().labels(selector).limit(PAGE);
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

    fn as_found(&self, pod: Pod, leases: Option<&[Judged]>) -> Option<Found> {
        let id = pod.metadata.name.clone()?;
        let owner = owner(&pod);
        let holds = holds(&pod);
        let is_in_use = self.run.get().is_some_and(|run| {
            owner.is_some_and(|owner| *owner == run.name) && run.watched.is_followed(&id)
        });
        let caller = pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_CALLER));
        let caller = caller.and_then(|caller| CallerKey::parse(caller));
        let owner = owner.cloned().map(|owner| FoundOwner {
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
        Some(Found {
            id,
            created: created.map_or_else(SystemTime::now, |at| at.0.into()),
            state: if is_over { FoundState::Stopped } else { FoundState::Running },
            owner,
            holds,
            caller,
            is_in_use,
        })
    }
}

/// The run of a server that owns a pod.
fn owner(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(LABEL_OWNER)
}

/// Whether a pod outlives its stream.
fn holds(pod: &Pod) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_HOLD))
}

/// The result of a start.
type Started = Result<Sandbox, BackendError>;

impl Cluster {
    /// Makes a Lease with this name and owner, for a server whose secret has the fingerprint `key`.
    async fn hold(
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

    /// Removes a pod in any state at once. No error if it does not exist.
    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        let delete = DeleteParams::background().grace_period(0);
        let deleted = self.pods.delete(name, &delete).map(|deleted| match deleted {
            Err(error) if !is_not_there(&error) => Err(error),
            _ => Ok(()),
        });
        ask("delete a pod", deleted).await
    }
}

impl Backend for Kubernetes {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Started> {
        Box::pin(async move {
            let (sender, started) = oneshot::channel();
            // In a task of its own, because a request that was sent cannot be cancelled.
            tokio::spawn(self.0.clone().start(spec, sender));
            let ended = |_| BackendError::new(Kind::Refused, "The server is ending.");
            started.await.map_err(ended)?
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, BackendError>> {
        async { self.0.found(&format!("{LABEL_APP}={APP},{LABEL_OWNER}")).await }.boxed()
    }

    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async move {
            self.0.cluster().await?.remove(&id).await?;
            if let Some(run) = self.0.run.get() {
                run.watched.gone(&id);
            }
            Ok(())
        })
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        // The labels of an image are in its registry, which this server may not be able to reach. Nodes may also have
        // different images under the same name, so that a running pod shows nothing about the next one. Only the name
        // of the image is certain.
        Box::pin(async { Some(Template::built_in(&*self.0.settings.image)) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async {
            let run = self.0.run().await?;
            if run.lease.lock().renewed.elapsed() < 2 * lease::RENEWAL {
                return Ok(());
            }
            self.0.renew().await;
            let is_fresh = run.lease.lock().renewed.elapsed() < lease::DURATION;
            is_fresh.then_some(()).ok_or_else(|| no_answer("renew the server's Lease"))
        })
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            resumable: Some(self),
            shared: self.0.homes.as_ref().map(|_| self as &dyn SharesCallers),
            diagnosable: Some(self),
            ..Abilities::default()
        }
    }

    fn packages(&self) -> Option<PackageKind> {
        self.0.settings.packages.map(|_| PackageKind::OfFetcher)
    }

    fn concurrent_starts(&self) -> usize {
        CONCURRENT_STARTS
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let (Some(cluster), Some(run)) = (self.0.cluster.get(), self.0.run.get()) else {
                return;
            };
            // The renewal would make the Lease again.
            run.tasks.lock().abort_all();
            if self.0.settings.level == Level::Topmost {
                let own = ListParams::default()
                    .labels(&format!("{LABEL_APP}={APP},{LABEL_OWNER}={}", run.name))
                    .limit(1);
                let left = ask("list pods", cluster.pods.list(&own)).await;
                if left.map_or(true, |left| !left.items.is_empty()) {
                    // Outside a cluster, the Lease owns the pods that the next server takes over, so it must stay. It
                    // expires by itself.
                    return;
                }
            }
            // The cluster removes remaining pods with the Lease, or other servers remove them because it is missing.
            let delete = DeleteParams::background();
            let deleted = cluster.leases.delete(&run.name, &delete);
            if let Err(error) = ask("delete a lease", deleted).await {
                tracing::debug!(%error, "the server's Lease was not deleted");
            }
        })
    }
}

impl Resumable for Kubernetes {
    fn reattach(&self, id: String) -> BoxFuture<'_, Started> {
        async move { self.0.reattach(id).await }.boxed()
    }

    fn left(&self, own_too: bool) -> BoxFuture<'_, Result<Vec<Found>, BackendError>> {
        async move { self.0.left(own_too).await }.boxed()
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
    ) -> BoxFuture<'a, Result<Vec<Found>, BackendError>> {
        async move { self.0.found(&homes::of_caller(caller)).await }.boxed()
    }

    fn give(&self, id: String, caller: CallerKey) -> BoxFuture<'_, ()> {
        async move { self.0.give(&id, &caller).await }.boxed()
    }
}

impl Diagnosable for Kubernetes {
    fn checks<'a>(&'a self, limits: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        checks::look_over(self, limits).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        let facts = json!({
            "uids": self.0.settings.patch.users().unwrap_or([*UIDS.start(), *UIDS.end()]),
            "internet_sockets": null,
            "host_cpus": f64::MAX,
            "gvisor": self.0.settings.is_gvisor(),
            "pod": true,
        });
        async { Some(Probe { script: PROBE, facts }) }.boxed()
    }

    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        let image = &self.0.settings.image;
        let (kind, message) = match fault {
            Greeting::OtherVersion => (
                Kind::TemplateOutdated,
                format!(
                    "The image {image} was built for another version of this server ({detail}). Build it with this \
                     version (`llm-sandbox image build`), push it under another tag, and set SANDBOX_IMAGE: nodes \
                     keep what they have under the old one."
                ),
            ),
            Greeting::Missing => (
                Kind::Timeout,
                format!(
                    "The sandbox did not answer ({detail}). Run `llm-sandbox doctor` where the server runs; {image} \
                     must be an image of `llm-sandbox image build`, or based on one (FROM)."
                ),
            ),
        };
        BackendError::new(kind, message)
    }
}
