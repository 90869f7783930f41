//! Settings: environment variables and a `.env` file in, one checked [`Config`] or all the
//! mistakes at once out. Nothing falls back in silence.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;

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
    /// `SANDBOX_POOL_SIZE`: sandboxes that wait, warm, for sessions that are not named.
    pub pool_size: usize,
    /// `SANDBOX_PRELOAD`: modules that are loaded before a run needs them; `None` for a new
    /// interpreter with each run.
    pub preload: Option<Vec<String>>,
    /// `SANDBOX_HIBERNATE_AFTER_M`: a session unused for this long gives up what is preloaded.
    pub hibernate_after: Duration,
    /// `SANDBOX_CLEANUP_INTERVAL_M`: how often leftovers of dead servers are looked for.
    pub cleanup_interval: Duration,
    /// `SANDBOX_HTTP_HOST`.
    pub http_host: IpAddr,
    /// `SANDBOX_HTTP_PORT`; 0 takes any that is free.
    pub http_port: u16,
    /// `SANDBOX_PUBLIC_URL`: base of the addresses handed out, without a slash at the end.
    pub public_url: Option<String>,
    /// `SANDBOX_ALLOWED_HOSTS`: names of the artifact server besides its own.
    pub allowed_hosts: Vec<String>,
    /// `SANDBOX_IMAGE`.
    pub image: String,
    /// `SANDBOX_RUNTIME`; the engine's default if there is none.
    pub runtime: Option<String>,
    /// `SANDBOX_LOG_LEVEL`.
    pub log_level: tracing::Level,
    /// `SANDBOX_LOG_FILE`; none if it is set to nothing.
    pub log_file: Option<PathBuf>,
    /// `SANDBOX_LOG_FORMAT`.
    pub log_format: LogFormat,
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

/// Memory of what is preloaded, and of a small program.
const PRELOADED: u64 = 180_000_000;

/// `/tmp` and `/dev/shm` each, in bytes: room for caches, temporary files and shared arrays. Both full,
/// and the data area as well, they leave room for what is preloaded by default.
pub fn scratch_bytes(memory: u64) -> u64 {
    (memory / 16).min(32 << 20)
}

/// A file comes as base64 in one JSON line, which is held in memory as a whole.
const MAX_UPLOAD: u64 = 1 << 30;

impl Config {
    /// Reads the environment, and `.env` in the working directory for what it does not set.
    pub fn load() -> Result<Self, Mistakes> {
        let mut mistakes = vec![];
        let mut vars = BTreeMap::new();
        let lines = match dotenvy::from_path_iter(".env") {
            Ok(lines) => Some(lines),
            Err(error) if error.not_found() => None,
            Err(error) => {
                mistakes.push(format!(".env: {error}"));
                None
            }
        };
        for line in lines.into_iter().flatten() {
            match line {
                Ok((name, value)) => drop(vars.insert(name, value)),
                // A `.env` is often another program's; only our own lines concern us.
                Err(dotenvy::Error::LineParse(line, _)) if !line.contains("SANDBOX_") => {}
                Err(error) => mistakes.push(format!(".env: {error}")),
            }
        }
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => drop(vars.insert(name, value)),
                Err(_) if name.starts_with(PREFIX) => {
                    mistakes.push(format!("{name}: is not UTF-8"));
                }
                Err(_) => {}
            }
        }
        match Self::parse(vars) {
            Ok(config) if mistakes.is_empty() => Ok(config),
            Ok(_) => Err(Mistakes(mistakes)),
            Err(Mistakes(more)) => {
                mistakes.extend(more);
                Err(Mistakes(mistakes))
            }
        }
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
            max_sessions: settings.whole("SANDBOX_MAX_SESSIONS", "10", 1, 10_000),
            pool_size: settings.whole("SANDBOX_POOL_SIZE", "1", 0, 10_000),
            preload: settings.modules("SANDBOX_PRELOAD", preload),
            hibernate_after: settings.minutes("SANDBOX_HIBERNATE_AFTER_M", "5"),
            cleanup_interval: settings.minutes("SANDBOX_CLEANUP_INTERVAL_M", "5"),
            http_host: settings.parsed("SANDBOX_HTTP_HOST", "127.0.0.1", "an IP address"),
            http_port: settings.whole("SANDBOX_HTTP_PORT", "8080", 0, 65_535),
            public_url: settings.url("SANDBOX_PUBLIC_URL"),
            allowed_hosts: settings.hosts("SANDBOX_ALLOWED_HOSTS"),
            image: settings.text("SANDBOX_IMAGE", "llm-sandbox:latest"),
            runtime: settings.optional("SANDBOX_RUNTIME"),
            log_level: settings.parsed(
                "SANDBOX_LOG_LEVEL",
                "INFO",
                "one of ERROR, WARN, INFO, DEBUG, TRACE",
            ),
            log_file: match settings.take("SANDBOX_LOG_FILE") {
                None => Some("logs/sandbox.log".into()),
                Some(path) if path.is_empty() => None,
                Some(path) => Some(path.into()),
            },
            log_format: settings.parsed("SANDBOX_LOG_FORMAT", "console", "console or json"),
        };
        let unknown: Vec<_> = settings.vars.into_keys().collect();
        let mut mistakes = settings.mistakes;
        mistakes
            .extend(unknown.into_iter().map(|name| format!("{name}: there is no such setting")));
        if config.max_upload > config.data_limit {
            mistakes.push(
                "SANDBOX_MAX_UPLOAD_BYTES: is more than SANDBOX_DATA_LIMIT, so no upload of that \
                 size could succeed"
                    .into(),
            );
        }
        if config.data_limit > config.memory_limit / 4 * 3 {
            mistakes.push(
                "SANDBOX_DATA_LIMIT: is more than three quarters of SANDBOX_MEMORY_LIMIT, in which \
                 the files are kept: full, it would end the sandbox"
                    .into(),
            );
        }
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::parse([]).expect("the defaults are valid")
    }
}

const PREFIX: &str = "SANDBOX_";

/// Variables that have not been read yet, and what was wrong with those that were.
struct Settings {
    vars: BTreeMap<String, String>,
    mistakes: Vec<String>,
}

impl Settings {
    fn take(&mut self, name: &str) -> Option<String> {
        self.vars.remove(name).map(|value| value.trim().to_owned())
    }

    fn optional(&mut self, name: &str) -> Option<String> {
        self.take(name).filter(|value| !value.is_empty())
    }

    fn text(&mut self, name: &str, default: &str) -> String {
        self.optional(name).unwrap_or_else(|| default.to_owned())
    }

    /// Reads a value; a mistake is noted, and the default stands in so that reading can go on.
    fn read<T>(
        &mut self,
        name: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        let value = self.text(name, default);
        parse(&value).unwrap_or_else(|why| {
            self.mistakes.push(format!("{name}: {value:?} is not {why}"));
            parse(default).unwrap_or_else(|why| panic!("default of {name} is not {why}"))
        })
    }

    fn parsed<T: FromStr>(&mut self, name: &str, default: &str, what: &str) -> T {
        self.read(name, default, |value| value.parse().map_err(|_| what.to_owned()))
    }

    fn size(&mut self, name: &str, default: &str, min: u64, max: u64) -> u64 {
        let what = format!(
            "a size from {} to {}, such as 50MB or 512MiB",
            ByteSize(min).display().si(),
            ByteSize(max).display().si()
        );
        self.read(name, default, |value| {
            let size = value.parse::<ByteSize>().map_err(|_| what.clone())?.as_u64();
            (min..=max).contains(&size).then_some(size).ok_or_else(|| what.clone())
        })
    }

    fn small(&mut self, name: &str, default: &str, min: u64, max: u64) -> usize {
        usize::try_from(self.size(name, default, min, max)).expect("its maximum fits")
    }

    fn whole<T: TryFrom<u64>>(&mut self, name: &str, default: &str, min: u64, max: u64) -> T {
        let what = format!("a whole number from {min} to {max}");
        self.read(name, default, |value| {
            let number = value.parse().ok().filter(|number| (min..=max).contains(number));
            number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| what.clone())
        })
    }

    fn number(&mut self, name: &str, default: &str, min: f64, max: f64) -> f64 {
        let what = format!("a number from {min} to {max}");
        self.read(name, default, |value| {
            value
                .parse()
                .ok()
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| what.clone())
        })
    }

    fn duration(&mut self, name: &str, default: &str, min: u64, max: u64) -> Duration {
        Duration::from_secs(self.whole(name, default, min, max))
    }

    fn minutes(&mut self, name: &str, default: &str) -> Duration {
        Duration::from_secs_f64(self.number(name, default, 0.01, 1e6) * 60.0)
    }

    fn hosts(&mut self, name: &str) -> Vec<String> {
        let list = self.optional(name).unwrap_or_default();
        let hosts = list.split(',').map(str::trim).filter(|host| !host.is_empty());
        let hosts: Vec<String> = hosts.map(str::to_owned).collect();
        let is_name = |host: &str| {
            host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        for host in &hosts {
            if !is_name(host) && host.parse::<IpAddr>().is_err() {
                self.mistakes.push(format!(
                    "{name}: {host:?} is not a host name or address; it takes no port and no *"
                ));
            }
        }
        hosts
    }

    fn modules(&mut self, name: &str, default: &str) -> Option<Vec<String>> {
        let list = self.text(name, default);
        if list == "none" {
            return None;
        }
        let modules = list.split(',').map(str::trim).filter(|module| !module.is_empty());
        let modules: Vec<String> = modules.map(str::to_owned).collect();
        let is_name = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        for module in modules.iter().filter(|module| !module.split('.').all(is_name)) {
            self.mistakes.push(format!("{name}: {module:?} is not the name of a module"));
        }
        Some(modules)
    }

    fn url(&mut self, name: &str) -> Option<String> {
        let url = self.optional(name)?;
        let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let ok = authority.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
            && url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
        if !ok {
            self.mistakes
                .push(format!("{name}: {url:?} is not an address such as https://host:8080"));
            return None;
        }
        Some(url.trim_end_matches('/').to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<Config, Mistakes> {
        Config::parse(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let config = parse(&[("PATH", "/bin")]).expect("valid");
        assert_eq!(config, Config::default());
        assert_eq!(config.memory_limit, 512_000_000);
        assert_eq!(config.max_upload, 50_000_000);
        assert_eq!(config.max_output, 100_000);
        assert_eq!(config.session_ttl, Duration::from_secs(1800));
        assert_eq!(config.http_port, 8080);
        assert_eq!(config.log_file, Some("logs/sandbox.log".into()));
    }

    #[test]
    fn the_example_file_names_every_setting_with_its_default() {
        let example = include_str!("../.env.example");
        let vars: Vec<(String, String)> = example
            .lines()
            .filter_map(|line| line.strip_prefix('#')?.trim().split_once('='))
            .filter(|(name, _)| name.starts_with(PREFIX))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(Config::parse(vars.clone()).expect("valid"), Config::default());

        let source = include_str!("config.rs");
        let source = source.split("#[cfg(test)]").next().expect("some");
        let mut known: Vec<&str> = source
            .split('"')
            .filter(|text| text.strip_prefix(PREFIX).is_some_and(|rest| !rest.is_empty()))
            .filter(|text| text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
            .collect();
        known.sort_unstable();
        known.dedup();
        let mut named: Vec<&str> = vars.iter().map(|(name, _)| &**name).collect();
        named.sort_unstable();
        assert_eq!(named, known);
    }

    #[test]
    fn sizes_and_times_are_read_with_their_units() {
        let config = parse(&[
            ("SANDBOX_MEMORY_LIMIT", "1GiB"),
            ("SANDBOX_MAX_UPLOAD_BYTES", "1048576"),
            ("SANDBOX_SESSION_TTL_M", "0.05"),
            ("SANDBOX_EXEC_TIMEOUT_S", "7"),
            ("SANDBOX_PUBLIC_URL", "https://files.example.org/sandbox/"),
            ("SANDBOX_LOG_LEVEL", "debug"),
            ("SANDBOX_LOG_FILE", ""),
        ])
        .expect("valid");
        assert_eq!(config.memory_limit, 1 << 30);
        assert_eq!(config.max_upload, 1 << 20);
        assert_eq!(config.session_ttl, Duration::from_secs(3));
        assert_eq!(config.exec_timeout, Duration::from_secs(7));
        assert_eq!(config.public_url.as_deref(), Some("https://files.example.org/sandbox"));
        assert_eq!(config.log_level, tracing::Level::DEBUG);
        assert_eq!(config.log_file, None);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let mistakes = parse(&[
            ("SANDBOX_MEMORY_LIMIT", "lots"),
            ("SANDBOX_CPU_LIMIT", "NaN"),
            ("SANDBOX_EXEC_TIMEOUT_S", "0"),
            ("SANDBOX_MAX_OUTPUT_BYTES", "1GB"),
            ("SANDBOX_HTTP_HOST", "nowhere"),
            ("SANDBOX_HTTP_PORT", "65536"),
            ("SANDBOX_PUBLIC_URL", "files.example.org"),
            ("SANDBOX_LOG_LEVEL", "LOUD"),
            ("SANDBOX_LOG_FORMAT", "xml"),
            ("SANDBOX_MAX_SESIONS", "3"),
        ])
        .expect_err("ten mistakes");
        assert_eq!(mistakes.0.len(), 10, "{mistakes}");
        assert!(mistakes.to_string().contains("SANDBOX_MAX_SESIONS: there is no such setting"));
    }

    #[test]
    fn files_never_take_all_the_memory() {
        let config = parse(&[("SANDBOX_MEMORY_LIMIT", "64MiB")]).expect("valid");
        assert_eq!((config.data_limit, config.max_upload), (32 << 20, 32 << 20));
        let mistakes = parse(&[("SANDBOX_DATA_LIMIT", "1GB")]).expect_err("more than there is");
        assert!(mistakes.to_string().contains("SANDBOX_MEMORY_LIMIT"), "{mistakes}");
    }

    #[test]
    fn modules_are_preloaded_where_there_is_room_or_as_they_are_named() {
        let preload = |vars: &[(&str, &str)]| parse(vars).map(|config| config.preload);
        let small = ("SANDBOX_MEMORY_LIMIT", "256MB");
        assert!(preload(&[]).expect("valid").is_some_and(|all| all.contains(&"pandas".into())));
        assert_eq!(preload(&[small]).expect("valid"), None);
        assert_eq!(preload(&[("SANDBOX_DATA_LIMIT", "300MB")]).expect("valid"), None);
        let named = [small, ("SANDBOX_PRELOAD", " json, scipy.stats,")];
        assert_eq!(
            preload(&named).expect("valid"),
            Some(vec!["json".into(), "scipy.stats".into()])
        );
        assert_eq!(preload(&[("SANDBOX_PRELOAD", "none")]).expect("valid"), None);
        for wrong in ["a b", "a..b", "a;b", "é"] {
            assert!(preload(&[("SANDBOX_PRELOAD", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn allowed_hosts_are_names_and_addresses_without_ports() {
        let hosts = |list| parse(&[("SANDBOX_ALLOWED_HOSTS", list)]).map(|c| c.allowed_hosts);
        assert_eq!(hosts("a.test, ::1,,10.0.0.1 ").expect("valid"), ["a.test", "::1", "10.0.0.1"]);
        assert_eq!(hosts("").expect("valid"), Vec::<String>::new());
        for wrong in ["a.test:8080", "*", "http://a.test", "a.test b.test", "[::1]"] {
            assert!(hosts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_upload_limit_that_the_data_area_cannot_hold_is_a_mistake() {
        let settings = [("SANDBOX_DATA_LIMIT", "10MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "11MB")];
        let mistakes = parse(&settings).expect_err("11MB into 10MB");
        assert!(mistakes.to_string().contains("SANDBOX_DATA_LIMIT"), "{mistakes}");
        assert_eq!(parse(&settings[..1]).expect("valid").max_upload, 10_000_000);
    }
}
