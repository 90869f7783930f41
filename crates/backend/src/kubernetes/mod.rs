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
mod datasets;
mod explain;
mod found;
mod homes;
mod lease;
mod life;
mod owner;
mod patch;
mod pod;
mod start;
mod status;
mod stream;
mod watch;

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use config::{Config, server_key::ServerKey};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use parking_lot::Mutex;
use sandbox_container::{APP, LABEL_APP, LABEL_OWNER, UIDS, Uid};
use serde_json::json;
use tokio::{
    sync::{OnceCell, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::{
    explain::{explain, no_answer},
    homes::LeasedHomes,
    lease::Sightings,
    owner::{Level, OwnPod},
    patch::Patch,
    pod::Wanted,
    watch::{Watched, Watcher},
};
use super::{
    Abilities, Backend, BackendError, BackendErrorKind as Kind, Check, Diagnosable, Greeting,
    Limits, ListedSandbox, PackageKind, Probe, Purpose, Sandbox, SharesCallers, Spec, Template,
};

/// Longest wait for one answer of the API server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of pods that start at a time. The number does not depend on this machine's processors, as pods start
/// elsewhere.
const CONCURRENT_STARTS: usize = 32;

/// Maximum number of pods in one page of a list: a thousand pods are 40 MB.
const PODS_PER_PAGE: u32 = 500;

/// How long a pod may live beyond the longest time that a session may be unused. No session is in use for that long
/// without a break, and a pooled sandbox is replaced earlier.
const MAX_USE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The probe for pods.
const PROBE: &str = include_str!("../../../../sandbox-image/runtimes/python/probe.py");

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
    template: Template,
    runtime_class: Option<String>,
    patch: Patch,
    deadline: Duration,
    /// Bytes of packages in a session, if packages may be installed.
    packages: Option<u64>,
    gpus: Vec<(String, u32)>,
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

    /// A backend for the API server at this URL, without credentials, for tests.
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
            template: Template::in_settings(&*config.image, config)
                .map_err(|fault| BackendError::new(Kind::Denied, fault))?,
            runtime_class: config.runtime.clone(),
            patch: read_patch(config)?,
            deadline: config.session_ttl + config.exec_timeout + MAX_USE,
            packages: config.packages_within(),
            gpus: gpus(config)?,
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

/// The resources of nodes that the devices in the settings mean.
fn gpus(config: &Config) -> Result<Vec<(String, u32)>, BackendError> {
    let read = |text: &String| {
        let (name, count) = text.split_once('=')?;
        Some((name.to_owned(), count.parse().ok().filter(|count| *count > 0)?))
    };
    let wrong = |text: &String| {
        let text = format!("SANDBOX_GPUS: {text:?} has no number, as in nvidia.com/gpu=1");
        BackendError::new(Kind::Denied, text)
    };
    config.gpus.iter().map(|text| read(text).ok_or_else(|| wrong(text))).collect()
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
    let gpus = gpus(config)?;
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
        gpus: &gpus,
        datasets: &[],
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
}

/// The result of a start.
type Started = Result<Sandbox, BackendError>;

impl Cluster {
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

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
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
        // of the image is certain, and what the settings say of it.
        Box::pin(async { Some(self.0.settings.template.clone()) })
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
            // The renewal would recreate the Lease.
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
                tracing::debug!(%error, "failed to delete the server's Lease");
            }
        })
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
