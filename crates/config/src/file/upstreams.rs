//! The upstreams in the settings file: all mistakes in each entry.
//!
//! ```yaml
//! upstreams:
//!   crm:
//!     command: npx
//!     args: [-y, "@example/crm"]
//!     env: { CRM_TOKEN: "${CRM_TOKEN}" }
//!   weather:
//!     base_url: https://api.example.org
//!     headers: { Authorization: "Bearer ${WEATHER_KEY}" }
//! ```

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use model::{Principal, UpstreamName, text::quoted};
use serde_saphyr::Spanned;
use url::Url;

use super::{FILE, Found, NO_SECTION, Node, UPSTREAMS, resolved};
use crate::{
    datasets::description,
    parse::{NO_USER, has_user},
    upstreams::{Hidden, Pattern, Reached, Upstream},
};

const KEYS: &str = "command, args, env and cwd, or url and headers, or base_url, methods, paths and headers; and \
                    description, allow, ask, callers, timeout_s, max_answer_mb, private and idle_s";

/// The methods that requests to a service can have.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Headers whose values are secrets, however they are written.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// The maximum number of items in a list of an entry.
const MAX_ITEMS: usize = 200;

/// An entry, as far as it was read.
#[derive(Default)]
struct Read {
    command: Option<String>,
    url: Option<Hidden>,
    base_url: Option<Hidden>,
    transport: Option<String>,
    args: Option<Vec<Hidden>>,
    env: Option<BTreeMap<String, Hidden>>,
    cwd: Option<PathBuf>,
    headers: Option<BTreeMap<String, Hidden>>,
    methods: Option<Vec<String>>,
    paths: Option<Vec<Pattern>>,
    description: String,
    allow: Vec<Pattern>,
    ask: Vec<Pattern>,
    callers: Option<Vec<Principal>>,
    timeout: Option<u64>,
    max_answer_mb: Option<u64>,
    private: bool,
    idle: Option<u64>,
}

impl Found<'_> {
    /// Reads the upstreams.
    pub(super) fn read_upstreams(&mut self, key: &Spanned<String>, node: Node) {
        let entries = match node {
            Node::Map(entries) => entries,
            Node::Text(text) if text.is_empty() => return,
            _ => return self.mistake(key.referenced.line(), &format!("{UPSTREAMS}: {NO_SECTION}")),
        };
        for (name, node) in entries {
            let line = name.referenced.line();
            match self.upstream(&name.value, node.value) {
                Ok(upstream) => self.contents.upstreams.push(upstream),
                Err(all) => {
                    for (own, why) in all {
                        let at = if own == 0 { line } else { own };
                        let of = quoted(&name.value);
                        self.mistake(at, &format!("{UPSTREAMS}: {of}: {why}"));
                    }
                }
            }
        }
    }

    /// An upstream, or all mistakes in its entry, each with its line, which is 0 for the entry itself.
    fn upstream(&self, name: &str, node: Node) -> Result<Upstream, Vec<(u64, String)>> {
        let Node::Map(entries) = node else {
            return Err(vec![(0, format!("is no mapping of {KEYS}"))]);
        };
        let mut mistakes = vec![];
        let name = name.parse::<UpstreamName>().map_err(|why| mistakes.push((0, why.to_string())));
        let mut read = Read::default();
        for (key, node) in entries {
            let line = key.referenced.line();
            let done = self.read_of_upstream(&mut read, &key.value, node.value);
            mistakes.extend(done.err().map(|why| (line, format!("{}: {why}", key.value))));
        }
        let has_mistakes = !mistakes.is_empty();
        match read.reached() {
            Ok(reached) if !has_mistakes => {
                let name = name.expect("no mistake");
                Ok(Upstream {
                    name,
                    reached,
                    description: read.description,
                    allow: read.allow,
                    ask: read.ask,
                    callers: read.callers,
                    timeout: Duration::from_secs(read.timeout.unwrap_or(60)),
                    max_answer: read.max_answer_mb.unwrap_or(10) * 1_000_000,
                    private: read.private,
                    idle: Duration::from_secs(read.idle.unwrap_or(300)),
                })
            }
            Ok(_) => Err(mistakes),
            // A key with a mistake would seem to be missing.
            Err(_) if has_mistakes => Err(mistakes),
            Err(why) => Err(vec![(0, why)]),
        }
    }

    /// Reads one key of an entry.
    fn read_of_upstream(&self, read: &mut Read, key: &str, node: Node) -> Result<(), String> {
        match key {
            "command" => read.command = Some(program(self.plain(node)?)?),
            "url" => read.url = Some(url(self.hidden(node, false)?)?),
            "base_url" => read.base_url = Some(base_url(self.hidden(node, false)?)?),
            "type" => read.transport = Some(self.plain(node)?),
            "args" => {
                let args = items(node)?.into_iter().map(|item| self.hidden(item, false));
                read.args = Some(args.collect::<Result<_, _>>()?);
            }
            "env" => read.env = Some(self.map(node, is_variable, |_| false)?),
            "cwd" => {
                let path = PathBuf::from(self.plain(node)?);
                if !path.is_absolute() {
                    return Err("is no absolute path".into());
                }
                read.cwd = Some(path);
            }
            "headers" => {
                let is_secret = |name: &str| {
                    SECRET_HEADERS.iter().any(|secret| name.eq_ignore_ascii_case(secret))
                };
                read.headers = Some(self.map(node, is_header, is_secret)?);
            }
            "methods" => read.methods = Some(self.list(node, |text| method(&text))?),
            "paths" => read.paths = Some(self.list(node, path_pattern)?),
            "description" => read.description = description(self.plain(node)?)?,
            "allow" => read.allow = self.list(node, pattern)?,
            "ask" => read.ask = self.list(node, pattern)?,
            "callers" => {
                let caller = |name: String| {
                    Principal::named(&name)
                        .ok_or_else(|| format!("{} is no name of a caller", quoted(&name)))
                };
                read.callers = Some(self.list(node, caller)?);
            }
            "timeout_s" => read.timeout = Some(whole(&self.plain(node)?, 1, 3600)?),
            "max_answer_mb" => read.max_answer_mb = Some(whole(&self.plain(node)?, 1, 1000)?),
            "idle_s" => read.idle = Some(whole(&self.plain(node)?, 1, 86_400)?),
            "private" => {
                read.private = match &*self.plain(node)? {
                    "true" => true,
                    "false" => false,
                    _ => return Err("is neither true nor false".into()),
                }
            }
            _ => return Err(format!("there is no such key; the keys are {KEYS}")),
        }
        Ok(())
    }

    /// A text that is no secret.
    fn plain(&self, node: Node) -> Result<String, String> {
        match node {
            Node::Text(text) => resolved(false, text, self.path),
            _ => Err("is no text".into()),
        }
    }

    /// A list of texts, or one text.
    fn list<T>(
        &self,
        node: Node,
        read: impl Fn(String) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        items(node)?.into_iter().map(|item| read(self.plain(item)?)).collect()
    }

    /// A mapping of names to texts that may have secrets.
    fn map(
        &self,
        node: Node,
        is_name: impl Fn(&str) -> bool,
        is_secret: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Hidden>, String> {
        let Node::Map(entries) = node else {
            return Err("is no mapping of names to texts".into());
        };
        let entries = entries.into_iter().map(|(name, node)| {
            let name = name.value;
            if !is_name(&name) {
                return Err(format!("{} cannot be a name here", quoted(&name)));
            }
            let value = self.hidden(node.value, is_secret(&name));
            let value = value.map_err(|why| format!("{name}: {why}"))?;
            if value.text.chars().any(char::is_control) {
                return Err(format!("{name}: has a control character"));
            }
            Ok((name, value))
        });
        entries.collect()
    }

    /// A text in which `${NAME}` stands for variables of the environment, or which is a file's. What stands elsewhere
    /// is secret.
    fn hidden(&self, node: Node, is_secret: bool) -> Result<Hidden, String> {
        let Node::Text(text) = node else { return Err("is no text".into()) };
        let mut hidden = Hidden::default();
        if text.starts_with(FILE) {
            hidden.text = resolved(true, text, self.path)?;
            hidden.secrets.push(hidden.text.clone());
        } else {
            let mut rest = &*text;
            while let Some((before, after)) = rest.split_once("${") {
                let Some((name, after)) = after.split_once('}') else { break };
                let value = std::env::var(name)
                    .map_err(|_| format!("the variable {} is not set", quoted(name)))?;
                hidden.text.push_str(before);
                hidden.text.push_str(&value);
                hidden.secrets.push(value);
                rest = after;
            }
            hidden.text.push_str(rest);
        }
        if is_secret && hidden.secrets.is_empty() {
            hidden.secrets.push(hidden.text.clone());
        }
        // The scheme of an authorization is no secret, and its parameter alone is one.
        let words = hidden.secrets.iter().filter_map(|it| Some(it.split_once(' ')?.1.to_owned()));
        let words: Vec<_> = words.collect();
        hidden.secrets.extend(words);
        hidden.secrets.retain(|secret| !secret.trim().is_empty());
        Ok(hidden)
    }
}

impl Read {
    /// How the upstream is reached.
    fn reached(&mut self) -> Result<Reached, String> {
        let Self { command, url, base_url, transport, .. } = self;
        let transport = transport.take();
        let is = |words: &[&str]| transport.as_deref().is_none_or(|it| words.contains(&it));
        let (reached, is_type, others) = match (command.take(), url.take(), base_url.take()) {
            (Some(command), None, None) => {
                let args = self.args.take().unwrap_or_default();
                let env = self.env.take().unwrap_or_default();
                let reached = Reached::Command { command, args, env, cwd: self.cwd.take() };
                (reached, is(&["stdio"]), "a server that is started")
            }
            (None, Some(url), None) => {
                let headers = self.headers.take().unwrap_or_default();
                let words = ["http", "streamable-http", "streamableHttp"];
                (Reached::Mcp { url, headers }, is(&words), "a server over HTTP")
            }
            (None, None, Some(base_url)) => {
                let headers = self.headers.take().unwrap_or_default();
                let methods = self.methods.take().unwrap_or_else(|| vec![METHODS[0].into()]);
                let paths = self.paths.take().unwrap_or_default();
                let reached = Reached::Http { base_url, methods, paths, headers };
                (reached, transport.is_none(), "a service over HTTP")
            }
            _ => return Err("has not exactly one of command, url and base_url".into()),
        };
        let surplus = [
            ("args", self.args.is_some()),
            ("env", self.env.is_some()),
            ("cwd", self.cwd.is_some()),
            ("headers", self.headers.is_some()),
            ("methods", self.methods.is_some()),
            ("paths", self.paths.is_some()),
            ("private", self.private && matches!(reached, Reached::Command { .. })),
            ("type", !is_type),
        ];
        if let Some((key, _)) = surplus.iter().find(|(_, is_there)| *is_there) {
            return Err(format!("{key}: is not for {others}"));
        }
        let address = match &reached {
            Reached::Command { .. } => return Ok(reached),
            Reached::Mcp { url, .. } => url,
            Reached::Http { base_url, .. } => base_url,
        };
        if address.text.starts_with("http://") && !self.private {
            return Err(
                "http:// is only for private addresses: use https://, or add private: true".into(),
            );
        }
        Ok(reached)
    }
}

/// The items of a list; a text is a list of one.
fn items(node: Node) -> Result<Vec<Node>, String> {
    match node {
        Node::List(items) if items.len() > MAX_ITEMS => Err(format!("has more than {MAX_ITEMS}")),
        Node::List(items) => Ok(items.into_iter().map(|item| item.value).collect()),
        Node::Text(text) if text.is_empty() => Ok(vec![]),
        Node::Text(_) => Ok(vec![node]),
        Node::Map(_) => Err("is no list".into()),
    }
}

fn filled(text: String) -> Result<String, String> {
    if text.trim().is_empty() { Err("is empty".into()) } else { Ok(text) }
}

fn program(text: String) -> Result<String, String> {
    let has_arguments = text.contains(char::is_whitespace) && !Path::new(&text).exists();
    match text.split_whitespace().next() {
        Some(first) if has_arguments => {
            let first = quoted(first);
            Err(format!("there is no such program: write {first}, and the rest as a list in args"))
        }
        _ => filled(text),
    }
}

fn whole(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("is not a whole number from {min} to {max}"))
}

fn pattern(text: String) -> Result<Pattern, String> {
    let is_value = matches!(&*text, "true" | "false") || text.parse::<f64>().is_ok();
    if is_value {
        return Err(format!("{} is no name of a tool, or pattern such as create_*", quoted(&text)));
    }
    filled(text).map(Pattern)
}

fn path_pattern(text: String) -> Result<Pattern, String> {
    if text.starts_with('/') {
        return Ok(Pattern(text));
    }
    Err(format!("{} does not begin with /", quoted(&text)))
}

fn method(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    if METHODS.contains(&&*upper) {
        return Ok(upper);
    }
    Err(format!("{} is not one of {}", quoted(text), METHODS.join(", ")))
}

/// Checks a URL; the message does not quote it, as it may have a secret.
fn url(hidden: Hidden) -> Result<Hidden, String> {
    if has_user(&hidden.text) {
        return Err(NO_USER.into());
    }
    let is_one = Url::parse(&hidden.text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none()
    });
    if is_one { Ok(hidden) } else { Err("is no URL such as https://host/path".into()) }
}

fn base_url(hidden: Hidden) -> Result<Hidden, String> {
    let hidden = url(hidden)?;
    if hidden.text.contains('?') {
        return Err("has a query".into());
    }
    Ok(hidden)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Whether a header may have this name: a token of HTTP, and none that the connection itself needs.
fn is_header(name: &str) -> bool {
    const OF_CONNECTION: [&str; 6] =
        ["host", "content-length", "transfer-encoding", "connection", "te", "upgrade"];
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty()
        && name.bytes().all(is_token)
        && !OF_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own))
}
