//! Datasets of the settings, and the callers that may read each. Pure, but that links are resolved.

use std::{path::PathBuf, sync::Arc};

use model::{Dataset, DatasetName, DatasetSource, Principal, text::quoted};
use sandbox_container::{dataset_danger, dataset_folder};

use super::{
    Config, Engine,
    reader::Reader,
    setting::{Mistaken, Row},
    table,
};

/// The maximum number of datasets.
const MAX_DATASETS: usize = 100;

/// The maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 120;

/// The word for no datasets.
pub(super) const NONE: &str = "none";

/// The settings that name files and folders of the server's own, which no dataset may have.
const OWN_PLACES: [Row; 10] = [
    table::SANDBOX_STATE_DIR.row,
    table::SANDBOX_HISTORY_DIR.row,
    table::SANDBOX_ARCHIVE.row,
    table::SANDBOX_RUNTIME_DIR.row,
    table::SANDBOX_AUDIT_FILE.row,
    table::SANDBOX_LOG_FILE.row,
    table::SANDBOX_AUTH_TOKENS_FILE.row,
    table::SANDBOX_KEY_FILE.row,
    table::SANDBOX_TLS_KEY.row,
    table::SANDBOX_TOOLS_FILE.row,
];

/// An item of the list of datasets: a name with the path of a folder or, in a policy, a name alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    name: DatasetName,
    path: Option<PathBuf>,
}

/// A dataset of the settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) dataset: Arc<Dataset>,
    /// The callers that may read it; `None` if all may.
    pub(super) callers: Option<Vec<Principal>>,
}

/// The datasets of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Datasets(Vec<Entry>);

impl Datasets {
    /// The datasets of the list, and those of the settings file.
    ///
    /// # Errors
    /// If two have the same name, or there are too many.
    pub(super) fn new(listed: Option<&[Listed]>, entries: Vec<Entry>) -> Result<Self, String> {
        let of_all = listed.unwrap_or_default().iter().filter_map(|Listed { name, path }| {
            let source = DatasetSource::Folder(path.clone()?);
            let dataset = Dataset { name: name.clone(), source, description: String::new() };
            Some(Entry { dataset: Arc::new(dataset), callers: None })
        });
        let mut all: Vec<_> = of_all.chain(entries).collect();
        all.sort_by(|a, b| a.dataset.name.cmp(&b.dataset.name));
        let name = |entry: &Entry| entry.dataset.name.clone();
        if let Some(pair) = all.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(format!("datasets: {} is listed twice", pair[0].dataset.name));
        }
        if all.len() > MAX_DATASETS {
            return Err(format!("datasets: there are more than {MAX_DATASETS}"));
        }
        Ok(Self(all))
    }

    /// All datasets, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Dataset>> {
        self.0.iter().map(|entry| &entry.dataset)
    }

    /// Whether some callers may read others than the rest.
    pub fn differ(&self) -> bool {
        self.0.iter().any(|entry| entry.callers.is_some())
    }

    /// The datasets that all callers without a policy may read.
    pub fn of_all_callers(&self) -> Vec<Arc<Dataset>> {
        let of_all = self.0.iter().filter(|entry| entry.callers.is_none());
        of_all.map(|entry| entry.dataset.clone()).collect()
    }

    /// The datasets that a caller may read, by name; only those that its policy lists, if it lists any.
    pub fn of(&self, caller: &Principal, policy: Option<&[Listed]>) -> Vec<Arc<Dataset>> {
        let may_read = |entry: &&Entry| {
            entry.callers.as_ref().is_none_or(|callers| callers.contains(caller))
                && policy.is_none_or(|listed| listed.iter().any(|it| it.name == entry.dataset.name))
        };
        self.0.iter().filter(may_read).map(|entry| entry.dataset.clone()).collect()
    }
}

/// Parses the list of datasets; the word `none` is the empty list.
pub(super) fn listed(_: &Row, value: &str) -> Result<Option<Vec<Listed>>, Mistaken> {
    match value {
        "" => return Ok(None),
        NONE => return Ok(Some(vec![])),
        _ => {}
    }
    let (mut all, mut mistaken) = (vec![], vec![]);
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, path) = match item.split_once('=') {
            Some((name, path)) => (name.trim(), Some(path.trim())),
            None => (item, None),
        };
        let path = path.map(folder).transpose();
        match (name.parse(), path) {
            (Ok(name), Ok(path)) => all.push(Listed { name, path }),
            (Err(why), _) => mistaken.push(format!("{} {why}", quoted(name))),
            (_, Err(why)) => mistaken.push(why),
        }
    }
    if mistaken.is_empty() { Ok(Some(all)) } else { Err(mistaken) }
}

/// The absolute paths of the server's own files and folders, with those of the `read` files of settings.
pub(super) fn own_places(reader: &Reader, read: [&Option<PathBuf>; 2]) -> Vec<PathBuf> {
    let set = OWN_PLACES.iter().filter_map(|row| reader.value(row)).map(PathBuf::from);
    let all = set.chain(read.into_iter().flatten().cloned());
    all.filter_map(|path| std::path::absolute(path).ok()).collect()
}

/// Checks the path of a dataset's folder.
pub(super) fn folder(text: &str) -> Result<PathBuf, String> {
    dataset_folder(text).map_err(|why| format!("{} {why}", quoted(text)))
}

/// Checks a description: one line of limited length.
pub(super) fn description(text: String) -> Result<String, String> {
    if text.chars().count() > MAX_DESCRIPTION || text.chars().any(char::is_control) {
        return Err(format!(
            "the description is more than one line of {MAX_DESCRIPTION} characters"
        ));
    }
    Ok(text)
}

impl Config {
    /// Mistakes in the list of datasets and in those of the settings file, on the server with these settings.
    pub(super) fn dataset_mistakes(&self) -> Vec<String> {
        let mut mistakes = vec![];
        let listed = self.dataset_list.iter().flatten();
        let variable = table::SANDBOX_DATASETS.row.name;
        for Listed { name, .. } in listed.filter(|it| it.path.is_none()) {
            mistakes.push(format!("{variable}: {name} has no path; write {name}=/its/folder"));
        }
        for dataset in self.datasets.all() {
            let DatasetSource::Folder(folder) = &dataset.source else {
                if matches!(self.engine, Engine::Docker | Engine::Wasm) {
                    let why = "is a volume, which only pods on Kubernetes have; give it a path";
                    mistakes.push(format!("{variable}: {} {why}", dataset.name));
                }
                continue;
            };
            // If it is on this machine, it may be a link.
            let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            if let Some(why) = dataset_danger(&real) {
                mistakes.push(format!("{variable}: {}: {} {why}", dataset.name, real.display()));
            }
            let is_within = |own: &&PathBuf| own.starts_with(folder) || own.starts_with(&real);
            if let Some(own) = self.own_places.iter().find(is_within) {
                mistakes.push(format!(
                    "{variable}: {} has {}, which is the server's own",
                    dataset.name,
                    own.display()
                ));
            }
        }
        mistakes
    }

    /// Whether a policy lists only names of these datasets.
    pub(super) fn lists_only(&self, server: &Self) -> bool {
        let is_known = |it: &Listed| {
            it.path.is_none() && server.datasets.all().any(|dataset| dataset.name == it.name)
        };
        self.dataset_list.iter().flatten().all(is_known)
    }
}
