//! Settings in a file, as `NAME=value` lines.
//!
//! The command line decides which file that is, if any: a folder may belong to another project, and its files
//! do not configure this server unless a person says so.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::setting::PREFIX;

/// The environment variable that names the file. It cannot be set in the file itself.
pub const VARIABLE: &str = "SANDBOX_ENV_FILE";

/// The file that settings are read from besides the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EnvFile {
    /// No file, even if the working folder has one.
    #[default]
    None,
    /// The file at this path. A file that cannot be read is a mistake.
    Named(PathBuf),
    /// The file at this path, if it exists.
    IfPresent(PathBuf),
}

/// The path of a file, and its variables.
type Settings = (PathBuf, BTreeMap<String, String>);

impl EnvFile {
    /// The absolute path of the file and its variables; `None` if there is no file. Adds errors to `mistakes`.
    pub(super) fn read(&self, mistakes: &mut Vec<String>) -> Option<Settings> {
        let path = match self {
            Self::None => return None,
            Self::Named(path) | Self::IfPresent(path) => path,
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && *self != Self::Named(path.clone()) =>
            {
                return None;
            }
            Err(error) => {
                mistakes.push(format!("{}: {error}", path.display()));
                return None;
            }
        };
        let vars = parse(path, &text, mistakes);
        Some((std::path::absolute(path).unwrap_or_else(|_| path.clone()), vars))
    }
}

fn parse(path: &Path, text: &str, mistakes: &mut Vec<String>) -> BTreeMap<String, String> {
    let path = path.display();
    let mut vars = BTreeMap::new();
    for line in dotenvy::from_read_iter(text.as_bytes()) {
        match line {
            Ok((name, _)) if name == VARIABLE => {
                mistakes
                    .push(format!("{path}: {VARIABLE} names this file and cannot be set in it"));
            }
            Ok((name, value)) => drop(vars.insert(name, value)),
            // The file often belongs to another program; only lines with our prefix matter.
            Err(dotenvy::Error::LineParse(line, _)) if !line.contains(PREFIX) => {}
            // Without the value, which may be a token.
            Err(dotenvy::Error::LineParse(line, _)) => {
                let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                let from = line.find(PREFIX).map_or("", |at| &line[at..]);
                let name = from.split(|c| !is_name(c)).next().unwrap_or_default();
                mistakes.push(format!(
                    "{path}: the value of {name} cannot be read; put it in single quotes"
                ));
            }
            Err(error) => mistakes.push(format!("{path}: {error}")),
        }
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &EnvFile) -> (Option<Settings>, Vec<String>) {
        let mut mistakes = vec![];
        (file.read(&mut mistakes), mistakes)
    }

    #[test]
    fn a_file_that_is_named_must_be_there_and_another_need_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings");
        assert_eq!(read(&EnvFile::None), (None, vec![]));
        assert_eq!(read(&EnvFile::IfPresent(path.clone())), (None, vec![]));
        let (vars, mistakes) = read(&EnvFile::Named(path.clone()));
        assert!(vars.is_none() && mistakes[0].contains("settings: No such file"), "{mistakes:?}");

        fs::write(&path, "SANDBOX_CPU_LIMIT=2\n# a note\nOTHER='x'\n").expect("written");
        let named = [("SANDBOX_CPU_LIMIT", "2"), ("OTHER", "x")];
        let vars: BTreeMap<_, _> = named.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for file in [EnvFile::IfPresent(path.clone()), EnvFile::Named(path.clone())] {
            assert_eq!(read(&file), (Some((path.clone(), vars.clone())), vec![]));
        }
        // A folder is an error in both cases.
        for file in [EnvFile::IfPresent(folder.path().into()), EnvFile::Named("/proc".into())] {
            let (vars, mistakes) = read(&file);
            assert!(vars.is_none() && mistakes.len() == 1, "{mistakes:?}");
        }
    }

    #[test]
    fn a_file_does_not_name_another() {
        let mut mistakes = vec![];
        let vars = parse(Path::new(".env"), "SANDBOX_ENV_FILE=/etc/more\nA=1", &mut mistakes);
        assert_eq!(vars.len(), 1);
        assert!(mistakes[0].contains("SANDBOX_ENV_FILE"), "{mistakes:?}");
    }

    #[test]
    fn lines_of_other_programs_are_passed_over_and_values_of_ours_not_shown() {
        let mut mistakes = vec![];
        let text = "it's theirs\nA=1\nSANDBOX_AUTH_TOKENS=me:it's-hunter2\n";
        parse(Path::new(".env"), text, &mut mistakes);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].contains("SANDBOX_AUTH_TOKENS") && !mistakes[0].contains("hunter2"));
    }
}
