//! Settings: environment variables and a file of them in, one checked [`Config`] or all the
//! mistakes at once out. Nothing falls back in silence.

mod env_file;
mod settings;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    num::NonZeroU32,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use self::env_file::{EnvFile, VARIABLE as ENV_FILE};
use self::settings::{PREFIX, Settings};
use crate::auth::{Token, Tokens};
pub use sandbox_container::scratch_bytes;

/// Every setting of the program. Sizes are in bytes.
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
    /// `SANDBOX_MAX_CODE_BYTES`.
    pub max_code: usize,
    /// `SANDBOX_DATA_LIMIT`: size of `/mnt/data`.
    pub data_limit: u64,
    /// `SANDBOX_PIDS_LIMIT`: processes and threads of a sandbox.
    pub pids_limit: u32,
    /// `SANDBOX_MAX_SESSIONS`.
    pub max_sessions: usize,
    /// `SANDBOX_MAX_SESSIONS_PER_CLIENT`: of them, those of one principal.
    pub max_sessions_per_client: usize,
    /// `SANDBOX_POOL_SIZE`: sandboxes that wait, warm, for sessions that are not named.
    pub pool_size: usize,
    /// `SANDBOX_PRELOAD`: modules that are loaded before a run needs them; `None` for a new
    /// interpreter with each run.
    pub preload: Option<Vec<String>>,
    /// `SANDBOX_EVICT_IDLE_M`: an unnamed session unused for this long gives way to a new one of its caller
    /// when the limit is reached; never if there is none.
    pub evict_idle: Option<Duration>,
    /// `SANDBOX_HIBERNATE_AFTER_M`: a session unused for this long gives up what is preloaded.
    pub hibernate_after: Duration,
    /// `SANDBOX_CLEANUP_INTERVAL_M`: how often leftovers of dead servers are looked for.
    pub cleanup_interval: Duration,
    /// `SANDBOX_TRANSPORT`.
    pub transport: Transport,
    /// `SANDBOX_HTTP_HOST`.
    pub http_host: IpAddr,
    /// `SANDBOX_HTTP_PORT`; 0 takes any that is free.
    pub http_port: u16,
    /// `SANDBOX_PUBLIC_URL`: base of the addresses handed out, without a slash at the end.
    pub public_url: Option<String>,
    /// `SANDBOX_ALLOWED_HOSTS`: names of the HTTP server besides its own.
    pub allowed_hosts: Vec<String>,
    /// `SANDBOX_ALLOWED_ORIGINS`: sites whose pages may talk to it besides its own.
    pub allowed_origins: Vec<String>,
    /// `SANDBOX_AUTH_TOKENS`, or what `SANDBOX_AUTH_TOKENS_FILE` holds.
    pub auth_tokens: Tokens,
    /// Where they came from, if there are any.
    pub tokens_from: Option<TokensFrom>,
    /// `SANDBOX_METRICS_TOKEN`: of whoever reads the figures, if that is nobody else.
    pub metrics_token: Option<Token>,
    /// `SANDBOX_RATE_LIMIT_PER_M`: requests of one principal in a minute, if they are limited.
    pub rate_limit: Option<NonZeroU32>,
    /// `SANDBOX_URL_TTL_M`: how long an address that needs no token can be used.
    pub url_ttl: Duration,
    /// `SANDBOX_UPLOAD_ROOTS`: folders of the host that files may be uploaded from, over stdio.
    pub upload_roots: Vec<PathBuf>,
    /// `SANDBOX_EXPORT_DIR`: where artifacts are also written, over stdio, as it is set.
    pub export_dir: Option<PathBuf>,
    /// `SANDBOX_EXPORT_LIMIT`: what one server writes there in all.
    pub export_limit: u64,
    /// `SANDBOX_INLINE_IMAGES`: pictures that come with the result of a run.
    pub inline_images: usize,
    /// `SANDBOX_INLINE_IMAGE_SIDE`: longest side of such a picture, in pixels.
    pub inline_image_side: u32,
    /// `SANDBOX_INLINE_IMAGE_BYTES`: most bytes of such a picture.
    pub inline_image_bytes: usize,
    /// `SANDBOX_ENGINE`.
    pub engine: Engine,
    /// `SANDBOX_IMAGE`.
    pub image: String,
    /// `SANDBOX_RUNTIME`; the engine's default if there is none.
    pub runtime: Option<String>,
    /// `SANDBOX_LOG_LEVEL`.
    pub log_level: tracing::Level,
    /// `SANDBOX_LOG_FILE`.
    pub log_file: LogFile,
    /// `SANDBOX_LOG_FORMAT`.
    pub log_format: LogFormat,
    /// The file that was read besides the environment, if there was one: its absolute path.
    pub env_file: Option<PathBuf>,
}

/// Where a server's tokens are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokensFrom {
    /// `SANDBOX_AUTH_TOKENS` in the environment.
    Environment,
    /// `SANDBOX_AUTH_TOKENS` in the file of settings, an absolute path.
    EnvFile(PathBuf),
    /// The file that `SANDBOX_AUTH_TOKENS_FILE` names, an absolute path.
    TokensFile(PathBuf),
}

/// The file that log lines are written to, besides standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFile {
    /// Not set: the usual one of whoever writes it.
    Usual,
    /// This one.
    At(PathBuf),
    /// Set to nothing: none.
    None,
}

/// How clients speak to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over standard input and output, each client with a server of its own.
    Stdio,
    /// Over HTTP, all of them with this one.
    Http,
}

/// What makes the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Containers of a Docker engine.
    Docker,
    /// Plain processes, which isolates nothing: for tests.
    Local,
}

impl Engine {
    /// As it is written in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Local => "local",
        }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Console,
    /// One JSON object a line.
    Json,
}

/// All that is wrong with the settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the settings cannot be used:")?;
        for mistake in &self.0 {
            writeln!(f, "  {mistake}")?;
        }
        write!(f, ".env.example describes every setting")
    }
}

/// Most that can be kept of one output. Two of them and the list of changed files share a frame,
/// and, at thirteen bytes for each NUL in the worst case, a message of less than 10 MiB.
const MAX_OUTPUT: u64 = 320 << 10;

/// Most code: it travels in one frame.
const MAX_CODE: u64 = 1 << 20;

/// What a data analysis imports, in the order in which a first run is likely to want it, and of the
/// standard library what takes long. An idle session then needs less than 160 MB. Left out for that:
/// openpyxl and reportlab, 5 MB and 45 ms of the runs that import them each.
const PRELOAD: &str = "numpy,pandas,matplotlib.pyplot,matplotlib.backends.backend_agg,seaborn,\
                       scipy.stats,pyarrow.parquet,asyncio,multiprocessing.pool,\
                       concurrent.futures.thread,sqlite3";

/// Longest list of modules, in bytes: it travels in the head of a frame.
const MAX_MODULES: usize = 8 << 10;

/// Memory of what is preloaded, and of a small program.
const PRELOADED: u64 = 180_000_000;

/// Most bytes of a picture in a result: with others it shares a message that every client takes.
const MAX_INLINE_IMAGE: u64 = 2_000_000;

/// A file comes as base64 in one JSON line, which is held in memory as a whole.
const MAX_UPLOAD: u64 = 1 << 30;

/// Where tokens are set, and where they are if not there.
const TOKENS: [&str; 2] = ["SANDBOX_AUTH_TOKENS", "SANDBOX_AUTH_TOKENS_FILE"];

/// What the environment and a file say, before it is checked.
struct Variables {
    /// The environment, and the file for what it does not set.
    vars: BTreeMap<String, String>,
    /// What cannot be read.
    mistakes: Vec<String>,
    /// The file, if there is one, and whether what `SANDBOX_AUTH_TOKENS` says stands in it.
    file: Option<(PathBuf, bool)>,
}

impl Variables {
    fn read(file: &EnvFile) -> Self {
        let mut mistakes = vec![];
        let (file, mut vars) = file.read(&mut mistakes).unzip();
        let vars: &mut BTreeMap<_, _> = vars.get_or_insert_default();
        let mut tokens_in_file = vars.contains_key(TOKENS[0]);
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            // Says where the file is, and nothing else.
            if name == ENV_FILE {
                continue;
            }
            tokens_in_file &= name != TOKENS[0];
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

/// The tokens of the settings, each with its name: to be shown to whoever may read the settings.
pub fn tokens_in_clear(file: &EnvFile) -> Result<Vec<(String, String)>, Mistakes> {
    let Variables { vars, mistakes, .. } = Variables::read(file);
    let mut settings = Settings { vars, mistakes };
    let set = |name: &str| settings.vars.get(name).filter(|value| !value.trim().is_empty());
    if let (None, Some(path)) = (set(TOKENS[0]), set(TOKENS[1]))
        && !Path::new(path.trim()).exists()
    {
        // Made here, it would hold a token that no server knows.
        return Err(Mistakes(vec![format!(
            "{}: there is no file {path} yet: the server makes it when it starts, and may run in \
             another folder",
            TOKENS[1]
        )]));
    }
    let (_, list) = settings.token_list(TOKENS);
    if !settings.mistakes.is_empty() {
        return Err(Mistakes(settings.mistakes));
    }
    let pairs = list.split(',').filter_map(|pair| pair.trim().split_once(':'));
    Ok(pairs.map(|(name, token)| (name.to_owned(), token.to_owned())).collect())
}

impl Config {
    /// Reads the environment, and a file for what it does not set.
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

    /// The same settings, of which this file had some; and whether it had `SANDBOX_AUTH_TOKENS`.
    fn read_from(mut self, file: Option<(PathBuf, bool)>) -> Self {
        let Some((path, has_tokens)) = file else { return self };
        if has_tokens && self.tokens_from == Some(TokensFrom::Environment) {
            self.tokens_from = Some(TokensFrom::EnvFile(path.clone()));
        }
        self.env_file = Some(path);
        self
    }

    /// Checks variables; those of other programs are passed over.
    pub fn parse(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Mistakes> {
        let vars = vars.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
        let mut settings = Settings { vars, mistakes: vec![] };
        let memory_limit = settings.size("SANDBOX_MEMORY_LIMIT", "512MB", 64 << 20, 1 << 40);
        // What is not set fits into what is: files are in memory, an upload is one of them.
        let data = 256_000_000.min(memory_limit / 2);
        let data_limit = settings.size("SANDBOX_DATA_LIMIT", &data.to_string(), 1 << 20, 1 << 40);
        let upload = 50_000_000.min(data_limit).to_string();
        let files = data_limit + 2 * scratch_bytes(memory_limit);
        let preload = if memory_limit < files + PRELOADED { "none" } else { PRELOAD };
        let max_sessions = settings.whole("SANDBOX_MAX_SESSIONS", "10", 1, 10_000);
        let (auth_tokens, tokens_from) = settings.tokens(TOKENS);
        let config = Self {
            memory_limit,
            cpu_limit: settings.number("SANDBOX_CPU_LIMIT", "1.0", 0.05, 1024.0),
            exec_timeout: settings.duration("SANDBOX_EXEC_TIMEOUT_S", "60", 1, 86_400),
            session_ttl: settings.minutes("SANDBOX_SESSION_TTL_M", "30"),
            max_upload: settings.size("SANDBOX_MAX_UPLOAD_BYTES", &upload, 1, MAX_UPLOAD),
            max_artifact_read: settings.size(
                "SANDBOX_MAX_ARTIFACT_READ_BYTES",
                "10MB",
                1,
                MAX_UPLOAD,
            ),
            max_output: settings.small("SANDBOX_MAX_OUTPUT_BYTES", "100KB", 1000, MAX_OUTPUT),
            max_code: settings.small("SANDBOX_MAX_CODE_BYTES", "100KB", 1, MAX_CODE),
            data_limit,
            pids_limit: settings.whole("SANDBOX_PIDS_LIMIT", "128", 16, 1 << 22),
            max_sessions,
            max_sessions_per_client: settings.whole(
                "SANDBOX_MAX_SESSIONS_PER_CLIENT",
                &max_sessions.to_string(),
                1,
                10_000,
            ),
            pool_size: settings.whole("SANDBOX_POOL_SIZE", "1", 0, 10_000),
            preload: settings.modules("SANDBOX_PRELOAD", preload),
            evict_idle: settings.minutes_or_never("SANDBOX_EVICT_IDLE_M", "10"),
            hibernate_after: settings.minutes("SANDBOX_HIBERNATE_AFTER_M", "5"),
            cleanup_interval: settings.minutes("SANDBOX_CLEANUP_INTERVAL_M", "5"),
            transport: settings.parsed("SANDBOX_TRANSPORT", "stdio", "stdio or http"),
            http_host: settings.parsed("SANDBOX_HTTP_HOST", "127.0.0.1", "an IP address"),
            http_port: settings.whole("SANDBOX_HTTP_PORT", "8080", 0, 65_535),
            public_url: settings.url("SANDBOX_PUBLIC_URL"),
            allowed_hosts: settings.hosts("SANDBOX_ALLOWED_HOSTS"),
            allowed_origins: settings.origins("SANDBOX_ALLOWED_ORIGINS"),
            auth_tokens,
            tokens_from,
            metrics_token: settings.token("SANDBOX_METRICS_TOKEN"),
            rate_limit: NonZeroU32::new(settings.whole(
                "SANDBOX_RATE_LIMIT_PER_M",
                "0",
                0,
                1_000_000,
            )),
            url_ttl: settings.minutes("SANDBOX_URL_TTL_M", "60"),
            upload_roots: settings.folders("SANDBOX_UPLOAD_ROOTS"),
            export_dir: settings.optional("SANDBOX_EXPORT_DIR").map(PathBuf::from),
            export_limit: settings.size("SANDBOX_EXPORT_LIMIT", "500MB", 1 << 20, 1 << 40),
            inline_images: settings.whole("SANDBOX_INLINE_IMAGES", "3", 0, 20),
            inline_image_side: settings.whole("SANDBOX_INLINE_IMAGE_SIDE", "1024", 64, 8000),
            inline_image_bytes: settings.small(
                "SANDBOX_INLINE_IMAGE_BYTES",
                "150KB",
                1000,
                MAX_INLINE_IMAGE,
            ),
            engine: settings.parsed("SANDBOX_ENGINE", "docker", "docker or local"),
            image: settings.text("SANDBOX_IMAGE", "llm-sandbox:latest"),
            runtime: settings.optional("SANDBOX_RUNTIME"),
            log_level: settings.parsed(
                "SANDBOX_LOG_LEVEL",
                "INFO",
                "one of ERROR, WARN, INFO, DEBUG, TRACE",
            ),
            log_file: match settings.take("SANDBOX_LOG_FILE") {
                None => LogFile::Usual,
                Some(path) if path.is_empty() => LogFile::None,
                Some(path) => LogFile::At(path.into()),
            },
            log_format: settings.parsed("SANDBOX_LOG_FORMAT", "console", "console or json"),
            env_file: None,
        };
        let unknown: Vec<_> = settings.vars.into_keys().collect();
        let mut mistakes = settings.mistakes;
        mistakes
            .extend(unknown.into_iter().map(|name| format!("{name}: there is no such setting")));
        mistakes.extend(config.contradictions());
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }

    /// Whether requests over HTTP need a token or a signed URL. Only a server for HTTP without tokens,
    /// which others cannot reach, is open to whoever is on this machine: over stdio the files belong to
    /// the one client that has started the server, and other users of the machine are not it.
    pub fn requires_auth(&self) -> bool {
        self.transport == Transport::Stdio || !self.auth_tokens.is_empty()
    }

    /// What is right by itself and not together.
    fn contradictions(&self) -> Vec<String> {
        let mut mistakes = vec![];
        if self.max_upload > self.data_limit {
            mistakes.push(
                "SANDBOX_MAX_UPLOAD_BYTES: is more than SANDBOX_DATA_LIMIT, so no upload of that \
                 size could succeed"
                    .into(),
            );
        }
        if self.data_limit > self.memory_limit / 4 * 3 {
            mistakes.push(
                "SANDBOX_DATA_LIMIT: is more than three quarters of SANDBOX_MEMORY_LIMIT, in which \
                 the files are kept: full, it would end the sandbox"
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

impl FromStr for Engine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let all = [Self::Docker, Self::Local];
        let named = all.into_iter().find(|engine| text.eq_ignore_ascii_case(engine.as_str()));
        named.ok_or("there is no such engine")
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "stdio" => Ok(Self::Stdio),
            "http" => Ok(Self::Http),
            _ => Err(()),
        }
    }
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "console" => Ok(Self::Console),
            "json" => Ok(Self::Json),
            _ => Err(()),
        }
    }
}
