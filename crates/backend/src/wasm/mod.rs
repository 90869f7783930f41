//! Sandboxes as child processes of this program, in which an interpreter runs as WebAssembly.
//!
//! A sandbox is a child process that speaks the agent's protocol on its standard input and output. The interpreter's
//! memory is in the process's own memory, and so are the user's files, unless they are to be on disk. The process has
//! dropped all rights except to compute and to communicate. It ends when its input ends, and so with this server, even
//! if the server is killed.

mod datasets;
mod disk;
mod fetch;
mod folder;
mod install;
mod packages;
mod saved;

use std::{
    ffi::OsString,
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

use config::Config;
use embedded::Description;
use futures::{FutureExt, future::BoxFuture};
use model::World;
use sandbox_container::{Storage, scratch_bytes};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

pub use self::folder::Folder;
pub use self::install::{Installed, install};
use self::{disk::DiskFolder, saved::StateFolder};
use super::{
    Abilities, Backend, BackendError, BackendErrorKind, Check, Diagnosable, Finding, Greeting,
    Library, Limits, ListedSandbox, PackageKind, Probe, Purpose, Runtime, Sandbox, SavesSandboxes,
    Spec, Template, local::Local,
};

/// The fix if the runtime is missing.
const INSTALL: &str = "Install it with `llm-sandbox runtime install`.";

/// The probe for guests.
const PROBE: &str = include_str!("../../../embedded/guest/probe.py");

/// Starts sandboxes from the installed runtime.
#[derive(Debug)]
pub(crate) struct Wasm {
    folder: Option<Folder>,
    fuel: Option<u64>,
    /// Bytes of packages in a sandbox, if any may be installed.
    packages: Option<u64>,
    /// Fetchers of packages: plain processes on this machine, as with `runtime install`. Made at the first use.
    fetchers: tokio::sync::OnceCell<Local>,
    /// The folder of saved sandboxes, if any.
    state: Option<StateFolder>,
    /// A temporary folder for `state` without `SANDBOX_STATE_DIR`; dropping it removes the folder.
    own: Option<TempDir>,
    /// The folder for files of sandboxes that are not saved; `None` if files are in memory.
    disk: Option<DiskFolder>,
    /// The lock on the `state` folder, once this server has it.
    lock: OnceLock<File>,
    next: AtomicU32,
    /// The properties of the runtime, once it has been inspected.
    known: OnceLock<Known>,
}

/// The properties of the runtime.
#[derive(Debug)]
struct Known {
    interpreters: Vec<Description>,
    /// A lock that prevents an installation of another version from removing the runtime.
    _held: File,
}

impl Wasm {
    /// A backend with these settings.
    ///
    /// # Errors
    /// If a temporary folder is needed and cannot be made.
    pub(crate) fn new(config: &Config) -> Result<Self, BackendError> {
        let disk = (config.storage == Storage::Disk).then(DiskFolder::usual);
        // The archive also needs saved sandboxes, but only as long as this server runs.
        let is_archived = config.archive.is_some() && config.state_dir.is_none();
        let own = is_archived.then(|| StateFolder::temporary(disk.as_ref().map(DiskFolder::path)));
        let own = own.transpose().map_err(|error| {
            let text = format!("A temporary folder for sandboxes cannot be made: {error}.");
            BackendError::new(BackendErrorKind::Denied, text).caused_by(error)
        })?;
        let state = config.state_dir.as_deref().or(own.as_ref().map(TempDir::path));
        Ok(Self {
            folder: Folder::of(config.runtime_dir.as_deref()),
            fuel: config.fuel,
            packages: config.packages_within(),
            fetchers: tokio::sync::OnceCell::new(),
            state: state.map(StateFolder::named),
            lock: OnceLock::new(),
            own,
            disk,
            next: AtomicU32::new(0),
            known: OnceLock::new(),
        })
    }

    /// The folder of saved sandboxes, if there is one and this server has locked it.
    fn saved(&self) -> Option<&StateFolder> {
        self.state.as_ref().filter(|_| self.lock.get().is_some())
    }

    /// The folder in which sessions have their files, if these are on disk.
    fn folder_on_disk(&self) -> Option<&Path> {
        let disk = self.disk.as_ref()?;
        Some(self.state.as_ref().map_or(disk.path(), StateFolder::path))
    }

    /// The folder of the runtime, if it exists, can be used, and no other user can write to it.
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
        self.make_state_folder()?;
        if let Some(disk) = &self.disk {
            disk.check()?;
        }
        let datasets = datasets::readable(&spec.datasets)?;
        let started = self.spawn(&runtime, spec, &datasets);
        started.map_err(|error| {
            let text = format!("A process for the sandbox could not be started: {error}.");
            BackendError::new(BackendErrorKind::Refused, text).caused_by(error)
        })
    }

    /// Makes the folder of saved sandboxes again if it was removed.
    fn make_state_folder(&self) -> Result<(), BackendError> {
        self.saved().map_or(Ok(()), StateFolder::make)
    }

    fn spawn(&self, runtime: &Path, spec: &Spec, datasets: &[OsString]) -> io::Result<Sandbox> {
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
        for dataset in datasets {
            command.arg("--dataset").arg(dataset);
        }
        let saved = self.saved().zip(spec.saved_as.as_ref());
        let is_saved = saved.is_some();
        if let Some((folder, key)) = saved {
            command.arg("--state").arg(folder.state(key));
        }
        if let Some(disk) = &self.disk {
            command.arg("--disk").arg(disk.path());
        }
        let mut child = command
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A sandbox that is saved ends by itself, after it has written its state.
            .kill_on_drop(!is_saved)
            .spawn()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let reader = Box::new(child.stdout.take().expect("piped above"));
        let writer = Box::new(child.stdin.take().expect("piped above"));
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

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        // No sandbox outlives its server.
        Box::pin(async { Ok(vec![]) })
    }

    fn remove(&self, _id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        // A sandbox ends with its stream and leaves nothing to remove.
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
                ..Runtime::default()
            });
            Some(Template {
                id: embedded::key(),
                runtimes: runtimes.collect(),
                world: self.world(),
            })
        })
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            saved: self.saved().map(|folder| folder as &dyn SavesSandboxes),
            diagnosable: Some(self),
            ..Abilities::default()
        }
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
        if let Some(folder) = &self.state {
            let _ = self.lock.set(folder.lock()?);
        }
        if let Some(own) = &self.own {
            saved::remove_left(own.path());
        }
        if let Some((why, fix)) = self.folder_on_disk().and_then(disk::in_memory) {
            tracing::warn!("{why}. {fix}");
        }
        Ok(())
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async { self.make_state_folder().and_then(|()| self.runtime()).map(drop) })
    }
}

impl Diagnosable for Wasm {
    fn checks<'a>(&'a self, limits: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        Box::pin(async move {
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
            checks.extend(self.state.as_ref().map(|folder| Check::new("states", folder.look())));
            let on_disk = self.disk.as_ref().zip(self.folder_on_disk());
            checks.extend(on_disk.map(|(disk, folder)| {
                let finding = disk.check().map(|()| disk::finding(folder, limits.data));
                Check::new("disk", finding.unwrap_or_else(Finding::from))
            }));
            checks
        })
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        Box::pin(async { Some(Probe { script: PROBE, facts: json!({}) }) })
    }

    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        fault.error(detail)
    }
}
