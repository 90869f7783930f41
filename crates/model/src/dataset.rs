//! Datasets: data of the operator that sandboxes can read, and nothing else.

use std::{fmt, path::PathBuf, str::FromStr};

use serde_json::Value;

pub use protocol::limits::DATASETS as DATASETS_DIR;

/// The maximum length of a dataset's name.
const MAX_NAME: usize = 64;

/// The name of a dataset: up to 64 ASCII letters, digits, `.`, `_` and `-`; the first is a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetName(String);

/// A text that is not the name of a dataset. The message is a predicate, to follow the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no name of a dataset: 1 to {MAX_NAME} letters, digits, . _ and -, the first a letter or a digit"
)]
pub struct InvalidDatasetName;

impl FromStr for DatasetName {
    type Err = InvalidDatasetName;

    fn from_str(text: &str) -> Result<Self, InvalidDatasetName> {
        let begins = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if begins && text.len() <= MAX_NAME && text.chars().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidDatasetName)
    }
}

impl DatasetName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A dataset, which a sandbox can read at `/data/<name>`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// The name.
    pub name: DatasetName,
    /// The place of its files.
    pub source: DatasetSource,
    /// One line for models; may be empty.
    pub description: String,
}

/// The place of a dataset's files.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSource {
    /// A folder of the machine that runs the sandboxes: its absolute path.
    Folder(PathBuf),
    /// A folder of the client over stdio: its absolute path. People change its files while sandboxes read them.
    Root(PathBuf),
    /// A volume of a pod on Kubernetes, without its name, such as `{"persistentVolumeClaim": {"claimName": "sales"}}`.
    Volume(Value),
}

impl Dataset {
    /// The folder in a sandbox.
    pub fn folder(&self) -> String {
        format!("{DATASETS_DIR}/{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path_and_plain() {
        for good in ["a", "sales", "Sales-2026.v1_x", &"x".repeat(64)] {
            assert_eq!(good.parse::<DatasetName>().map(|it| it.to_string()), Ok(good.into()));
        }
        for bad in ["", ".", "..", ".git", "-a", "a/b", "a b", "é", "a\n", &"x".repeat(65)] {
            assert_eq!(bad.parse::<DatasetName>(), Err(InvalidDatasetName), "{bad:?}");
        }
    }
}
