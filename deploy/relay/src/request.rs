//! The requests that a server may make to its engine, and no others. Pure.
//!
//! A request is parsed as one of fourteen, and written anew from that: of the server's own text, only a container's id or
//! name is passed on, and these have a fixed form.

use std::fmt;

use hyper::Method;

use sandbox_container::{APP, LABEL_APP};

/// The engine's full id of a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ContainerId(String);

impl ContainerId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 64 && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An allowed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Whether the engine answers.
    Ping,
    /// The engine's version.
    Version,
    /// Facts about the engine and its host.
    Info,
    /// Whether the image of the settings exists, and which one it is.
    Image(String),
    /// The containers of this program.
    List,
    /// Creates the empty volume that datasets need, or finds it.
    EmptyVolume,
    /// Removes the volumes of this program's containers that are no longer there.
    UnusedVolumes,
    /// Creates a container of this name, which the body describes.
    Create(String),
    /// Attaches to the streams of a container.
    Attach(ContainerId),
    /// Waits until a container is removed.
    Wait(ContainerId),
    /// Starts a container.
    Start(ContainerId),
    /// Removes a container.
    Remove(ContainerId),
    /// Creates a process in a container that brings its agent another stream.
    Connect(ContainerId),
    /// Starts such a process and attaches to its streams.
    Begin(ExecId),
}

/// The engine's id of a process that was created in a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ExecId(String);

impl ExecId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        ContainerId::parse(text).map(|ContainerId(text)| Self(text))
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Request {
    /// Parses a request; `None` if it is not allowed. `image` is that of the settings.
    pub(super) fn read(
        method: &Method,
        path: &str,
        query: Option<&str>,
        image: &str,
    ) -> Option<Self> {
        let path = without_version(path).strip_prefix('/')?;
        let parts: Vec<&str> = path.split('/').collect();
        let query = Query::read(query);
        let id = |text| ContainerId::parse(text);
        let (request, rules) = match (method.as_str(), &parts[..]) {
            ("GET", ["_ping"]) => (Self::Ping, NONE),
            ("GET", ["version"]) => (Self::Version, NONE),
            ("GET", ["info"]) => (Self::Info, NONE),
            ("GET", ["containers", "json"]) => (Self::List, LIST),
            ("GET", ["images", .., "json"]) => {
                let name = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
                let name = name.strip_prefix("images/")?.strip_suffix("/json")?;
                (name == image).then(|| (Self::Image(image.to_owned()), NONE))?
            }
            ("POST", ["volumes", "create"]) => (Self::EmptyVolume, NONE),
            ("POST", ["volumes", "prune"]) => (Self::UnusedVolumes, PRUNE),
            ("POST", ["containers", "create"]) => {
                (Self::Create(query.value("name")?.to_owned()), CREATE)
            }
            ("POST", ["containers", name, "attach"]) => (Self::Attach(id(name)?), ATTACH),
            ("POST", ["containers", name, "wait"]) => (Self::Wait(id(name)?), WAIT),
            ("POST", ["containers", name, "start"]) => (Self::Start(id(name)?), NONE),
            ("POST", ["containers", name, "exec"]) => (Self::Connect(id(name)?), NONE),
            ("POST", ["exec", name, "start"]) => (Self::Begin(ExecId::parse(name)?), NONE),
            ("DELETE", ["containers", name]) => (Self::Remove(id(name)?), REMOVE),
            _ => return None,
        };
        query.keeps(rules).then_some(request)
    }

    /// The method of the request to the engine.
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Ping | Self::Version | Self::Info | Self::Image(_) | Self::List => Method::GET,
            Self::EmptyVolume
            | Self::UnusedVolumes
            | Self::Create(_)
            | Self::Attach(_)
            | Self::Wait(_)
            | Self::Start(_)
            | Self::Connect(_)
            | Self::Begin(_) => Method::POST,
            Self::Remove(_) => Method::DELETE,
        }
    }

    /// The path and query of the request to the engine. They name no version, because a container's description may
    /// mean something else in another version.
    pub(super) fn target(&self) -> String {
        let path = match self {
            Self::Ping => "/_ping".into(),
            Self::Version => "/version".into(),
            Self::Info => "/info".into(),
            Self::Image(name) => format!("/images/{name}/json"),
            Self::List => "/containers/json".into(),
            Self::EmptyVolume => "/volumes/create".into(),
            Self::UnusedVolumes => "/volumes/prune".into(),
            Self::Create(_) => "/containers/create".into(),
            Self::Attach(id) => format!("/containers/{id}/attach"),
            Self::Wait(id) => format!("/containers/{id}/wait"),
            Self::Start(id) => format!("/containers/{id}/start"),
            Self::Remove(id) => format!("/containers/{id}"),
            Self::Connect(id) => format!("/containers/{id}/exec"),
            Self::Begin(id) => format!("/exec/{id}/start"),
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        let rules = match self {
            Self::List => LIST,
            Self::UnusedVolumes => PRUNE,
            Self::Attach(_) => ATTACH,
            Self::Wait(_) => WAIT,
            Self::Remove(_) => REMOVE,
            _ => NONE,
        };
        query.extend_pairs(rules.must);
        if let Self::Create(name) = self {
            query.append_pair("name", name);
        }
        let query = query.finish();
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }
}

/// The parameters that a query must have, and those that it may have: defaults that are written out.
struct Rules {
    must: &'static [(&'static str, &'static str)],
    may: &'static [(&'static str, &'static str)],
    /// Parameters with any value.
    free: &'static [&'static str],
}

const NONE: Rules = Rules { must: &[], may: &[], free: &[] };
const LIST: Rules =
    Rules { must: &[("all", "true"), ("filters", OURS)], may: &[("size", "false")], free: &[] };
const PRUNE: Rules = Rules { must: &[("filters", OURS)], may: &[], free: &[] };
const CREATE: Rules = Rules { must: &[], may: &[("platform", "")], free: &["name"] };
const ATTACH: Rules = Rules {
    must: &[("stream", "true"), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")],
    may: &[("logs", "false")],
    free: &[],
};
const WAIT: Rules = Rules { must: &[("condition", "removed")], may: &[], free: &[] };
const REMOVE: Rules =
    Rules { must: &[("force", "true"), ("v", "true")], may: &[("link", "false")], free: &[] };

/// The filter for containers and volumes of this program.
const OURS: &str = r#"{"label":["app=llm-sandbox"]}"#;

struct Query(Vec<(String, String)>);

impl Query {
    fn read(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The value of a parameter, if it occurs once.
    fn value(&self, name: &str) -> Option<&str> {
        let mut all = self.0.iter().filter(|(given, _)| given == name);
        let (_, value) = all.next()?;
        all.next().is_none().then_some(value)
    }

    fn keeps(&self, rules: Rules) -> bool {
        let known = |(name, value): &(String, String)| {
            let pair = (&**name, &**value);
            rules.must.contains(&pair) || rules.may.contains(&pair) || rules.free.contains(&pair.0)
        };
        self.0.iter().all(known)
            && rules.must.iter().all(|(name, value)| self.value(name) == Some(value))
    }
}

/// Removes the version from a path: `/v1.45/info` becomes `/info`.
fn without_version(path: &str) -> &str {
    let is_version = |text: &str| {
        let number = |part: &str| {
            (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        text.split_once('.').is_some_and(|(major, minor)| number(major) && number(minor))
    };
    let rest = path.strip_prefix("/v").and_then(|rest| rest.split_once('/'));
    match rest {
        Some((version, _)) if is_version(version) => &path[version.len() + 2..],
        _ => path,
    }
}

/// Whether the labels of a listed or inspected container say that it is of this program.
pub(super) fn is_ours(labels: &serde_json::Value) -> bool {
    labels[LABEL_APP] == APP
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    const IMAGE: &str = "registry:5000/own/llm-sandbox:latest";
    const OWN_FILTERS: &str = "filters=%7B%22label%22%3A%5B%22app%3Dllm-sandbox%22%5D%7D";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn read(method: &str, target: &str) -> Option<Request> {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        Request::read(&method.parse().expect("a method"), path, query, IMAGE)
    }

    #[test]
    fn what_the_server_asks_is_understood() {
        let id = || ContainerId::parse(ID).expect("valid");
        let ours = format!("all=true&size=false&{OWN_FILTERS}");
        let attach = "logs=false&stream=true&stdin=true&stdout=true&stderr=true";
        for (method, target, request) in [
            ("GET", "/_ping".to_owned(), Request::Ping),
            ("GET", "/version".into(), Request::Version),
            ("GET", "/info".into(), Request::Info),
            ("GET", format!("/images/{IMAGE}/json"), Request::Image(IMAGE.into())),
            (
                "GET",
                "/images/registry:5000%2Fown%2Fllm-sandbox%3Alatest/json".into(),
                Request::Image(IMAGE.into()),
            ),
            ("GET", format!("/containers/json?{ours}"), Request::List),
            ("POST", "/volumes/create".into(), Request::EmptyVolume),
            ("POST", format!("/volumes/prune?{OWN_FILTERS}"), Request::UnusedVolumes),
            ("POST", "/containers/create?name=x&platform=".into(), Request::Create("x".into())),
            ("POST", format!("/containers/{ID}/attach?{attach}"), Request::Attach(id())),
            ("POST", format!("/containers/{ID}/wait?condition=removed"), Request::Wait(id())),
            ("POST", format!("/containers/{ID}/start"), Request::Start(id())),
            ("DELETE", format!("/containers/{ID}?force=true&v=true"), Request::Remove(id())),
            ("POST", format!("/containers/{ID}/exec"), Request::Connect(id())),
            (
                "POST",
                format!("/exec/{ID}/start"),
                Request::Begin(ExecId::parse(ID).expect("valid")),
            ),
        ] {
            assert_eq!(read(method, &target), Some(request.clone()), "{method} {target}");
            assert_eq!(read(method, &format!("/v1.45{target}")), Some(request), "{target}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for (method, target) in [
            ("POST", "/_ping".to_owned()),
            ("GET", "/_ping?x=1".into()),
            ("GET", "//_ping".into()),
            ("GET", "/_ping/".into()),
            ("GET", "/v1/_ping".into()),
            ("GET", "/v1.45".into()),
            ("GET", "/v1.45/v1.45/info".into()),
            ("GET", "/v1.45/../info".into()),
            ("GET", "/events".into()),
            ("GET", "/containers/json".into()),
            ("GET", "/containers/json?all=true".into()),
            ("GET", "/containers/json?all=true&filters={\"label\":[\"app=other\"]}".into()),
            (
                "GET",
                "/containers/json?all=true&filters={\"label\":[\"app=llm-sandbox\"]}&filters={}"
                    .into(),
            ),
            ("GET", format!("/containers/{ID}/json")),
            ("GET", format!("/containers/{ID}/logs?stdout=true")),
            ("GET", format!("/containers/{ID}/archive?path=/etc")),
            ("PUT", format!("/containers/{ID}/archive?path=/etc")),
            ("GET", format!("/containers/{ID}/export")),
            ("GET", format!("/exec/{ID}/json")),
            ("POST", format!("/exec/{ID}/resize?h=1&w=1")),
            ("POST", format!("/containers/{ID}/update")),
            ("POST", format!("/containers/{ID}/kill")),
            ("POST", format!("/containers/{ID}/rename?name=x")),
            ("POST", format!("/containers/{ID}/start?detachKeys=a")),
            ("POST", format!("/containers/{ID}/wait")),
            ("POST", format!("/containers/{ID}/wait?condition=not-running")),
            ("POST", format!("/containers/{ID}/attach")),
            (
                "POST",
                format!(
                    "/containers/{ID}/attach?stream=true&stdin=true&stdout=true&stderr=true&logs=true"
                ),
            ),
            ("GET", format!("/containers/{ID}/attach/ws?stream=true")),
            ("POST", format!("/containers/{}/start", &ID[..12])),
            ("POST", "/containers/name-of-another/start".into()),
            ("POST", format!("/containers/..%2F{ID}/start")),
            ("POST", format!("/containers/{}/start", ID.to_uppercase())),
            ("DELETE", format!("/containers/{ID}")),
            ("DELETE", format!("/containers/{ID}?force=true&v=true&link=true")),
            ("POST", "/containers/create".into()),
            ("POST", "/containers/create?name=a&name=b".into()),
            ("POST", "/containers/create?name=a&platform=linux/arm64".into()),
            ("POST", "/containers/prune".into()),
            ("GET", "/images/json".into()),
            ("GET", "/images/other/json".into()),
            ("GET", format!("/images/{IMAGE}/../other/json")),
            ("GET", format!("/images/{IMAGE}/history")),
            ("DELETE", format!("/images/{IMAGE}")),
            ("POST", "/images/create?fromImage=x".into()),
            ("POST", "/build".into()),
            ("POST", "/session".into()),
            ("POST", "/grpc".into()),
            ("POST", "/commit?container=x".into()),
            ("GET", "/volumes".into()),
            ("POST", "/volumes/prune".into()),
            ("POST", format!("/volumes/prune?all=true&{OWN_FILTERS}")),
            ("DELETE", "/volumes/x".into()),
            ("POST", "/networks/create".into()),
            ("POST", "/plugins/pull?remote=x".into()),
            ("POST", "/swarm/init".into()),
            ("GET", "/secrets".into()),
            ("POST", "/auth".into()),
            ("GET", "/system/df".into()),
        ] {
            assert_eq!(read(method, &target), None, "{method} {target}");
        }
    }

    /// Parts of targets: of allowed requests, and of attempts to get around them.
    fn part() -> impl Strategy<Value = String> {
        let known = select(vec![
            "/",
            "/v1.45",
            "/containers",
            "/json",
            "/volumes",
            "/prune",
            "/create",
            "/attach",
            "/wait",
            "/start",
            "/images",
            "/exec",
            "/info",
            "/_ping",
            "/..",
            "%2F",
            "?",
            "&",
            "all=true",
            "force=true",
            "v=true",
            "name=x",
            "condition=removed",
            "stream=true",
            "stdin=true",
            "stdout=true",
            "stderr=true",
            OWN_FILTERS,
            "/registry:5000/own/llm-sandbox:latest",
            "/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        ]);
        prop_oneof![8 => known.prop_map(str::to_owned), 1 => "[!-~]{0,8}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn whatever_is_asked_the_engine_hears_one_of_fourteen_requests(
            method in select(vec!["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"]),
            parts in prop::collection::vec(part(), 0..9),
        ) {
            let Some(request) = read(method, &parts.concat()) else { return Ok(()) };
            let asked = request.method();
            prop_assert_eq!(asked.as_str(), method);
            let target = request.target();
            // The new request is parsed as the same one.
            prop_assert_eq!(read(method, &target), Some(request.clone()), "{}", target);
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let shape = path.replace(ID, "ID").replace(IMAGE, "IMAGE");
            let expected = match &*shape {
                "/_ping" | "/version" | "/info" | "/images/IMAGE/json" | "/containers/ID/start"
                | "/containers/ID/exec" | "/exec/ID/start" | "/volumes/create" => "",
                "/containers/json" => {
                    prop_assert_eq!(query, format!("all=true&{OWN_FILTERS}"));
                    query
                }
                "/volumes/prune" => OWN_FILTERS,
                "/containers/ID/attach" => "stream=true&stdin=true&stdout=true&stderr=true",
                "/containers/ID/wait" => "condition=removed",
                "/containers/ID" => "force=true&v=true",
                "/containers/create" => {
                    prop_assert!(query.starts_with("name=") && !query.contains('&'), "{}", target);
                    query
                }
                _ => return Err(TestCaseError::fail(format!("{target} is none of them"))),
            };
            prop_assert_eq!(query, expected);
        }
    }
}
