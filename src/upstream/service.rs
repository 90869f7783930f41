//! Services over HTTP: each allowed method is a tool.

use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use config::upstreams::{Pattern, Reached, Upstream as Settings};
use model::{approval::NOT_ALLOWED, text::quoted_path};
use percent_encoding::percent_decode_str;
use reqwest::{
    Client, Method, Response,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use serde_json::{Map, Value, json};
use url::Url;

use super::{
    CallError, CallErrorKind, Item,
    answer::{of_text, too_large},
    catalogue::{Catalogue, Tool, cut},
    net,
};

/// Longest start of the body of an error, in characters.
const MAX_ERROR: usize = 2000;

/// Most bytes of the body of an error that are read.
const MAX_ERROR_BYTES: u64 = 64_000;

/// Headers that only the settings can have: they say who calls, or are the connection's.
const NOT_FROM_CODE: [&str; 12] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-api-key",
];

/// A service over HTTP.
#[derive(Debug)]
pub(super) struct Service {
    settings: Arc<Settings>,
    catalogue: Arc<Catalogue>,
    /// The client and the headers of the settings.
    client: OnceLock<Result<(Client, HeaderMap), String>>,
}

impl Service {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let (_, methods, ..) = parts(&settings);
        let catalogue = Catalogue::new(methods.iter().map(|method| tool(method)).collect());
        Self { settings, catalogue: Arc::new(catalogue), client: OnceLock::new() }
    }

    /// A tool for each method.
    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.clone()
    }

    /// Checks what the schema of a method does not: the path and the headers.
    pub(super) fn check(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<(), CallError> {
        self.request(tool, arguments).map(|_| ())
    }

    /// Makes a request that nothing depends on, to see whether there is an answer.
    pub(super) async fn reach(&self) -> Result<(), CallError> {
        let (client, headers) = self.client()?;
        let sent = client.head(self.base()).headers(headers.clone()).timeout(self.settings.timeout);
        sent.send().await.map(|_| ()).map_err(Self::unavailable)
    }

    /// Makes a request.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        max_bytes: u64,
    ) -> Result<Vec<Item>, CallError> {
        let (client, headers) = self.client()?;
        let Request { method, url, headers: own, body } = self.request(tool, &arguments)?;
        let mut request = client.request(method.clone(), url).headers(own).headers(headers.clone());
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(Self::unavailable)?;
        let status = response.status();
        if status.is_redirection() && response.headers().contains_key(LOCATION) {
            let why =
                format!("HTTP {status}, which leads to another place: no redirect is followed");
            return Err(CallError::new(CallErrorKind::Upstream, why));
        }
        if status.is_client_error() || status.is_server_error() {
            let start = self.read(response, MAX_ERROR_BYTES, true).await.unwrap_or_default();
            let start = cut(String::from_utf8_lossy(&start).into_owned(), MAX_ERROR);
            let why = format!("HTTP {status}: {start}");
            return Err(CallError::new(CallErrorKind::Upstream, why.trim_end_matches([':', ' '])));
        }
        if method == Method::HEAD {
            let of = |(name, value): (&HeaderName, &HeaderValue)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned().into())
            };
            let headers: Map<_, _> = response.headers().iter().map(of).collect();
            return Ok(vec![Item::Value(json!({ "status": status.as_u16(), "headers": headers }))]);
        }
        let mime_type = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let mime_type = mime_type.map(str::to_ascii_lowercase);
        let body = self.read(response, max_bytes, false).await?;
        Ok(item(body, mime_type).into_iter().collect())
    }

    /// The body of a response: its start, or an error if it is larger than `most`.
    async fn read(
        &self,
        mut response: Response,
        most: u64,
        is_start_enough: bool,
    ) -> Result<Bytes, CallError> {
        let most_bytes = usize::try_from(most).unwrap_or(usize::MAX);
        let mut all = BytesMut::new();
        if !is_start_enough && response.content_length().is_some_and(|length| length > most) {
            return Err(too_large(most));
        }
        while let Some(chunk) = response.chunk().await.map_err(Self::unavailable)? {
            if all.len() + chunk.len() > most_bytes {
                if is_start_enough {
                    break;
                }
                return Err(too_large(most));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    fn client(&self) -> Result<&(Client, HeaderMap), CallError> {
        let made = self.client.get_or_init(|| {
            let (.., headers) = parts(&self.settings);
            Ok((net::client(&self.base(), self.settings.private)?, net::headers(headers)?))
        });
        made.as_ref().map_err(|why| {
            CallError::new(CallErrorKind::Unavailable, format!("it cannot be reached: {why}"))
        })
    }

    fn base(&self) -> Url {
        let (base, ..) = parts(&self.settings);
        base.parse().expect("the settings were checked")
    }

    fn unavailable(error: reqwest::Error) -> CallError {
        let why = format!("it cannot be reached: {}", net::told(error));
        CallError::new(CallErrorKind::Unavailable, why)
    }

    /// The request of a call, with what code gives it.
    fn request(&self, tool: &str, arguments: &Map<String, Value>) -> Result<Request, CallError> {
        let (_, _, paths, of_settings) = parts(&self.settings);
        let method = Method::from_bytes(tool.to_ascii_uppercase().as_bytes())
            .map_err(|_| invalid("is no method"))?;
        let path = arguments.get("path").and_then(Value::as_str).unwrap_or_default();
        let mut url = below(self.base(), path).map_err(invalid)?;
        if !is_allowed(&self.base(), &url, path, paths) {
            let why = format!(
                "{NOT_ALLOWED} the path {}: upstreams.{}.paths in the server's settings file would have \
                 to have it",
                quoted_path(path),
                self.settings.name
            );
            return Err(CallError::new(CallErrorKind::NotAllowed, why));
        }
        let none = Map::new();
        let map = |name| arguments.get(name).and_then(Value::as_object).unwrap_or(&none);
        for (name, value) in map("params") {
            let values = match value {
                Value::Array(values) => &values[..],
                one => std::slice::from_ref(one),
            };
            for value in values.iter().filter(|value| !value.is_null()) {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                url.query_pairs_mut().append_pair(name, &text);
            }
        }
        let mut headers = HeaderMap::new();
        for (name, value) in map("headers") {
            let is_own = |own: &&String| own.eq_ignore_ascii_case(name);
            if NOT_FROM_CODE.contains(&&*name.to_ascii_lowercase())
                || of_settings.keys().any(|own| is_own(&own))
            {
                return Err(invalid(format!("headers: only the operator can set {name}")));
            }
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(text.parse().ok());
            let (name, value) = parsed
                .ok_or_else(|| invalid(format!("headers: {name:?} or its value is invalid")))?;
            headers.insert(name, value);
        }
        let body = match (arguments.get("json"), arguments.get("body")) {
            (Some(_), Some(_)) => return Err(invalid("json and body exclude each other")),
            (Some(json), None) => {
                let kind = HeaderValue::from_static("application/json");
                headers.entry(CONTENT_TYPE).or_insert(kind);
                Some(json.to_string())
            }
            (None, body) => body.and_then(Value::as_str).map(str::to_owned),
        };
        Ok(Request { method, url, headers, body })
    }
}

/// A request as code wants it.
struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<String>,
}

type Headers = std::collections::BTreeMap<String, config::upstreams::Hidden>;

/// The base URL, methods, patterns of paths, and headers of a service.
fn parts(settings: &Settings) -> (&str, &[String], &[Pattern], &Headers) {
    match &settings.reached {
        Reached::Http { base_url, methods, paths, headers } => {
            (base_url.reveal(), methods, paths, headers)
        }
        Reached::Command { .. } | Reached::Mcp { .. } => unreachable!("this is no service"),
    }
}

/// A path without its query, and the query.
fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)))
}

/// The path as the service may see it: a service may decode a path once more than others do.
fn decoded_twice(path: &str) -> String {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    decoded(&decoded(path))
}

/// The URL of a path below a base.
fn below(mut url: Url, path: &str) -> Result<Url, &'static str> {
    let (path, query) = split(path);
    if !path.starts_with('/') {
        return Err("path: does not begin with /");
    }
    let twice = decoded_twice(path);
    let is_odd = |part: &str| matches!(part, "." | "..");
    if twice.split(['/', '\\']).any(is_odd) || twice.contains('\\') || path.contains('#') {
        return Err("path: has . or .., a backslash or #");
    }
    if twice.chars().any(char::is_control) {
        return Err("path: has a control character");
    }
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}{path}"));
    url.set_query(query.filter(|query| !query.is_empty()));
    Ok(url)
}

/// Whether one of the patterns has a path, of which `url` is the URL below `base`.
fn is_allowed(base: &Url, url: &Url, path: &str, patterns: &[Pattern]) -> bool {
    // As the URL has it: with characters encoded.
    let sent = url.path().strip_prefix(base.path().trim_end_matches('/')).unwrap_or_default();
    let twice = decoded_twice(split(path).0);
    let has = |pattern: &Pattern| pattern.matches(sent) && pattern.matches(&twice);
    patterns.is_empty() || patterns.iter().any(has)
}

/// The tool of a method.
fn tool(method: &str) -> Tool {
    let reads = matches!(method, "GET" | "HEAD");
    let mut properties = json!({
        "path": { "type": "string", "description": "Path of the request, beginning with /." },
        "params": { "type": "object", "description": "Parameters of the query." },
        "headers": { "type": "object", "description": "Headers; those of the operator are added." },
    });
    if !reads {
        properties["json"] = json!({ "description": "The body, which is sent as JSON." });
        properties["body"] = json!({ "type": "string", "description": "The body as text." });
    }
    let schema = json!({
        "type": "object", "properties": properties, "required": ["path"], "additionalProperties": false,
    });
    let Value::Object(schema) = schema else { unreachable!("it is an object") };
    Tool {
        name: method.to_ascii_lowercase(),
        title: String::new(),
        description: format!(
            "Makes a {method} request, and returns its answer: JSON parsed, or text."
        ),
        input_schema: Arc::new(schema),
        output_schema: None,
        read_only: reads,
    }
}

/// The body of an answer as a value, or as bytes with their type; `None` if it is empty.
fn item(body: Bytes, mime_type: Option<String>) -> Option<Item> {
    if body.is_empty() {
        return None;
    }
    let essence = mime_type.as_deref().and_then(|it| it.split(';').next()).map(str::trim);
    let is_json = essence.is_some_and(|it| it == "application/json" || it.ends_with("+json"));
    if is_json && let Ok(value) = serde_json::from_slice(&body) {
        return Some(Item::Value(value));
    }
    let is_text = is_json
        || essence.is_none_or(|it| {
            let subtypes =
                ["xml", "yaml", "x-yaml", "javascript", "x-www-form-urlencoded", "x-ndjson"];
            let subtype = it.strip_prefix("application/");
            it.starts_with("text/")
                || it.ends_with("+xml")
                || subtype.is_some_and(|it| subtypes.contains(&it))
        });
    if is_text && let Ok(text) = std::str::from_utf8(&body) {
        let text = text.to_owned();
        // Only of a type that nobody named, JSON is a guess.
        let value = if essence.is_none() { of_text(text) } else { Value::String(text) };
        return Some(Item::Value(value));
    }
    Some(Item::bytes(body, essence.map(str::to_owned), None))
}

fn invalid(why: impl Into<String>) -> CallError {
    CallError::new(CallErrorKind::InvalidArguments, why)
}
