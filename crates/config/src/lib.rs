//! Settings: reads environment variables and a file, and returns one checked [`Config`] or all mistakes at
//! once. An invalid value never silently becomes a default.

pub mod auth;
mod choices;
mod env_file;
mod foreign;
mod parse;
mod reader;
mod secret_file;
pub mod server_key;
mod setting;
pub mod table;
#[cfg(test)]
mod tests;
mod tokens;
mod toolsets;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

pub use self::{
    choices::{Engine, LogFile, LogFormat, TokensFrom, Tracebacks, Transport},
    env_file::{EnvFile, VARIABLE as ENV_FILE},
    foreign::Foreign,
    table::Config,
    toolsets::{Toolset, Toolsets},
};
use self::{reader::Reader, setting::PREFIX};
use crate::auth::Tokens;
use model::package::Allowed;
pub use sandbox_container::scratch_bytes;
use sandbox_container::{Limits, defaults};

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            memory: config.memory_limit,
            cpus: config.cpu_limit,
            pids: config.pids_limit,
            data: config.data_limit,
        }
    }
}

/// All mistakes in the settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the settings cannot be used:")?;
        for mistake in &self.0 {
            writeln!(f, "  {mistake}")?;
        }
        write!(f, "docs/settings.md and .env.example describe every setting")
    }
}

/// Memory of preloaded modules and of a small program, in bytes.
const PRELOADED_BYTES: u64 = 180_000_000;

/// Memory of an interpreter without libraries and of a program that imports some, in bytes.
const BARE_BYTES: u64 = 95_000_000;

/// Module to preload if the libraries do not fit: the fork server then loads only the interpreter, so that runs start
/// sooner, and notes on their errors are the same as with libraries.
const BARE: &str = "json";

/// Whether this many bytes fit into memory besides files of the largest total size.
fn fits(bytes: u64, memory: u64, data: u64) -> bool {
    memory >= data + 2 * scratch_bytes(memory) + bytes
}

/// Memory with which preloaded modules fit besides this many bytes of files: a multiple of 10 MB.
fn memory_to_preload(data: u64) -> u64 {
    let step = 10_000_000;
    let least = (data + PRELOADED_BYTES).next_multiple_of(step);
    (least..)
        .step_by(10_000_000)
        .find(|memory| fits(PRELOADED_BYTES, *memory, data))
        .unwrap_or(least)
}

/// Variables of the environment and a file, before they are checked.
struct Variables {
    /// The environment, and the file for variables that the environment does not set.
    vars: BTreeMap<String, String>,
    /// Errors while reading.
    mistakes: Vec<String>,
    /// The file, if there is one, and whether the value of `SANDBOX_AUTH_TOKENS` is from it.
    file: Option<(PathBuf, bool)>,
}

impl Variables {
    fn read(file: &EnvFile) -> Self {
        let mut mistakes = vec![];
        let (file, mut vars) = file.read(&mut mistakes).unzip();
        let vars: &mut BTreeMap<_, _> = vars.get_or_insert_default();
        let mut tokens_in_file = vars.contains_key(table::SANDBOX_AUTH_TOKENS.row.name);
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            // This variable only names the file.
            if name == ENV_FILE {
                continue;
            }
            tokens_in_file &= name != table::SANDBOX_AUTH_TOKENS.row.name;
            match value.into_string() {
                Ok(value) => drop(vars.insert(name, value)),
                Err(_) if name.starts_with(PREFIX) => {
                    mistakes.push(format!("{name}: is not UTF-8"));
                }
                Err(_) => {}
            }
        }
        let vars = std::mem::take(vars);
        Self { vars, mistakes, file: file.map(|path| (path, tokens_in_file)) }
    }
}

/// The tokens of the settings, each with its name, for users who may read the settings.
///
/// # Errors
///
/// If there are mistakes in how they are set, or the file that should contain them does not exist yet.
pub fn tokens_in_clear(file: &EnvFile) -> Result<Vec<(String, String)>, Mistakes> {
    let Variables { vars, mut mistakes, .. } = Variables::read(file);
    let file = table::SANDBOX_AUTH_TOKENS_FILE.row.name;
    let set = |name| vars.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let list = match (set(table::SANDBOX_AUTH_TOKENS.row.name), set(file)) {
        (Some(list), _) => list.to_owned(),
        (None, None) => String::new(),
        // A file created here would contain a token that no server knows.
        (None, Some(path)) if !Path::new(path).exists() => {
            return Err(Mistakes(vec![format!(
                "{file}: there is no file {} yet: the server makes it when it starts, and may run in \
                 another folder",
                vars[file]
            )]));
        }
        (None, Some(path)) => tokens::from_file(path.as_ref()).unwrap_or_else(|error| {
            mistakes.push(format!("{file}: {path}: {error}"));
            String::new()
        }),
    };
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes));
    }
    let pairs = list.split(',').filter_map(|pair| pair.trim().split_once(':'));
    Ok(pairs.map(|(name, token)| (name.to_owned(), token.to_owned())).collect())
}

impl Config {
    /// Reads the environment, and a file for the variables that the environment does not set.
    ///
    /// # Errors
    ///
    /// If there are mistakes in the settings or in the file: all of them.
    pub fn load(file: &EnvFile) -> Result<Self, Mistakes> {
        let Variables { vars, mut mistakes, file } = Variables::read(file);
        match Self::parse(vars) {
            Ok(config) if mistakes.is_empty() => Ok(config.read_from(file)),
            Ok(_) => Err(Mistakes(mistakes)),
            Err(Mistakes(more)) => {
                mistakes.extend(more);
                Err(Mistakes(mistakes))
            }
        }
    }

    /// Whether there can be sessions. With only tools of the operator's own, no engine is needed.
    pub fn has_sessions(&self) -> bool {
        !self.toolsets.is_only(Toolset::Own)
    }

    /// Whether the next server can continue sessions of this one. Over stdio the client ends with its server,
    /// so nothing could ask for them again.
    pub fn sessions_outlive_server(&self) -> bool {
        !self.hold.is_zero() && self.transport == Transport::Http && self.server_key.is_some()
    }

    /// Notes that this file had some of the settings, and whether it had `SANDBOX_AUTH_TOKENS`.
    fn read_from(mut self, file: Option<(PathBuf, bool)>) -> Self {
        let Some((path, has_tokens)) = file else { return self };
        if has_tokens && self.tokens_from == Some(TokensFrom::Environment) {
            self.tokens_from = Some(TokensFrom::EnvFile(path.clone()));
        }
        self.env_file = Some(path);
        self
    }

    /// Checks variables; ignores those of other programs.
    ///
    /// # Errors
    ///
    /// If there are mistakes in values, alone or in combination, or names that no setting has: all of them.
    pub fn parse(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Mistakes> {
        let mut vars: BTreeMap<_, _> = vars.into_iter().collect();
        let foreign = foreign::among(&vars);
        vars.retain(|name, _| name.starts_with(PREFIX));
        let mut reader = Reader::new(vars);
        reader.refuse_new_key();
        let mut config = Self { foreign, ..Self::read(&mut reader) };
        config.read_tokens_file(&mut reader);
        config.computed_defaults(&reader);
        let mut mistakes = reader.into_mistakes();
        mistakes.extend(config.contradictions());
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }

    /// Reads the file of tokens, unless the setting has some; notes where they came from.
    fn read_tokens_file(&mut self, reader: &mut Reader) {
        if reader.value(&table::SANDBOX_AUTH_TOKENS.row).is_some() {
            self.tokens_from = Some(TokensFrom::Environment);
        } else if let Some(path) = &self.auth_tokens_file {
            let list = tokens::from_file(path);
            let list = list.map_err(|error| format!("{}: {error}", path.display()));
            self.auth_tokens =
                list.and_then(|list| Tokens::parse(&list)).unwrap_or_else(|mistake| {
                    reader.note(&table::SANDBOX_AUTH_TOKENS_FILE.row, vec![mistake]);
                    Tokens::default()
                });
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.tokens_from = Some(TokensFrom::TokensFile(path));
        }
    }

    /// Sets the defaults that depend on other settings.
    fn computed_defaults(&mut self, reader: &Reader) {
        // Files are in memory, and an upload is a file.
        if reader.is_default(&table::SANDBOX_DATA_LIMIT) {
            self.data_limit = defaults::data_limit(self.memory_limit);
        }
        if reader.is_default(&table::SANDBOX_MAX_UPLOAD_BYTES) {
            self.max_upload = self.max_upload.min(self.data_limit);
        }
        let (memory, data) = (self.memory_limit, self.data_limit);
        if reader.is_default(&table::SANDBOX_PRELOAD) && !fits(PRELOADED_BYTES, memory, data) {
            self.preload = fits(BARE_BYTES, memory, data).then(|| vec![BARE.to_owned()]);
            self.preload_needs = Some(memory_to_preload(data));
        }
        if reader.is_default(&table::SANDBOX_MAX_SESSIONS_PER_CLIENT) {
            self.max_sessions_per_client = self.max_sessions;
        }
        // Rollouts of the server and restarts of a node's own programs are frequent there, and a pod takes
        // its part of the cluster even while its session hibernates.
        let on_kubernetes = self.engine == Engine::Kubernetes;
        if on_kubernetes && reader.is_default(&table::SANDBOX_HOLD_S) {
            self.hold = Duration::from_secs(60);
        }
        if on_kubernetes && reader.is_default(&table::SANDBOX_MAX_HIBERNATED) {
            self.max_hibernated = 0;
        }
        // Saving sessions takes longer than removing them.
        if self.archive.is_some() && reader.is_default(&table::SANDBOX_SHUTDOWN_TIMEOUT_S) {
            self.shutdown_timeout = Duration::from_secs(25);
        }
        if reader.is_default(&table::SANDBOX_LOG_FILE) {
            let blank = reader.is_blank(&table::SANDBOX_LOG_FILE.row);
            self.log_file = if blank { LogFile::None } else { LogFile::Usual };
        }
    }

    /// The modules that are preloaded in a sandbox with these limits: with less memory than the setting
    /// allows, they may not fit.
    pub fn preload_within(&self, limits: &Limits) -> Option<Vec<String>> {
        let preload = self.preload.clone()?;
        let &Limits { memory, data, .. } = limits;
        if memory >= self.memory_limit || fits(PRELOADED_BYTES, memory, data) {
            return Some(preload);
        }
        fits(BARE_BYTES, memory, data).then(|| vec![BARE.to_owned()])
    }

    /// The reason why no libraries are preloaded, if it is the limits, and the fix.
    pub fn why_not_preloaded(&self) -> Option<(String, String)> {
        let needed =
            self.preload_needs.filter(|_| self.engine != Engine::Wasm && self.has_sessions())?;
        let mb = |bytes: u64| bytes / 1_000_000;
        let why = format!(
            "no libraries are preloaded, so that each run that imports some takes half a second longer: {} MB of files (SANDBOX_DATA_LIMIT) \
             leave too little of {} MB of memory (SANDBOX_MEMORY_LIMIT)",
            mb(self.data_limit),
            mb(self.memory_limit)
        );
        let fix = format!(
            "Set SANDBOX_MEMORY_LIMIT={}MB, or SANDBOX_PRELOAD to the modules to load, or to none.",
            mb(needed)
        );
        Some((why, fix))
    }

    /// Bytes of packages in each sandbox, if any may be installed.
    pub fn packages_within(&self) -> Option<u64> {
        (self.packages != Allowed::Nothing).then_some(self.packages_limit)
    }

    /// Whether requests over HTTP need a token or a signed URL. Only a server over HTTP without tokens, which
    /// other machines cannot reach, is open to all users of this machine. Over stdio the files belong to the
    /// client that started the server, and not to other users of the machine.
    pub fn requires_auth(&self) -> bool {
        self.transport == Transport::Stdio || !self.auth_tokens.is_empty()
    }

    /// Mistakes in values that are valid alone but not together.
    fn contradictions(&self) -> Vec<String> {
        let mut mistakes = vec![];
        if self.max_upload > self.data_limit {
            mistakes.push(
                "SANDBOX_MAX_UPLOAD_BYTES: is more than SANDBOX_DATA_LIMIT, so no upload of that \
                 size could succeed"
                    .into(),
            );
        }
        // On the embedded engine files have separate memory.
        if self.engine != Engine::Wasm && self.data_limit > defaults::max_data(self.memory_limit) {
            mistakes.push(
                "SANDBOX_DATA_LIMIT: is more than three quarters of SANDBOX_MEMORY_LIMIT, in which \
                 the files are kept: full, it would end the sandbox"
                    .into(),
            );
        }
        if self.tools_file.is_some() && !self.toolsets.has(Toolset::Own) {
            mistakes.push(format!(
                "SANDBOX_TOOLSETS: is {}, so that nobody is offered the tools of SANDBOX_TOOLS_FILE; add own",
                self.toolsets
            ));
        }
        if self.engine == Engine::Local && !self.http_host.is_loopback() {
            mistakes.push(format!(
                "SANDBOX_ENGINE: is local, which isolates nothing, and SANDBOX_HTTP_HOST is {}, which \
                 others than this machine can reach",
                self.http_host
            ));
        }
        let can_share = self.server_key.is_some() && !self.hold.is_zero();
        if self.peer_address.is_some() && (self.engine != Engine::Kubernetes || !can_share) {
            mistakes.push(
                "SANDBOX_PEER_ADDRESS: only servers on Kubernetes (SANDBOX_ENGINE) that have one key (SANDBOX_KEY_FILE) \
                 and whose sandboxes outlive them (SANDBOX_HOLD_S) can share their callers"
                    .into(),
            );
        }
        if self.auth_tokens.is_empty() && !self.http_host.is_loopback() {
            mistakes.push(format!(
                "SANDBOX_AUTH_TOKENS: must name who may come in, as SANDBOX_HTTP_HOST is {}, which \
                 others than this machine can reach; for example me:$(openssl rand -hex 32). Or \
                 SANDBOX_AUTH_TOKENS_FILE names a file, which is made with one",
                self.http_host
            ));
        }
        mistakes
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::parse([]).expect("the defaults are valid")
    }
}
