//! Parses values of settings.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use sandbox_container::defaults;

use super::{
    choices::LogFile,
    setting::{Mistaken, Row},
};
use crate::{
    auth::{Token, Tokens},
    server_key::ServerKey,
};

/// Longest list of modules, in bytes: it is sent in the head of a frame.
const MAX_MODULES: usize = 8 << 10;

/// The mistake of a value that does not have the row's form.
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

/// Minutes; `None` for zero.
pub(super) fn minutes_unless_zero(row: &Row, value: &str) -> Result<Option<Duration>, Mistaken> {
    minutes(row, value).map(|time| (!time.is_zero()).then_some(time))
}

pub(super) fn seconds(row: &Row, value: &str) -> Result<Duration, Mistaken> {
    whole(row, value).map(Duration::from_secs)
}

/// Bytes; `None` if it is empty.
pub(super) fn unless_empty(row: &Row, value: &str) -> Result<Option<u64>, Mistaken> {
    given(value, |value| whole(row, value))
}

/// Seconds; `None` if it is empty.
pub(super) fn seconds_unless_empty(row: &Row, value: &str) -> Result<Option<Duration>, Mistaken> {
    given(value, |value| seconds(row, value))
}

/// Minutes; `None` if it is empty.
pub(super) fn minutes_unless_empty(row: &Row, value: &str) -> Result<Option<Duration>, Mistaken> {
    given(value, |value| minutes(row, value))
}

fn given<T>(
    value: &str,
    parse: impl FnOnce(&str) -> Result<T, Mistaken>,
) -> Result<Option<T>, Mistaken> {
    if value.is_empty() { Ok(None) } else { parse(value).map(Some) }
}

pub(super) fn days(row: &Row, value: &str) -> Result<Duration, Mistaken> {
    number(row, value).map(|days| Duration::from_secs_f64(days * 86_400.0))
}

/// The largest amount; `None` for zero, which means no limit.
pub(super) fn limit(row: &Row, value: &str) -> Result<Option<u64>, Mistaken> {
    whole(row, value).map(|most| (most > 0).then_some(most))
}

/// The largest number in a minute; `None` for zero, which means no limit.
pub(super) fn rate(row: &Row, value: &str) -> Result<Option<NonZeroU32>, Mistaken> {
    whole(row, value).map(NonZeroU32::new)
}

pub(super) fn word<T: FromStr>(row: &Row, value: &str) -> Result<T, Mistaken> {
    value.parse().map_err(|_| is_not(row, value))
}

/// A switch. YAML and people also write the two other words.
pub(super) fn on_or_off(row: &Row, value: &str) -> Result<bool, Mistaken> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(is_not(row, value)),
    }
}

/// A value of a type that says itself what is wrong with a text.
pub(super) fn explained<T: FromStr<Err = String>>(_: &Row, value: &str) -> Result<T, Mistaken> {
    value.parse().map_err(|why| vec![why])
}

pub(super) fn network(row: &Row, value: &str) -> Result<String, Mistaken> {
    let network = defaults::is_network(value).then(|| value.to_owned());
    network.ok_or_else(|| is_not(row, value))
}

#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn text(_: &Row, value: &str) -> Result<String, Mistaken> {
    Ok(value.to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn optional(_: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

pub(super) fn path(row: &Row, value: &str) -> Result<Option<PathBuf>, Mistaken> {
    optional(row, value).map(|path| path.map(PathBuf::from))
}

pub(super) fn log_file(row: &Row, value: &str) -> Result<LogFile, Mistaken> {
    text(row, value).map(|path| LogFile::At(path.into()))
}

/// Reads the key in the file of this name, which is created if it does not exist.
pub(super) fn server_key(_: &Row, value: &str) -> Result<Option<ServerKey>, Mistaken> {
    let key = (!value.is_empty()).then(|| ServerKey::from_file(Path::new(value))).transpose();
    key.map_err(|error| vec![format!("{value}: {error}")])
}

/// An address and a port. IPv6 may lack brackets, as in a value that was assembled from a pod's address.
pub(super) fn socket_address(row: &Row, value: &str) -> Result<Option<SocketAddr>, Mistaken> {
    if value.is_empty() {
        return Ok(None);
    }
    let address = value.rsplit_once(':').and_then(|(ip, port)| {
        let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    });
    let can_be_reached = |it: &SocketAddr| !it.ip().is_unspecified() && it.port() != 0;
    address.filter(can_be_reached).map(Some).ok_or_else(|| is_not(row, value))
}

/// A folder, or a bucket and the prefix of its objects.
pub(super) fn archive(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    let is_bucket = |rest: &str| rest.split('/').next().is_some_and(|bucket| !bucket.is_empty());
    match value.split_once("://") {
        Some(_) if has_user(value) => Err(vec![NO_USER.into()]),
        None => optional(row, value),
        Some(("s3", rest)) if is_bucket(rest) => Ok(Some(value.to_owned())),
        Some(_) => Err(is_not(row, value)),
    }
}

/// Names and tokens, which no message may quote.
pub(super) fn tokens(_: &Row, value: &str) -> Result<Tokens, Mistaken> {
    Tokens::parse(value).map_err(|why| vec![why])
}

/// A secret, which no message may quote.
pub(super) fn token(_: &Row, value: &str) -> Result<Option<Token>, Mistaken> {
    let token = (!value.is_empty()).then(|| Token::parse(value)).transpose();
    token.map_err(|why| vec![why])
}

/// Splits a list at commas, and checks each item.
fn list(value: &str, mistake: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, Mistaken> {
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    let items: Vec<_> = items.map(str::to_owned).collect();
    all_right(items.iter().filter_map(|item| mistake(item)).collect(), items)
}

fn all_right<T>(mistaken: Mistaken, value: T) -> Result<T, Mistaken> {
    if mistaken.is_empty() { Ok(value) } else { Err(mistaken) }
}

/// CDI names of devices.
pub(super) fn devices(_: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    list(value, |name| {
        let form = "is no CDI name, such as nvidia.com/gpu=all";
        (!defaults::is_device(name)).then(|| format!("{name:?} {form}"))
    })
}

/// Origins as browsers write them (RFC 6454), or with `*` for any port.
pub(super) fn origins(_: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    list(value, |origin| {
        let (site, has_any_port) = match origin.strip_suffix(":*") {
            Some(site) => (site, true),
            None => (origin, false),
        };
        let is_right = !site.contains('*')
            && url::Url::parse(site).is_ok_and(|url| {
                url.origin().ascii_serialization() == site
                    && !(has_any_port && url.port().is_some())
            });
        (!is_right).then(|| {
            format!(
                "{origin:?} is not an origin such as https://app.example.org or http://localhost:*"
            )
        })
    })
}

/// Existing folders, separated as in `PATH`, with links resolved.
pub(super) fn folders(_: &Row, value: &str) -> Result<Vec<PathBuf>, Mistaken> {
    let (mut folders, mut mistaken) = (vec![], vec![]);
    for path in std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()) {
        match path.canonicalize() {
            Ok(folder) if folder.is_dir() => folders.push(folder),
            Ok(_) => mistaken.push(format!("{} is not a folder", path.display())),
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
            .then(|| format!("{host:?} is not a host name or address; ports and * are not allowed"))
    })
}

/// Names of modules; `None` for the word `none`.
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

/// The name of a namespace, a DNS label; `None` if it is empty.
pub(super) fn dns_label(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = value.len() <= 63
        && value.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && !value.starts_with('-')
        && !value.ends_with('-');
    if is_label { optional(row, value) } else { Err(is_not(row, value)) }
}

/// A time zone by its IANA name; `None` for UTC.
pub(super) fn timezone(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    let zone = jiff::tz::TimeZone::get(value).map_err(|_| is_not(row, value))?;
    Ok(zone.iana_name().filter(|name| *name != "UTC").map(str::to_owned))
}

/// A host and its port; `None` if it is empty.
pub(super) fn host_and_port(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    let is_address = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
    let ok = value.is_empty() || value.rsplit_once(':').is_some_and(is_address);
    if ok { optional(row, value) } else { Err(is_not(row, value)) }
}

/// The message about a URL with a user or a password, which it does not quote.
pub(super) const NO_USER: &str = "has a user or password in the URL, which has no effect there";

/// Whether a URL may have a user or a password.
pub(super) fn has_user(url: &str) -> bool {
    url.split("://")
        .nth(1)
        .and_then(|rest| rest.split('/').next())
        .is_some_and(|it| it.contains('@'))
}

/// Reads a URL, and removes its trailing slashes.
pub(super) fn url(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    if value.is_empty() {
        return Ok(None);
    }
    if has_user(value) {
        return Err(vec![NO_USER.into()]);
    }
    let authority = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
    let ok = authority.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        && value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
    if ok { Ok(Some(value.trim_end_matches('/').to_owned())) } else { Err(is_not(row, value)) }
}
