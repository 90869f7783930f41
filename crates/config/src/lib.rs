//! Settings: reads the command line, environment variables and files, and returns one checked [`Config`] or all mistakes
//! at once. An invalid value never silently becomes a default.

mod aliases;
pub mod auth;
mod callers;
mod choices;
pub mod datasets;
mod env_file;
mod file;
mod given;
mod inputs;
mod misspelt;
pub mod oauth;
mod parse;
mod reader;
mod rows;
mod schema;
mod secret_file;
pub mod server_key;
mod setting;
pub mod table;
#[cfg(test)]
mod tests;
mod tokens;
mod toolsets;
pub mod upstreams;

use std::{fmt, time::Duration};

pub use self::{
    callers::{Callers, Right, Role},
    choices::{Engine, LogFile, LogFormat, TokensFrom, Tracebacks, Transport},
    datasets::Datasets,
    env_file::{EnvFile, VARIABLE as ENV_FILE},
    file::{VARIABLE as CONFIG_FILE, variables_in},
    given::{Given, Source},
    inputs::{Inputs, tokens_in_clear},
    misspelt::Misspelt,
    oauth::{ByClaim, OAuth},
    schema::schema,
    table::Config,
    toolsets::{Toolset, Toolsets},
    upstreams::Upstreams,
};
use self::{
    inputs::Values,
    reader::Reader,
    setting::{PREFIX, Row},
};
use crate::auth::Tokens;
use model::{OwnSettings, package::Allowed};
pub use sandbox_container::scratch_bytes;
use sandbox_container::{Limits, Storage, defaults};

/// The largest limits that a sandbox can have.
impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            memory: config.memory_limit,
            cpus: config.cpu_limit,
            pids: config.pids_limit,
            data: config.data_limit,
            storage: config.storage,
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

/// Largest upload in a message if larger files can be on disk, in bytes: those are streamed.
const MAX_IN_MESSAGE_BESIDE_DISK: u64 = 50_000_000;

/// Memory of preloaded modules and of a small program, in bytes.
const PRELOADED_BYTES: u64 = 180_000_000;

/// Memory of an interpreter without libraries and of a program that imports some, in bytes.
const BARE_BYTES: u64 = 95_000_000;

/// Module to preload if the libraries do not fit: the fork server then loads only the interpreter, so that runs start
/// sooner, and notes on their errors are the same as with libraries.
const BARE: &str = "json";

/// A size as it would be written, exactly.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1_000_000) {
        format!("{}MB", bytes / 1_000_000)
    } else {
        bytes.to_string()
    }
}

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

impl Config {
    /// Reads all settings.
    ///
    /// # Errors
    ///
    /// If there are mistakes in the settings or in a file: all of them.
    pub fn load(inputs: &Inputs) -> Result<Self, Mistakes> {
        Self::check(Values::read(inputs))
    }

    /// The scheme of the server's own URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
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

    /// Checks variables of the environment; ignores those of other programs.
    ///
    /// # Errors
    ///
    /// If there are mistakes in values, alone or in combination, or names that no setting has: all of them.
    pub fn parse(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Mistakes> {
        let source = Source::Environment;
        let vars = vars.into_iter();
        let mut given =
            vars.map(|(name, text)| (name, Given { text, source: source.clone() })).collect();
        let remarks = aliases::apply(&mut given);
        Self::check(Values { given, remarks, ..Values::default() })
    }

    fn check(values: Values) -> Result<Self, Mistakes> {
        let Values { mut given, mistakes: unread, callers, policies, datasets, upstreams, .. } =
            values;
        let Values { env_file, file, remarks, .. } = values;
        let misspelt = misspelt::among(&given);
        given.retain(|name, _| name.starts_with(PREFIX));
        let mut reader = Reader::new(given);
        reader.refuse_new_key();
        let own_places = datasets::own_places(&reader, [&env_file, &file]);
        let read = Self::read(&mut reader);
        let mut config = Self { misspelt, env_file, file, own_places, remarks, ..read };
        config.read_tokens_file(&mut reader);
        let computed = config.computed_defaults(&reader);
        let mut others = vec![];
        match Callers::new(&config.auth_tokens, callers, policies.clone()) {
            Ok(callers) => {
                config.callers = callers;
                others.extend(config.oauth_contradictions());
            }
            Err(mistake) => others.push(mistake),
        }
        match Datasets::new(config.dataset_list.as_deref(), datasets) {
            Ok(datasets) => config.datasets = datasets,
            Err(mistake) => others.push(mistake),
        }
        match Upstreams::new(config.upstream_list.as_deref(), upstreams) {
            Ok(upstreams) => {
                config.upstreams = upstreams;
                config.remarks.extend(config.unknown_callers());
            }
            Err(mistake) => others.push(mistake),
        }
        others.extend(config.dataset_mistakes());
        others.extend(config.contradictions());
        let (more, given) = reader.end(others);
        let mut mistakes = unread;
        mistakes.extend(more);
        mistakes.extend(policies.values().flat_map(|policy| config.narrowed_by(policy).1));
        config.given = given;
        let others = computed
            .into_iter()
            .map(|(row, text)| (row.name, Given { text, source: Source::Others }));
        config.given.extend(others);
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }

    /// Reads the file of tokens, unless the setting has some; notes where they came from.
    fn read_tokens_file(&mut self, reader: &mut Reader) {
        if reader.value(&table::SANDBOX_AUTH_TOKENS.row).is_some() {
            self.tokens_from = Some(match reader.source(&table::SANDBOX_AUTH_TOKENS.row) {
                Some(Source::EnvFile(path)) => TokensFrom::EnvFile(path.clone()),
                Some(Source::File { path, .. }) => TokensFrom::File(path.clone()),
                _ => TokensFrom::Environment,
            });
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

    /// Sets the defaults that depend on other settings. Returns those that differ from the defaults of the table.
    fn computed_defaults(&mut self, reader: &Reader) -> Vec<(Row, String)> {
        let mut computed = vec![];
        let mut note = |row: Row, text: String| {
            if text != row.default {
                computed.push((row, text));
            }
        };
        // A default alone raises the maximum.
        let raise = |maximum: &mut u64, default: Option<u64>| {
            let raised = default.filter(|default| *default > *maximum);
            raised.inspect(|default| *maximum = *default)
        };
        if reader.is_default(&table::SANDBOX_MEMORY_LIMIT)
            && let Some(memory) = raise(&mut self.memory_limit, self.default_memory)
        {
            note(table::SANDBOX_MEMORY_LIMIT.row, size(memory));
        }
        for (row, is_default, maximum, default) in [
            (
                table::SANDBOX_EXEC_TIMEOUT_S.row,
                reader.is_default(&table::SANDBOX_EXEC_TIMEOUT_S),
                &mut self.exec_timeout,
                self.default_timeout,
            ),
            (
                table::SANDBOX_SESSION_TTL_M.row,
                reader.is_default(&table::SANDBOX_SESSION_TTL_M),
                &mut self.session_ttl,
                self.default_ttl,
            ),
        ] {
            if let Some(default) = default.filter(|default| is_default && default > maximum) {
                *maximum = default;
                let unit = if row.form.unit() == Some("minutes") { 60.0 } else { 1.0 };
                note(row, (default.as_secs_f64() / unit).to_string());
            }
        }
        match self.storage {
            Storage::Memory if reader.is_default(&table::SANDBOX_DATA_LIMIT) => {
                self.data_limit = defaults::data_limit(self.memory_limit);
                raise(&mut self.data_limit, self.default_data);
                note(table::SANDBOX_DATA_LIMIT.row, size(self.data_limit));
            }
            Storage::Memory => {}
            Storage::Disk => {
                if reader.is_default(&table::SANDBOX_DISK_LIMIT)
                    && let Some(limit) = raise(&mut self.disk_limit, self.default_data)
                {
                    note(table::SANDBOX_DISK_LIMIT.row, size(limit));
                }
                self.data_limit = self.disk_limit;
                note(table::SANDBOX_DATA_LIMIT.row, size(self.data_limit));
            }
        }
        // An upload is a file.
        if reader.is_default(&table::SANDBOX_MAX_UPLOAD_BYTES) {
            self.max_upload = match self.storage {
                Storage::Memory => self.max_upload.min(self.data_limit),
                Storage::Disk => self.data_limit,
            };
            note(table::SANDBOX_MAX_UPLOAD_BYTES.row, size(self.max_upload));
        }
        let (memory, data) = (self.memory_limit, Limits::from(&*self).data_in_memory());
        if reader.is_default(&table::SANDBOX_PRELOAD) && !fits(PRELOADED_BYTES, memory, data) {
            self.preload = fits(BARE_BYTES, memory, data).then(|| vec![BARE.to_owned()]);
            self.preload_needs = Some(memory_to_preload(data));
            let modules = self.preload.as_ref().map_or("none", |_| BARE);
            note(table::SANDBOX_PRELOAD.row, modules.to_owned());
        }
        if reader.is_default(&table::SANDBOX_MAX_SESSIONS_PER_CLIENT) {
            self.max_sessions_per_client = self.max_sessions;
            note(table::SANDBOX_MAX_SESSIONS_PER_CLIENT.row, self.max_sessions.to_string());
        }
        // Rollouts of the server and restarts of a node's own programs are frequent there, and a pod takes
        // its part of the cluster even while its session hibernates.
        let on_kubernetes = self.engine == Engine::Kubernetes;
        if on_kubernetes && reader.is_default(&table::SANDBOX_HOLD_S) {
            self.hold = Duration::from_secs(60);
            note(table::SANDBOX_HOLD_S.row, "60".into());
        }
        if on_kubernetes && reader.is_default(&table::SANDBOX_MAX_HIBERNATED) {
            self.max_hibernated = 0;
            note(table::SANDBOX_MAX_HIBERNATED.row, "0".into());
        }
        // Saving sessions takes longer than removing them.
        if self.archive.is_some() && reader.is_default(&table::SANDBOX_SHUTDOWN_TIMEOUT_S) {
            self.shutdown_timeout = Duration::from_secs(25);
            note(table::SANDBOX_SHUTDOWN_TIMEOUT_S.row, "25".into());
        }
        if reader.is_default(&table::SANDBOX_LOG_FILE) {
            let blank = reader.is_blank(&table::SANDBOX_LOG_FILE.row);
            self.log_file = if blank { LogFile::None } else { LogFile::Usual };
        }
        computed
    }

    /// Whether sandboxes run the language of this name, if they have it.
    pub fn has_language(&self, name: &str) -> bool {
        match name {
            "python" => self.python,
            "javascript" => self.javascript,
            "bash" => self.bash,
            _ => true,
        }
    }

    /// The limits of the sandbox of a session with these settings of its own.
    pub fn limits(&self, own: &OwnSettings) -> Limits {
        let most = Limits::from(self);
        let memory = own.memory.or(self.default_memory).unwrap_or(most.memory);
        let within = if memory < most.memory { most.with_memory(memory) } else { most };
        let Limits { memory, data, .. } = within;
        let asked = own.data.or(self.default_data).unwrap_or(data);
        Limits { memory, data: asked.min(data), ..most }
    }

    /// The time for which a session with these settings of its own may be unused.
    pub fn ttl(&self, own: &OwnSettings) -> Duration {
        own.ttl.or(self.default_ttl).unwrap_or(self.session_ttl).min(self.session_ttl)
    }

    /// The settings of a session that asked for these, for a caller with these narrower settings, without those that
    /// every session has.
    pub fn own(&self, narrow: &Self, asked: &OwnSettings) -> OwnSettings {
        let usual = OwnSettings::default();
        let (of_all, limits) = (self.limits(&usual), narrow.limits(asked));
        let ttl = narrow.ttl(asked);
        OwnSettings {
            memory: Some(limits.memory).filter(|it| *it != of_all.memory),
            data: Some(limits.data).filter(|it| *it != of_all.data),
            ttl: Some(ttl).filter(|it| *it != self.ttl(&usual)),
            language: asked.language.clone(),
        }
    }

    /// The modules that are preloaded in a sandbox with these limits: with less memory than the setting
    /// allows, they may not fit.
    pub fn preload_within(&self, limits: &Limits) -> Option<Vec<String>> {
        let preload = self.preload.clone()?;
        let (memory, data) = (limits.memory, limits.data_in_memory());
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

    /// Largest upload in a message, where it is held in memory as base64. In bytes.
    pub fn max_message_upload(&self) -> u64 {
        self.max_upload.min(match self.storage {
            Storage::Memory => table::MAX_IN_MESSAGE,
            Storage::Disk => MAX_IN_MESSAGE_BESIDE_DISK,
        })
    }

    /// Size of the data area of a tool of the operator's own, in bytes. It is in memory, wherever those of sessions are.
    pub fn own_tool_data(&self) -> u64 {
        match self.storage {
            Storage::Memory => self.data_limit,
            Storage::Disk => defaults::data_limit(self.memory_limit),
        }
    }

    /// Bytes of packages in each sandbox, if any may be installed.
    pub fn packages_within(&self) -> Option<u64> {
        (self.packages != Allowed::Nothing).then_some(self.packages_limit)
    }

    /// Whether requests over HTTP need a token or a signed URL. Only a server over HTTP without tokens, which
    /// other machines cannot reach, is open to all users of this machine. Over stdio the files belong to the
    /// client that started the server, and not to other users of the machine.
    pub fn requires_auth(&self) -> bool {
        self.transport == Transport::Stdio
            || !self.callers.is_empty()
            || self.oauth_issuer.is_some()
    }

    /// Mistakes in values that are valid alone but not together.
    fn contradictions(&self) -> Vec<String> {
        let mut mistakes = vec![];
        let data_limit = match self.storage {
            Storage::Memory => table::SANDBOX_DATA_LIMIT.row,
            Storage::Disk => table::SANDBOX_DISK_LIMIT.row,
        };
        if self.max_upload > self.data_limit {
            mistakes.push(format!(
                "SANDBOX_MAX_UPLOAD_BYTES: is more than {}, so no upload of that size could succeed",
                data_limit.name
            ));
        }
        let too_large = [
            (table::SANDBOX_DEFAULT_MEMORY.row, self.default_memory > Some(self.memory_limit)),
            (table::SANDBOX_DEFAULT_DATA.row, self.default_data > Some(self.data_limit)),
            (table::SANDBOX_DEFAULT_TIMEOUT_S.row, self.default_timeout > Some(self.exec_timeout)),
            (table::SANDBOX_DEFAULT_SESSION_TTL_M.row, self.default_ttl > Some(self.session_ttl)),
        ];
        let maxima = [
            table::SANDBOX_MEMORY_LIMIT.row,
            data_limit,
            table::SANDBOX_EXEC_TIMEOUT_S.row,
            table::SANDBOX_SESSION_TTL_M.row,
        ];
        for ((row, is_too_large), most) in too_large.into_iter().zip(maxima) {
            if is_too_large {
                mistakes.push(format!("{}: is more than {}", row.name, most.name));
            }
        }
        if !(self.python || self.javascript || self.bash) {
            mistakes.push(
                "SANDBOX_PYTHON: is false, and so are SANDBOX_JAVASCRIPT and SANDBOX_BASH".into(),
            );
        }
        // On the embedded engine files have separate memory.
        let in_memory = Limits::from(self).data_in_memory();
        if self.engine != Engine::Wasm && in_memory > defaults::max_data(self.memory_limit) {
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
        let has_callers = !self.callers.is_empty() || self.oauth().is_some();
        for (set, other, is_missing) in [
            (table::SANDBOX_TLS_CERT.row, table::SANDBOX_TLS_KEY.row, self.tls_key.is_none()),
            (table::SANDBOX_TLS_KEY.row, table::SANDBOX_TLS_CERT.row, self.tls_cert.is_none()),
        ] {
            if is_missing && (self.tls_key.is_some() || self.tls_cert.is_some()) {
                mistakes
                    .push(format!("{}: is set without {}; HTTPS needs both", set.name, other.name));
            }
        }
        let is_encrypted = self.tls_cert.is_some() || self.tls_key.is_some();
        if is_encrypted && self.public_url.as_ref().is_some_and(|url| url.starts_with("http://")) {
            mistakes.push(
                "SANDBOX_PUBLIC_URL: begins with http://, and the server speaks HTTPS (SANDBOX_TLS_CERT)".into(),
            );
        }
        if has_callers
            && !self.http_host.is_loopback()
            && !is_encrypted
            && !self.allow_insecure_http
        {
            mistakes.push(format!(
                "SANDBOX_HTTP_HOST: is {}, which others than this machine can reach, and tokens would go there \
                 unencrypted. Set SANDBOX_TLS_CERT and SANDBOX_TLS_KEY (tls.cert and tls.key), or listen on 127.0.0.1, \
                 or, if only a proxy that ends TLS reaches that address, set SANDBOX_ALLOW_INSECURE_HTTP=true \
                 (server.allow_insecure_http: true)",
                self.http_host
            ));
        }
        if !has_callers && !self.http_host.is_loopback() {
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
