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
use sandbox_container::scratch_bytes;
use serde_json::json;
use tokio::process::Command;

pub(crate) use self::folder::Folder;
pub use self::install::{Installed, install};
use self::kept::KeptFolder;
use super::{
    Backend, BackendError, BackendErrorKind, Check, Finding, Found, KeptKey, Library, Limits,
    Probe, Runtime, Sandbox, Spec, Template, World,
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
    /// Where sandboxes are kept.
    kept: Option<KeptFolder>,
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
    /// If the folder in which sandboxes are to be kept cannot be used.
    pub fn new(config: &Config) -> Result<Self, BackendError> {
        let kept = config.state_dir.as_deref();
        let open = |path: &Path| KeptFolder::open(path).map_err(|error| unusable(path, error));
        Ok(Self {
            folder: Folder::of(config.runtime_dir.as_deref()),
            fuel: config.fuel,
            kept: kept.map(open).transpose()?,
            next: AtomicU32::new(0),
            known: OnceLock::new(),
        })
    }

    /// The folder of the runtime, if it is there, whole and private.
    fn runtime(&self) -> Result<PathBuf, BackendError> {
        let missing = |text: String| {
            BackendError::new(BackendErrorKind::TemplateMissing, format!("{text} {INSTALL}"))
        };
        let folder = self.folder.as_ref().ok_or_else(|| {
            let text = "There is no place for the runtime of the embedded engine, as neither \
                        SANDBOX_RUNTIME_DIR nor HOME is set.";
            BackendError::new(BackendErrorKind::TemplateMissing, text)
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
            BackendError::new(BackendErrorKind::Denied, text)
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
        let Some(kept) = &self.kept else { return Ok(()) };
        kept.make().map_err(|error| unusable(kept.path(), error))
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
        if let Some(fuel) = self.fuel {
            command.arg("--fuel").arg(fuel.to_string());
        }
        let kept = self.kept.as_ref().zip(spec.kept_as.as_ref());
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

/// Why the folder cannot be used in which sandboxes are to be kept.
fn unusable(kept: &Path, error: io::Error) -> BackendError {
    let text = format!("SANDBOX_STATE_DIR, {}, cannot be used: {error}.", kept.display());
    BackendError::new(BackendErrorKind::Denied, text).caused_by(error)
}

impl Backend for Wasm {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        Box::pin(async move { self.launch(&spec) })
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

    fn world(&self) -> World {
        World::Interpreter
    }

    fn keeps_sandboxes(&self) -> bool {
        self.kept.is_some()
    }

    fn has_kept(&self, key: &KeptKey) -> bool {
        self.kept.as_ref().is_some_and(|kept| embedded::is_kept(&kept.state(key)))
    }

    fn forget(&self, key: &KeptKey) {
        if let Some(kept) = &self.kept {
            kept.forget(key);
        }
    }

    fn note(&self, key: &KeptKey, text: &str) {
        if let Some(Err(error)) = self.kept.as_ref().map(|kept| kept.note(key, text)) {
            tracing::warn!(%error, "SANDBOX_STATE_DIR cannot be written to");
        }
    }

    fn noted(&self, key: &KeptKey) -> Option<String> {
        self.kept.as_ref()?.noted(key)
    }

    fn all_noted(&self) -> Vec<String> {
        self.kept.as_ref().map(KeptFolder::all_noted).unwrap_or_default()
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
                Err(error) => {
                    let text = error.to_string();
                    Finding::fault(text.trim_end_matches(INSTALL).trim_end(), INSTALL)
                }
            };
            vec![Check::new("engine", engine), Check::new("runtime", runtime)]
        })
    }
}
