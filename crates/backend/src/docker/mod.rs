//! Sandboxes as Docker containers. Only this module and its submodules use bollard.
//!
//! A container is created, then attached, then started: if it were attached after the start, a server that dies in
//! between would leave a running container without a stream. When this server dies, the engine closes the attached
//! stream, the agent ends, and the engine removes the container.

mod build;
mod checks;
mod connection;
mod engine;
mod facts;
mod found;
mod pull;
mod sockets;

use std::{collections::HashMap, time::Duration};

use bollard::{
    Docker as Engine,
    container::LogOutput,
    exec::{CreateExecOptions, StartExecResults},
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, ListContainersOptionsBuilder,
        PruneVolumesOptionsBuilder, RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use model::DatasetSource;
use sandbox_container::{
    APP, CONNECT, Container, LABEL_APP, Owner, Product, Uid, View, create_body, empty_volume,
    uids_below,
};
use serde_json::json;
use tokio_util::io::StreamReader;

use self::{connection::Connection, engine::ImageFacts, facts::EngineFacts};
use super::{
    Abilities, Backend, BackendError, BackendErrorKind as Kind, Check, Diagnosable, Greeting,
    Limits, ListedSandbox, OwnerId, PackageKind, Probe, Purpose, Resumable, Sandbox, Spec,
    Template, abilities::orphans_among_all, dataset_needs_path, image,
};

/// The Docker backend. Connects at its first use, so that a server starts without an engine and can report what is
/// missing.
#[derive(Debug)]
pub struct Docker {
    owner: Owner,
    image: String,
    runtime: Option<String>,
    packages: Option<PackageSettings>,
    /// CDI names of devices.
    gpus: Vec<String>,
    connection: tokio::sync::OnceCell<Connection>,
    /// An alternative to suggest if Docker cannot be used: a sentence or two.
    instead: Option<String>,
}

/// Settings of packages in containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSettings {
    /// Bytes of packages in each sandbox.
    pub limit: u64,
    /// The engine's network over which packages are fetched.
    pub network: String,
}

/// Longest wait for one answer. Overloaded engines were observed to take minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a failed wait for a container's removal is retried.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of user ids that are tried for a new container. If half of all ids are taken, which is 5,000
/// sandboxes, all these tries fail once in 65,536 starts.
const MAX_UIDS_TRIED: u32 = 16;

/// The probe for containers.
const PROBE: &str = include_str!("../../../../sandbox-image/runtimes/python/probe.py");

impl Docker {
    /// A backend for sandboxes of this image, under this runtime or the engine's default one.
    pub fn new(image: &str, runtime: Option<&str>) -> Self {
        Self {
            owner: Owner::current(),
            image: image.to_owned(),
            runtime: runtime.map(str::to_owned),
            packages: None,
            gpus: vec![],
            connection: tokio::sync::OnceCell::new(),
            instead: None,
        }
    }

    /// Sets the settings of packages; with `None`, packages cannot be installed.
    #[must_use]
    pub fn with_packages(self, packages: Option<PackageSettings>) -> Self {
        Self { packages, ..self }
    }

    /// Sets the devices that sandboxes can use, by their CDI names.
    #[must_use]
    pub fn with_gpus(self, gpus: Vec<String>) -> Self {
        Self { gpus, ..self }
    }

    /// Sets an alternative that errors suggest if Docker cannot be used.
    #[must_use]
    pub fn or_instead(self, instead: Option<String>) -> Self {
        Self { instead, ..self }
    }

    /// Adds the alternative to an error that the operator has to fix.
    fn or_other(&self, error: BackendError) -> BackendError {
        let is_to_mend = matches!(
            error.kind,
            Kind::Unreachable | Kind::Denied | Kind::TemplateMissing | Kind::TemplateOutdated
        );
        match &self.instead {
            Some(instead) if is_to_mend => error.with_fix(instead),
            _ => error,
        }
    }

    async fn connection(&self) -> Result<&Connection, BackendError> {
        self.connection
            .get_or_try_init(|| async {
                let found = sockets::connect(sockets::places()).await;
                Ok(Connection::of(found.map_err(|error| self.explain(error))?))
            })
            .await
    }

    /// The properties of the image; `None` if the engine has no image of that name.
    async fn image_facts(&self) -> Result<Option<ImageFacts>, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        engine::image_facts(engine, &self.image).await.map_err(|error| self.explain(error))
    }

    async fn launch(&self, spec: &Spec) -> Result<Sandbox, BackendError> {
        let connection = self.connection().await?;
        let engine = &connection.engine;
        let id = self.create(spec).await?;

        // The wait begins before the start. If the container is removed before the engine receives the request, the
        // engine answers that it does not exist, which ends the wait, too.
        let wait = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut removed = Box::pin(engine.wait_container(&id, Some(wait)));
        let _ = removed.next().now_or_never();

        let attach = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let started = async {
            let attached = engine.attach_container(&id, Some(attach)).await?;
            engine.start_container(&id, None).await?;
            Ok(attached)
        };
        let attached = match started.await {
            Ok(attached) => attached,
            Err(error) => {
                // It may have been removed.
                connection.empty.lock().take();
                let error = engine::explain_start(self.explain(error), &spec.datasets);
                if let Err(error) = self.remove(id.clone()).await {
                    tracing::warn!(%error, "failed to remove a container that did not start");
                }
                return Err(error);
            }
        };
        let gone = async move { while let Some(Ok(_)) = removed.next().await {} };
        // The wait above also ends if its connection breaks. For a resumable container, `removal` then waits again.
        let later = spec.hold.map(|_| removal(engine.clone(), id.clone()));
        let gone = async move {
            gone.await;
            if let Some(later) = later {
                later.await;
            }
        };
        Ok(Sandbox {
            id,
            reader: Box::new(StreamReader::new(Box::pin(agent_output(attached.output)))),
            writer: Box::new(attached.input),
            gone: gone.boxed().shared(),
        })
    }

    /// Starts a process in the container that connects a new stream to its agent.
    async fn connect(&self, id: String) -> Result<Sandbox, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(CONNECT.map(str::to_owned).to_vec()),
            ..Default::default()
        };
        let exec = self.in_time(engine.create_exec(&id, options)).await?.id;
        match self.in_time(engine.start_exec(&exec, None)).await? {
            StartExecResults::Attached { output, input } => Ok(Sandbox {
                gone: removal(engine.clone(), id.clone()).boxed().shared(),
                id,
                reader: Box::new(StreamReader::new(Box::pin(agent_output(output)))),
                writer: Box::new(input),
            }),
            StartExecResults::Detached => {
                Err(BackendError::new(Kind::Refused, "The engine gives no stream."))
            }
        }
    }

    /// Creates the container, with a user id that no other container of the engine has.
    async fn create(&self, spec: &Spec) -> Result<String, BackendError> {
        let connection = self.connection().await?;
        let Connection { engine, facts, .. } = connection;
        let packages = self.packages.as_ref();
        let purpose = match (spec.purpose, packages) {
            (Purpose::Session, packages) => {
                sandbox_container::Purpose::Session { packages: packages.map(|it| it.limit) }
            }
            (Purpose::Fetcher, Some(PackageSettings { network, .. })) => {
                sandbox_container::Purpose::Fetcher { network }
            }
            (Purpose::Fetcher, None) => {
                return Err(BackendError::new(Kind::Refused, "Packages are off here."));
            }
        };
        let datasets = self.datasets(spec).await?;
        let container = Container {
            session: spec.session.as_str(),
            owner: &self.owner,
            image: &self.image,
            runtime: self.runtime.as_deref(),
            limits: spec.limits,
            hold: spec.hold,
            datasets: &datasets,
            devices: &self.gpus,
            purpose,
        };
        let uids = uids_below(facts.host.ids);
        let uids = uids.ok_or_else(|| engine::too_few_ids(facts.host.ids))?;
        for _ in 0..MAX_UIDS_TRIED {
            let uid = Uid::random_of(&uids);
            let create = CreateContainerOptionsBuilder::default().name(&uid.container_name());
            let mut body = create_body(&container, &facts.host, uid);
            connection.place_profile(&self.owner, &mut body)?;
            match engine.create_container(Some(create.build()), body).await {
                Ok(created) => return Ok(created.id),
                Err(error) if engine::is_name_taken(&error) => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
        Err(engine::uids_taken(MAX_UIDS_TRIED, &uids))
    }

    /// The mounts of a sandbox's datasets.
    async fn datasets(&self, spec: &Spec) -> Result<Vec<sandbox_container::Dataset>, BackendError> {
        let Connection { facts, .. } = self.connection().await?;
        let mut mounts = vec![];
        for dataset in &spec.datasets {
            let (DatasetSource::Folder(path) | DatasetSource::Root(path)) = &dataset.source else {
                return Err(dataset_needs_path(&dataset.name));
            };
            let is_live = facts.mounts_itself(&dataset.source);
            let view = if is_live { View::Live } else { View::Own { empty: self.empty().await? } };
            let (name, path) = (dataset.name.to_string(), path.clone());
            mounts.push(sandbox_container::Dataset { name, path, view });
        }
        Ok(mounts)
    }

    /// The path of the empty volume on the engine's host.
    async fn empty(&self) -> Result<String, BackendError> {
        let Connection { engine, empty, .. } = self.connection().await?;
        let known = empty.lock().clone();
        if let Some(path) = known {
            return Ok(path);
        }
        let path = self.in_time(engine.create_volume(empty_volume())).await?.mountpoint;
        *empty.lock() = Some(path.clone());
        Ok(path)
    }

    async fn found(&self) -> Result<Vec<ListedSandbox>, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        let list = ListContainersOptionsBuilder::default().all(true).filters(&ours()).build();
        let all = engine.list_containers(Some(list)).await.map_err(|error| self.explain(error))?;
        Ok(all.into_iter().filter_map(found::found).collect())
    }

    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, BackendError> {
        match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok(answer) => answer.map_err(|error| self.explain(error)),
            Err(_) => Err(BackendError::new(Kind::Timeout, "The Docker engine does not answer.")),
        }
    }

    fn explain(&self, error: bollard::errors::Error) -> BackendError {
        engine::explain(error, &self.image)
    }
}

/// The filter for containers and volumes of this program.
fn ours() -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", vec![format!("{LABEL_APP}={APP}")])])
}

/// Resolves when the container is removed. Retries for as long as the engine cannot be asked.
async fn removal(engine: Engine, id: String) {
    loop {
        let wait = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut removed = engine.wait_container(&id, Some(wait));
        match removed.next().await {
            // Some engines report a container with an exit code other than 0 as an error.
            Some(Ok(_) | Err(bollard::errors::Error::DockerContainerWaitError { .. })) => return,
            Some(Err(error)) if engine::status(&error) == Some(404) => return,
            _ => tokio::time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

/// Maximum number of lines of an agent's stderr that are logged. An agent prints few lines, but under gVisor user code
/// can write there, too, and must not fill the log.
const MAX_STDERR_LINES: usize = 5;

/// The agent's frames from an attached stream. Its stderr carries no frames, only messages for the log.
fn agent_output(
    output: impl futures::Stream<Item = Result<LogOutput, bollard::errors::Error>>,
) -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    let mut words = 0;
    output.filter_map(move |item| {
        let bytes = match item {
            Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
            Ok(LogOutput::StdErr { message }) if words < MAX_STDERR_LINES => {
                words += 1;
                let text = model::text::printable(&String::from_utf8_lossy(&message));
                tracing::warn!(text, "message from the agent");
                None
            }
            Ok(_) => None,
            Err(error) => Some(Err(std::io::Error::other(error))),
        };
        std::future::ready(bytes)
    })
}

impl Backend for Docker {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        Box::pin(async move { self.launch(&spec).await.map_err(|error| self.or_other(error)) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        self.found().boxed()
    }

    /// An engine that was killed forgets to which container a volume belonged.
    fn remove_unused_volumes(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Ok(Connection { engine, .. }) = self.connection().await else { return };
            let options = PruneVolumesOptionsBuilder::default().filters(&ours()).build();
            // Without the filter `all` only anonymous volumes, and so not the empty one.
            if let Err(error) = self.in_time(engine.prune_volumes(Some(options))).await {
                tracing::debug!(%error, "sweep: failed to remove unused volumes");
            }
        })
    }

    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let Connection { engine, .. } = self.connection().await?;
            let remove = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match engine.remove_container(&id, Some(remove)).await {
                Ok(()) => Ok(()),
                Err(error) => match engine::status(&error) {
                    // The container does not exist, or the engine is removing it.
                    Some(404 | 409) => Ok(()),
                    _ => Err(self.explain(error)),
                },
            }
        })
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        Box::pin(async move {
            let ImageFacts { id, template, .. } = self.image_facts().await.ok()??;
            Some(template.ok().flatten().unwrap_or_else(|| Template::built_in(id)))
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let Connection { engine, facts, .. } = self.connection().await?;
            self.in_time(engine.ping()).await?;
            if let Some(runtime) = &self.runtime
                && !facts.may_have_runtime(runtime)
            {
                // A runtime may have been registered since the engine was first asked.
                let facts = self.in_time(facts::read(engine)).await?;
                if !facts.may_have_runtime(runtime) {
                    return Err(engine::runtime_missing(runtime, &facts));
                }
            }
            match self.image_facts().await? {
                None => Err(engine::image_missing(&self.image)),
                Some(facts) if facts.protocol != Some(image::PROTOCOL) => {
                    Err(engine::image_outdated(&self.image))
                }
                Some(ImageFacts { template: Err(fault), .. }) => {
                    Err(engine::template_invalid(&self.image, &fault))
                }
                Some(_) => Ok(()),
            }
        })
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            resumable: Some(self),
            builder: Some(self),
            diagnosable: Some(self),
            ..Abilities::default()
        }
    }

    fn packages(&self) -> Option<PackageKind> {
        self.packages.as_ref().map(|_| PackageKind::OfFetcher)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        if let Some(connection) = self.connection.get() {
            connection.close();
        }
        async {}.boxed()
    }

    fn needs_guard(&self) -> Option<OwnerId> {
        Some(self.owner.to_string().into())
    }
}

impl Resumable for Docker {
    fn reattach(&self, id: String) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        self.connect(id).boxed()
    }

    fn orphans(&self, _own_too: bool) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        orphans_among_all(self).boxed()
    }

    fn claim(&self, _id: String) -> BoxFuture<'_, ()> {
        // Labels cannot be changed: a container keeps the server that started it.
        async {}.boxed()
    }

    fn dispose(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        self.remove(id)
    }
}

impl Diagnosable for Docker {
    fn checks<'a>(&'a self, limits: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        self.look_over(limits).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        Box::pin(async move {
            let facts = &self.connection().await.ok()?.facts;
            let facts = json!({
                "uids": uids_below(facts.host.ids).map(|uids| [*uids.start(), *uids.end()]),
                "internet_sockets": facts.allows_internet_sockets(),
                "host_cpus": facts.host.cpus,
                "gvisor": self.is_gvisor(facts),
                "agent_counts_files": facts.host.product == Product::Podman,
            });
            Some(Probe { script: PROBE, facts })
        })
    }

    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        let image = &self.image;
        let (kind, message) = match fault {
            Greeting::OtherVersion => (
                Kind::TemplateOutdated,
                format!(
                    "The image {image} was built for another version of this server ({detail}). \
                     Run `llm-sandbox image build` on the server's host."
                ),
            ),
            Greeting::Missing => (
                Kind::Timeout,
                format!(
                    "The sandbox did not answer ({detail}). Run `llm-sandbox doctor` on the \
                     server's host; if {image} was not built by `llm-sandbox image build`, base it \
                     (FROM) on one that was."
                ),
            ),
        };
        BackendError::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use model::SessionId;
    use proptest::prelude::*;

    proptest! {
        /// A relay refuses the containers of sessions with other names.
        #[test]
        fn a_session_is_named_as_a_relay_lets_through(text in "[A-Za-z0-9_. é/-]{0,70}") {
            let named = text.parse::<SessionId>().is_ok();
            prop_assert_eq!(named, sandbox_container::is_session_id(&text));
        }
    }
}
