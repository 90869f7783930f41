//! Sandboxes as processes of this program's own, in which an interpreter runs as WebAssembly.
//!
//! A sandbox is a child process that speaks the agent's protocol on its standard input and output. It has the
//! interpreter's memory and the user's files in its own memory, and has given up all rights but to compute and to
//! speak. It ends when its input does, and so with this server, however that ends.

mod fetch;
mod folder;
mod install;
mod kept;
mod packages;

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use embedded::Description;
use futures::{FutureExt, future::BoxFuture};
use model::{SessionKey, World};
use sandbox_container::scratch_bytes;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

pub(crate) use self::folder::Folder;
pub use self::install::{Installed, install};
use self::kept::KeptFolder;
use super::{
    Backend, BackendError, BackendErrorKind, Check, Finding, Found, Library, Limits, PackageKind,
    Probe, Purpose, Runtime, Sandbox, Spec, Template, local::Local,
};
use crate::config::Config;

/// What to do where there is no runtime.
const INSTALL: &str = "Install it with `llm-sandbox runtime install`.";

/// What looks at a guest from within.
const PROBE: &str = include_str!("../../../sandbox-image/embedded/guest/probe.py");

/// Starts sandboxes from the runtime that is installed.
#[derive(Debug)]
pub struct Wasm {
    folder: Option<Folder>,
    fuel: Option<u64>,
    /// Bytes of packages in a sandbox, if any may be installed.
    packages: Option<u64>,
    /// Fetches them, when one is first asked for: a process of this machine, as `runtime install` has them.
    fetchers: tokio::sync::OnceCell<Local>,
    /// Where sandboxes are kept.
    kept: Option<KeptFolder>,
    /// Of its own, removed at the end.
    _own: Option<TempDir>,
    /// That folder, once this is the server that has it.
    held: OnceLock<File>,
    next: AtomicU32,
    /// What the runtime offers, once it has been looked at.
    known: OnceLock<Known>,
}

/// The runtime as this server has found it.
#[derive(Debug)]
struct Known {
    interpreters: Vec<Description>,
    /// What keeps an installation of another version from removing it.
    _held: File,
}

impl Wasm {
    /// A backend with these settings.
    ///
    /// # Errors
    /// If there is no room for temporary files, where some are needed.
    pub fn new(config: &Config) -> Result<Self, BackendError> {
        // For the archive sandboxes are kept as well, but no longer than this server lives.
        let is_archived = config.archive.is_some() && config.state_dir.is_none();
        let own = is_archived.then(|| tempfile::Builder::new().prefix("llm-sandbox-").tempdir());
        let own = own.transpose().map_err(|error| {
            let text = format!("A temporary folder for sandboxes cannot be made: {error}.");
            BackendError::new(BackendErrorKind::Denied, text).caused_by(error)
        })?;
        let kept = config.state_dir.as_deref().or(own.as_ref().map(TempDir::path));
        Ok(Self {
            folder: Folder::of(config.runtime_dir.as_deref()),
            fuel: config.fuel,
            packages: config.packages_within(),
            fetchers: tokio::sync::OnceCell::new(),
            kept: kept.map(KeptFolder::named),
            held: OnceLock::new(),
            _own: own,
            next: AtomicU32::new(0),
            known: OnceLock::new(),
        })
    }

    /// The folder in which sandboxes are kept, if they are.
    fn kept(&self) -> Option<&KeptFolder> {
        self.kept.as_ref().filter(|_| self.held.get().is_some())
    }

    /// The folder of the runtime, if it is there, whole and private.
    fn runtime(&self) -> Result<PathBuf, BackendError> {
        let missing = |text: String| {
            BackendError::new(BackendErrorKind::TemplateMissing, text).with_fix(INSTALL)
        };
        let folder = self.folder.as_ref().ok_or_else(|| {
            let text = "There is no place for the runtime of the embedded engine, as neither \
                        SANDBOX_RUNTIME_DIR nor HOME is set.";
            BackendError::new(BackendErrorKind::TemplateMissing, text).with_fix("Set one of them.")
        })?;
        let runtime = folder.runtime();
        if !runtime.exists() {
            let text = format!(
                "The runtime of the embedded engine is not installed in {}.",
                folder.path().display()
            );
            return Err(missing(text));
        }
        folder.check().map_err(|error| {
            let text = format!("{} cannot be trusted: {error}.", folder.path().display());
            BackendError::new(BackendErrorKind::Denied, text).with_fix(error.fix(folder.path()))
        })?;
        if self.known.get().is_none() {
            let unusable = |error: &dyn fmt::Display| {
                missing(format!("The runtime in {} cannot be used: {error}.", runtime.display()))
            };
            let held = Folder::hold(&runtime).map_err(|error| unusable(&error))?;
            let interpreters = embedded::describe(&runtime);
            let interpreters = interpreters.map_err(|error| unusable(&error))?;
            let _ = self.known.set(Known { interpreters, _held: held });
        }
        Ok(runtime)
    }

    fn launch(&self, spec: &Spec) -> Result<Sandbox, BackendError> {
        let runtime = self.runtime()?;
        self.make_kept()?;
        let started = self.spawn(&runtime, spec);
        started.map_err(|error| {
            let text = format!("A process for the sandbox could not be started: {error}.");
            BackendError::new(BackendErrorKind::Refused, text).caused_by(error)
        })
    }

    /// Makes the folder in which sandboxes are kept, if somebody has removed it.
    fn make_kept(&self) -> Result<(), BackendError> {
        self.kept().map_or(Ok(()), KeptFolder::make)
    }

    fn spawn(&self, runtime: &Path, spec: &Spec) -> io::Result<Sandbox> {
        let Limits { memory, data, .. } = spec.limits;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("embedded-agent").arg("--runtime").arg(runtime);
        for (name, value) in
            [("--memory", memory), ("--data", data), ("--scratch", scratch_bytes(memory))]
        {
            command.arg(name).arg(value.to_string());
        }
        if let Some(packages) = self.packages {
            command.arg("--packages").arg(packages.to_string());
        }
        if let Some(fuel) = self.fuel {
            command.arg("--fuel").arg(fuel.to_string());
        }
        let kept = self.kept().zip(spec.kept_as.as_ref());
        let is_kept = kept.is_some();
        if let Some((kept, key)) = kept {
            command.arg("--state").arg(kept.state(key));
        }
        let mut child = command
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // One that is kept ends when it has written what it is.
            .kill_on_drop(!is_kept)
            .spawn()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let reader = Box::new(child.stdout.take().expect("was asked for"));
        let writer = Box::new(child.stdin.take().expect("was asked for"));
        let gone = async move {
            let _ = child.wait().await;
        };
        Ok(Sandbox { id: number.to_string(), reader, writer, gone: gone.boxed().shared() })
    }
}

impl Backend for Wasm {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        Box::pin(async move {
            match spec.purpose {
                Purpose::Session => self.launch(&spec),
                Purpose::Fetcher => {
                    let fetchers = self.fetchers.get_or_try_init(async || Local::new()).await;
                    let fetchers = fetchers.map_err(|error| {
                        let text = format!("There is no room for temporary files: {error}.");
                        BackendError::new(BackendErrorKind::Denied, text)
                    });
                    fetchers?.start(spec).await
                }
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, BackendError>> {
        // None outlives its server.
        Box::pin(async { Ok(vec![]) })
    }

    fn remove(&self, _id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        // A sandbox ends with its stream, and there is nothing else that could be left.
        Box::pin(async { Ok(()) })
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        Box::pin(async {
            self.runtime().ok()?;
            let runtimes = self.known.get()?.interpreters.iter().map(|known| Runtime {
                name: known.name.clone(),
                version: Some(known.version.clone()),
                module: Some(known.module.clone()),
                libraries: known
                    .libraries
                    .iter()
                    .map(|(name, version)| Library {
                        name: name.clone(),
                        version: Some(version.clone()),
                    })
                    .collect(),
            });
            Some(Template {
                id: embedded::key(),
                runtimes: runtimes.collect(),
                world: self.world(),
            })
        })
    }

    fn packages(&self) -> Option<PackageKind> {
        self.packages?;
        self.runtime().ok()?;
        let python = self.known.get()?.interpreters.iter().find(|it| it.name == "python")?;
        let mut version = python.version.splitn(3, '.');
        let (major, minor) = (version.next()?, version.next()?);
        Some(PackageKind::Pure { python: format!("{major}.{minor}") })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(fetchers) = self.fetchers.get() {
                fetchers.clear();
            }
        })
    }

    fn world(&self) -> World {
        World::Interpreter
    }

    fn acquire(&self) -> Result<(), BackendError> {
        if let Some(kept) = &self.kept {
            let _ = self.held.set(kept.hold()?);
        }
        Ok(())
    }

    fn keeps_sandboxes(&self) -> bool {
        self.kept().is_some()
    }

    fn has_kept(&self, key: &SessionKey) -> bool {
        self.kept().is_some_and(|kept| embedded::is_kept(&kept.state(key)))
    }

    fn kept_path(&self, key: &SessionKey) -> Option<PathBuf> {
        self.kept().map(|kept| kept.state(key))
    }

    fn forget(&self, key: &SessionKey) {
        if let Some(kept) = self.kept() {
            kept.forget(key);
        }
    }

    fn note(&self, key: &SessionKey, text: &str) {
        if let Some(Err(error)) = self.kept().map(|kept| kept.note(key, text)) {
            tracing::warn!(%error, "SANDBOX_STATE_DIR cannot be written to");
        }
    }

    fn noted(&self, key: &SessionKey) -> Option<String> {
        self.kept()?.noted(key)
    }

    fn all_noted(&self) -> Vec<String> {
        self.kept().map(KeptFolder::all_noted).unwrap_or_default()
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        Box::pin(async { Some(Probe { script: PROBE, facts: json!({}) }) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async { self.make_kept().and_then(|()| self.runtime()).map(drop) })
    }

    fn checks<'a>(&'a self, _: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        Box::pin(async {
            let engine = Finding::good("embedded: processes of this program, no Docker needed");
            let runtime = match self.runtime() {
                Ok(folder) => {
                    let known = self.known.get().into_iter().flat_map(|known| &known.interpreters);
                    let known = known.map(|known| format!("{} {}", known.name, known.version));
                    let known: Vec<_> = known.collect();
                    Finding::good(format!("{} in {}", known.join(" and "), folder.display()))
                }
                Err(error) => error.into(),
            };
            let mut checks = vec![Check::new("engine", engine), Check::new("runtime", runtime)];
            checks.extend(self.kept.as_ref().map(|kept| Check::new("states", kept.look())));
            checks
        })
    }
}
