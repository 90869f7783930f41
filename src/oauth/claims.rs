//! The claims of an access token (RFC 9068): whether it is for this server, and whom it names. Pure.

use config::{OAuth, Role, oauth::PREFIX};
use model::Principal;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{LEEWAY, Refused, token::Token};

/// Claims with a token's scopes. Their values may be words in one text.
const SCOPES: [&str; 2] = ["scope", "scp"];

/// Claims that only tokens for other purposes have: ID tokens, and tokens that tell of events.
const OF_OTHERS: [&str; 4] = ["at_hash", "c_hash", "s_hash", "events"];

/// Hexadecimal digits of the hash in a caller's name, and characters of the claim before them.
const DIGITS: usize = 32;
const READABLE: usize = 25;

/// The bearer of a valid token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    pub(crate) principal: Principal,
    pub(crate) role: Role,
    /// The name of the caller's policy.
    pub(crate) policy: Option<String>,
    /// When the token was issued, in seconds since 1970.
    pub(crate) issued: f64,
    expires: f64,
}

impl Identity {
    #[cfg(test)]
    pub(super) fn of_test(settings: &OAuth, expires: f64) -> Self {
        let principal = principal(&settings.issuer, "sub", "test");
        Self { principal, role: Role::User, policy: None, issued: 0.0, expires }
    }

    pub(super) fn is_valid_at(&self, now: f64) -> bool {
        now < self.expires + LEEWAY
    }
}

/// The claims of a token whose signature was checked.
pub(super) struct Claims {
    claims: Map<String, Value>,
    is_for_access: bool,
}

impl Claims {
    pub(super) fn of(token: &Token<'_>) -> Result<Self, Refused> {
        Ok(Self { claims: token.claims()?, is_for_access: token.is_for_access })
    }

    /// Checks the claims.
    ///
    /// # Errors
    /// If the token is not valid here and now, or gives no access.
    pub(super) fn identity(&self, settings: &OAuth, now: f64) -> Result<Identity, Refused> {
        let invalid = |why| Err(Refused::Invalid(why));
        if self.text("iss") != Some(&settings.issuer) {
            return invalid("is from another issuer (iss)");
        }
        if !settings.audiences.iter().any(|audience| self.has("aud", audience)) {
            return invalid("is for another server (aud)");
        }
        let expires = self.time("exp")?.ok_or(Refused::Invalid("has no time of expiry (exp)"))?;
        // A time that is yet to come would make the token the newest for good.
        let issued = self.time("iat")?.unwrap_or_default().min(now.floor());
        let begins = self.time("nbf")?.unwrap_or_default();
        if now >= expires + LEEWAY {
            return invalid("has expired (exp)");
        }
        if now + LEEWAY < begins {
            return invalid("is not valid yet (nbf)");
        }
        if self.is_for_another_purpose() {
            return invalid("is an ID token or another token that is no access token");
        }
        if self.claims.contains_key("cnf") {
            return invalid(
                "is bound to a key of its client (cnf), which this server cannot check",
            );
        }
        let who = self.text(&settings.caller_claim).filter(|who| !who.is_empty());
        let who = who.ok_or(Refused::Invalid(
            "does not name its caller, in the claim that the settings name",
        ))?;
        let has_scope = |scope: &String| SCOPES.iter().any(|claim| self.has(claim, scope));
        if !settings.scopes.iter().all(has_scope) {
            return Err(Refused::Scope);
        }
        let has = |claim: &str, value: &str| self.has(claim, value);
        let policy = settings.policies.of(has).cloned();
        if policy.is_none() && !settings.policies.values.is_empty() {
            return Err(Refused::Policy);
        }
        let role = settings.roles.of(has).copied().unwrap_or_default();
        let principal = principal(&settings.issuer, &settings.caller_claim, who);
        Ok(Identity { principal, role, policy, issued, expires })
    }

    /// Whether the claims say that this is no access token, although it may have the audience of one.
    fn is_for_another_purpose(&self) -> bool {
        let has = |name: &&str| self.claims.contains_key(*name);
        let says_so = [("token_use", "access"), ("typ", "bearer")].iter().any(|(name, access)| {
            self.claims.get(*name).is_some_and(|value| {
                value.as_str().is_none_or(|value| !value.eq_ignore_ascii_case(access))
            })
        });
        // Older versions of an issuer write a nonce into access tokens, too, but no scope into ID tokens.
        let is_from_login = !self.is_for_access && has(&"nonce") && !SCOPES.iter().any(has);
        OF_OTHERS.iter().any(has) || (says_so && !self.is_for_access) || is_from_login
    }

    /// A claim by its name or, if there is none, by the names of objects with dots between them.
    fn claim(&self, name: &str) -> Option<&Value> {
        self.claims.get(name).or_else(|| {
            let (first, rest) = name.split_once('.')?;
            rest.split('.').try_fold(self.claims.get(first)?, |object, name| object.get(name))
        })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.claim(name)?.as_str()
    }

    /// Whether a claim has a value, alone or in a list.
    fn has(&self, name: &str, value: &str) -> bool {
        match self.claim(name) {
            Some(Value::String(text)) if SCOPES.contains(&name) => {
                text.split(' ').any(|word| word == value)
            }
            Some(Value::String(text)) => text == value,
            Some(Value::Array(list)) => list.iter().any(|item| item == value),
            _ => false,
        }
    }

    /// A time in seconds since 1970.
    fn time(&self, name: &str) -> Result<Option<f64>, Refused> {
        match self.claims.get(name) {
            None => Ok(None),
            Some(Value::Number(time)) => Ok(time.as_f64()),
            Some(_) => Err(Refused::Invalid("has a time that is no number (exp, nbf or iat)")),
        }
    }
}

/// The caller with this value of a claim. The hash alone makes two callers different, and the same caller the same;
/// what precedes it is for people who read the log.
pub(super) fn principal(issuer: &str, claim: &str, value: &str) -> Principal {
    let mut hash = Sha256::new();
    for part in [issuer, claim, value] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash = hex::encode(hash.finalize());
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
    let readable: String = value.chars().map(plain).take(READABLE).collect();
    let name = format!("{PREFIX}{readable}-{}", &hash[..DIGITS]);
    Principal::named(&name).expect("at most 64 plain characters")
}
