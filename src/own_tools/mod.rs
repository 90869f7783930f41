//! Tools of the operator's own: WASI programs that files define and that clients use like other tools.
//!
//! ```text
//! SANDBOX_TOOLS_FILE --> definition: checked, all mistakes at once --> compile: once for each module
//!       ^                     '- template: texts of a call from its arguments
//!       | changed, SIGHUP                                      process: many calls, each a fresh instance
//! ```
//!
//! A change of the files takes effect as a whole or, if something in it is wrong, not at all.

mod check;
#[cfg(feature = "wasm")]
mod compile;
mod definition;
mod process;
mod template;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use config::{Config, scratch_bytes};
use model::{Principal, text::quoted};
use parking_lot::RwLock;
use protocol::message::CallInput;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "wasm")]
pub(crate) use self::check::answer as check_arguments;
#[cfg(feature = "wasm")]
pub(crate) use self::compile::compile;
pub(crate) use self::process::{Called, LeftFiles};
use self::{
    check::{Check, NotChecked},
    definition::{Defaults, Definition, Mistake},
    process::{Bounds, Program, Settings},
};
use crate::error::Error;

/// Interval of checks whether a file has changed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two attempts to read definitions that had mistakes.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Extension of the files with definitions in a folder.
const ENDING: &str = "json";

/// The tools that a server offers besides its own. Clones share them.
#[derive(Debug, Clone)]
pub struct OwnTools(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    config: Config,
    #[cfg(feature = "wasm")]
    compiled: compile::Compiled,
    /// Names that are reserved for the server's own tools.
    taken: Vec<&'static str>,
    current: RwLock<Current>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Current {
    tools: Arc<[Arc<OwnTool>]>,
    /// The files that the tools were read from, in their state at that time.
    seen: Seen,
}

/// Files, with the modification time and the size of each.
type Seen = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

/// One tool.
#[derive(Debug)]
pub(crate) struct OwnTool {
    definition: Definition,
    check: Check,
    program: Arc<Program>,
}

impl OwnTools {
    /// Loads the tools that the settings name, if they name any. No tool may have one of the `taken` names.
    ///
    /// # Errors
    /// If there are mistakes: all of them, one per line.
    pub async fn load(config: &Config, taken: Vec<&'static str>) -> Result<Option<Self>, String> {
        let Some(path) = &config.tools_file else { return Ok(None) };
        let inner = Inner {
            path: path.clone(),
            config: config.clone(),
            #[cfg(feature = "wasm")]
            compiled: compile::Compiled::new(config)?,
            taken,
            current: RwLock::default(),
            changes: watch::Sender::default(),
        };
        let own = Self(Arc::new(inner));
        own.reload().await.map_err(|mistakes| lines(&mistakes))?;
        Ok(Some(own))
    }

    /// The file or folder with the definitions.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// All tools.
    pub(crate) fn all(&self) -> Arc<[Arc<OwnTool>]> {
        self.0.current.read().tools.clone()
    }

    /// The names of all tools.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all().iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// Notifies of each change of the tools.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Follows changes of the files, and SIGHUP, while it is polled.
    pub(crate) async fn keep_up(self) {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        let mut wrong: Option<(Vec<Mistake>, Instant)> = None;
        loop {
            let is_asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            // The operator may correct a mistake in a way that changes no known file, such as by adding a missing
            // file.
            let is_retry =
                wrong.as_ref().is_some_and(|(_, since)| since.elapsed() >= RETRY_INTERVAL);
            if !is_asked && !is_retry && self.look() == self.0.current.read().seen {
                continue;
            }
            match self.reload().await {
                Ok(()) => {
                    wrong = None;
                    let tools = self.names().join(", ");
                    tracing::info!(tools, file = %self.path().display(), "tools reloaded");
                }
                Err(mistakes) => {
                    if wrong.as_ref().is_none_or(|(known, _)| *known != mistakes) {
                        let lines = lines(&mistakes);
                        tracing::error!("tools not reloaded, the previous ones stay:{lines}");
                    }
                    wrong = Some((mistakes, Instant::now()));
                }
            }
        }
    }

    /// Reads all files again.
    async fn reload(&self) -> Result<(), Vec<Mistake>> {
        // Later changes are detected by comparison with this state.
        self.0.current.write().seen = self.look();
        let tools: Arc<[_]> = self.read().await?.into();
        let mut current = self.0.current.write();
        current.seen.retain(|path, _| is_definition(path) || *path == self.0.path);
        current.seen.extend(tools.iter().map(|tool| seen(&tool.definition.module)));
        current.tools = tools;
        drop(current);
        self.0.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// The files with definitions, or the mistake in the path.
    fn files(&self) -> Result<Vec<PathBuf>, Mistake> {
        let path = self.path();
        let failed = |error: std::io::Error| Mistake {
            file: path.to_owned(),
            field: String::new(),
            why: format!("SANDBOX_TOOLS_FILE cannot be read: {error}"),
        };
        if !std::fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<_> = paths.filter(|path| is_definition(path)).collect();
        files.sort();
        Ok(files)
    }

    /// The current state of the files, including the modules.
    fn look(&self) -> Seen {
        let modules: Vec<_> =
            self.all().iter().map(|tool| tool.definition.module.clone()).collect();
        let files = self.files().unwrap_or_default().into_iter().chain(modules);
        files.map(|path| seen(&path)).collect()
    }

    async fn read(&self) -> Result<Vec<Arc<OwnTool>>, Vec<Mistake>> {
        let Inner { config, taken, .. } = &*self.0;
        let files = self.files().map_err(|mistake| vec![mistake])?;
        let defaults = Defaults {
            fuel: config.fuel,
            deadline: config.exec_timeout,
            memory: config.memory_limit,
        };
        let mut mistakes = vec![];
        let read = files.iter().map(|file| definition::read(file, defaults, &mut mistakes));
        let definitions = read.collect::<Vec<_>>().concat();
        mistakes.extend(check_names(&definitions, |name| taken.contains(&name)));
        let modules = definitions.iter().map(|definition| &*definition.module);
        #[cfg(feature = "wasm")]
        let codes = self.0.compiled.of(modules).await;
        #[cfg(not(feature = "wasm"))]
        let codes = without_an_engine(modules).await;
        let mut tools = vec![];
        for definition in definitions {
            match &codes[&definition.module] {
                Ok(code) => tools.push(Arc::new(OwnTool::new(definition, code, config))),
                Err(why) => mistakes.push(definition.location.mistake("wasm_file", &**why)),
            }
        }
        if mistakes.is_empty() { Ok(tools) } else { Err(mistakes) }
    }
}

/// The error for every module if the program was built without the embedded engine.
#[cfg(not(feature = "wasm"))]
fn without_an_engine<'a>(
    modules: impl Iterator<Item = &'a Path>,
) -> std::future::Ready<BTreeMap<PathBuf, Result<PathBuf, String>>> {
    let why = "this program was built without the embedded engine, which runs tools";
    let none = modules.map(|module| (module.to_owned(), Err(why.to_owned()))).collect();
    std::future::ready(none)
}

/// The mistakes of several definitions together: names that are taken.
fn check_names(definitions: &[Definition], taken: impl Fn(&str) -> bool) -> Vec<Mistake> {
    let mut names = BTreeSet::new();
    let mut mistakes = vec![];
    for Definition { location, name, .. } in definitions {
        if taken(name) {
            let why = format!("{} is the name of a tool of the server's own", quoted(name));
            mistakes.push(location.mistake("name", why));
        } else if !names.insert(name) {
            let why = format!("another tool is called {}", quoted(name));
            mistakes.push(location.mistake("name", why));
        }
    }
    mistakes
}

/// Whether a file in a folder defines tools.
fn is_definition(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING)
}

/// The current state of a file.
fn seen(path: &Path) -> (PathBuf, Option<(SystemTime, u64)>) {
    let stamp = std::fs::metadata(path).ok();
    let stamp = stamp.and_then(|stamp| Some((stamp.modified().ok()?, stamp.len())));
    (path.to_owned(), stamp)
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes.iter().fold(String::new(), |lines, mistake| lines + "\n  " + &mistake.to_string())
}

impl OwnTool {
    fn new(definition: Definition, code: &Path, config: &Config) -> Self {
        let settings = Settings {
            code: code.to_owned(),
            folder: definition.folder.clone(),
            shown: definition.shown.clone(),
            memory: definition.memory,
            data: config.own_tool_data(),
            scratch: scratch_bytes(config.memory_limit),
            idle: config.hibernate_after,
        };
        let check = Check::of(&definition.schema);
        Self { definition, check, program: Program::new(settings) }
    }

    /// The name by which clients call the tool.
    pub(crate) fn name(&self) -> &str {
        &self.definition.name
    }

    /// The description for models.
    pub(crate) fn description(&self) -> &str {
        &self.definition.description
    }

    /// The JSON Schema of an object, which calls are checked against.
    pub(crate) fn schema(&self) -> &Value {
        &self.definition.schema
    }

    /// Time limit of a call.
    pub(crate) fn deadline(&self) -> Duration {
        self.definition.deadline
    }

    /// Memory limit of a call, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.definition.memory
    }

    /// Runs the tool once.
    ///
    /// # Errors
    /// If the arguments do not match the schema, or the tool's process cannot be started or has died.
    pub(crate) async fn call(
        &self,
        who: &Principal,
        arguments: Value,
        output_cap: usize,
        cancel: CancellationToken,
    ) -> Result<Called, Error> {
        let arguments = self.without_nulls(arguments);
        if let Check::Here(validator) = &self.check {
            self.refuse(&arguments, check::faults(validator, &arguments))?;
        }
        let bounds = Bounds {
            who: who.clone(),
            deadline: self.definition.deadline,
            fuel: self.definition.fuel,
            output_cap,
            cancel,
        };
        let slots = self.program.slots(&bounds).await?;
        if matches!(self.check, Check::Elsewhere) {
            let faults = check::elsewhere(self.schema(), &arguments, self.deadline());
            let faults = tokio::select! {
                faults = faults => faults.map_err(|why| self.not_checked(&why))?,
                () = bounds.cancel.cancelled() => return Err(process::cancelled()),
            };
            self.refuse(&arguments, faults)?;
        }
        let Value::Object(arguments) = arguments else { unreachable!("the schema is an object's") };
        self.program.call(&self.input(&arguments), bounds, slots).await
    }

    fn not_checked(&self, why: &NotChecked) -> Error {
        let name = self.name();
        match why {
            NotChecked::TooLong => Error::InvalidArgument(format!(
                "{name} does not take this: it would take too long to find out whether these arguments are right. \
                 Give simpler ones."
            )),
            NotChecked::Failed(error) => {
                tracing::error!(tool = name, %error, "failed to check the arguments of a call");
                Error::ToolDied
            }
        }
    }

    /// Removes null arguments, which models write for what they leave out, unless the schema allows null or
    /// gives no type.
    fn without_nulls(&self, mut arguments: Value) -> Value {
        let properties = &self.schema()["properties"];
        if let Some(arguments) = arguments.as_object_mut() {
            arguments.retain(|name, value| {
                let kind = &properties[name]["type"];
                let takes_null = match kind {
                    Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
                    kind => kind.is_null() || kind == "null",
                };
                !value.is_null() || takes_null
            });
        }
        arguments
    }

    fn refuse(&self, arguments: &Value, faults: Vec<String>) -> Result<(), Error> {
        let unknown =
            self.unknown(arguments).map(|name| format!("there is no argument {}", quoted(name)));
        let faults: Vec<_> = unknown.chain(faults).take(check::MAX_FAULTS).collect();
        if faults.is_empty() {
            return Ok(());
        }
        // Some mistakes quote the argument, however long it is.
        let text: String = faults.join("; ").chars().take(500).collect();
        Err(Error::InvalidArgument(format!("{} does not take this: {text}.", self.name())))
    }

    /// Arguments that the schema does not name, unless it has a rule for such arguments.
    fn unknown<'a>(&'a self, arguments: &'a Value) -> impl Iterator<Item = &'a str> {
        let schema = self.schema();
        let is_open = ["additionalProperties", "patternProperties", "unevaluatedProperties"]
            .iter()
            .any(|key| schema.get(key).is_some());
        let names = arguments.as_object().into_iter().flatten().map(|(name, _)| &**name);
        names.filter(move |name| !is_open && schema["properties"].get(name).is_none())
    }

    fn input(&self, arguments: &Map<String, Value>) -> CallInput {
        let Definition { argv, env, files, stdin, .. } = &self.definition;
        CallInput {
            args: argv.iter().map(|text| text.render(arguments)).collect(),
            env: env
                .iter()
                .map(|(name, text)| format!("{name}={}", text.render(arguments)))
                .collect(),
            files: files
                .iter()
                .map(|(path, text)| (path.clone(), text.render(arguments)))
                .collect(),
            stdin: stdin.render(arguments),
        }
    }
}
