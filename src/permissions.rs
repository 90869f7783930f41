//! Permissions of callers: tokens, roles, and the settings that hold for each caller. The callers can be replaced while
//! the server runs; a call that has begun continues with the permissions that it had.

use std::{collections::HashMap, sync::Arc};

use config::{Callers, Config, Right, Role, datasets::Datasets};
use model::{Dataset, Principal};
use parking_lot::{Mutex, RwLock};

use crate::oauth::{self, OAuth, Refused};

/// Maximum number of callers whose policy by their access token is known.
const MAX_BY_TOKEN: usize = 100_000;

/// The permissions of all callers of one server.
#[derive(Debug)]
pub(crate) struct Permissions {
    /// The settings of callers without a policy.
    server: Arc<Config>,
    current: RwLock<Arc<Current>>,
    /// The folders of the client over stdio that are datasets, and its only caller's.
    roots: RwLock<Vec<Arc<Dataset>>>,
}

type PoliciesByToken = HashMap<Principal, (f64, Option<String>)>;

#[derive(Debug)]
struct Current {
    callers: Callers,
    datasets: Datasets,
    /// The settings for callers with each policy.
    narrowed: HashMap<String, Arc<Config>>,
    oauth: Option<Arc<OAuth>>,
    /// The policies of callers by their newest access token, with the time at which it was issued.
    by_token: Mutex<PoliciesByToken>,
}

/// A caller, with the role that its token gives it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    role: Role,
}

impl Caller {
    /// The caller of a server that requires no token. There is no other, and all sessions are its own.
    pub(crate) fn local() -> Self {
        Self { principal: Principal::local(), role: Role::Operator }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Whether the caller has a right.
    pub(crate) fn has(&self, right: Right) -> bool {
        self.role.has(right)
    }
}

/// The reason why a token names no caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No caller has it.
    Token,
    /// The authorization server's access token is refused.
    AccessToken(Refused),
}

impl Current {
    fn new(
        settings: &Config,
        server: &Config,
        oauth: Option<Arc<OAuth>>,
        by_token: PoliciesByToken,
    ) -> Arc<Self> {
        let (callers, by_token) = (settings.callers.clone(), Mutex::new(by_token));
        let datasets = settings.datasets.clone();
        Arc::new(Self { narrowed: callers.narrowed(server), callers, datasets, oauth, by_token })
    }

    /// The name of a caller's policy.
    fn policy(&self, caller: &Principal) -> Option<String> {
        match &self.oauth {
            Some(oauth) if oauth::is_caller(caller) => match self.by_token.lock().get(caller) {
                Some((_, policy)) => policy.clone(),
                // A signed URL is used before the first token since the start.
                None => oauth.least_policy().map(str::to_owned),
            },
            _ => self.callers.policy(caller).map(str::to_owned),
        }
    }
}

impl Permissions {
    pub(crate) fn new(server: Arc<Config>) -> Self {
        let oauth = server.oauth().map(OAuth::new);
        let current = RwLock::new(Current::new(&server, &server, oauth, HashMap::new()));
        Self { server, current, roots: RwLock::default() }
    }

    /// Replaces the callers by those of these settings. Every access token is checked again.
    pub(crate) fn replace(&self, settings: &Config) {
        let old = self.current();
        let is_same = |oauth: &&Arc<OAuth>| settings.oauth().as_ref() == Some(oauth.settings());
        let (oauth, by_token) = match old.oauth.as_ref().filter(is_same) {
            Some(oauth) => {
                oauth.forget_verified();
                (Some(oauth.clone()), old.by_token.lock().clone())
            }
            None => (settings.oauth().map(OAuth::new), HashMap::new()),
        };
        if let Some(oauth) = &oauth {
            // The log says whether the keys can be fetched.
            oauth.fetch();
        }
        *self.current.write() = Current::new(settings, &self.server, oauth, by_token);
    }

    /// The caller with this token.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn caller(&self, token: &str) -> Result<Caller, Unknown> {
        let current = self.current();
        if let Some(principal) = current.callers.principal(token) {
            return Ok(Caller { role: current.callers.role(&principal), principal });
        }
        let oauth = current.oauth.as_ref().ok_or(Unknown::Token)?;
        let bearer = oauth.verify(token).map_err(Unknown::AccessToken)?;
        let mut by_token = current.by_token.lock();
        // The token that allows least counts, of those that were issued in the same second or whose time is unknown.
        let is_newest = by_token.get(&bearer.principal).is_none_or(|(issued, policy)| {
            let rank = |policy: &Option<String>| oauth.rank(policy.as_deref());
            let order = issued.total_cmp(&bearer.issued);
            order.then_with(|| rank(policy).cmp(&rank(&bearer.policy))).is_le()
        });
        if is_newest {
            if by_token.len() >= MAX_BY_TOKEN {
                by_token.clear();
            }
            by_token.insert(bearer.principal.clone(), (bearer.issued, bearer.policy));
        }
        Ok(Caller { principal: bearer.principal, role: bearer.role })
    }

    /// Whether the settings list this caller.
    pub(crate) fn is_listed(&self, caller: &Principal) -> bool {
        self.current().callers.list(caller)
    }

    /// Waits, for a limited time, for what [`Self::caller`] needs for this token.
    pub(crate) async fn prepare(&self, token: &str) {
        let current = self.current();
        if let Some(oauth) = &current.oauth
            && current.callers.principal(token).is_none()
        {
            oauth.prepare(token).await;
        }
    }

    /// The authorization server whose access tokens are accepted.
    pub(crate) fn oauth(&self) -> Option<Arc<OAuth>> {
        self.current().oauth.clone()
    }

    /// The settings that hold for a caller: the server's, or those of its policy.
    pub(crate) fn settings(&self, caller: &Principal) -> Arc<Config> {
        let current = self.current();
        let policy = current.policy(caller);
        policy.and_then(|name| current.narrowed.get(&name)).unwrap_or(&self.server).clone()
    }

    /// The datasets that a caller may read. Those of the client come last, unless another has the name.
    pub(crate) fn datasets(&self, caller: &Principal) -> Vec<Arc<Dataset>> {
        let current = self.current();
        let policy = current.policy(caller).and_then(|name| current.narrowed.get(&name).cloned());
        let listed = policy.as_ref().and_then(|policy| policy.dataset_list.as_deref());
        self.with_roots(current.datasets.of(caller, listed))
    }

    /// The datasets of callers of whom no setting says more.
    pub(crate) fn usual_datasets(&self) -> Vec<Arc<Dataset>> {
        self.with_roots(self.current().datasets.of_all_callers())
    }

    fn with_roots(&self, mut datasets: Vec<Arc<Dataset>>) -> Vec<Arc<Dataset>> {
        for root in &*self.roots.read() {
            if !datasets.iter().any(|it| it.name == root.name) {
                datasets.push(root.clone());
            }
        }
        datasets
    }

    /// Sets the folders of the client that are datasets. Returns whether they are others than before.
    pub(crate) fn set_roots(&self, roots: Vec<Arc<Dataset>>) -> bool {
        let mut set = self.roots.write();
        let is_news = *set != roots;
        *set = roots;
        is_news
    }

    /// Whether callers have different settings.
    pub(crate) fn differ(&self) -> bool {
        let current = self.current();
        current.callers.have_policies() || current.datasets.differ()
    }

    fn current(&self) -> Arc<Current> {
        self.current.read().clone()
    }
}
