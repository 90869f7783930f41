//! Reading variables: each by its form, with what is wrong with it noted for later.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;

use super::{MAX_MODULES, TokensFrom, tokens};
use crate::auth::{Token, Tokens};

/// What all our variables start with.
pub(super) const PREFIX: &str = "SANDBOX_";

/// Variables that have not been read yet, and what was wrong with those that were.
pub(super) struct Settings {
    pub(super) vars: BTreeMap<String, String>,
    pub(super) mistakes: Vec<String>,
}

impl Settings {
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.vars.remove(name).map(|value| value.trim().to_owned())
    }

    pub(super) fn optional(&mut self, name: &str) -> Option<String> {
        self.take(name).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&mut self, name: &str, default: &str) -> String {
        self.optional(name).unwrap_or_else(|| default.to_owned())
    }

    /// Reads a value; a mistake is noted, and the default stands in so that reading can go on.
    pub(super) fn read<T>(
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

    pub(super) fn parsed<T: FromStr>(&mut self, name: &str, default: &str, what: &str) -> T {
        self.read(name, default, |value| value.parse().map_err(|_| what.to_owned()))
    }

    pub(super) fn size(&mut self, name: &str, default: &str, min: u64, max: u64) -> u64 {
        // Exactly, so that nobody is told the value that was refused.
        let shown = |size: u64| match ByteSize(size).display() {
            size_in if size.is_multiple_of(1 << 20) => size_in.iec().to_string(),
            size_in => size_in.si().to_string(),
        };
        let what =
            format!("a size from {} to {}, written like 300MB or 512MiB", shown(min), shown(max));
        self.read(name, default, |value| {
            let size = value.parse::<ByteSize>().map_err(|_| what.clone())?.as_u64();
            (min..=max).contains(&size).then_some(size).ok_or_else(|| what.clone())
        })
    }

    pub(super) fn small(&mut self, name: &str, default: &str, min: u64, max: u64) -> usize {
        usize::try_from(self.size(name, default, min, max)).expect("its maximum fits")
    }

    pub(super) fn whole<T: TryFrom<u64>>(
        &mut self,
        name: &str,
        default: &str,
        min: u64,
        max: u64,
    ) -> T {
        let what = format!("a whole number from {min} to {max}");
        self.read(name, default, |value| {
            let number = value.parse().ok().filter(|number| (min..=max).contains(number));
            number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| what.clone())
        })
    }

    pub(super) fn number(&mut self, name: &str, default: &str, min: f64, max: f64) -> f64 {
        let what = format!("a number from {min} to {max}");
        self.read(name, default, |value| {
            value
                .parse()
                .ok()
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| what.clone())
        })
    }

    pub(super) fn duration(&mut self, name: &str, default: &str, min: u64, max: u64) -> Duration {
        Duration::from_secs(self.whole(name, default, min, max))
    }

    pub(super) fn minutes(&mut self, name: &str, default: &str) -> Duration {
        Duration::from_secs_f64(self.number(name, default, 0.01, 1e6) * 60.0)
    }

    /// The same; never, if it is 0.
    pub(super) fn minutes_or_never(&mut self, name: &str, default: &str) -> Option<Duration> {
        let minutes = self.number(name, default, 0.0, 1e6);
        (minutes > 0.0).then(|| Duration::from_secs_f64(minutes * 60.0))
    }

    /// What stands between commas.
    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let list = self.optional(name).unwrap_or_default();
        let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(str::to_owned).collect()
    }

    pub(super) fn tokens(&mut self, names: [&str; 2]) -> (Tokens, Option<TokensFrom>) {
        // Not by `read`, which would quote the value.
        let (from, list) = self.token_list(names);
        let tokens = Tokens::parse(&list).unwrap_or_else(|mistake| {
            let name = names[usize::from(matches!(from, Some(TokensFrom::TokensFile(_))))];
            self.mistakes.push(format!("{name}: {mistake}"));
            Tokens::default()
        });
        (tokens, from)
    }

    /// `name:token,...` by the first of the names, or from the file that the second one names; and which
    /// of them it was.
    pub(super) fn token_list(&mut self, [list, file]: [&str; 2]) -> (Option<TokensFrom>, String) {
        match (self.optional(list), self.optional(file)) {
            (Some(tokens), _) => (Some(TokensFrom::Environment), tokens),
            (None, None) => (None, String::new()),
            (None, Some(path)) => {
                let tokens = tokens::from_file(path.as_ref()).unwrap_or_else(|error| {
                    self.mistakes.push(format!("{file}: {path}: {error}"));
                    String::new()
                });
                let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
                (Some(TokensFrom::TokensFile(path)), tokens)
            }
        }
    }

    pub(super) fn token(&mut self, name: &str) -> Option<Token> {
        // Nor is this quoted.
        let token = self.optional(name)?;
        Token::parse(&token).map_err(|why| self.mistakes.push(format!("{name}: {why}"))).ok()
    }

    /// Origins as browsers write them (RFC 6454).
    pub(super) fn origins(&mut self, name: &str) -> Vec<String> {
        let origins = self.list(name);
        for origin in &origins {
            let same = url::Url::parse(origin).map(|url| url.origin().ascii_serialization());
            if same.as_ref() != Ok(origin) {
                self.mistakes.push(format!(
                    "{name}: {origin:?} is not an origin such as https://app.example.org"
                ));
            }
        }
        origins
    }

    /// Folders that are there, with the separator of `PATH` between them; as they are without links.
    pub(super) fn folders(&mut self, name: &str) -> Vec<PathBuf> {
        let list = self.optional(name).unwrap_or_default();
        let mut folders = vec![];
        for path in std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()) {
            match path.canonicalize() {
                Ok(folder) if folder.is_dir() => folders.push(folder),
                Ok(_) => self.mistakes.push(format!("{name}: {} is no folder", path.display())),
                Err(error) => self.mistakes.push(format!("{name}: {}: {error}", path.display())),
            }
        }
        folders
    }

    pub(super) fn hosts(&mut self, name: &str) -> Vec<String> {
        let hosts = self.list(name);
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

    pub(super) fn modules(&mut self, name: &str, default: &str) -> Option<Vec<String>> {
        let list = self.text(name, default);
        if list == "none" {
            return None;
        }
        if list.len() > MAX_MODULES {
            self.mistakes.push(format!("{name}: is longer than {MAX_MODULES} bytes"));
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

    pub(super) fn url(&mut self, name: &str) -> Option<String> {
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
