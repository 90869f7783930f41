//! The settings that a relay and its server have in common: those that describe a container, and limit the number of
//! containers. `.env.example` describes them. A size that a server refuses is refused here, too.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;
use sandbox_container::{Limits, Storage, defaults, named_folder};
use tracing::Level;

/// The settings of a relay.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `SANDBOX_MEMORY_LIMIT`, `SANDBOX_CPU_LIMIT`, `SANDBOX_PIDS_LIMIT`, `SANDBOX_STORAGE`, and `SANDBOX_DATA_LIMIT` or
    /// `SANDBOX_DISK_LIMIT`.
    pub limits: Limits,
    /// `SANDBOX_IMAGE`.
    pub image: String,
    /// `SANDBOX_RUNTIME`; `None` for the engine's default.
    pub runtime: Option<String>,
    /// `SANDBOX_GPUS`.
    pub gpus: Vec<String>,
    /// `SANDBOX_MAX_SESSIONS`.
    pub max_sessions: usize,
    /// `SANDBOX_HOLD_S`, if sandboxes outlive their streams.
    pub hold: Option<Duration>,
    /// `SANDBOX_PACKAGES_LIMIT` and `SANDBOX_PACKAGES_NETWORK`, unless `SANDBOX_PACKAGES` is off.
    pub packages: Option<Packages>,
    /// `SANDBOX_DATASETS`.
    pub datasets: Vec<(String, PathBuf)>,
    /// `SANDBOX_LOG_LEVEL`.
    pub log_level: Level,
    /// `SANDBOX_LOG_FORMAT`.
    pub log_format: LogFormat,
}

/// The settings for packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packages {
    /// The maximum size of packages in each container, in bytes.
    pub limit: u64,
    /// The network by which packages are fetched.
    pub network: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Console,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match &*text.to_ascii_lowercase() {
            "console" => Ok(Self::Console),
            "json" => Ok(Self::Json),
            _ => Err(()),
        }
    }
}

impl Settings {
    /// Reads these variables, and ignores those that only the server uses.
    ///
    /// # Errors
    /// If values cannot be used: a line for each of them.
    pub fn parse(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Vec<String>> {
        let mut vars = Variables { vars: vars.into_iter().collect(), mistakes: vec![] };
        let size = |text: &str, bounds| within(text.parse::<ByteSize>().ok()?.as_u64(), bounds);
        let memory = vars.read("SANDBOX_MEMORY_LIMIT", defaults::MEMORY_LIMIT, |text| {
            size(text, defaults::MEMORY_BYTES)
        });
        let storage = vars.read("SANDBOX_STORAGE", defaults::STORAGE, parsed);
        let in_memory = defaults::data_limit(memory).to_string();
        let (name, data, data_bounds) = match storage {
            Storage::Memory => {
                let most = defaults::max_data(memory);
                ("SANDBOX_DATA_LIMIT", &*in_memory, (defaults::DATA_BYTES.0, most))
            }
            Storage::Disk => ("SANDBOX_DISK_LIMIT", defaults::DISK_LIMIT, defaults::DATA_BYTES),
        };
        let are_off = |text: &str| ["off", ""].contains(&&*text.to_ascii_lowercase());
        let may_be = !are_off(vars.text("SANDBOX_PACKAGES").unwrap_or(defaults::PACKAGES));
        let limit = vars.read("SANDBOX_PACKAGES_LIMIT", defaults::PACKAGES_LIMIT, |text| {
            size(text, defaults::PACKAGES_BYTES)
        });
        let network = vars.read("SANDBOX_PACKAGES_NETWORK", defaults::PACKAGES_NETWORK, |text| {
            defaults::is_network(text).then(|| text.to_owned())
        });
        let settings = Self {
            packages: may_be.then_some(Packages { limit, network }),
            limits: Limits {
                memory,
                cpus: vars.read("SANDBOX_CPU_LIMIT", defaults::CPU_LIMIT, |text| {
                    within(text.parse().ok()?, defaults::CPUS)
                }),
                pids: vars.read("SANDBOX_PIDS_LIMIT", defaults::PIDS_LIMIT, |text| {
                    within(text.parse().ok()?, defaults::PIDS)?.try_into().ok()
                }),
                data: vars.read(name, data, |text| size(text, data_bounds)),
                storage,
            },
            image: vars.read("SANDBOX_IMAGE", defaults::IMAGE, parsed),
            runtime: vars.text("SANDBOX_RUNTIME").map(str::to_owned),
            gpus: vars.read("SANDBOX_GPUS", "", devices),
            max_sessions: vars.read("SANDBOX_MAX_SESSIONS", defaults::MAX_SESSIONS, |text| {
                within(text.parse().ok()?, defaults::SESSIONS)?.try_into().ok()
            }),
            hold: vars.read("SANDBOX_HOLD_S", "0", |text| {
                let seconds = within(text.parse().ok()?, defaults::HOLD_SECONDS)?;
                Some(Some(Duration::from_secs(seconds)).filter(|hold| !hold.is_zero()))
            }),
            datasets: vars.read("SANDBOX_DATASETS", "", datasets),
            log_level: vars.read("SANDBOX_LOG_LEVEL", "INFO", parsed),
            log_format: vars.read("SANDBOX_LOG_FORMAT", "console", parsed),
        };
        if vars.text("SANDBOX_ENV_FILE").is_some() {
            let text = "SANDBOX_ENV_FILE: a relay takes its settings from the environment alone";
            vars.mistakes.push(text.into());
        }
        if vars.mistakes.is_empty() { Ok(settings) } else { Err(vars.mistakes) }
    }
}

/// Datasets, each as NAME=PATH, separated by commas.
fn datasets(text: &str) -> Option<Vec<(String, PathBuf)>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(named_folder).collect()
}

/// CDI names of devices, separated by commas.
fn devices(text: &str) -> Option<Vec<String>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| defaults::is_device(item).then(|| item.to_owned())).collect()
}

/// A value that is within its bounds, both included.
fn within<T: PartialOrd>(value: T, (least, most): (T, T)) -> Option<T> {
    (value >= least && value <= most).then_some(value)
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

struct Variables {
    vars: BTreeMap<String, String>,
    mistakes: Vec<String>,
}

impl Variables {
    /// The value of a variable; an empty value counts as not set.
    fn text(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Reads a value. A mistake is recorded, and the default is used, so that reading continues.
    fn read<T>(&mut self, name: &str, default: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let value = self.text(name).unwrap_or(default).to_owned();
        parse(&value).unwrap_or_else(|| {
            self.mistakes.push(format!("{name}: {value:?} cannot be used"));
            parse(default).expect("the default can be read")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
        Settings::parse(vars.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    #[test]
    fn what_is_set_holds_and_the_rest_has_defaults() {
        let settings = parse(&[
            ("SANDBOX_MEMORY_LIMIT", " 400MB "),
            ("SANDBOX_CPU_LIMIT", "0.5"),
            ("SANDBOX_RUNTIME", ""),
            ("SANDBOX_LOG_LEVEL", "debug"),
            ("SANDBOX_POOL_SIZE", "a server's own"),
        ]);
        let settings = settings.expect("valid");
        let storage = Storage::Memory;
        let limits =
            Limits { memory: 400_000_000, cpus: 0.5, pids: 128, data: 200_000_000, storage };
        assert_eq!(settings.limits, limits);
        assert_eq!((settings.runtime, settings.log_level), (None, Level::DEBUG));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let wrong = [("SANDBOX_MEMORY_LIMIT", "much"), ("SANDBOX_MAX_SESSIONS", "-1")];
        let mistakes = parse(&wrong).expect_err("two");
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    }

    #[test]
    fn what_an_engine_would_take_for_no_limit_is_refused() {
        for (name, values) in [
            ("SANDBOX_MEMORY_LIMIT", &["0", "63MiB", "2TiB"][..]),
            ("SANDBOX_CPU_LIMIT", &["0", "-1", "nan", "inf", "1025"]),
            ("SANDBOX_PIDS_LIMIT", &["0", "-1", "15", "4194305"]),
            ("SANDBOX_DATA_LIMIT", &["0", "1MB", "500MB", "16EiB"]),
            ("SANDBOX_STORAGE", &["tape", "volume"]),
            ("SANDBOX_MAX_SESSIONS", &["0", "10001", "18446744073709551615"]),
            ("SANDBOX_PACKAGES_LIMIT", &["0", "1MB", "16EiB"]),
            ("SANDBOX_PACKAGES_NETWORK", &["host", "none", "container:x", "a b"]),
            ("SANDBOX_DATASETS", &["sales", "sales=srv", "a/b=/srv", "x=/proc", "x=/"]),
            (
                "SANDBOX_GPUS",
                &["all", "nvidia.com/gpu", "nvidia.com/gpu=", "/dev/dri=0", "a/b=c d"],
            ),
            ("SANDBOX_ENV_FILE", &["settings"]),
        ] {
            for value in values {
                assert!(parse(&[(name, value)]).is_err(), "{name}={value}");
            }
        }
    }
}
