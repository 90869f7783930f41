//! Checks of datasets for `llm-sandbox doctor`.

use std::{
    fs::{self, FileType, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use backend::{Check, Finding};
use config::{Config, Engine};
use model::{Dataset, DatasetSource};
use sandbox_container::{GID, dataset_danger};

/// Maximum number of entries of a dataset that are looked at.
const MAX_LOOKED_AT: usize = 10_000;

/// A check for each dataset.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let finding = |dataset: &Dataset| match &dataset.source {
        DatasetSource::Folder(path) | DatasetSource::Root(path) => of_folder(config, dataset, path),
        DatasetSource::Volume(_) if config.engine == Engine::Kubernetes => {
            Finding::Good(format!("{}: a volume of pods", dataset.folder()))
        }
        DatasetSource::Volume(_) => Finding::fault(
            format!("{}: is a volume, which only pods have", dataset.folder()),
            "Give it a path.",
        ),
    };
    config.datasets.all().map(|dataset| Check::new("dataset", finding(dataset))).collect()
}

/// The finding about a dataset in a folder.
fn of_folder(config: &Config, dataset: &Dataset, path: &Path) -> Finding {
    let shown = format!("{}: {}", dataset.folder(), path.display());
    let fault = |what: &str, fix: &str| Finding::fault(format!("{shown} {what}"), fix);
    // Programs on Docker have a user id of their own; on the other engines this program opens the files.
    let is_shared = matches!(config.engine, Engine::Docker | Engine::Kubernetes);
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if is_shared && error.kind() == io::ErrorKind::NotFound => {
            return Finding::warning(
                format!("{shown} is not on this machine"),
                "Correct the path, unless the engine is on another machine, which has it.",
            );
        }
        Err(error) => {
            return fault(&format!("cannot be read: {error}"), "Correct the path or its rights.");
        }
    };
    if !metadata.is_dir() {
        return fault("is no folder", "Name the folder that the file is in.");
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if let Some(why) = dataset_danger(&real) {
        return fault(why, "Name a folder that has nothing but data.");
    }
    if let Some(own) = config.own_places.iter().find(|own| is_within(own, &real)) {
        let what = format!("has {}, which is the server's own", own.display());
        return fault(&what, "Move that, or name another folder.");
    }
    let may_read = |of: &Metadata, right: u32| {
        let bits = if of.gid() == GID { right | right << 3 } else { right };
        !is_shared || of.mode() & bits != 0
    };
    if !may_read(&metadata, 0o4) || !may_read(&metadata, 0o1) || fs::read_dir(&real).is_err() {
        return fault(
            "cannot be read by programs in sandboxes",
            &format!("Allow it: chmod o+rX {}", path.display()),
        );
    }
    let mut seen = Seen::default();
    seen.look(&real, &|of| may_read(of, 0o4));
    let Seen { files, unreadable, special, .. } = seen;
    if special > 0 {
        return Finding::warning(
            format!("{shown} has {special} sockets, pipes or devices"),
            "Remove them, or name another folder: they are no data, and programs on some engines can open them.",
        );
    }
    if unreadable > 0 {
        return Finding::warning(
            format!(
                "{shown}: {unreadable} of {files} files cannot be read by programs in sandboxes"
            ),
            format!("Allow it: chmod -R o+rX {}", path.display()),
        );
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_home = home.as_deref() == Some(&real)
        || real == Path::new("/home")
        || real.parent() == Some(Path::new("/home"));
    if is_home {
        return Finding::warning(
            format!("{shown} is a home, with keys and settings of a person"),
            "Name a folder in it.",
        );
    }
    Finding::Good(format!("{shown}, {files}{} files", if seen.is_cut { " or more" } else { "" }))
}

/// Whether a file or folder of the server is beneath a folder, links resolved.
fn is_within(own: &Path, folder: &Path) -> bool {
    own.canonicalize().is_ok_and(|own| own.starts_with(folder))
}

/// A count of the entries of a folder.
#[derive(Default)]
struct Seen {
    entries: usize,
    files: usize,
    unreadable: usize,
    special: usize,
    is_cut: bool,
}

impl Seen {
    /// Looks at a folder and those in it, without following links.
    fn look(&mut self, folder: &Path, may_read: &impl Fn(&Metadata) -> bool) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            self.entries += 1;
            if self.entries > MAX_LOOKED_AT {
                self.is_cut = true;
                return;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let kind = metadata.file_type();
            if kind.is_dir() {
                self.look(&entry.path(), may_read);
            } else if kind.is_file() {
                self.files += 1;
                self.unreadable += usize::from(!may_read(&metadata));
            } else if is_special(kind) {
                self.special += 1;
            }
        }
    }
}

fn is_special(kind: FileType) -> bool {
    kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()
}
