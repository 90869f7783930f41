//! Requested packages: names, extras and versions. Pure.
//!
//! The syntax is a small part of that of pip and npm: no addresses, no paths, no options, no markers, no tags.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The maximum length of a requirement, a name or a list of versions, in bytes.
const MAX_LEN: usize = 200;

/// Operators that compare versions for Python, the longer ones first.
const OPERATORS: [&str; 8] = ["===", "==", "!=", "<=", ">=", "~=", "<", ">"];

/// Operators that compare versions for JavaScript, the longer ones first.
const NPM_OPERATORS: [&str; 7] = ["<=", ">=", "<", ">", "=", "^", "~"];

/// The prefix of a JavaScript package in a list in which other packages are for Python.
pub(super) const NPM: &str = "npm:";

/// The origin of a language's packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ecosystem {
    /// Indexes such as PyPI, for Python.
    PyPi,
    /// Registries such as npm's, for JavaScript.
    Npm,
}

impl Ecosystem {
    /// The language of the ecosystem's packages.
    pub const fn language(self) -> &'static str {
        match self {
            Self::PyPi => "Python",
            Self::Npm => "JavaScript",
        }
    }

    /// A package of one file, which many others need.
    pub(super) const fn small(self) -> &'static str {
        match self {
            Self::PyPi => "six",
            Self::Npm => "ms",
        }
    }

    /// A package without and with a version, to show how they are written.
    const fn example(self) -> [&'static str; 2] {
        match self {
            Self::PyPi => ["humanize", "humanize==4.9.0"],
            Self::Npm => ["lodash", "lodash@4.17.21"],
        }
    }

    /// Versions, to show how they are written.
    const fn example_versions(self) -> [&'static str; 2] {
        match self {
            Self::PyPi => ["==4.9.0", ">=4,<5"],
            Self::Npm => ["4.17.21, ^4", ">=4 <5"],
        }
    }
}

/// A name of a package as indexes for Python compare it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlainName(String);

impl PlainName {
    /// Converts a name to small letters, with one hyphen between its parts.
    pub fn of(name: &str) -> Self {
        let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
        Self(parts.collect::<Vec<_>>().join("-").to_ascii_lowercase())
    }

    /// The converted name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A requested package, such as `pandas[excel]>=2,<3` or `lodash@>=4 <5`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    ecosystem: Ecosystem,
    name: String,
    extras: BTreeSet<String>,
    /// Versions, each with its operator.
    versions: Vec<String>,
}

/// Why a text is not a requirement. The message is a predicate, to follow the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRequirement {
    /// The text has no valid name, or is longer than [`MAX_LEN`].
    #[error("is not the name of a package; give a name such as {}, or {}", .0.example()[0], .0.example()[1])]
    Name(Ecosystem),
    /// The text after the name is not a version.
    #[error("has a version that cannot be read; write {} or {}", .0.example_versions()[0], .0.example_versions()[1])]
    Version(Ecosystem),
    /// The text names a place or an option.
    #[error("names a file, an address or an option; give the name of a package in the index")]
    Place,
}

impl Requirement {
    /// Parses a requirement for packages of this ecosystem.
    ///
    /// # Errors
    /// If the text is not a requirement.
    pub fn read(ecosystem: Ecosystem, text: &str) -> Result<Self, NoRequirement> {
        let text = text.trim();
        if text.len() > MAX_LEN {
            return Err(NoRequirement::Name(ecosystem));
        }
        match ecosystem {
            Ecosystem::PyPi => Self::of_python(text),
            Ecosystem::Npm => Self::of_npm(text),
        }
    }

    fn of_python(text: &str) -> Result<Self, NoRequirement> {
        let ecosystem = Ecosystem::PyPi;
        let no_name = NoRequirement::Name(ecosystem);
        if text.contains(['/', '\\', '@', ';', ':', '#']) || text.starts_with('-') {
            return Err(NoRequirement::Place);
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let (name, rest) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
        let (extras, rest) = match rest.trim_start().strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(no_name)?,
            None => ("", rest),
        };
        let extras: Vec<_> = extras.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        if !std::iter::once(&name).chain(&extras).all(|name| is_name(name)) {
            return Err(no_name);
        }
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(rest);
        Ok(Self {
            ecosystem,
            name: name.to_owned(),
            extras: extras.into_iter().map(str::to_ascii_lowercase).collect(),
            versions: versions(rest)?,
        })
    }

    fn of_npm(text: &str) -> Result<Self, NoRequirement> {
        let ecosystem = Ecosystem::Npm;
        let text = text.strip_prefix(NPM).unwrap_or(text);
        if text.starts_with(['-', '.', '/', '~']) || text.contains([':', '\\', '#']) {
            return Err(NoRequirement::Place);
        }
        // An `@` as the first character begins the name of a scope.
        let at = text.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| at);
        let (name, range) = at.map_or((text, ""), |at| (&text[..at], &text[at + 1..]));
        if !is_npm_name(name) {
            return Err(NoRequirement::Name(ecosystem));
        }
        let range = if range.trim() == "latest" { "" } else { range };
        let (name, extras) = (name.to_owned(), BTreeSet::new());
        Ok(Self { ecosystem, name, extras, versions: npm_versions(range)? })
    }

    /// The package's ecosystem.
    pub fn ecosystem(&self) -> Ecosystem {
        self.ecosystem
    }

    /// The name as indexes compare it.
    pub fn plain_name(&self) -> PlainName {
        match self.ecosystem {
            Ecosystem::PyPi => PlainName::of(&self.name),
            Ecosystem::Npm => PlainName(self.name.clone()),
        }
    }

    /// The name as it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the requirement has extras, or is limited to some versions.
    pub fn is_particular(&self) -> bool {
        !self.extras.is_empty() || !self.versions.is_empty()
    }

    /// Adds a version from the argument of a call: `4.9.0` or `>=4`.
    ///
    /// # Errors
    /// If it is not a version.
    pub fn with_version(mut self, version: &str) -> Result<Self, NoRequirement> {
        let version = version.trim();
        let more = match self.ecosystem {
            Ecosystem::Npm => npm_versions(version),
            Ecosystem::PyPi if OPERATORS.iter().any(|it| version.starts_with(it)) => {
                versions(version)
            }
            Ecosystem::PyPi => versions(&format!("=={version}")),
        };
        self.versions.extend(more?);
        Ok(self)
    }

    /// The text that requests exactly this version, whatever the language of the session.
    pub fn in_version(&self, version: &str) -> String {
        match self.ecosystem {
            Ecosystem::PyPi => format!("{}=={version}", self.name),
            Ecosystem::Npm => format!("{NPM}{}@{version}", self.name),
        }
    }

    /// Adds the versions that another requirement allows.
    pub(super) fn within(mut self, other: &Self) -> Self {
        self.versions.extend(other.versions.iter().cloned());
        self
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.ecosystem == Ecosystem::Npm {
            let at = if self.versions.is_empty() { "" } else { "@" };
            return write!(f, "{at}{}", self.versions.join(" "));
        }
        if !self.extras.is_empty() {
            let extras: Vec<_> = self.extras.iter().map(String::as_str).collect();
            write!(f, "[{}]", extras.join(","))?;
        }
        f.write_str(&self.versions.join(","))
    }
}

impl FromStr for Requirement {
    type Err = NoRequirement;

    /// Parses a requirement: for JavaScript if it begins with `npm:`, otherwise for Python.
    fn from_str(text: &str) -> Result<Self, NoRequirement> {
        let is_npm = text.trim_start().starts_with(NPM);
        Self::read(if is_npm { Ecosystem::Npm } else { Ecosystem::PyPi }, text)
    }
}

/// Whether a text is letters and digits, with separators only between them.
fn is_name(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

/// Whether a text is a name such as `lodash` or `@scope/name`: also the name of a folder, or of one in another.
pub fn is_npm_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_inner)
    };
    let (scope, name) = match text.strip_prefix('@') {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None => ("scope", text),
    };
    text.len() <= MAX_LEN && is_part(scope) && is_part(name) && name != "node_modules"
}

fn versions(text: &str) -> Result<Vec<String>, NoRequirement> {
    let no_version = NoRequirement::Version(Ecosystem::PyPi);
    if text.len() > MAX_LEN {
        return Err(no_version);
    }
    let all = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    all.map(|one| {
        let operator = OPERATORS.iter().find(|it| one.starts_with(**it)).ok_or(no_version)?;
        let version = one[operator.len()..].trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".*+!_-".contains(c);
        if version.is_empty() || !version.chars().all(is_plain) {
            return Err(no_version);
        }
        Ok(format!("{operator}{version}"))
    })
    .collect()
}

/// Parses comparisons that must all hold. Alternatives and spans are refused: adding others could not narrow them.
fn npm_versions(text: &str) -> Result<Vec<String>, NoRequirement> {
    let no_version = NoRequirement::Version(Ecosystem::Npm);
    if text.len() > MAX_LEN {
        return Err(no_version);
    }
    let (mut all, mut operator) = (vec![], "");
    // Commas between comparisons, and two equals signs for one, are accepted, as is usual for Python.
    for mut word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
        if let Some(found) = NPM_OPERATORS.iter().find(|it| word.starts_with(**it)) {
            if !operator.is_empty() {
                return Err(no_version);
            }
            operator = found;
            word = &word[found.len()..];
            word = if operator == "=" { word.trim_start_matches('=') } else { word };
        }
        let version = word.strip_prefix('v').unwrap_or(word);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".*+-".contains(c);
        let begins = |c: char| c.is_ascii_digit() || matches!(c, '*' | 'x' | 'X');
        if version.is_empty() {
            continue;
        }
        if !version.starts_with(begins) || !version.chars().all(is_plain) {
            return Err(no_version);
        }
        all.push(format!("{operator}{version}"));
        operator = "";
    }
    if operator.is_empty() { Ok(all) } else { Err(no_version) }
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
        assert_eq!(version("1.2; rm"), Err(NoRequirement::Version(Ecosystem::PyPi)));
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
    fn a_package_for_javascript_is_read_as_npm_writes_it() {
        let read = |text: &str| Requirement::read(Ecosystem::Npm, text).map(|it| it.to_string());
        for (text, same) in [
            ("lodash", "lodash"),
            (" npm:lodash@^4 ", "lodash@^4"),
            ("@scope/a.b@1.x", "@scope/a.b@1.x"),
            ("a@>= 4 < 5", "a@>=4 <5"),
            ("a@>=4,<5", "a@>=4 <5"),
            ("a@==1.2.3-beta.1", "a@=1.2.3-beta.1"),
            ("a@v1.2", "a@1.2"),
            ("JSONStream@latest", "JSONStream"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(same), "{text}");
        }
        for text in [
            "",
            "@",
            "@scope",
            "@scope/",
            "@scope/a/b",
            "a/b",
            "../a",
            "./a",
            "/a",
            "~/a",
            ".a",
            "-g",
            "--prefix=x",
            "a b",
            "node_modules",
            "a@latest x",
            "a@1 || 2",
            "a@1 - 2",
            "a@npm:b@1",
            "a@file:x",
            "a@git+ssh://x",
            "a@../x",
            "a@u/r",
            "a@^",
            "a@>=<1",
            "u/r#x",
            "http://x/y.tgz",
            "ä",
            &"a".repeat(MAX_LEN + 1),
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        let lodash = Requirement::read(Ecosystem::Npm, "lodash").expect("a name");
        let version = lodash.with_version("^4").map(|it| it.to_string());
        assert_eq!(version.as_deref(), Ok("lodash@^4"));
    }

    #[test]
    fn names_are_compared_as_indexes_do() {
        for same in ["ruamel.yaml", "Ruamel-YAML", "ruamel_yaml", "ruamel-_-yaml"] {
            assert_eq!(PlainName::of(same).as_str(), "ruamel-yaml");
        }
    }
}
