//! What is asked for, and what may be: names of packages, their extras and versions. Pure.
//!
//! A small part of what pip takes: no addresses, no paths, no options, no markers.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// Longest name, version or list of them, in bytes.
const MAX_LEN: usize = 200;

/// Comparisons of versions, the longer ones first.
const OPERATORS: [&str; 8] = ["===", "==", "!=", "<=", ">=", "~=", "<", ">"];

/// A name of a package as indexes compare it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlainName(String);

impl PlainName {
    /// This name in small letters, with one hyphen for what separates its parts.
    pub fn of(name: &str) -> Self {
        let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
        Self(parts.collect::<Vec<_>>().join("-").to_ascii_lowercase())
    }

    /// As it is compared.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A package, as `pandas[excel]>=2,<3` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    name: String,
    extras: BTreeSet<String>,
    /// Each with its comparison.
    versions: Vec<String>,
}

/// Why a text is none, to follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRequirement {
    /// It is empty, or longer than [`MAX_LEN`].
    #[error("is not the name of a package; give a name such as humanize, or humanize==4.9.0")]
    Name,
    /// What follows the name is no version.
    #[error("has a version that cannot be read; write ==4.9.0, or >=4,<5")]
    Version,
    /// It says where it is.
    #[error("names a file, an address or an option; give the name of a package in the index")]
    Place,
}

impl Requirement {
    /// As indexes compare it.
    pub fn plain_name(&self) -> PlainName {
        PlainName::of(&self.name)
    }

    /// As it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It asks for more than the package, or for some of its versions alone.
    pub fn is_particular(&self) -> bool {
        !self.extras.is_empty() || !self.versions.is_empty()
    }

    /// The same with a version, as the argument of a call has it: `4.9.0` or `>=4`.
    ///
    /// # Errors
    /// If it is no version.
    pub fn with_version(mut self, version: &str) -> Result<Self, NoRequirement> {
        let version = version.trim();
        let compared = OPERATORS.iter().any(|it| version.starts_with(it));
        let text = if compared { version.to_owned() } else { format!("=={version}") };
        self.versions.extend(versions(&text)?);
        Ok(self)
    }

    /// The same, within the versions that another allows.
    fn within(mut self, other: &Self) -> Self {
        self.versions.extend(other.versions.iter().cloned());
        self
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.extras.is_empty() {
            let extras: Vec<_> = self.extras.iter().map(String::as_str).collect();
            write!(f, "[{}]", extras.join(","))?;
        }
        f.write_str(&self.versions.join(","))
    }
}

impl FromStr for Requirement {
    type Err = NoRequirement;

    fn from_str(text: &str) -> Result<Self, NoRequirement> {
        let text = text.trim();
        if text.contains(['/', '\\', '@', ';', ':', '#']) || text.starts_with('-') {
            return Err(NoRequirement::Place);
        }
        if text.len() > MAX_LEN {
            return Err(NoRequirement::Name);
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let (name, rest) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
        let (extras, rest) = match rest.trim_start().strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(NoRequirement::Name)?,
            None => ("", rest),
        };
        let extras: Vec<_> = extras.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        if !std::iter::once(&name).chain(&extras).all(|name| is_name(name)) {
            return Err(NoRequirement::Name);
        }
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(rest);
        Ok(Self {
            name: name.to_owned(),
            extras: extras.into_iter().map(str::to_ascii_lowercase).collect(),
            versions: versions(rest)?,
        })
    }
}

/// Letters and digits, with what may separate them in between.
fn is_name(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

fn versions(text: &str) -> Result<Vec<String>, NoRequirement> {
    if text.len() > MAX_LEN {
        return Err(NoRequirement::Version);
    }
    let all = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    all.map(|one| {
        let operator = OPERATORS.iter().find(|it| one.starts_with(**it));
        let operator = operator.ok_or(NoRequirement::Version)?;
        let version = one[operator.len()..].trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".*+!_-".contains(c);
        if version.is_empty() || !version.chars().all(is_plain) {
            return Err(NoRequirement::Version);
        }
        Ok(format!("{operator}{version}"))
    })
    .collect()
}

/// What may be installed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Allowed {
    /// Nothing.
    #[default]
    Nothing,
    /// These, in these versions, and what they need.
    These(Vec<Requirement>),
    /// Whatever the index has.
    Any,
}

impl Allowed {
    /// What is asked for, within the versions that are allowed of it; `None` if it is not allowed. An extra is, where
    /// its package is.
    pub fn within(&self, wanted: Requirement) -> Option<Requirement> {
        match self {
            Self::Nothing => None,
            Self::Any => Some(wanted),
            Self::These(these) => {
                let name = wanted.plain_name();
                let allowed = these.iter().find(|it| it.plain_name() == name)?;
                Some(wanted.within(allowed))
            }
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("off"),
            Self::Any => f.write_str("any"),
            Self::These(these) => {
                let these: Vec<_> = these.iter().map(ToString::to_string).collect();
                f.write_str(&these.join(", "))
            }
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "off" => return Ok(Self::Nothing),
            "any" => return Ok(Self::Any),
            _ => {}
        }
        // A comma may also stand between two versions of one package.
        let mut all: Vec<String> = vec![];
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match all.last_mut() {
                Some(last) if item.starts_with(['<', '>', '=', '!', '~']) => {
                    last.push(',');
                    last.push_str(item);
                }
                _ => all.push(item.to_owned()),
            }
        }
        let read = |one: &String| one.parse().map_err(|why| format!("{one:?} {why}"));
        all.iter().map(read).collect::<Result<_, _>>().map(Self::These)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, NoRequirement> {
        text.parse::<Requirement>().map(|it| it.to_string())
    }

    #[test]
    fn a_package_is_read_with_extras_and_versions_as_pip_writes_them() {
        for (text, same) in [
            ("humanize", "humanize"),
            (" Humanize ", "Humanize"),
            ("pandas[excel, HTML] >= 2, < 3", "pandas[excel,html]>=2,<3"),
            ("humanize (==4.9.0)", "humanize==4.9.0"),
            ("ruamel.yaml~=0.18", "ruamel.yaml~=0.18"),
            ("a==1.*", "a==1.*"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(same), "{text}");
        }
        let version = |text: &str| "a".parse::<Requirement>().expect("a name").with_version(text);
        assert_eq!(version("1.2").map(|it| it.to_string()).as_deref(), Ok("a==1.2"));
        assert_eq!(version(">=1.2").map(|it| it.to_string()).as_deref(), Ok("a>=1.2"));
        assert_eq!(version("1.2; rm"), Err(NoRequirement::Version));
    }

    #[test]
    fn nothing_that_pip_would_take_for_something_else_is_a_package() {
        for text in [
            "",
            "-",
            "-r",
            "--index-url=x",
            "./a",
            "../a",
            "a/b",
            "a.whl@x",
            "git+x://y",
            "a @ b",
            "a; python_version<'4'",
            "a\\b",
            "C:a",
            ".a",
            "a.",
            "a[",
            "a[b",
            "a[-]",
            "a b",
            "a==",
            "a=1",
            "a==1 --hash=x",
            "a\n--pre",
            "a#b",
            "ä",
            &"a".repeat(MAX_LEN + 1),
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_compared_as_indexes_do() {
        for same in ["ruamel.yaml", "Ruamel-YAML", "ruamel_yaml", "ruamel-_-yaml"] {
            assert_eq!(PlainName::of(same).as_str(), "ruamel-yaml");
        }
    }

    #[test]
    fn a_list_allows_its_packages_within_its_versions_and_no_others() {
        let allowed = |list: &str, wanted: &str| {
            let list: Allowed = list.parse().expect("a list");
            list.within(wanted.parse().expect("a package")).map(|it| it.to_string())
        };
        let list = "rapidfuzz, Ruamel.Yaml>=0.18,<0.19, humanize==4.*";
        assert_eq!(allowed(list, "rapidfuzz==3.1"), Some("rapidfuzz==3.1".into()));
        assert_eq!(allowed(list, "ruamel-yaml"), Some("ruamel-yaml>=0.18,<0.19".into()));
        assert_eq!(allowed(list, "humanize>3"), Some("humanize>3,==4.*".into()));
        assert_eq!(allowed(list, "requests"), None);
        assert_eq!(allowed("any", "requests"), Some("requests".into()));
        for off in ["off", "", " OFF "] {
            assert_eq!(off.parse(), Ok(Allowed::Nothing));
        }
        assert!("rapidfuzz, -r x".parse::<Allowed>().is_err_and(|why| why.starts_with("\"-r x\"")));
    }
}
