//! Sandboxes as Docker containers. The only place that names bollard.
//!
//! A container is created, then attached, then started: an attach after the start would leave a
//! moment in which a container runs that nobody holds. The attached stream is the leash: when this
//! server dies the engine closes it, the agent ends, and the engine removes the container.

mod build;
mod checks;
mod engine;
mod found;
mod owner;

use std::{collections::HashMap, time::Duration};

use bollard::{
    Docker as Engine,
    container::LogOutput,
    exec::{CreateExecOptions, StartExecResults},
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, ListContainersOptionsBuilder,
        RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use sandbox_container::{APP, CONNECT, Container, LABEL_APP, Owner, UIDS, Uid, create_body};
use serde_json::json;
use tokio_util::io::StreamReader;

use self::engine::{Facts, ImageFacts};
use super::{
    Backend, BackendError, BackendErrorKind as Kind, Builder, Check, Found, Greeting, Limits,
    OwnerId, PackageKind, Probe, Purpose, Sandbox, Spec, Template, image,
};

/// The Docker backend. Connects when it is first used, so that a server starts, and can tell what
/// is missing, where there is no engine.
#[derive(Debug)]
pub struct Docker {
    owner: Owner,
    image: String,
    runtime: Option<String>,
    packages: Option<PackageSettings>,
    connection: tokio::sync::OnceCell<Connection>,
    /// What else could be done where it cannot be used: a sentence or two.
    instead: Option<String>,
}

/// What packages may be for the sandboxes of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSettings {
    /// Bytes of them in each sandbox.
    pub limit: u64,
    /// The engine's network by which they are fetched.
    pub network: String,
}

#[derive(Debug)]
struct Connection {
    engine: Engine,
    facts: Facts,
}

/// For one answer. Engines in trouble have been seen to take minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before an engine that has not answered is asked again whether a container is gone.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// User ids that are tried for a new container. With half of them taken, which is 5,000 sandboxes, all of
/// these are taken once in 65,536 times.
const MAX_UIDS_TRIED: u32 = 16;

/// What looks at a container from within.
const PROBE: &str = include_str!("../../../sandbox-image/runtimes/python/probe.py");

/// What an engine answers if a container has the name already.
const NAME_TAKEN: u16 = 409;

impl Docker {
    /// A backend for sandboxes of this image, under this runtime or the engine's usual one.
    pub fn new(image: &str, runtime: Option<&str>) -> Self {
        Self {
            owner: owner::current(),
            image: image.to_owned(),
            runtime: runtime.map(str::to_owned),
            packages: None,
            connection: tokio::sync::OnceCell::new(),
            instead: None,
        }
    }

    /// The same, whose sandboxes have room for packages.
    #[must_use]
    pub fn with_packages(self, packages: Option<PackageSettings>) -> Self {
        Self { packages, ..self }
    }

    /// The same, which says what else could be done when it cannot be used.
    #[must_use]
    pub fn or_instead(self, instead: Option<String>) -> Self {
        Self { instead, ..self }
    }

    /// Of what somebody has to mend, with the other way.
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
                let engine = engine::connect().map_err(|error| self.explain(error))?;
                let facts = engine::facts(&engine).await.map_err(|error| self.explain(error))?;
                Ok(Connection { engine, facts })
            })
            .await
    }

    /// What the engine says of the image; `None` if it has none of that name.
    async fn image_facts(&self) -> Result<Option<ImageFacts>, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        engine::image_facts(engine, &self.image).await.map_err(|error| self.explain(error))
    }

    async fn launch(&self, spec: &Spec) -> Result<Sandbox, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        let id = self.create(spec).await?;

        // Asked for before the start. Should the container be gone before the engine hears of it, the
        // engine says that there is none, which is as good.
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
                let error = self.explain(error);
                if let Err(error) = self.remove(id.clone()).await {
                    tracing::warn!(%error, "a container that did not start was not removed");
                }
                return Err(error);
            }
        };
        let gone = async move { while let Some(Ok(_)) = removed.next().await {} };
        // Where it holds, that this connection ends says nothing.
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

    /// Starts a process in the container that brings its agent a stream.
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

    /// Makes the container, with a user id that no other container of the engine has.
    async fn create(&self, spec: &Spec) -> Result<String, BackendError> {
        let Connection { engine, facts } = self.connection().await?;
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
        let container = Container {
            session: spec.session.as_str(),
            owner: &self.owner,
            image: &self.image,
            runtime: self.runtime.as_deref(),
            limits: spec.limits,
            hold: spec.hold,
            purpose,
        };
        for _ in 0..MAX_UIDS_TRIED {
            let uid = Uid::random();
            let create = CreateContainerOptionsBuilder::default().name(&uid.container_name());
            let body = create_body(&container, &facts.host(), uid);
            match engine.create_container(Some(create.build()), body).await {
                Ok(created) => return Ok(created.id),
                Err(error) if engine::status(&error) == Some(NAME_TAKEN) => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
        Err(engine::uids_taken(MAX_UIDS_TRIED))
    }

    async fn found(&self) -> Result<Vec<Found>, BackendError> {
        let Connection { engine, .. } = self.connection().await?;
        let filters = HashMap::from([("label", vec![format!("{LABEL_APP}={APP}")])]);
        let list = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
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

/// Resolves when the container is gone, however often the engine cannot be asked meanwhile.
async fn removal(engine: Engine, id: String) {
    loop {
        let wait = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut removed = engine.wait_container(&id, Some(wait));
        match removed.next().await {
            // Not all engines say so of one that has ended with another exit code than 0.
            Some(Ok(_) | Err(bollard::errors::Error::DockerContainerWaitError { .. })) => return,
            Some(Err(error)) if engine::status(&error) == Some(404) => return,
            _ => tokio::time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

/// Lines of an agent's stderr that are logged. It has little to say; under gVisor user code can
/// write there as well, and the log is not its own.
const MAX_STDERR_LINES: usize = 5;

/// The agent's frames from an attached stream. Its stderr carries no frames, only its last words.
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

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, BackendError>> {
        self.found().boxed()
    }

    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let Connection { engine, .. } = self.connection().await?;
            let remove = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match engine.remove_container(&id, Some(remove)).await {
                Ok(()) => Ok(()),
                Err(error) => match engine::status(&error) {
                    // Gone, or the engine is about to.
                    Some(404 | 409) => Ok(()),
                    _ => Err(self.explain(error)),
                },
            }
        })
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        Box::pin(async move {
            let ImageFacts { id, runtimes, .. } = self.image_facts().await.ok()??;
            Some(match runtimes {
                Some(runtimes) => Template { id, runtimes, world: self.world() },
                None => Template::built_in(id),
            })
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let Connection { engine, facts } = self.connection().await?;
            self.in_time(engine.ping()).await?;
            if let Some(runtime) = &self.runtime
                && !facts.may_have_runtime(runtime)
            {
                // An engine takes over new ones while it runs.
                let facts = self.in_time(engine::facts(engine)).await?;
                if !facts.may_have_runtime(runtime) {
                    return Err(engine::runtime_missing(runtime, &facts));
                }
            }
            match self.image_facts().await? {
                None => Err(engine::image_missing(&self.image)),
                Some(facts) if facts.protocol != Some(image::PROTOCOL) => {
                    Err(engine::image_outdated(&self.image))
                }
                Some(_) => Ok(()),
            }
        })
    }

    fn can_hold(&self) -> bool {
        true
    }

    fn packages(&self) -> Option<PackageKind> {
        self.packages.as_ref().map(|_| PackageKind::OfFetcher)
    }

    fn reattach(&self, id: String) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        self.connect(id).boxed()
    }

    fn needs_guard(&self) -> Option<OwnerId> {
        Some(self.owner.to_string().into())
    }

    fn checks<'a>(&'a self, limits: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        self.look_over(limits).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        Box::pin(async move {
            let facts = &self.connection().await.ok()?.facts;
            let facts = json!({
                "uids": [UIDS.start(), UIDS.end()],
                "internet_sockets": facts.allows_internet_sockets(),
                "host_cpus": facts.cpus,
                "gvisor": self.is_gvisor(facts),
            });
            Some(Probe { script: PROBE, facts })
        })
    }

    fn builder(&self) -> Option<&dyn Builder> {
        Some(self)
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
        /// A relay refuses the container of any other session.
        #[test]
        fn a_session_is_named_as_a_relay_lets_through(text in "[A-Za-z0-9_. é/-]{0,70}") {
            let named = text.parse::<SessionId>().is_ok();
            prop_assert_eq!(named, sandbox_container::is_session_id(&text));
        }
    }
}
