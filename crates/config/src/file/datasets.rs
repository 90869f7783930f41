//! The list of datasets in the settings file: all mistakes in each entry.

use std::sync::Arc;

use model::{Dataset, DatasetName, DatasetSource, Principal, text::quoted};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{DATASETS, Found, Node, resolved};
use crate::datasets::{Entry, description, folder};

const KEYS: &str = "name, path, volume, description and callers";

/// An entry of the list, as far as it was read.
#[derive(Default)]
struct Read {
    name: Option<DatasetName>,
    source: Option<DatasetSource>,
    description: String,
    callers: Option<Vec<Principal>>,
}

impl Found<'_> {
    /// Reads the datasets.
    pub(super) fn read_datasets(&mut self, key: &Spanned<String>, node: Node) {
        for (line, node) in self.items(DATASETS, key, node) {
            match self.dataset(node) {
                Ok(dataset) => self.contents.datasets.push(dataset),
                Err(all) => {
                    for why in all {
                        self.mistake(line, &format!("{DATASETS}: {why}"));
                    }
                }
            }
        }
    }

    /// A dataset, or all mistakes in its entry.
    fn dataset(&self, node: Node) -> Result<Entry, Vec<String>> {
        let Node::Map(entries) = node else {
            return Err(vec![format!("an entry is no mapping of {KEYS}")]);
        };
        let mut mistakes = vec![];
        let has = |name: &str| entries.iter().any(|(key, _)| key.value == name);
        let has_source = has("path") || has("volume");
        if has("path") && has("volume") {
            mistakes.push("a dataset has a path or a volume, not both".into());
        }
        if !has("name") {
            mistakes.push("a dataset has no name".into());
        }
        let mut read = Read::default();
        for (key, node) in entries {
            mistakes.extend(self.read_of_dataset(&mut read, &key.value, node.value).err());
        }
        let Read { name, source, description, callers } = read;
        if !has_source {
            let shown = name.as_ref().map_or("a dataset", DatasetName::as_str);
            mistakes.push(format!("{shown} has no path"));
        }
        match (name, source) {
            (Some(name), Some(source)) if mistakes.is_empty() => {
                let dataset = Arc::new(Dataset { name, source, description });
                Ok(Entry { dataset, callers })
            }
            _ => Err(mistakes),
        }
    }

    /// Reads one key of an entry.
    fn read_of_dataset(&self, read: &mut Read, key: &str, node: Node) -> Result<(), String> {
        match (key, node) {
            ("volume", node @ Node::Map(_)) => {
                read.source = Some(DatasetSource::Volume(self.value(node)?));
            }
            ("callers", Node::List(items)) => {
                let names = items.into_iter().map(|item| match item.value {
                    Node::Text(name) => caller(&name),
                    _ => Err("a name of a caller is no text".to_owned()),
                });
                read.callers = Some(names.collect::<Result<_, _>>()?);
            }
            ("callers", Node::Text(names)) => {
                let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                read.callers = Some(names.map(caller).collect::<Result<_, _>>()?);
            }
            (_, Node::Text(text)) => {
                let text = resolved(false, text, self.path)?;
                match key {
                    "name" => {
                        let name = text.parse().map_err(|why| format!("{} {why}", quoted(&text)));
                        read.name = Some(name?);
                    }
                    "path" => read.source = Some(DatasetSource::Folder(folder(&text)?)),
                    "description" => read.description = description(text)?,
                    "volume" => return Err("volume is no mapping".into()),
                    other => {
                        return Err(format!(
                            "there is no key {}; the keys are {KEYS}",
                            quoted(other)
                        ));
                    }
                }
            }
            ("callers", _) => return Err("callers is no text and no list of names".into()),
            (other, _) => return Err(format!("{other} is no text")),
        }
        Ok(())
    }

    /// The value of a volume. All scalars in it are texts, as they are in the volumes of pods.
    fn value(&self, node: Node) -> Result<Value, String> {
        Ok(match node {
            Node::Text(text) => resolved(false, text, self.path)?.into(),
            Node::List(items) => {
                let items = items.into_iter().map(|item| self.value(item.value));
                items.collect::<Result<Vec<_>, _>>()?.into()
            }
            Node::Map(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(key, node)| Ok((key.value, self.value(node.value)?)))
                    .collect::<Result<serde_json::Map<_, _>, String>>()?;
                entries.into()
            }
        })
    }
}

fn caller(name: &str) -> Result<Principal, String> {
    Principal::named(name).ok_or_else(|| format!("{} is no name of a caller", quoted(name)))
}
