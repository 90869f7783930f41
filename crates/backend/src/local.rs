//! The agent as a plain child process, **which isolates nothing**: for tests, and for work on the server on a machine
//! without an engine. User code runs as the user who started the server.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
};

use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use model::DatasetSource;
use parking_lot::Mutex;
use tokio::process::Command;

use super::{
    Abilities, Backend, BackendError, BackendErrorKind, Check, Diagnosable, Finding, Greeting,
    Limits, ListedSandbox, PackageKind, Probe, Resumable, Sandbox, Spec, Template, image,
};

/// Starts agents in a folder of its own, which is removed when this is dropped.
#[derive(Debug)]
pub struct Local {
    folder: PathBuf,
    next: AtomicU32,
    /// Process ids of agents, by the names of their sandboxes.
    pids: Mutex<HashMap<String, u32>>,
    template: Template,
}

impl Local {
    /// Makes the folder and puts the agent and the fork server into it.
    ///
    /// # Errors
    /// If the folder for temporary files cannot be written to.
    pub fn new() -> std::io::Result<Self> {
        // Tests see the same texts as with the image.
        Self::of(Template::built_in("local"))
    }

    /// The same with other contents than those of the image.
    pub(crate) fn of(template: Template) -> std::io::Result<Self> {
        let name = format!("llm-sandbox-local-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        let agent = folder.join("agent");
        fs::write(&agent, image::AGENT)?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o700))?;
        // Programs find the agent under its other name, too.
        fs::create_dir(folder.join("bin"))?;
        symlink(&agent, folder.join("bin/tool"))?;
        for (path, content) in image::FORK_SERVER.into_iter().chain(image::JAVASCRIPT) {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("the path was joined to a folder's"))?;
            fs::write(path, content)?;
        }
        Ok(Self { folder, next: AtomicU32::new(0), pids: Mutex::default(), template })
    }

    async fn launch(&self, spec: &Spec) -> std::io::Result<Sandbox> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let own = self.folder.join(number.to_string());
        let [data, scratch, packages, datasets] =
            ["data", "scratch", "packages", "datasets"].map(|name| own.join(name));
        for folder in [&data, &scratch, &packages, &datasets] {
            tokio::fs::create_dir_all(folder).await?;
        }
        // Programs find them at `../datasets`, as `/data` is the machine's.
        for dataset in &spec.datasets {
            if let DatasetSource::Folder(path) | DatasetSource::Root(path) = &dataset.source {
                tokio::fs::symlink(path, datasets.join(dataset.name.as_str())).await?;
            }
        }
        // In a folder above all programs, as in the image.
        tokio::fs::symlink(packages.join("node_modules"), own.join("node_modules")).await?;
        let join_paths =
            |paths: Vec<PathBuf>| std::env::join_paths(paths).map_err(std::io::Error::other);
        let modules = vec![packages.clone(), self.folder.join("runtimes/python/modules")];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bins =
            [self.folder.join("bin")].into_iter().chain(std::env::split_paths(&path)).collect();
        let mut child = Command::new(self.folder.join("agent"))
            .args(sandbox_container::agent_arguments(&spec.limits))
            .args([&data, &scratch, &self.folder.join("runtimes"), &packages, &datasets])
            .env_clear()
            .env("PATH", join_paths(bins)?)
            .env("HOME", scratch.join("home"))
            .env("LANG", "C.UTF-8")
            // In the image, `.pth` files among the image's packages add these folders after them.
            .env("PYTHONPATH", join_paths(modules)?)
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let reader = Box::new(child.stdout.take().expect("piped above"));
        let writer = Box::new(child.stdin.take().expect("piped above"));
        let id = number.to_string();
        self.pids.lock().extend(child.id().map(|pid| (id.clone(), pid)));
        let gone = async move {
            let _ = child.wait().await;
            let _ = tokio::fs::remove_dir_all(own).await;
        };
        Ok(Sandbox { id, reader, writer, gone: gone.boxed().shared() })
    }

    fn connect(&self, id: String) -> std::io::Result<Sandbox> {
        let pid = self.pids.lock().get(&id).copied().ok_or(std::io::ErrorKind::NotFound)?;
        let mut child = Command::new(self.folder.join("agent"))
            .arg("--connect")
            .arg(pid.to_string())
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let reader = Box::new(child.stdout.take().expect("piped above"));
        let writer = Box::new(child.stdin.take().expect("piped above"));
        // This process ends with its stream. The end of the sandbox is reported by the `Sandbox` of `launch`.
        tokio::spawn(async move { child.wait().await });
        Ok(Sandbox { id, reader, writer, gone: future::pending().boxed().shared() })
    }
}

impl Local {
    /// Removes the folder, after which no sandbox can start.
    pub(super) fn clear(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Backend for Local {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        Box::pin(async move {
            self.launch(&spec).await.map_err(|error| {
                let message = format!("No local agent: {error}.");
                BackendError::new(BackendErrorKind::Refused, message).caused_by(error)
            })
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn remove(&self, _id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        // The agent ends with its stream, and `gone` removes its folder.
        Box::pin(async { Ok(()) })
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { resumable: Some(self), diagnosable: Some(self), ..Abilities::default() }
    }

    fn packages(&self) -> Option<PackageKind> {
        Some(PackageKind::OfFetcher)
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        Box::pin(async { Some(self.template.clone()) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
    }
}

impl Resumable for Local {
    fn reattach(&self, id: String) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        Box::pin(async {
            self.connect(id).map_err(|error| {
                let message = format!("No stream to a local agent: {error}.");
                BackendError::new(BackendErrorKind::Refused, message).caused_by(error)
            })
        })
    }

    fn orphans(&self, _own_too: bool) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        // Agents of other servers are not listed.
        Box::pin(async { Ok(vec![]) })
    }

    fn claim(&self, _id: String) -> BoxFuture<'_, ()> {
        // Nothing marks an agent as a server's.
        Box::pin(async {})
    }

    fn dispose(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        self.remove(id)
    }
}

impl Diagnosable for Local {
    fn checks<'a>(&'a self, _: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        let finding = Finding::warning(
            "programs run as plain processes of this user, which isolates nothing",
            "Leave SANDBOX_ENGINE unset for anything but tests.",
        );
        Box::pin(async { vec![Check::new("engine", finding)] })
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        Box::pin(async { None })
    }

    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        fault.error(detail)
    }
}
