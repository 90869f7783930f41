//! Permissions of callers: tokens, roles, and the settings that hold for each caller. The callers can be replaced while
//! the server runs; a call that has begun continues with the permissions that it had.

use std::{collections::HashMap, sync::Arc};

use config::{Callers, Config, Right, Role};
use model::Principal;
use parking_lot::RwLock;

/// The permissions of all callers of one server.
#[derive(Debug)]
pub(crate) struct Permissions {
    /// The settings of callers without a policy.
    server: Arc<Config>,
    current: RwLock<Arc<Current>>,
}

#[derive(Debug)]
struct Current {
    callers: Callers,
    narrowed: HashMap<Principal, Arc<Config>>,
}

impl Current {
    fn new(callers: Callers, server: &Config) -> Arc<Self> {
        let narrowed = callers.narrowed(server);
        Arc::new(Self { callers, narrowed })
    }
}

impl Permissions {
    pub(crate) fn new(server: Arc<Config>) -> Self {
        let current = RwLock::new(Current::new(server.callers.clone(), &server));
        Self { server, current }
    }

    /// Replaces the callers.
    pub(crate) fn replace(&self, callers: Callers) {
        *self.current.write() = Current::new(callers, &self.server);
    }

    /// The caller with this token.
    pub(crate) fn principal(&self, token: &str) -> Option<Principal> {
        self.current().callers.principal(token)
    }

    /// Whether the settings list this caller.
    pub(crate) fn is_listed(&self, caller: &Principal) -> bool {
        self.current().callers.list(caller)
    }

    /// The role of a caller. Where no caller needs a token, there is one caller, and all sessions are its own.
    pub(crate) fn role(&self, caller: &Principal) -> Role {
        let callers = &self.current().callers;
        if callers.is_empty() { Role::Operator } else { callers.role(caller) }
    }

    /// Whether a caller has a right.
    pub(crate) fn has(&self, caller: &Principal, right: Right) -> bool {
        self.role(caller).has(right)
    }

    /// The settings that hold for a caller: the server's, or those of its policy.
    pub(crate) fn settings(&self, caller: &Principal) -> Arc<Config> {
        self.current().narrowed.get(caller).unwrap_or(&self.server).clone()
    }

    /// Whether callers have different settings.
    pub(crate) fn differ(&self) -> bool {
        self.current().callers.have_policies()
    }

    fn current(&self) -> Arc<Current> {
        self.current.read().clone()
    }
}
