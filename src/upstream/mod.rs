//! Upstreams: servers of MCP and services over HTTP that programs in sandboxes call, though a sandbox has no network.
//! This module is their client. It knows no sandboxes: the session passes requests on, asks people, and counts.
//!
//! ```text
//!  Request ----> CallersUpstreams --discover--> lists of tools
//!                   |
//!                prepare          names, rights and arguments are checked
//!                   |
//!                Prepared         the session asks a person if the verdict says so
//!                   | carry_out
//!          mcp::Client | service::Service       one for each upstream, shared by all sessions
//!                   |
//!                 Item, Item, ...               answers without the secrets of the settings
//! ```
//!
//! - [`rights`]: what may be called. [`arguments`]: checks against a tool's schema. Both are pure.
//! - [`mcp`]: connections to servers of MCP: started when they are needed, restarted, stopped when unused.
//! - [`service`]: services over HTTP. [`net`]: addresses that may be reached, and the client for HTTP.
//! - [`catalogue`]: lists of tools, bounded, and the search in them. [`answer`]: what an answer is in code.
//!
//! Nothing that an upstream sends is trusted: descriptions, schemas and answers are limited in size, and an answer ends
//! a connection rather than memory.

mod answer;
mod arguments;
mod catalogue;
mod mcp;
mod net;
mod request;
mod rights;
mod service;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use config::{
    Config,
    upstreams::{Reached, Upstream as Settings},
};
use futures::future::join_all;
use model::{
    Principal, UpstreamName,
    text::{nearest, quoted},
};
use serde_json::{Map, Value, json};
use tokio::{task::coop::consume_budget, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::{
    answer::Item,
    request::{CallError, CallErrorKind, Discover, MAX_TOKENS, Request, ToolCall},
    rights::Verdict,
};
use self::{
    catalogue::{Catalogue, Tool},
    rights::Rights,
    service::Service,
};

/// Time limit for an upstream's first list of tools in an overview of all. It counts from the begin of the attempt to
/// get the list, which goes on: later overviews do not wait for the same attempt.
const OVERVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the check of an upstream.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(15);

/// The number of tools that a search finds, if the request has no limit, and at most.
const FOUND: usize = 20;
const MAX_FOUND: usize = 100;

/// Maximum number of words of a query. Each is compared with all words of all tools.
const MAX_WORDS: usize = 16;

/// All upstreams of a server. When this is dropped, their connections and processes end.
#[derive(Debug)]
pub struct Upstreams {
    settings: config::Upstreams,
    all: Vec<Arc<Upstream>>,
    end: CancellationToken,
    _at_drop: DropGuard,
}

/// One upstream.
#[derive(Debug)]
struct Upstream {
    settings: Arc<Settings>,
    client: Client,
}

/// The client of an upstream.
#[derive(Debug)]
enum Client {
    Mcp(Arc<mcp::Client>),
    Service(Service),
}

/// The health of an upstream, for `llm-sandbox doctor`.
#[derive(Debug)]
pub struct Health {
    /// Its name.
    pub name: UpstreamName,
    /// Its tools.
    pub tools: Result<ToolCounts, CallError>,
    /// The last lines of standard error of its process, if it has one.
    pub last_words: Vec<String>,
}

/// The tools of an upstream, for `llm-sandbox doctor`.
#[derive(Debug)]
pub struct ToolCounts {
    /// The number of all.
    pub all: usize,
    /// The number of those that may be called without asking.
    pub allowed: usize,
    /// The number of those of which a person is asked.
    pub asked: usize,
    /// The patterns of the settings that no tool has.
    pub unmatched: Vec<String>,
}

impl Upstreams {
    /// Ends all connections and processes, at the end of the server. A process first gets the end of its input, and some
    /// time to end by itself.
    pub async fn end(&self) {
        self.end.cancel();
        mcp::end_all().await;
    }

    /// The upstreams of the settings; `None` if there are none. Nothing is started or connected yet.
    pub fn new(config: &Config) -> Option<Arc<Self>> {
        if config.upstreams.is_empty() {
            return None;
        }
        let end = CancellationToken::new();
        let upstream = |settings: &Arc<Settings>| {
            let client = match &settings.reached {
                Reached::Command { .. } | Reached::Mcp { .. } => {
                    Client::Mcp(mcp::Client::new(settings.clone(), end.clone()))
                }
                Reached::Http { .. } => Client::Service(Service::new(settings.clone())),
            };
            Arc::new(Upstream { settings: settings.clone(), client })
        };
        let all = config.upstreams.all().map(upstream).collect();
        let settings = config.upstreams.clone();
        Some(Arc::new(Self { settings, all, end: end.clone(), _at_drop: end.drop_guard() }))
    }

    /// The upstreams that a caller may use; only those that its policy lists, if it lists any.
    pub fn of(
        self: &Arc<Self>,
        caller: &Principal,
        policy: Option<&[UpstreamName]>,
    ) -> CallersUpstreams {
        let own = self.settings.of(caller, policy);
        let is_own = |it: &&Arc<Upstream>| own.iter().any(|own| own.name == it.settings.name);
        let all = self.all.iter().filter(is_own).cloned().collect();
        CallersUpstreams { all, _server: self.clone() }
    }

    /// Asks all upstreams for their tools at the same time, and waits 15 s at most.
    pub async fn health(&self) -> Vec<Health> {
        let one = async |upstream: &Arc<Upstream>| {
            let settings = &upstream.settings;
            let tools = timeout(HEALTH_TIMEOUT, upstream.reachable()).await.unwrap_or_else(|_| {
                let why = format!("no list of tools within {} s", HEALTH_TIMEOUT.as_secs());
                Err(CallError::new(CallErrorKind::Unavailable, why))
            });
            let last_words = match &upstream.client {
                Client::Mcp(client) => client.last_words(),
                Client::Service(_) => vec![],
            };
            let tools = tools.map(|catalogue| ToolCounts::new(settings, catalogue.tools()));
            Health { name: settings.name.clone(), tools, last_words }
        };
        join_all(self.all.iter().map(one)).await
    }
}

impl ToolCounts {
    fn new(settings: &Settings, tools: &[Tool]) -> Self {
        let rights = Rights::of(settings);
        let of = |wanted| tools.iter().filter(|it| rights.verdict(it) == Some(wanted)).count();
        Self {
            all: tools.len(),
            allowed: of(Verdict::Allowed),
            asked: of(Verdict::Ask),
            unmatched: rights::unmatched(settings, tools),
        }
    }
}

impl Upstream {
    /// The tools, as they were listed last unless that was long ago or the upstream says that they changed.
    async fn catalogue(&self) -> Result<Arc<Catalogue>, CallError> {
        match &self.client {
            Client::Mcp(client) => {
                let listed = client.catalogue().await;
                listed.map_err(|error| error.without(&self.settings.secrets()))
            }
            Client::Service(service) => Ok(service.catalogue()),
        }
    }

    /// The tools as they were listed last, however long ago; if they never were, those of a list that comes soon.
    async fn overview(&self) -> Result<Arc<Catalogue>, CallError> {
        match &self.client {
            Client::Mcp(client) => {
                let listed = client.overview(OVERVIEW_TIMEOUT).await;
                listed.map_err(|error| error.without(&self.settings.secrets()))
            }
            Client::Service(service) => Ok(service.catalogue()),
        }
    }

    /// The tools, after the upstream has answered something.
    async fn reachable(&self) -> Result<Arc<Catalogue>, CallError> {
        if let Client::Service(service) = &self.client {
            service.reach().await?;
        }
        self.catalogue().await
    }

    fn kind(&self) -> &'static str {
        match self.client {
            Client::Mcp(_) => "mcp",
            Client::Service(_) => "http",
        }
    }
}

/// The upstreams that one caller may use.
#[derive(Debug, Clone)]
pub struct CallersUpstreams {
    all: Vec<Arc<Upstream>>,
    _server: Arc<Upstreams>,
}

impl CallersUpstreams {
    /// The names, for descriptions.
    pub fn names(&self) -> Vec<&str> {
        self.all.iter().map(|it| it.settings.name.as_str()).collect()
    }

    /// Whether the caller may use none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Answers a request for lists: the value for the program.
    ///
    /// # Errors
    /// If there is no such upstream, or it cannot be reached.
    pub async fn discover(&self, wanted: Discover) -> Result<Value, CallError> {
        match wanted {
            Discover::List { is_brief } => Ok(self.list(is_brief).await),
            Discover::Tools { upstream } => {
                let upstream = self.named(&upstream)?;
                let catalogue = upstream.catalogue().await?;
                let rights = Rights::of(&upstream.settings);
                let tools = catalogue.tools().iter();
                let mut tools = tools.map(|tool| tool.describe(rights.verdict(tool))).collect();
                answer::remove_from_value(&mut tools, &upstream.settings.secrets());
                Ok(tools)
            }
            Discover::Search { query, limit } => {
                let limit = limit.map_or(FOUND, |limit| limit as usize).min(MAX_FOUND);
                Ok(self.search(&query, limit).await)
            }
        }
    }

    /// The upstreams, with the number of their tools unless the list is brief. A brief list waits for no upstream.
    async fn list(&self, is_brief: bool) -> Value {
        let one = async |upstream: &Arc<Upstream>| {
            let Settings { name, description, .. } = &*upstream.settings;
            let mut shown = json!({
                "name": name.as_str(), "description": description, "kind": upstream.kind(),
            });
            if is_brief {
                return shown;
            }
            match upstream.overview().await {
                Ok(catalogue) => shown["tools"] = catalogue.tools().len().into(),
                Err(error) => shown["unavailable"] = error.message.into(),
            }
            shown
        };
        join_all(self.all.iter().map(one)).await.into()
    }

    /// The tools that may be called and have the words of a query, the best first. Upstreams that do not answer in time
    /// are left out.
    async fn search(&self, query: &str, limit: usize) -> Value {
        let one =
            async |upstream: &Arc<Upstream>| (upstream.clone(), upstream.overview().await.ok());
        let all = join_all(self.all.iter().map(one)).await;
        let mut words = catalogue::words(query);
        words.truncate(MAX_WORDS);
        let mut found = vec![];
        for (upstream, catalogue) in all {
            let rights = Rights::of(&upstream.settings);
            let Settings { name, description, .. } = &*upstream.settings;
            let context = format!("{name} {description}");
            for tool in catalogue.iter().flat_map(|it| it.tools()) {
                // Other tasks have their turn meanwhile.
                consume_budget().await;
                let score = tool.score(&words, &context);
                if score > 0 && rights.verdict(tool).is_some() {
                    let value = json!({
                        "upstream": name.as_str(), "name": tool.name, "description": tool.summary(),
                    });
                    found.push((score, value));
                }
            }
        }
        // Stable: tools of the same score are in the order of the upstreams and of their lists.
        found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        found.into_iter().take(limit).map(|(_, value)| value).collect()
    }

    /// Checks the names, rights and arguments of a call. Nothing is called yet.
    ///
    /// # Errors
    /// If there is no such upstream or tool, it may not be called, or not with these arguments.
    pub async fn prepare(&self, call: ToolCall) -> Result<Prepared, CallError> {
        let ToolCall { upstream, tool: name, arguments } = call;
        let upstream = self.named(&upstream)?.clone();
        let catalogue = upstream.catalogue().await?;
        let Some(tool) = catalogue.tool(&name) else {
            let known = catalogue.tools().iter().map(|tool| &*tool.name);
            let near: Vec<_> = nearest(&name, known, 3).collect();
            let meant = match &near[..] {
                [] => String::new(),
                near => format!("; did you mean {}?", near.join(", ")),
            };
            return Err(CallError::new(
                CallErrorKind::UnknownTool,
                format!("there is no tool {}{meant}", quoted(&name)),
            ));
        };
        let verdict = Rights::of(&upstream.settings).verdict(tool);
        let Some(verdict) = verdict else {
            return Err(rights::not_allowed(&upstream.settings.name, tool));
        };
        arguments::check(&tool.input_schema, &arguments)
            .map_err(|why| CallError::new(CallErrorKind::InvalidArguments, why))?;
        if let Client::Service(service) = &upstream.client {
            service.check(&name, &arguments)?;
        }
        let (read_only, description) = (tool.read_only, tool.summary().to_owned());
        Ok(Prepared { upstream, tool: name, arguments, read_only, description, verdict })
    }

    fn named(&self, name: &str) -> Result<&Arc<Upstream>, CallError> {
        self.all.iter().find(|it| it.settings.name.as_str() == name).ok_or_else(|| {
            let there = match &self.names()[..] {
                [] => "there are none for this caller".to_owned(),
                names => format!("there are: {}", names.join(", ")),
            };
            CallError::new(
                CallErrorKind::UnknownUpstream,
                format!("there is no upstream {}; {there}", quoted(name)),
            )
        })
    }
}

/// A call that may be made, if a person allows it where [`Prepared::verdict`] says so.
#[derive(Debug)]
pub struct Prepared {
    upstream: Arc<Upstream>,
    tool: String,
    arguments: Map<String, Value>,
    read_only: bool,
    description: String,
    verdict: Verdict,
}

/// Limits of one call, besides those of its upstream.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// The time limit.
    pub timeout: Duration,
    /// The largest answer in bytes.
    pub max_bytes: u64,
}

impl Prepared {
    /// The name of the upstream.
    pub fn upstream(&self) -> &UpstreamName {
        &self.upstream.settings.name
    }

    /// The name of the tool; of a service, its method in lower case.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The arguments.
    pub fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    /// Whether the upstream says that the tool only reads.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The first line of the tool's description, as its upstream has it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether a person must allow the call.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The largest answer in bytes that its upstream may give.
    pub fn max_answer(&self) -> u64 {
        self.upstream.settings.max_answer
    }

    /// Makes the call. If the future is dropped, the call is cancelled at the upstream.
    ///
    /// # Errors
    /// If the upstream reports an error or cannot be reached, or a limit is exceeded.
    pub async fn carry_out(self, limits: CallLimits) -> Result<Vec<Item>, CallError> {
        let settings = self.upstream.settings.clone();
        let time_limit = settings.timeout.min(limits.timeout);
        let max_bytes = settings.max_answer.min(limits.max_bytes);
        let calling = async {
            match &self.upstream.client {
                Client::Mcp(client) => client.call(self.tool, self.arguments, self.read_only).await,
                Client::Service(service) => {
                    service.call(&self.tool, self.arguments, max_bytes).await
                }
            }
        };
        let secrets = settings.secrets();
        let answered = timeout(time_limit, calling).await.unwrap_or_else(|_| {
            let (seconds, name) = (time_limit.as_secs(), &settings.name);
            let why = format!("no answer within {seconds} s (setting upstreams.{name}.timeout_s)");
            Err(if self.read_only {
                CallError::new(CallErrorKind::Unavailable, why)
            } else {
                let why = format!("{why}; the call may have been made");
                CallError::new(CallErrorKind::UnknownOutcome, why)
            })
        });
        let mut items = answered.map_err(|error| error.without(&secrets))?;
        answer::remove(&mut items, &secrets);
        let size = items.iter().map(Item::size).sum::<u64>();
        if size > max_bytes {
            return Err(answer::too_large(max_bytes));
        }
        Ok(items)
    }
}
