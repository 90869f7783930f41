//! How packages are reached: the index, the proxy and the certificates that pip or npm uses on the server's machine. A
//! fetcher gets them on its standard input, which no other program can read.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use model::package::Ecosystem;
use serde::Serialize;

/// Variables that configure proxies, in capitals.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

/// pip's variables that say how packages are reached, in capitals. Its other variables say what to do with packages, or
/// name files of this machine.
const PIP: [&str; 7] = [
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_PROXY",
    "PIP_TIMEOUT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
];

/// The prefix of npm's variables.
const NPM: &str = "NPM_CONFIG_";

/// npm's variables, without the prefix, that say how packages are reached and which versions are old enough.
const NPM_OPTIONS: [&str; 11] = [
    "REGISTRY",
    "PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NOPROXY",
    "STRICT_SSL",
    "REPLACE_REGISTRY_HOST",
    "MAXSOCKETS",
    "BEFORE",
    "MIN_RELEASE_AGE",
    "MIN_RELEASE_AGE_EXCLUDE",
];

/// Variables that name a file of certificates, the tool's own first.
const PIP_CERTIFICATES: [&str; 3] = ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"];
const NPM_CERTIFICATES: [&str; 4] =
    ["npm_config_cafile", "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"];

/// The size of the largest file that is passed on, in bytes: the whole request is one message.
const MAX_FILE: u64 = 512 << 10;

/// The part of a fetcher's request that says how packages are reached.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Index {
    environment: BTreeMap<String, String>,
    /// Texts of configuration files, the most general first.
    configuration: Vec<String>,
    certificates: String,
}

impl Index {
    /// Reads the present configuration of this machine.
    pub(super) fn here(ecosystem: Ecosystem) -> Self {
        let environment: BTreeMap<_, _> =
            env::vars().filter(|(name, _)| is_taken(ecosystem, name)).collect();
        let texts = files(ecosystem).into_iter().filter_map(|path| read(&path));
        let configuration: Vec<_> = match ecosystem {
            Ecosystem::PyPi => texts.collect(),
            Ecosystem::Npm => {
                texts.map(|text| expanded(&text, &|name| env::var(name).ok())).collect()
            }
        };
        let (variables, option): (&[_], _) = match ecosystem {
            Ecosystem::PyPi => (&PIP_CERTIFICATES, "cert"),
            Ecosystem::Npm => (&NPM_CERTIFICATES, "cafile"),
        };
        let named = variables.iter().find_map(|name| env::var_os(name).filter(|it| !it.is_empty()));
        let by_file = || configuration.iter().rev().find_map(|text| certificates_of(text, option));
        let usual = || "/etc/ssl/certs/ca-certificates.crt".into();
        let path = named.map(PathBuf::from).or_else(by_file).unwrap_or_else(usual);
        Self { environment, configuration, certificates: read(&path).unwrap_or_default() }
    }
}

/// Whether a variable says how packages are reached.
fn is_taken(ecosystem: Ecosystem, name: &str) -> bool {
    let capitals = name.to_ascii_uppercase();
    let is_own = match ecosystem {
        Ecosystem::PyPi => PIP.contains(&&*capitals),
        Ecosystem::Npm => capitals.strip_prefix(NPM).is_some_and(|option| {
            NPM_OPTIONS.contains(&option)
                || option.starts_with("FETCH_")
                || option.starts_with("//")
        }),
    };
    is_own || PROXIES.contains(&&*capitals)
}

/// The paths of possible configuration files, the most general first.
fn files(ecosystem: Ecosystem) -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let named = |names: &[&str]| names.iter().find_map(env::var_os).map(PathBuf::from);
    match ecosystem {
        Ecosystem::PyPi => {
            let own = home.map(|home| {
                let config =
                    env::var_os("XDG_CONFIG_HOME").map_or(home.join(".config"), PathBuf::from);
                [home.join(".pip/pip.conf"), config.join("pip/pip.conf")]
            });
            let general = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"].map(PathBuf::from);
            let all = general.into_iter().chain(own.into_iter().flatten());
            all.chain(named(&["PIP_CONFIG_FILE"])).collect()
        }
        Ecosystem::Npm => {
            let general = named(&["npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG"]);
            let general = general.map_or_else(
                || {
                    ["/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc"]
                        .map(PathBuf::from)
                        .into()
                },
                |one| vec![one],
            );
            let own = named(&["npm_config_userconfig", "NPM_CONFIG_USERCONFIG"]);
            let own = own.or_else(|| home.map(|home| home.join(".npmrc")));
            general.into_iter().chain(own).collect()
        }
    }
}

/// Replaces the variables in a configuration of npm's, such as `${NPM_TOKEN}`, by their values.
fn expanded(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut parts = text.split("${");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let value = |(name, rest): (&str, _)| {
            let (name, or_nothing) = match name.strip_suffix('?') {
                Some(name) => (name, Some(String::new())),
                None => (name, None),
            };
            Some((variable(name).or(or_nothing)?, rest))
        };
        let (value, rest) = match part.split_once('}').and_then(value) {
            Some((value, rest)) => (Cow::Owned(value), rest),
            None => (Cow::Borrowed("${"), part),
        };
        all.push_str(&value);
        all.push_str(rest);
    }
    all
}

/// The text of a file; `None` if the file is missing, too large or not a text.
fn read(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    if about.len() > MAX_FILE {
        tracing::warn!(path = %path.display(), "file is too large for package fetchers, which run without it");
        return None;
    }
    fs::read_to_string(path).ok()
}

/// The file of certificates that a configuration names.
fn certificates_of(text: &str, option: &str) -> Option<PathBuf> {
    let mut values = text.lines().rev().filter_map(|line| line.split_once('='));
    values.find(|(name, _)| name.trim() == option).map(|(_, path)| path.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_its_certificates() {
        let text = "[global]\ntimeout = 60\ncert = /etc/ca.pem\n[install]\ncertify=x\n";
        assert_eq!(certificates_of(text, "cert"), Some("/etc/ca.pem".into()));
        assert_eq!(certificates_of("[global]\n# cert = /x\n", "cert"), None);
    }

    #[test]
    fn variables_that_a_configuration_names_are_put_in() {
        let variable = |name: &str| (name == "TOKEN").then(|| "secret".to_owned());
        let expanded = |text| expanded(text, &variable);
        let line = "//registry.example/:_authToken=";
        let text = format!("{line}${{TOKEN}}\nx=1");
        assert_eq!(expanded(&text), format!("{line}secret\nx=1"));
        assert_eq!(expanded("a=${NONE}${NONE?}-${TOKEN?}${"), "a=${NONE}-secret${");
    }

    #[test]
    fn variables_that_say_what_is_to_be_done_are_not_passed_on() {
        for name in [
            "npm_config_registry",
            "NPM_CONFIG_HTTPS_PROXY",
            "npm_config_fetch_retries",
            "no_proxy",
        ] {
            assert!(is_taken(Ecosystem::Npm, name), "{name}");
        }
        for name in [
            "npm_config_ignore_scripts",
            "npm_config_prefix",
            "npm_config_git",
            "NODE_OPTIONS",
            "PATH",
        ] {
            assert!(!is_taken(Ecosystem::Npm, name), "{name}");
        }
        assert!(
            is_taken(Ecosystem::PyPi, "PIP_INDEX_URL") && !is_taken(Ecosystem::PyPi, "PIP_TARGET")
        );
    }
}
