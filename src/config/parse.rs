//! Reading variables: each by its row, with what is wrong with it noted for later.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use super::{
    LogFile, TokensFrom,
    table::{AUTH_TOKENS, AUTH_TOKENS_FILE, Row, Setting},
    tokens,
};
use crate::auth::{Token, Tokens};

/// What all our variables start with.
pub(super) const PREFIX: &str = "SANDBOX_";

/// Longest list of modules, in bytes: it travels in the head of a frame.
const MAX_MODULES: usize = 8 << 10;

/// What is wrong with a value: sentences that follow the setting's name.
pub(super) type Mistaken = Vec<String>;

/// Variables that have not been read yet, and what was wrong with those that were.
pub(super) struct Reader {
    pub(super) vars: BTreeMap<String, String>,
    pub(super) mistakes: Vec<String>,
}

impl Reader {
    /// Reads a value; a mistake is noted, and the default stands in so that reading can go on.
    pub(super) fn read<T>(&mut self, setting: &Setting<T>) -> T {
        self.read_or(setting, setting.row.default)
    }

    /// The same, with another default than that of the table.
    pub(super) fn read_or<T>(&mut self, setting: &Setting<T>, default: &str) -> T {
        let row = &setting.row;
        let value = self.take(row).filter(|value| !value.is_empty());
        (setting.parse)(row, value.as_deref().unwrap_or(default)).unwrap_or_else(|mistaken| {
            self.note(row, mistaken);
            (setting.parse)(row, default)
                .unwrap_or_else(|why| panic!("default of {}: {why:?}", row.name))
        })
    }

    /// What is set, be it to nothing; `None` where it is not, or not well.
    pub(super) fn read_if_set<T>(&mut self, setting: &Setting<T>) -> Option<T> {
        let value = self.take(&setting.row)?;
        let read = (setting.parse)(&setting.row, &value);
        read.map_err(|mistaken| self.note(&setting.row, mistaken)).ok()
    }

    /// Who may come in, and where that is set.
    pub(super) fn tokens(&mut self) -> (Tokens, Option<TokensFrom>) {
        let (from, list) = self.token_list();
        let tokens = Tokens::parse(&list).unwrap_or_else(|mistake| {
            let in_file = matches!(from, Some(TokensFrom::TokensFile(_)));
            let row = if in_file { AUTH_TOKENS_FILE.row } else { AUTH_TOKENS.row };
            self.note(&row, vec![mistake]);
            Tokens::default()
        });
        (tokens, from)
    }

    /// `name:token,...` as they are set, or from the file that is named instead; and which of them it was.
    pub(super) fn token_list(&mut self) -> (Option<TokensFrom>, String) {
        match (self.read(&AUTH_TOKENS), self.read(&AUTH_TOKENS_FILE)) {
            (Some(tokens), _) => (Some(TokensFrom::Environment), tokens),
            (None, None) => (None, String::new()),
            (None, Some(path)) => {
                let tokens = tokens::from_file(path.as_ref()).unwrap_or_else(|error| {
                    self.note(&AUTH_TOKENS_FILE.row, vec![format!("{path}: {error}")]);
                    String::new()
                });
                let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
                (Some(TokensFrom::TokensFile(path)), tokens)
            }
        }
    }

    fn take(&mut self, row: &Row) -> Option<String> {
        self.vars.remove(row.name).map(|value| value.trim().to_owned())
    }

    fn note(&mut self, row: &Row, mistaken: Mistaken) {
        self.mistakes.extend(mistaken.into_iter().map(|what| format!("{}: {what}", row.name)));
    }
}

/// The usual mistake.
fn is_not(row: &Row, value: &str) -> Mistaken {
    vec![format!("{value:?} is not {}", row.form)]
}

pub(super) fn whole<T: TryFrom<u64>>(row: &Row, value: &str) -> Result<T, Mistaken> {
    let number = row.form.whole(value).and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| is_not(row, value))
}

pub(super) fn number(row: &Row, value: &str) -> Result<f64, Mistaken> {
    row.form.number(value).ok_or_else(|| is_not(row, value))
}

pub(super) fn minutes(row: &Row, value: &str) -> Result<Duration, Mistaken> {
    number(row, value).map(|minutes| Duration::from_secs_f64(minutes * 60.0))
}

pub(super) fn word<T: FromStr>(row: &Row, value: &str) -> Result<T, Mistaken> {
    value.parse().map_err(|_| is_not(row, value))
}

#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn text(_: &Row, value: &str) -> Result<String, Mistaken> {
    Ok(value.to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn optional(_: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn log_file(_: &Row, value: &str) -> Result<LogFile, Mistaken> {
    Ok(if value.is_empty() { LogFile::None } else { LogFile::At(value.into()) })
}

/// A value that is never quoted: it is a secret.
pub(super) fn token(_: &Row, value: &str) -> Result<Option<Token>, Mistaken> {
    let token = (!value.is_empty()).then(|| Token::parse(value)).transpose();
    token.map_err(|why| vec![why])
}

/// What stands between commas, if it is all right.
fn list(value: &str, mistake: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, Mistaken> {
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    let items: Vec<_> = items.map(str::to_owned).collect();
    all_right(items.iter().filter_map(|item| mistake(item)).collect(), items)
}

fn all_right<T>(mistaken: Mistaken, value: T) -> Result<T, Mistaken> {
    if mistaken.is_empty() { Ok(value) } else { Err(mistaken) }
}

/// Origins as browsers write them (RFC 6454).
pub(super) fn origins(_: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    list(value, |origin| {
        let same = url::Url::parse(origin).map(|url| url.origin().ascii_serialization());
        (same.as_deref() != Ok(origin))
            .then(|| format!("{origin:?} is not an origin such as https://app.example.org"))
    })
}

/// Folders that are there, with the separator of `PATH` between them; as they are without links.
pub(super) fn folders(_: &Row, value: &str) -> Result<Vec<PathBuf>, Mistaken> {
    let (mut folders, mut mistaken) = (vec![], vec![]);
    for path in std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()) {
        match path.canonicalize() {
            Ok(folder) if folder.is_dir() => folders.push(folder),
            Ok(_) => mistaken.push(format!("{} is no folder", path.display())),
            Err(error) => mistaken.push(format!("{}: {error}", path.display())),
        }
    }
    all_right(mistaken, folders)
}

pub(super) fn hosts(_: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    let is_name = |host: &str| {
        host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    list(value, |host| {
        (!is_name(host) && host.parse::<IpAddr>().is_err())
            .then(|| format!("{host:?} is not a host name or address; it takes no port and no *"))
    })
}

/// Names of modules; `None` for the word none.
pub(super) fn modules(_: &Row, value: &str) -> Result<Option<Vec<String>>, Mistaken> {
    if value == "none" {
        return Ok(None);
    }
    if value.len() > MAX_MODULES {
        return Err(vec![format!("is longer than {MAX_MODULES} bytes")]);
    }
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    list(value, |module| {
        (!module.split('.').all(is_name)).then(|| format!("{module:?} is not the name of a module"))
    })
    .map(Some)
}

/// A URL without a slash at its end.
pub(super) fn url(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    if value.is_empty() {
        return Ok(None);
    }
    let authority = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
    let ok = authority.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        && value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
    if ok { Ok(Some(value.trim_end_matches('/').to_owned())) } else { Err(is_not(row, value)) }
}
