//! Settings in a YAML file, by sections:
//!
//! ```yaml
//! transport:
//!   http: { port: 9000 }
//! sandbox:
//!   max_memory_mb: 1024
//!   preload: [numpy, pandas]
//! auth:
//!   tokens: file:/run/secrets/tokens
//! ```
//!
//! Callers are read in [`callers`], datasets in [`datasets`], upstreams in [`upstreams`].
//!
//! A value becomes the text that the setting's variable would have: a list with the setting's separator, a number under
//! a key that ends with `_mb` with this unit. `${NAME}` stands for an environment variable, `file:PATH` for a secret in a
//! file.

mod callers;
mod datasets;
mod upstreams;

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use model::{DatasetSource, text::nearest};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::{
    callers::{Caller, Policy, rows_in_policies},
    datasets::Entry as DatasetEntry,
    given::{Given, Source},
    setting::Row,
    table,
    upstreams::Upstream,
};

/// The environment variable that names the file.
pub const VARIABLE: &str = "SANDBOX_CONFIG_FILE";

/// The file's path below a folder for settings.
const NAME: &str = "llm-sandbox/config.yaml";

/// The character in a key between the names of sections.
const DOT: char = '.';

/// Keys that files for similar programs have. They have no effect here, for a reason that the server tells at its start.
const WITHOUT_EFFECT: [(&str, &str); 8] = [
    ("server.version", "clients are told the version of this program"),
    ("runtimes.python.version", RUNTIME),
    ("runtimes.python.wasm_module", MODULE),
    (
        "runtimes.python.packages",
        "the sandbox image has its packages; packages.allowed lets sessions install others",
    ),
    ("runtimes.javascript.version", RUNTIME),
    ("runtimes.javascript.wasm_module", MODULE),
    (
        "sessions.cleanup_on_disconnect",
        "the workspace of an MCP session ends with it, others when they are unused",
    ),
    (
        "sessions.persist_metadata",
        "audit.file records calls, and sessions.history_dir keeps the runs of sessions",
    ),
];

/// Sections of clients' files that have another name here.
const RENAMED: [(&str, &str); 2] = [("mcpServers", UPSTREAMS), ("servers", UPSTREAMS)];

const NO_SECTION: &str = "is no section";

const RUNTIME: &str =
    "the sandbox image or the embedded engine has its version; list_runtimes tells it";
const MODULE: &str = "`llm-sandbox runtime install` installs the modules of the embedded engine";

/// Second keys of settings.
const ALIASES: [(&str, &str); 1] = [("sessions.default_memory_mb", "sandbox.default_memory_mb")];

/// The prefix of a file with a secret.
const FILE: &str = "file:";

/// Bytes of such a file that are read, at most.
const MAX_SECRETS: u64 = 1 << 20;

/// The system's folder for settings.
const SYSTEM: &str = "/etc";

/// The section with the list of callers.
const CALLERS: &str = "callers";

/// The section with the list of datasets.
const DATASETS: &str = "datasets";

/// The section with the policies, by their names.
const POLICIES: &str = "policies";

/// The section with the upstreams, by their names.
const UPSTREAMS: &str = "upstreams";

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The values by the names of their variables.
    pub(super) values: BTreeMap<String, Given>,
    /// Remarks about values that have no effect.
    pub(super) remarks: Vec<String>,
    pub(super) callers: Vec<Caller>,
    pub(super) policies: BTreeMap<String, Policy>,
    pub(super) datasets: Vec<DatasetEntry>,
    pub(super) upstreams: Vec<Upstream>,
}

/// The file with this name, or else the first that exists of those in the user's and the system's folders for settings.
pub(super) fn find(named: Option<PathBuf>) -> Option<PathBuf> {
    if named.is_some() {
        return named;
    }
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let folders = [user, Some(SYSTEM.into())];
    let mut files = folders.into_iter().flatten().map(|folder| folder.join(NAME));
    // The system's settings hold for all its users: whoever may not read them must learn that. A home folder may be one
    // that the program's user has only by name.
    let is_there = |path: &PathBuf| path.try_exists().unwrap_or(path.starts_with(SYSTEM));
    files.find(is_there)
}

/// Reads the file. Adds errors to `mistakes`.
pub(super) fn read(path: &Path, mistakes: &mut Vec<String>) -> Contents {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match fs::read_to_string(&path) {
        Ok(text) => parse(&path, &text, mistakes),
        Err(error) => {
            mistakes.push(format!("{}: {error}", path.display()));
            Contents::default()
        }
    }
}

/// The values of a settings file by the names of their variables, for a program that shares some settings with the
/// server. Values with mistakes are left out: the server reports them.
///
/// # Errors
/// If the file cannot be read.
pub fn variables_in(path: &Path) -> io::Result<Vec<(String, String)>> {
    let mut contents = parse(path, &fs::read_to_string(path)?, &mut vec![]);
    let own = contents.datasets.iter().filter_map(|entry| match &entry.dataset.source {
        DatasetSource::Folder(path) => Some(format!("{}={}", entry.dataset.name, path.display())),
        DatasetSource::Root(_) | DatasetSource::Volume(_) => None,
    });
    let name = table::SANDBOX_DATASETS.row.name;
    let listed = contents.values.remove(name).map(|given| given.text);
    let datasets = listed.into_iter().chain(own).collect::<Vec<_>>().join(",");
    let values = contents.values.into_iter().map(|(name, given)| (name, given.text));
    Ok(values.chain([(name.to_owned(), datasets)]).collect())
}

fn parse(path: &Path, text: &str, mistakes: &mut Vec<String>) -> Contents {
    let shown = path.display();
    let tree = match serde_saphyr::from_str::<Option<Spanned<Node>>>(text) {
        Ok(tree) => tree,
        Err(error) => {
            let line = error.location().map_or(0, |location| location.line());
            let error = error.without_snippet();
            mistakes.push(format!("{shown}:{line}: {error}"));
            return Contents::default();
        }
    };
    let mut found = Found { path, contents: Contents::default(), mistakes };
    match tree {
        None => {}
        Some(Spanned { value: Node::Map(entries), .. }) => {
            let is = |name| move |(key, _): &Entry| key.value == name;
            let (callers, rest): (Vec<_>, Vec<_>) = entries.into_iter().partition(is(CALLERS));
            let (policies, rest) = rest.into_iter().partition::<Vec<_>, _>(is(POLICIES));
            let (datasets, rest) = rest.into_iter().partition::<Vec<_>, _>(is(DATASETS));
            let (upstreams, rest) = rest.into_iter().partition::<Vec<_>, _>(is(UPSTREAMS));
            found.read("", rest);
            for (key, node) in policies {
                found.read_policies(&key, node.value);
            }
            for (key, node) in callers {
                found.read_callers(&key, node.value);
            }
            for (key, node) in datasets {
                found.read_datasets(&key, node.value);
            }
            for (key, node) in upstreams {
                found.read_upstreams(&key, node.value);
            }
        }
        Some(_) => found.mistakes.push(format!("{shown}:1: is no mapping of sections")),
    }
    found.contents
}

/// A part of the file.
#[derive(Debug)]
enum Node {
    /// A value; a number as its digits.
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<Entry>),
}

/// A key and what it has.
type Entry = (Spanned<String>, Spanned<Node>);

/// The contents so far.
struct Found<'a> {
    path: &'a Path,
    contents: Contents,
    mistakes: &'a mut Vec<String>,
}

impl Found<'_> {
    /// Reads the entries of a section.
    fn read(&mut self, section: &str, entries: Vec<Entry>) {
        for (name, node) in entries {
            let line = name.referenced.line();
            let key = format!("{section}{}", name.value);
            let inside = format!("{key}{DOT}");
            let own = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(&*key, |(_, own)| own);
            let row = table::rows().find(|row| row.key == own);
            let others = WITHOUT_EFFECT.iter().chain(&ALIASES).map(|(key, _)| *key);
            let known = table::rows().map(|row| row.key).chain(others);
            let is_section = known.into_iter().any(|known| known.starts_with(&inside));
            let without_effect = WITHOUT_EFFECT.iter().find(|(known, _)| *known == key);
            match (row, node.value) {
                (Some(row), node) => match text(row, node, self.path) {
                    Ok(text) => self.give(row, text, (line, &key)),
                    Err(why) => self.mistake(line, &format!("{key}: {why}")),
                },
                (None, _) if let Some((_, why)) = without_effect => {
                    self.remark(line, &format!("{key} has no effect: {why}"));
                }
                (None, Node::Map(entries)) if is_section => self.read(&inside, entries),
                // A section whose values are all comments.
                (None, Node::Text(text)) if is_section && text.is_empty() => {}
                (None, _) if is_section => {
                    self.mistake(line, &format!("{key}: is a section, which has keys and values"));
                }
                (None, _) => self.mistake(line, &no_such_key(&key)),
            }
        }
    }

    /// Adds the value of a setting. One that a similar program has, and this one cannot have, becomes the nearest.
    fn give(&mut self, row: &Row, text: String, (line, key): (u64, &str)) {
        let source = Source::File { path: self.path.to_owned(), line };
        let text = match row.nearest(&text) {
            Some((nearest, why)) => {
                self.remark(line, &format!("{key}: {why}"));
                nearest
            }
            None => text,
        };
        let before = self.contents.values.insert(row.name.to_owned(), Given { text, source });
        if let Some(Given { source, .. }) = before {
            self.mistake(line, &format!("{key}: was given before, at {source}"));
        }
    }

    /// Reads the policies. Each has keys of settings, as the file itself.
    fn read_policies(&mut self, key: &Spanned<String>, node: Node) {
        let entries = match node {
            Node::Map(entries) => entries,
            Node::Text(text) if text.is_empty() => return,
            _ => return self.mistake(key.referenced.line(), &format!("{POLICIES}: {NO_SECTION}")),
        };
        for (name, node) in entries {
            let line = name.referenced.line();
            let Node::Map(entries) = node.value else {
                self.mistake(line, &format!("{POLICIES}.{}: {NO_SECTION}", name.value));
                continue;
            };
            let (path, contents) = (self.path, Contents::default());
            let mut policy = Found { path, contents, mistakes: &mut *self.mistakes };
            policy.read("", entries);
            let values = policy.contents.values;
            for (variable, given) in &values {
                if given.text.trim().is_empty() {
                    let why = "is empty, which would be as if the policy did not have it";
                    self.mistakes.push(format!("{}: {variable}: {why}", given.source));
                }
                let is_known = rows_in_policies().any(|row| row.name == variable);
                if let Some(row) = table::rows().find(|row| row.name == variable && !is_known) {
                    let why = "is a setting of the server, and no policy can have it";
                    self.mistakes.push(format!("{}: {}: {why}", given.source, row.key));
                }
            }
            self.contents.policies.insert(name.value, values);
        }
    }

    /// The entries of a list, each with its line.
    fn items(&mut self, section: &str, key: &Spanned<String>, node: Node) -> Vec<(u64, Node)> {
        match node {
            Node::List(items) => {
                items.into_iter().map(|item| (item.referenced.line(), item.value)).collect()
            }
            Node::Text(text) if text.is_empty() => vec![],
            _ => {
                self.mistake(key.referenced.line(), &format!("{section}: is not a list"));
                vec![]
            }
        }
    }

    fn remark(&mut self, line: u64, what: &str) {
        self.contents.remarks.push(format!("{}:{line}: {what}", self.path.display()));
    }

    fn mistake(&mut self, line: u64, what: &str) {
        self.mistakes.push(format!("{}:{line}: {what}", self.path.display()));
    }
}

/// The text that a setting's variable would have.
fn text(row: &Row, node: Node, file: &Path) -> Result<String, String> {
    let value = match (node, row.form.separator()) {
        (Node::Text(text), _) => text,
        (Node::List(items), Some(separator)) => {
            let items = items.into_iter().map(|item| match item.value {
                Node::Text(text) if !text.contains(separator) => {
                    resolved(row.form.is_secret(), text, file)
                }
                Node::Text(_) => Err(format!("an item contains {separator:?}")),
                _ => Err("an item is neither a text nor a number".to_owned()),
            });
            let items = items.collect::<Result<Vec<_>, _>>()?;
            return Ok(items.join(&separator.to_string()));
        }
        (Node::List(_), None) => return Err("is a list, and one value is expected".into()),
        (Node::Map(_), _) => return Err("is a section, and one value is expected".into()),
    };
    let value = resolved(row.form.is_secret(), value, file)?;
    let is_plain = value.parse::<f64>().is_ok();
    Ok(if is_plain && row.key.ends_with("_mb") { format!("{value}MB") } else { value })
}

/// The value that a text stands for.
fn resolved(is_secret: bool, text: String, file: &Path) -> Result<String, String> {
    if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        return std::env::var(name).map_err(|_| format!("the variable {name} is not set"));
    }
    match text.strip_prefix(FILE).filter(|_| is_secret) {
        None => Ok(text),
        Some(path) => {
            // Relative to the file that names it: the server may start in any folder.
            let path = file.parent().unwrap_or(file).join(path);
            let mut secret = String::new();
            let read = fs::File::open(&path)
                .and_then(|file| file.take(MAX_SECRETS).read_to_string(&mut secret));
            read.map_err(|error| format!("{}: {error}", path.display()))?;
            let lines = secret.lines().map(str::trim).filter(|line| !line.is_empty());
            Ok(lines.collect::<Vec<_>>().join(","))
        }
    }
}

/// The message about a key that no setting has.
fn no_such_key(key: &str) -> String {
    if let Some((_, own)) = RENAMED.iter().find(|(theirs, _)| *theirs == key) {
        return format!("{key}: there is no such key; name the section {own}");
    }
    let all = || table::rows().map(|row| row.key);
    let name = |key: &'static str| key.rsplit(DOT).next().unwrap_or(key);
    // The right name in a wrong section is a frequent mistake.
    let same = all().filter(|known| Some(name(known)) == key.rsplit(DOT).next());
    let near: Vec<_> = same.chain(nearest(key, all(), 1)).take(1).collect();
    match near.first() {
        Some(near) => format!("{key}: there is no such key (did you mean {near}?)"),
        None => format!("{key}: there is no such key"),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

/// Makes a method for each type of scalar.
macro_rules! scalars {
    ($($method:ident($type:ty)),*) => {$(
        fn $method<E>(self, value: $type) -> Result<Node, E> {
            Ok(Node::Text(value.to_string()))
        }
    )*};
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    scalars!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a section")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Text(String::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = vec![];
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = vec![];
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}

#[cfg(test)]
mod tests;
