//! How packages are reached, as pip on the server's machine is told: index, proxy, certificates. A fetcher gets it on
//! its standard input, where nobody else sees it.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// Variables that say how packages are reached, in capitals. Others of pip's say what is to be done with them, or name
/// files of this machine.
const VARIABLES: [&str; 11] = [
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_PROXY",
    "PIP_TIMEOUT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
];

/// Variables that name a file of certificates, pip's own first.
const CERTIFICATES: [&str; 3] = ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"];

/// Largest file that is passed on, in bytes: all of it is one message.
const MAX_FILE: u64 = 512 << 10;

/// What a fetcher is told.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Index {
    environment: BTreeMap<String, String>,
    /// Texts of configuration files, in the order in which they count.
    configuration: Vec<String>,
    certificates: String,
}

impl Index {
    /// As it is now.
    pub(super) fn here() -> Self {
        let environment: BTreeMap<_, _> = env::vars()
            .filter(|(name, _)| VARIABLES.contains(&&*name.to_ascii_uppercase()))
            .collect();
        let configuration: Vec<_> = files().filter_map(|path| read(&path)).collect();
        let named =
            CERTIFICATES.iter().find_map(|name| env::var_os(name).filter(|it| !it.is_empty()));
        let by_file = || configuration.iter().rev().find_map(|text| certificates_of(text));
        let usual = || "/etc/ssl/certs/ca-certificates.crt".into();
        let path = named.map(PathBuf::from).or_else(by_file).unwrap_or_else(usual);
        Self { environment, configuration, certificates: read(&path).unwrap_or_default() }
    }
}

/// Where pip's configuration may be, the most general first.
fn files() -> impl Iterator<Item = PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let own = home.map(|home| {
        let config = env::var_os("XDG_CONFIG_HOME").map_or(home.join(".config"), PathBuf::from);
        [home.join(".pip/pip.conf"), config.join("pip/pip.conf")]
    });
    let named = env::var_os("PIP_CONFIG_FILE").map(PathBuf::from);
    ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"]
        .map(PathBuf::from)
        .into_iter()
        .chain(own.into_iter().flatten())
        .chain(named)
}

/// The text of a file, unless it is missing or none.
fn read(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    if about.len() > MAX_FILE {
        tracing::warn!(path = %path.display(), "this file is too large to be passed on to what fetches packages");
        return None;
    }
    fs::read_to_string(path).ok()
}

/// The file of certificates that a configuration names.
fn certificates_of(text: &str) -> Option<PathBuf> {
    let mut values = text.lines().rev().filter_map(|line| line.split_once('='));
    values.find(|(name, _)| name.trim() == "cert").map(|(_, path)| path.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_its_certificates() {
        let text = "[global]\ntimeout = 60\ncert = /etc/ca.pem\n[install]\ncertify=x\n";
        assert_eq!(certificates_of(text), Some("/etc/ca.pem".into()));
        assert_eq!(certificates_of("[global]\n# cert = /x\n"), None);
    }
}
