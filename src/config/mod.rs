//! Settings: reads environment variables and a file, and returns one checked [`Config`] or all mistakes at
//! once. An invalid value never silently becomes a default.

mod choices;
mod env_file;
mod foreign;
mod parse;
mod reader;
mod setting;
pub mod table;
#[cfg(test)]
mod tests;
mod tokens;
mod toolsets;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

pub use self::{
    choices::{Engine, LogFile, LogFormat, TokensFrom, Tracebacks, Transport},
    env_file::{EnvFile, VARIABLE as ENV_FILE},
    foreign::Foreign,
    toolsets::{Toolset, Toolsets},
};
use self::{reader::Reader, setting::PREFIX};
use crate::{
    auth::{Token, Tokens},
    server_key::ServerKey,
};
use model::{package::Allowed, text::nearest};
pub use sandbox_container::scratch_bytes;
use sandbox_container::{Limits, defaults};

/// Every setting of the program, as [`table`] describes them. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `SANDBOX_MEMORY_LIMIT`: memory of a sandbox, its tmpfs files included.
    pub memory_limit: u64,
    /// `SANDBOX_CPU_LIMIT`: processors of a sandbox.
    pub cpu_limit: f64,
    /// `SANDBOX_EXEC_TIMEOUT_S`: longest run, and its default.
    pub exec_timeout: Duration,
    /// `SANDBOX_SESSION_TTL_M`: a session unused for this long is closed.
    pub session_ttl: Duration,
    /// `SANDBOX_MAX_UPLOAD_BYTES`.
    pub max_upload: u64,
    /// `SANDBOX_MAX_ARTIFACT_READ_BYTES`: largest file that `read_artifact` returns.
    pub max_artifact_read: u64,
    /// `SANDBOX_MAX_OUTPUT_BYTES`: kept of each of stdout and stderr.
    pub max_output: usize,
    /// `SANDBOX_TRACEBACKS`.
    pub tracebacks: Tracebacks,
    /// `SANDBOX_MAX_CODE_BYTES`.
    pub max_code: usize,
    /// `SANDBOX_DATA_LIMIT`: size of `/mnt/data`.
    pub data_limit: u64,
    /// `SANDBOX_TIMEZONE`: time zone of programs, if it is not UTC.
    pub timezone: Option<String>,
    /// `SANDBOX_PIDS_LIMIT`: processes and threads of a sandbox.
    pub pids_limit: u32,
    /// `SANDBOX_MAX_SESSIONS`.
    pub max_sessions: usize,
    /// `SANDBOX_MAX_SESSIONS_PER_CLIENT`: sessions of one principal among them.
    pub max_sessions_per_client: usize,
    /// `SANDBOX_MAX_HIBERNATED`: hibernated sessions of one principal beyond these.
    pub max_hibernated: usize,
    /// `SANDBOX_POOL_SIZE`: warm sandboxes that wait for sessions without a given name.
    pub pool_size: usize,
    /// `SANDBOX_PRELOAD`: modules that are loaded before a run needs them; `None` for a new
    /// interpreter with each run.
    pub preload: Option<Vec<String>>,
    /// Memory, in bytes, with which libraries would be preloaded, if only the limits prevent that.
    pub preload_needs: Option<u64>,
    /// `SANDBOX_UNDO`: cells of a workspace that can be undone.
    pub undo: u32,
    /// `SANDBOX_EVICT_IDLE_M`: when the limit is reached, an unnamed session unused for this long is replaced
    /// by a new one of its caller; never if there is no value.
    pub evict_idle: Option<Duration>,
    /// `SANDBOX_HIBERNATE_AFTER_M`: a session unused for this long hibernates.
    pub hibernate_after: Duration,
    /// `SANDBOX_HOLD_S`: how long a sandbox outlives the connection to it.
    pub hold: Duration,
    /// `SANDBOX_CLEANUP_INTERVAL_M`: how often the server looks for leftovers of dead servers.
    pub cleanup_interval: Duration,
    /// `SANDBOX_TOOLSETS`: tools that clients are offered.
    pub toolsets: Toolsets,
    /// `SANDBOX_TOOLS_FILE`: file, or folder of files, that defines tools of the operator's own.
    pub tools_file: Option<PathBuf>,
    /// `SANDBOX_TRANSPORT`.
    pub transport: Transport,
    /// `SANDBOX_HTTP_HOST`.
    pub http_host: IpAddr,
    /// `SANDBOX_HTTP_PORT`; 0 takes any free port.
    pub http_port: u16,
    /// `SANDBOX_PUBLIC_URL`: base of the URLs handed out, without a trailing slash.
    pub public_url: Option<String>,
    /// `SANDBOX_ALLOWED_HOSTS`: further host names of the HTTP server.
    pub allowed_hosts: Vec<String>,
    /// `SANDBOX_ALLOWED_ORIGINS`: other sites whose pages may call the HTTP server.
    pub allowed_origins: Vec<String>,
    /// `SANDBOX_AUTH_TOKENS`, or the content of the file `SANDBOX_AUTH_TOKENS_FILE`.
    pub auth_tokens: Tokens,
    /// The source of the tokens, if there are any.
    pub tokens_from: Option<TokensFrom>,
    /// `SANDBOX_METRICS_TOKEN`: token for reading the metrics, if only that one allows it.
    pub metrics_token: Option<Token>,
    /// The key in `SANDBOX_KEY_FILE`; if it is not set, each process has a key of its own.
    pub server_key: Option<ServerKey>,
    /// `SANDBOX_RATE_LIMIT_PER_M`: requests of one principal in a minute, if they are limited.
    pub rate_limit: Option<NonZeroU32>,
    /// `SANDBOX_URL_TTL_M`: how long a URL that needs no token can be used.
    pub url_ttl: Duration,
    /// `SANDBOX_UPLOAD_ROOTS`: folders of the host that files may be uploaded from, over stdio.
    pub upload_roots: Vec<PathBuf>,
    /// `SANDBOX_PACKAGES`: packages that may be installed.
    pub packages: Allowed,
    /// `SANDBOX_PACKAGES_LIMIT`: bytes of packages of a session.
    pub packages_limit: u64,
    /// `SANDBOX_PACKAGES_TIMEOUT_S`: longest time for fetching a package.
    pub packages_timeout: Duration,
    /// `SANDBOX_PACKAGES_CACHE`: bytes of fetched packages that are cached for all sessions.
    pub packages_cache: u64,
    /// `SANDBOX_PACKAGES_NETWORK`: the engine's network through which packages are fetched.
    pub packages_network: String,
    /// `SANDBOX_HISTORY_DIR`: folder for runs, which otherwise are only in memory.
    pub history_dir: Option<PathBuf>,
    /// `SANDBOX_EXPORT_DIR`: folder to which artifacts are also written, over stdio; as it is written in the setting.
    pub export_dir: Option<PathBuf>,
    /// `SANDBOX_EXPORT_LIMIT`: bytes that one server writes there in total.
    pub export_limit: u64,
    /// `SANDBOX_INLINE_IMAGES`: images that come with the result of a run.
    pub inline_images: usize,
    /// `SANDBOX_INLINE_IMAGE_SIDE`: longest side of such an image, in pixels.
    pub inline_image_side: u32,
    /// `SANDBOX_INLINE_IMAGE_BYTES`: most bytes of such an image.
    pub inline_image_bytes: usize,
    /// `SANDBOX_ENGINE`.
    pub engine: Engine,
    /// Why this engine was chosen, if `SANDBOX_ENGINE` is `auto`.
    pub engine_reason: Option<String>,
    /// How to make the other engine usable, if it is not.
    pub engine_instead: Option<String>,
    /// `SANDBOX_FUEL`: instructions of one call, with the embedded engine; `None` if only time limits calls.
    pub fuel: Option<u64>,
    /// `SANDBOX_RUNTIME_DIR`: folder of the embedded engine's runtime, if not in the user's cache.
    pub runtime_dir: Option<PathBuf>,
    /// `SANDBOX_STATE_DIR`: folder in which the embedded engine saves sandboxes when the server ends.
    pub state_dir: Option<PathBuf>,
    /// `SANDBOX_ARCHIVE`: archive of sessions that end without being closed; a folder, or `s3://bucket/prefix`.
    pub archive: Option<String>,
    /// `SANDBOX_ARCHIVE_DAYS`: how long the archive keeps them.
    pub archive_keep: Duration,
    /// `SANDBOX_ARCHIVE_CLIENT_LIMIT`: bytes of one client's archived sessions, if they are limited.
    pub archive_client_limit: Option<u64>,
    /// `SANDBOX_MIN_FREE`: bytes that stay free on the disks of the archive and of the history.
    pub min_free: u64,
    /// `SANDBOX_AUDIT_FILE`: file with a line for each call, if it is set.
    pub audit_file: Option<PathBuf>,
    /// `SANDBOX_AUDIT_MAX_SIZE`: most bytes of that file before a new one is started.
    pub audit_max_size: u64,
    /// `SANDBOX_AUDIT_MAX_TOTAL`, if there is a limit.
    pub audit_max_total: Option<u64>,
    /// `SANDBOX_AUDIT_REFUSED_PER_M`, if there is a limit.
    pub audit_refused: Option<NonZeroU32>,
    /// `SANDBOX_SHUTDOWN_TIMEOUT_S`: time for sessions to end when the server does.
    pub shutdown_timeout: Duration,
    /// `SANDBOX_IMAGE`.
    pub image: String,
    /// `SANDBOX_RUNTIME`; `None` for the engine's default.
    pub runtime: Option<String>,
    /// `SANDBOX_KUBERNETES_NAMESPACE`: namespace of the pods; `None` for that of the service account or context.
    pub kubernetes_namespace: Option<String>,
    /// `SANDBOX_KUBERNETES_POD`: file with a merge patch of pods.
    pub kubernetes_pod: Option<PathBuf>,
    /// `SANDBOX_KUBERNETES_CANARY_TARGET`: host and port that no sandbox may reach.
    pub kubernetes_canary_target: Option<String>,
    /// `SANDBOX_PEER_ADDRESS`: address at which other servers of the same deployment reach this one.
    pub peer_address: Option<SocketAddr>,
    /// `SANDBOX_LOG_LEVEL`.
    pub log_level: tracing::Level,
    /// `SANDBOX_LOG_FILE`.
    pub log_file: LogFile,
    /// `SANDBOX_LOG_FORMAT`.
    pub log_format: LogFormat,
    /// Variables that are set but have no effect, because the settings have other names here.
    pub foreign: Vec<Foreign>,
    /// The absolute path of the file that was read besides the environment, if there was one.
    pub env_file: Option<PathBuf>,
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

/// Defaults that depend on the engine: of `SANDBOX_HOLD_S` and `SANDBOX_MAX_HIBERNATED`.
fn defaults_of(engine: Engine) -> (&'static str, &'static str) {
    match engine {
        // Rollouts of the server and restarts of a node's own programs are frequent there, and a pod takes
        // its part of the cluster even while its session hibernates.
        Engine::Kubernetes => ("60", "0"),
        _ => (table::HOLD_S.row.default, table::MAX_HIBERNATED.row.default),
    }
}

/// Memory of an interpreter without libraries and of a program that imports some, in bytes.
const BARE_BYTES: u64 = 95_000_000;

/// Module that loads only the interpreter: runs start sooner, and notes on their errors are the same as with
/// libraries.
const BARE: &str = "json";

/// Whether this many bytes fit into memory besides files of the largest total size.
fn fits(bytes: u64, memory: u64, data: u64) -> bool {
    memory >= data + 2 * scratch_bytes(memory) + bytes
}

/// Modules that are preloaded by default; if libraries are not among them, also the memory with which they would fit.
fn default_preload(memory: u64, data: u64) -> (&'static str, Option<u64>) {
    if fits(PRELOADED_BYTES, memory, data) {
        return (table::PRELOAD.row.default, None);
    }
    let bare = if fits(BARE_BYTES, memory, data) { BARE } else { "none" };
    (bare, Some(memory_to_preload(data)))
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
        let mut tokens_in_file = vars.contains_key(table::AUTH_TOKENS.row.name);
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            // This variable only names the file.
            if name == ENV_FILE {
                continue;
            }
            tokens_in_file &= name != table::AUTH_TOKENS.row.name;
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
    let Variables { vars, mistakes, .. } = Variables::read(file);
    let file = table::AUTH_TOKENS_FILE.row.name;
    let set = |name: &str| vars.get(name).filter(|value| !value.trim().is_empty());
    if let (None, Some(path)) = (set(table::AUTH_TOKENS.row.name), set(file))
        && !Path::new(path.trim()).exists()
    {
        // A file created here would contain a token that no server knows.
        return Err(Mistakes(vec![format!(
            "{file}: there is no file {path} yet: the server makes it when it starts, and may run in \
             another folder"
        )]));
    }
    let mut reader = Reader { vars, mistakes };
    let (_, list) = reader.token_list();
    if !reader.mistakes.is_empty() {
        return Err(Mistakes(reader.mistakes));
    }
    let pairs = list.split(',').filter_map(|pair| pair.trim().split_once(':'));
    Ok(pairs.map(|(name, token)| (name.to_owned(), token.to_owned())).collect())
}

impl Config {
    /// Reads the environment, and a file for what it does not set.
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
        let mut reader = Reader { vars, mistakes: vec![] };
        let memory_limit = reader.read(&table::MEMORY_LIMIT);
        // Defaults depend on the values that are set: files are in memory, and an upload is a file.
        let data = defaults::data_limit(memory_limit).to_string();
        let data_limit = reader.read_or(&table::DATA_LIMIT, &data);
        let upload = 50_000_000.min(data_limit).to_string();
        let (preload, libraries_need) = default_preload(memory_limit, data_limit);
        let engine = reader.read(&table::ENGINE);
        let (hold, hibernated) = defaults_of(engine);
        reader.refuse_new_key();
        let max_sessions = reader.read(&table::MAX_SESSIONS);
        let (auth_tokens, tokens_from) = reader.tokens();
        let archive = reader.read(&table::ARCHIVE);
        // Saving sessions takes longer than removing them.
        let to_end = if archive.is_some() { "25" } else { table::SHUTDOWN_TIMEOUT_S.row.default };
        let config = Self {
            memory_limit,
            cpu_limit: reader.read(&table::CPU_LIMIT),
            exec_timeout: reader.read(&table::EXEC_TIMEOUT_S),
            session_ttl: reader.read(&table::SESSION_TTL_M),
            max_upload: reader.read_or(&table::MAX_UPLOAD_BYTES, &upload),
            max_artifact_read: reader.read(&table::MAX_ARTIFACT_READ_BYTES),
            max_output: reader.read(&table::MAX_OUTPUT_BYTES),
            tracebacks: reader.read(&table::TRACEBACKS),
            max_code: reader.read(&table::MAX_CODE_BYTES),
            data_limit,
            timezone: reader.read(&table::TIMEZONE),
            pids_limit: reader.read(&table::PIDS_LIMIT),
            max_sessions,
            max_sessions_per_client: reader
                .read_or(&table::MAX_SESSIONS_PER_CLIENT, &max_sessions.to_string()),
            max_hibernated: reader.read_or(&table::MAX_HIBERNATED, hibernated),
            pool_size: reader.read(&table::POOL_SIZE),
            preload_needs: libraries_need.filter(|_| !reader.is_set(&table::PRELOAD.row)),
            preload: reader.read_or(&table::PRELOAD, preload),
            undo: reader.read(&table::UNDO),
            evict_idle: reader.read(&table::EVICT_IDLE_M),
            hibernate_after: reader.read(&table::HIBERNATE_AFTER_M),
            hold: reader.read_or(&table::HOLD_S, hold),
            cleanup_interval: reader.read(&table::CLEANUP_INTERVAL_M),
            toolsets: reader.read(&table::TOOLSETS),
            tools_file: reader.read(&table::TOOLS_FILE),
            transport: reader.read(&table::TRANSPORT),
            http_host: reader.read(&table::HTTP_HOST),
            http_port: reader.read(&table::HTTP_PORT),
            public_url: reader.read(&table::PUBLIC_URL),
            allowed_hosts: reader.read(&table::ALLOWED_HOSTS),
            allowed_origins: reader.read(&table::ALLOWED_ORIGINS),
            auth_tokens,
            tokens_from,
            metrics_token: reader.read(&table::METRICS_TOKEN),
            server_key: reader.read(&table::KEY_FILE),
            rate_limit: reader.read(&table::RATE_LIMIT_PER_M),
            url_ttl: reader.read(&table::URL_TTL_M),
            upload_roots: reader.read(&table::UPLOAD_ROOTS),
            export_dir: reader.read(&table::EXPORT_DIR),
            packages: reader.read(&table::PACKAGES),
            packages_limit: reader.read(&table::PACKAGES_LIMIT),
            packages_timeout: reader.read(&table::PACKAGES_TIMEOUT_S),
            packages_cache: reader.read(&table::PACKAGES_CACHE),
            packages_network: reader.read(&table::PACKAGES_NETWORK),
            history_dir: reader.read(&table::HISTORY_DIR),
            export_limit: reader.read(&table::EXPORT_LIMIT),
            inline_images: reader.read(&table::INLINE_IMAGES),
            inline_image_side: reader.read(&table::INLINE_IMAGE_SIDE),
            inline_image_bytes: reader.read(&table::INLINE_IMAGE_BYTES),
            engine,
            engine_reason: None,
            engine_instead: None,
            fuel: reader.read(&table::FUEL),
            runtime_dir: reader.read(&table::RUNTIME_DIR),
            state_dir: reader.read(&table::STATE_DIR),
            archive,
            archive_keep: reader.read(&table::ARCHIVE_DAYS),
            archive_client_limit: reader.read(&table::ARCHIVE_CLIENT_LIMIT),
            min_free: reader.read(&table::MIN_FREE),
            audit_file: reader.read(&table::AUDIT_FILE),
            audit_max_size: reader.read(&table::AUDIT_MAX_SIZE),
            audit_max_total: reader.read(&table::AUDIT_MAX_TOTAL),
            audit_refused: reader.read(&table::AUDIT_REFUSED_PER_M),
            shutdown_timeout: reader.read_or(&table::SHUTDOWN_TIMEOUT_S, to_end),
            image: reader.read(&table::IMAGE),
            runtime: reader.read(&table::RUNTIME),
            kubernetes_namespace: reader.read(&table::KUBERNETES_NAMESPACE),
            kubernetes_pod: reader.read(&table::KUBERNETES_POD),
            peer_address: reader.read(&table::PEER_ADDRESS),
            kubernetes_canary_target: reader.read(&table::KUBERNETES_CANARY_TARGET),
            log_level: reader.read(&table::LOG_LEVEL),
            log_file: reader.read_if_set(&table::LOG_FILE).unwrap_or(LogFile::Usual),
            log_format: reader.read(&table::LOG_FORMAT),
            foreign,
            env_file: None,
        };
        let unknown = reader.vars.into_keys();
        let mut mistakes = reader.mistakes;
        mistakes.extend(unknown.map(|name| no_such_setting(&name)));
        mistakes.extend(config.contradictions());
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
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

    /// Why no libraries are preloaded, if the limits are the reason, and what to do about it.
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

/// Most settings that a message about an unknown name suggests.
const MAX_MEANT: usize = 4;

/// The message about a name that no setting has.
fn no_such_setting(name: &str) -> String {
    // The prefix, which all of them have, would make any two names similar.
    let bare = |name: &'static str| name.strip_prefix(PREFIX);
    let all = table::GROUPS.iter().flat_map(|group| group.rows).filter_map(|row| bare(row.name));
    let name_alone = name.strip_prefix(PREFIX).unwrap_or(name);
    let mut near: Vec<_> = nearest(name_alone, all.clone(), 1).collect();
    if near.is_empty() {
        // A part of a name, such as TIMEOUT, PORT or TOKENS.
        let has = |name: &str, word| name.split('_').any(|it| it.starts_with(word));
        let has_all = |name: &&str| name_alone.split('_').all(|word| has(name, word));
        near = all.filter(has_all).take(MAX_MEANT).collect();
    }
    let near: Vec<_> = near.iter().map(|near| format!("{PREFIX}{near}")).collect();
    match &*near.join(" or ") {
        "" => format!("{name}: there is no such setting"),
        near => format!("{name}: there is no such setting (did you mean {near}?)"),
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::parse([]).expect("the defaults are valid")
    }
}
