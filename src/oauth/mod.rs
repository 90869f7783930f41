//! Access tokens of an authorization server (OAuth 2.1): who the bearer of one is.
//!
//! ```text
//! request --> prepare: are the keys there, and is the token's one of them? --no--> provider, now and then
//!        '--> verify: known token? --no--> token: its form --> keys: its signature --> claims: who and until when
//! ```
//!
//! Verifying waits for nothing; only [`OAuth::prepare`] does, once for a request whose key is not known. Requests that
//! need keys wait for the same answer, and the number of questions is limited, whatever tokens arrive. Keys that were
//! fetched remain valid for [`KEYS_LAST`] while the authorization server does not answer.

mod claims;
#[cfg_attr(not(feature = "oauth"), expect(dead_code, reason = "nothing fetches keys"))]
mod keys;
mod provider;
mod token;

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use model::Principal;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::timeout};

pub(crate) use self::claims::Identity;
use self::{claims::Claims, keys::Key, token::Token};

/// The longest token in bytes. The head of a request is not much longer.
const MAX_TOKEN: usize = 12 << 10;

/// The difference between the clocks of the authorization server and of this one, in seconds.
const LEEWAY: f64 = 30.0;

/// The age of the keys from which a request has them fetched again, without waiting for that.
const KEYS_FRESH: Duration = Duration::from_secs(10 * 60);

/// The age of the keys from which a request waits until they are fetched.
const KEYS_OLD: Duration = Duration::from_secs(60 * 60);

/// How long keys remain valid while the authorization server does not answer.
const KEYS_LAST: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a request waits for keys.
const PATIENCE: Duration = Duration::from_secs(5);

/// The authorization server is asked for its keys this often at once, and once more after each period.
const BURST: NonZeroU32 = NonZeroU32::new(5).expect("not zero");
const PERIOD: Duration = Duration::from_secs(10);

/// Maximum number of tokens that are known to be valid.
const MAX_VERIFIED: usize = 10_000;

/// The reason why an access token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The token is not valid here; what it lacks, after "The access token".
    Invalid(&'static str),
    /// The token does not have the scopes that the settings require.
    Scope,
    /// The settings have no policy for the token.
    Policy,
    /// The authorization server has not told its keys.
    NoKeys,
}

/// The access tokens of one authorization server.
#[derive(Debug)]
pub(crate) struct OAuth {
    settings: config::OAuth,
    keys: RwLock<Option<Fetched>>,
    /// By their hashes, so that a token is never stored.
    verified: Mutex<HashMap<[u8; 32], Identity>>,
    /// Whether keys are being fetched.
    is_fetching: Mutex<bool>,
    /// Changes when that has ended.
    fetched: watch::Sender<()>,
    questions: DefaultDirectRateLimiter,
}

/// Keys, and when they were fetched.
#[derive(Debug, Clone)]
struct Fetched {
    keys: Arc<[Key]>,
    at: Instant,
}

/// Whether keys have to be fetched for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    Soon,
    No,
}

impl OAuth {
    pub(crate) fn new(settings: config::OAuth) -> Arc<Self> {
        let quota = Quota::with_period(PERIOD).expect("not zero").allow_burst(BURST);
        Arc::new(Self {
            settings,
            keys: RwLock::default(),
            verified: Mutex::default(),
            is_fetching: Mutex::default(),
            fetched: watch::Sender::default(),
            questions: RateLimiter::direct(quota),
        })
    }

    pub(crate) fn settings(&self) -> &config::OAuth {
        &self.settings
    }

    /// Forgets which tokens were verified, so that each is checked again.
    pub(crate) fn forget_verified(&self) {
        self.verified.lock().clear();
    }

    /// Has the keys fetched if this token needs that, and waits for them for a limited time.
    pub(crate) async fn prepare(self: &Arc<Self>, token: &str) {
        let due = self.due(token);
        if due == Due::No {
            return;
        }
        let fetched = self.fetch();
        if let Some(mut fetched) = fetched.filter(|_| due == Due::Now) {
            // If it takes longer, the token is checked with the keys that are there.
            let _ = timeout(PATIENCE, fetched.changed()).await;
        }
    }

    /// The bearer of a token.
    ///
    /// # Errors
    /// If the token is not valid here, or cannot be checked.
    pub(crate) fn verify(&self, token: &str) -> Result<Identity, Refused> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let now = now();
        let keys = self.keys.read().clone().filter(|keys| keys.at.elapsed() < KEYS_LAST);
        if keys.is_some()
            && let Some(known) = self.verified.lock().get(&hash)
            && known.is_valid_at(now)
        {
            return Ok(known.clone());
        }
        let parsed = Token::parse(token)?;
        let Fetched { keys, .. } = keys.ok_or(Refused::NoKeys)?;
        parsed.check_signature(&keys)?;
        let identity = Claims::of(&parsed)?.identity(&self.settings, now)?;
        let current = self.keys.read();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(&current.keys, &keys)) {
            // The keys were replaced meanwhile, maybe because this token's was withdrawn.
            drop(current);
            return self.verify(token);
        }
        let mut verified = self.verified.lock();
        if verified.len() >= MAX_VERIFIED {
            verified.retain(|_, known| known.is_valid_at(now));
        }
        if verified.len() >= MAX_VERIFIED {
            verified.clear();
        }
        verified.insert(hash, identity.clone());
        Ok(identity)
    }

    fn due(&self, token: &str) -> Due {
        // Only a token that could be valid is a reason to ask.
        let Ok(token) = Token::parse(token) else { return Due::No };
        let keys = self.keys.read();
        match &*keys {
            Some(Fetched { keys, at }) if token.is_of(keys) && at.elapsed() < KEYS_OLD => {
                if at.elapsed() < KEYS_FRESH { Due::No } else { Due::Soon }
            }
            _ => Due::Now,
        }
    }

    /// Has the keys fetched, unless they are already or were too often. Returns what changes when that has ended.
    pub(crate) fn fetch(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let mut is_fetching = self.is_fetching.lock();
        let fetched = self.fetched.subscribe();
        if !*is_fetching {
            self.questions.check().ok()?;
            *is_fetching = true;
            // A task, because the request that asked may end before.
            let this = self.clone();
            tokio::spawn(async move {
                let keys = provider::fetch(&this.settings).await;
                this.replace(keys);
                *this.is_fetching.lock() = false;
                this.fetched.send_replace(());
            });
        }
        Some(fetched)
    }

    fn replace(&self, new: Result<Vec<Key>, String>) {
        let issuer = &self.settings.issuer;
        let new = match new {
            Ok(new) => new,
            Err(error) => {
                tracing::warn!(
                    issuer,
                    error,
                    "the keys of the authorization server cannot be fetched"
                );
                return;
            }
        };
        let mut keys = self.keys.write();
        let is_same = keys.as_ref().is_some_and(|old| *old.keys == *new);
        if !is_same {
            tracing::info!(issuer, keys = new.len(), "the authorization server has these keys");
            // A key that is no longer there signs nothing any more.
            self.verified.lock().clear();
        }
        *keys = Some(Fetched { keys: new.into(), at: Instant::now() });
    }

    /// The place of a policy in the settings, which list those that allow least last.
    pub(crate) fn rank(&self, policy: Option<&str>) -> Option<usize> {
        let mut values = self.settings.policies.values.iter();
        values.rposition(|(_, name)| Some(&**name) == policy)
    }

    /// The policy of a caller whose token was not seen yet: of those in the settings, the one that allows least.
    pub(crate) fn least_policy(&self) -> Option<&str> {
        self.settings.policies.values.last().map(|(_, policy)| &**policy)
    }
}

/// Whether a caller has access tokens.
pub(crate) fn is_caller(caller: &Principal) -> bool {
    caller.name().starts_with(config::oauth::PREFIX)
}

/// The time in seconds, as in claims.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests;
