//! Installing the runtime: the packages are fetched, compiled and started once.

use std::{
    cell::RefCell,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use config::Config;
use embedded::{Sources, Step};

use super::{
    fetch::{code, fetch, published},
    folder::{Folder, UNFINISHED},
    packages::{PACKAGES, Role},
};

/// An installed runtime.
#[derive(Debug)]
pub struct Installed {
    /// The folder of the runtime.
    pub folder: PathBuf,
    /// Size of its files in bytes.
    pub size: u64,
    /// Whether this call has installed the runtime.
    pub is_new: bool,
}

/// Makes the runtime for this version of the program. Packages come from the `given` files and folders, or if there
/// are none, from pip and npm. With `if_needed`, a runtime that exists and can be used stays. `tell` receives the name
/// of each step.
///
/// # Errors
/// One or two sentences with the problem and the fix.
pub fn install(
    config: &Config,
    given: &[PathBuf],
    if_needed: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Installed, String> {
    let folder = Folder::of(config.runtime_dir.as_deref()).ok_or(
        "There is no place for the runtime, as neither SANDBOX_RUNTIME_DIR nor HOME is set.",
    )?;
    let failed = |error: io::Error| format!("{} cannot be used: {error}.", folder.path().display());
    folder.make().map_err(|error| {
        let fix = error.fix(folder.path());
        format!("{} cannot be used: {error}. {fix}", folder.path().display())
    })?;
    let lock = File::create(folder.path().join("lock")).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            tell("waiting for another installation to end");
            lock.lock().map_err(failed)?;
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    folder.remove_unfinished();
    let runtime = folder.runtime();
    let done = |is_new| Installed { folder: runtime.clone(), size: size(&runtime), is_new };
    if if_needed && embedded::describe(&runtime).is_ok() {
        return Ok(done(false));
    }
    let files = fetch(&folder.downloads(), given, &mut *tell)?;
    let mut sources = Sources::default();
    for (package, file) in PACKAGES.iter().zip(files) {
        match package.role {
            Role::Python => sources.python = file,
            Role::JavaScript => sources.javascript = file,
            Role::Library => sources.wheels.push(file),
            Role::Font(name) => sources.fonts.push((file, name.to_owned())),
            Role::Code => {}
        }
    }
    let unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(folder.path());
    let unfinished = unfinished.map_err(failed)?;
    let older = if runtime.exists() { vec![runtime.clone()] } else { folder.others() };
    let older = older.first().map(PathBuf::as_path);
    let tell = RefCell::new(tell);
    let fetched = tempfile::tempdir_in(folder.downloads()).map_err(failed)?;
    let release = published();
    let published = |key: &str| {
        let mut tell = tell.borrow_mut();
        let found = code(release.as_ref()?, fetched.path(), given, key, |text| tell(text));
        let told = |why: &String| {
            let why = why.lines().rfind(|line| line.starts_with("ERROR")).unwrap_or(why);
            tell(&format!("without the published code, because {why}"));
        };
        found.inspect_err(told).ok()
    };
    embedded::install(&sources, unfinished.path(), older, &published, &mut |step: Step| {
        tell.borrow_mut()(&step.to_string());
    })
    .map_err(|error| {
        let place = folder.path().display();
        let fix = match &error {
            embedded::Error::File(error) if error.kind() == io::ErrorKind::StorageFull => {
                " It needs 1.2 GB of disk; SANDBOX_RUNTIME_DIR names another folder."
            }
            _ => "",
        };
        format!("The runtime could not be made in {place}: {error}.{fix}")
    })?;
    if runtime.exists() {
        fs::remove_dir_all(&runtime).map_err(failed)?;
    }
    fs::rename(unfinished.keep(), &runtime).map_err(failed)?;
    folder.remove_others();
    Ok(done(true))
}

fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}
