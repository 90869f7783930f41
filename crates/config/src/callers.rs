//! Callers with their tokens, roles and policies. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use model::Principal;
use sandbox_container::Limits;

use super::{
    Config,
    auth::{Token, Tokens},
    given::Given,
    reader::Reader,
    setting::Row,
    table,
};

/// The kind of a caller, which decides on its rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Uses sessions of its own.
    #[default]
    User,
    /// Uses sessions of its own, and lists and ends those of all callers.
    Operator,
    /// Reads metrics and the audit file.
    Auditor,
}

/// Something that callers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Calling tools, and reading and writing files of sessions of its own.
    OwnSessions,
    /// Listing and ending sessions of all callers.
    AllSessions,
    /// Reading metrics.
    Metrics,
    /// Reading the audit file.
    Audit,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::User, Self::Operator, Self::Auditor];

    /// The name in the settings file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Auditor => "auditor",
        }
    }

    /// Whether callers with this role have a right.
    pub fn has(self, right: Right) -> bool {
        match self {
            Self::User => matches!(right, Right::OwnSessions | Right::Metrics),
            Self::Operator => {
                matches!(right, Right::OwnSessions | Right::AllSessions | Right::Metrics)
            }
            Self::Auditor => matches!(right, Right::Metrics | Right::Audit),
        }
    }
}

/// Settings that replace the server's for some callers. Each allows less than the server's, or as much.
pub(super) type Policy = BTreeMap<String, Given>;

/// A caller in the settings file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Caller {
    pub(super) principal: Principal,
    pub(super) tokens: Vec<Token>,
    /// Those that the file has in clear, for users who may read it.
    pub(super) clear: Vec<String>,
    pub(super) role: Role,
    pub(super) policy: Option<String>,
}

/// The callers of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Callers {
    tokens: Tokens,
    /// The callers of the settings file. Others are users without a policy.
    listed: HashMap<Principal, (Role, Option<String>)>,
    policies: BTreeMap<String, Policy>,
}

impl Callers {
    /// The callers with these tokens, and those of the settings file.
    ///
    /// # Errors
    /// If two have the same token, or a caller of the file has another token.
    pub(super) fn new(
        tokens: &Tokens,
        callers: Vec<Caller>,
        policies: BTreeMap<String, Policy>,
    ) -> Result<Self, String> {
        let mut all = Self { tokens: tokens.clone(), policies, ..Self::default() };
        for Caller { principal, tokens: own, role, policy, .. } in callers {
            if tokens.has(&principal) {
                return Err(format!("callers: {principal} has a token in auth.tokens, too"));
            }
            for token in own {
                if !all.tokens.add(principal.clone(), token) {
                    return Err(format!("callers: another caller has the token of {principal}"));
                }
            }
            all.listed.insert(principal, (role, policy));
        }
        Ok(all)
    }

    /// Whether callers need no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The caller with this token. The time that it takes reveals nothing about the tokens.
    pub fn principal(&self, token: &str) -> Option<Principal> {
        self.tokens.principal(token)
    }

    /// Whether the settings list this caller.
    pub fn list(&self, caller: &Principal) -> bool {
        self.tokens.has(caller) || self.listed.contains_key(caller)
    }

    /// The role of a caller.
    pub fn role(&self, caller: &Principal) -> Role {
        self.listed.get(caller).map_or(Role::default(), |(role, _)| *role)
    }

    /// The callers that have tokens.
    pub(super) fn with_tokens(&self) -> impl Iterator<Item = &Principal> {
        self.tokens.names()
    }

    /// The policy of a caller of the settings file.
    pub fn policy(&self, caller: &Principal) -> Option<&str> {
        self.listed.get(caller)?.1.as_deref()
    }

    /// Whether there is a policy of this name.
    pub(super) fn has_policy(&self, name: &str) -> bool {
        self.policies.contains_key(name)
    }

    /// Whether there are policies.
    pub fn have_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// The settings for callers with each policy, on a server with these settings.
    pub fn narrowed(&self, server: &Config) -> HashMap<String, Arc<Config>> {
        let narrowed = |policy| Arc::new(server.narrowed_by(policy).0);
        self.policies.iter().map(|(name, policy)| (name.clone(), narrowed(policy))).collect()
    }
}

/// Whether a policy's settings allow at most what the server's allow.
type IsWithin = fn(policy: &Config, server: &Config) -> bool;

/// The settings that a policy can have.
const IN_POLICIES: [(Row, IsWithin); 23] = [
    (table::SANDBOX_MEMORY_LIMIT.row, |policy, server| policy.memory_limit <= server.memory_limit),
    (table::SANDBOX_DEFAULT_MEMORY.row, |policy, _| {
        policy.default_memory <= Some(policy.memory_limit)
    }),
    (table::SANDBOX_DATA_LIMIT.row, |policy, server| policy.data_limit <= server.data_limit),
    (table::SANDBOX_DEFAULT_DATA.row, |policy, _| policy.default_data <= Some(policy.data_limit)),
    (table::SANDBOX_EXEC_TIMEOUT_S.row, |policy, server| {
        policy.exec_timeout <= server.exec_timeout
    }),
    (table::SANDBOX_DEFAULT_TIMEOUT_S.row, |policy, _| {
        policy.default_timeout <= Some(policy.exec_timeout)
    }),
    (table::SANDBOX_BACKGROUND_TIMEOUT_S.row, |policy, server| {
        policy.background_timeout <= server.background_timeout
    }),
    (table::SANDBOX_SESSION_TTL_M.row, |policy, server| policy.session_ttl <= server.session_ttl),
    (table::SANDBOX_DEFAULT_SESSION_TTL_M.row, |policy, _| {
        policy.default_ttl <= Some(policy.session_ttl)
    }),
    (table::SANDBOX_MAX_UPLOAD_BYTES.row, |policy, server| policy.max_upload <= server.max_upload),
    (table::SANDBOX_MAX_SESSIONS_PER_CLIENT.row, |policy, server| {
        policy.max_sessions_per_client <= server.max_sessions_per_client
    }),
    (table::SANDBOX_RATE_LIMIT_PER_M.row, |policy, server| {
        server.rate_limit.is_none_or(|most| policy.rate_limit.is_some_and(|it| it <= most))
    }),
    (table::SANDBOX_TOOLSETS.row, |policy, server| policy.toolsets.are_within(server.toolsets)),
    (table::SANDBOX_PACKAGES.row, |policy, server| policy.packages.is_within(&server.packages)),
    (table::SANDBOX_DATASETS.row, Config::lists_only),
    (table::SANDBOX_UPSTREAMS.row, Config::lists_only_upstreams),
    (table::SANDBOX_CALLS_PER_RUN.row, |policy, server| {
        policy.calls_per_run <= server.calls_per_run
    }),
    (table::SANDBOX_CALLS_AT_ONCE.row, |policy, server| {
        policy.calls_at_once <= server.calls_at_once
    }),
    (table::SANDBOX_CALLS_BYTES.row, |policy, server| policy.calls_bytes <= server.calls_bytes),
    (table::SANDBOX_CALLS_PER_MINUTE.row, |policy, server| {
        server
            .calls_per_minute
            .is_none_or(|most| policy.calls_per_minute.is_some_and(|it| it <= most))
    }),
    (table::SANDBOX_PYTHON.row, |policy, server| policy.python <= server.python),
    (table::SANDBOX_JAVASCRIPT.row, |policy, server| policy.javascript <= server.javascript),
    (table::SANDBOX_BASH.row, |policy, server| policy.bash <= server.bash),
];

/// The settings that a policy can have.
pub(super) fn rows_in_policies() -> impl Iterator<Item = &'static Row> {
    IN_POLICIES.iter().map(|(row, _)| row)
}

impl Config {
    /// These settings with a policy's, and the mistakes in the policy.
    pub(super) fn narrowed_by(&self, policy: &Policy) -> (Self, Vec<String>) {
        let mut reader = Reader::new(policy.clone());
        let mut narrow = self.read_over(&mut reader);
        let exceeded = IN_POLICIES
            .iter()
            .filter(|(row, is_within)| policy.contains_key(row.name) && !is_within(&narrow, self));
        let more = exceeded
            .map(|(row, _)| format!("{}: is more than the server or this policy allows", row.name));
        let mut more: Vec<_> = more.collect();
        if !(narrow.python || narrow.javascript || narrow.bash) {
            more.extend(policy.keys().next().map(|name| format!("{name}: no language is left")));
        }
        // Settings that the policy leaves out follow the maxima that it sets.
        let within = Limits::from(self).with_memory(narrow.memory_limit.min(self.memory_limit));
        // The running server's maxima hold, although the file may have greater ones that need a restart.
        narrow.memory_limit = narrow.memory_limit.min(self.memory_limit);
        narrow.exec_timeout = narrow.exec_timeout.min(self.exec_timeout);
        narrow.background_timeout = narrow.background_timeout.min(self.background_timeout);
        narrow.session_ttl = narrow.session_ttl.min(self.session_ttl);
        narrow.data_limit = narrow.data_limit.min(within.data);
        narrow.default_memory = narrow.default_memory.map(|it| it.min(narrow.memory_limit));
        narrow.default_data = narrow.default_data.map(|it| it.min(narrow.data_limit));
        narrow.default_timeout = narrow.default_timeout.map(|it| it.min(narrow.exec_timeout));
        narrow.default_ttl = narrow.default_ttl.map(|it| it.min(narrow.session_ttl));
        narrow.max_upload = narrow.max_upload.min(narrow.data_limit);
        let (mistakes, _) = reader.end(more);
        (narrow, mistakes)
    }
}
