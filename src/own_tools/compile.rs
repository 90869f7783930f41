//! Compiled code of the tools' modules, in a folder of the user's: each module is compiled once.
//!
//! A separate process compiles each module, so that its memory is freed when it ends.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use backend::wasm::Folder;
use config::Config;
use tokio::process::Command;

/// The folder with compiled code.
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    folder: PathBuf,
    /// Keeps a temporary folder of this server alive.
    _own: Option<Arc<tempfile::TempDir>>,
}

impl Compiled {
    /// Uses the user's folder of runtimes or, without one, a temporary folder.
    ///
    /// # Errors
    /// If no folder is safe from writes by other users: a sentence.
    pub(super) fn new(config: &Config) -> Result<Self, String> {
        if let Some(folder) = Folder::of(config.runtime_dir.as_deref()) {
            let failed = |error: io::Error| {
                let path = folder.path().display();
                format!("SANDBOX_RUNTIME_DIR, {path}, cannot be used for compiled tools: {error}")
            };
            return Ok(Self { folder: folder.make_tools().map_err(failed)?, _own: None });
        }
        let own = tempfile::tempdir()
            .map_err(|error| format!("there is no folder for compiled tools: {error}"))?;
        Ok(Self { folder: own.path().to_owned(), _own: Some(Arc::new(own)) })
    }

    /// The compiled code of these modules, or why one cannot be used. Compiles new modules.
    pub(super) async fn of(
        &self,
        modules: impl Iterator<Item = &Path>,
    ) -> BTreeMap<PathBuf, Result<PathBuf, String>> {
        let mut all = BTreeMap::new();
        for module in modules {
            if !all.contains_key(module) {
                all.insert(module.to_owned(), self.one(module).await);
            }
        }
        all
    }

    async fn one(&self, module: &Path) -> Result<PathBuf, String> {
        let wasm =
            tokio::fs::read(module).await.map_err(|error| format!("it cannot be read: {error}"))?;
        let key = tokio::task::spawn_blocking(move || embedded::tool_key(&wasm));
        let code =
            self.folder.join(format!("{}.cwasm", key.await.expect("hashing bytes does not panic")));
        if code.is_file() {
            return Ok(code);
        }
        // A large module takes half a minute, in which a starting server logs nothing else.
        tracing::info!(module = %module.display(), "compiling the module of a tool");
        let failed = |error: io::Error| format!("it cannot be compiled: {error}");
        let output = Command::new(std::env::current_exe().map_err(failed)?)
            .arg("compile-tool")
            .arg(module)
            .arg(&code)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(failed)?;
        if output.status.success() {
            return Ok(code);
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(if why.is_empty() { format!("it cannot be compiled: {}", output.status) } else { why })
    }
}

/// Compiles a module into a file, which is written completely or not at all.
///
/// # Errors
/// A sentence for the author of the tool's definition.
pub(crate) fn compile(module: &Path, code: &Path) -> Result<(), String> {
    let wasm = std::fs::read(module).map_err(|error| format!("it cannot be read: {error}"))?;
    let compiled = embedded::compile_tool(&wasm).map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("its compiled code cannot be written: {error}");
    let folder = code.parent().unwrap_or(Path::new(""));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    io::Write::write_all(&mut file, &compiled).map_err(failed)?;
    file.persist(code).map(drop).map_err(|error| failed(error.error))
}
