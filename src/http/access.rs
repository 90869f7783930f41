//! Authenticates requests and limits their rate.
//!
//! ```text
//! token for the metrics --> the metrics, and nothing else
//! token, or access token of OAuth --> its principal, for what its role permits          none needed --> local
//! signed URL --> the holder of the session that it is for, for the action that it was made for
//! anything else --> 401; an invalid signature, or a role without the right --> 403; a session that has ended --> 404;
//! too many requests --> 429; an access token that cannot be checked now --> 503
//! ```
//!
//! Over stdio without tokens only signed URLs give access: the server gave them to its own client.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

use axum::http::{HeaderMap, StatusCode, Uri, header};
use config::{Config, Right, auth::Token};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use headers::{Authorization, HeaderMapExt, authorization::Bearer};
use model::{Existing, Principal, SessionId};
use parking_lot::Mutex;

use super::{
    connections,
    error::{ApiError, Needed, Result, Tried},
    seats::TooMany,
};
use crate::{
    permissions::{Caller, Unknown},
    sessions::Sessions,
    signed_urls::{Grant, Signature, SignatureError, SignedUrls, session_and_signature},
};

/// The message for the holder of a URL whose session has ended.
const ENDED: &str =
    "The session has ended and its files are gone. Start a new one to create them again.";

/// The rules of one server. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Access {
    sessions: Sessions,
    /// Whether the server has tokens.
    has_tokens: bool,
    /// Whether everyone who can reach the server has access.
    is_open: bool,
    /// The token for the metrics, if they have a separate one.
    metrics: Option<Token>,
    urls: SignedUrls,
    /// The counts of callers by their limit of requests per minute.
    rates: Arc<Mutex<HashMap<NonZeroU32, Arc<DefaultKeyedRateLimiter<Principal>>>>>,
}

impl Access {
    pub(super) fn new(sessions: &Sessions, urls: SignedUrls) -> Self {
        let config: &Config = sessions.config();
        Self {
            sessions: sessions.clone(),
            has_tokens: !config.callers.is_empty() || config.oauth().is_some(),
            is_open: !config.requires_auth(),
            metrics: config.metrics_token.clone(),
            urls,
            rates: Arc::default(),
        }
    }

    /// Returns the sender of this request, by its token. The sender may use sessions of its own.
    ///
    /// # Errors
    /// As of [`Self::permitted`].
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal> {
        Ok(self.permitted(headers, Right::OwnSessions)?.principal)
    }

    /// Returns the sender of this request, by its token, if it has this right.
    ///
    /// # Errors
    /// If the token is not known, the caller's role does not have the right, or the caller sends too many requests.
    pub(super) fn permitted(&self, headers: &HeaderMap, right: Right) -> Result<Caller> {
        let who = if self.is_open { Ok(Caller::local()) } else { self.by_token(headers) };
        let who = who.map_err(|tried| ApiError::Unauthorized(self.needed(), tried))?;
        check(&who, right)?;
        self.count(&who.principal)?;
        Ok(who)
    }

    /// Whether callers have no tokens, but only signed URLs.
    pub(super) fn takes_no_tokens(&self) -> bool {
        !self.has_tokens && !self.is_open
    }

    /// The credential that requests need.
    fn needed(&self) -> Needed {
        if !self.has_tokens {
            Needed::SignedUrl
        } else if self.sessions.host().permissions().oauth().is_some() {
            Needed::AnyToken
        } else {
            Needed::Token
        }
    }

    /// Checks that the token of a request, if it has a known one, is of a caller with this right. This is for all routes
    /// alike; that a request needs a token is checked by its route.
    ///
    /// # Errors
    /// If the caller's role does not have the right.
    pub(super) fn check_role(&self, headers: &HeaderMap, right: Right) -> Result<()> {
        self.by_token(headers).map_or(Ok(()), |who| check(&who, right))
    }

    /// Whether the token of a request is of a caller that may list and end the sessions of all.
    pub(super) fn may_see_all(&self, headers: &HeaderMap) -> bool {
        self.by_token(headers).is_ok_and(|who| who.has(Right::AllSessions))
    }

    /// The caller with the token of a request, or what the request carried instead.
    fn by_token(&self, headers: &HeaderMap) -> std::result::Result<Caller, Tried> {
        let Some(bearer) = bearer(headers) else {
            let has_any = headers.contains_key(header::AUTHORIZATION);
            return Err(if has_any { Tried::Token } else { Tried::Nothing });
        };
        let known = self.sessions.host().permissions().caller(bearer.token());
        known.map_err(|unknown| match unknown {
            Unknown::Token => Tried::Token,
            Unknown::AccessToken(why) => Tried::AccessToken(why),
        })
    }

    /// Returns the sender of this request, if its headers and URL name one, without counting the
    /// request and without checking a signature.
    pub(super) fn whose(&self, headers: &HeaderMap, uri: &Uri) -> Option<Whose> {
        if headers.contains_key(header::AUTHORIZATION) {
            let who = self.by_token(headers).ok().map(|who| who.principal);
            return who.or_else(|| self.is_open.then(Principal::local)).map(Whose::Principal);
        }
        let query = Query::of(uri);
        let any = uri.path().strip_prefix("/files/").and_then(|path| path.split('/').next());
        let signature = match any.and_then(|session| session_and_signature(session).1) {
            Some(word) => Signature::parse(word),
            None => query.signature(),
        };
        match signature {
            Some(signature) => Some(Whose::Number(signature.number)),
            None => self.is_open.then(|| Whose::Principal(Principal::local())),
        }
    }

    /// Checks that a request may read the metrics, which are about all callers: with the token for the
    /// metrics or that of an auditor, if the settings have a token for the metrics, otherwise as for any other request.
    /// Returns whether it may read those that name callers, too: with that token, or that of an operator or auditor.
    ///
    /// # Errors
    /// If this request may not read them, or its caller sends too many requests.
    pub(super) fn may_read_metrics(&self, headers: &HeaderMap) -> Result<bool> {
        let Some(token) = &self.metrics else {
            // Over stdio, too: the metrics name no session and no file.
            if !self.has_tokens {
                return self.count(&Principal::local()).map(|()| false);
            }
            let who = self.permitted(headers, Right::Metrics)?;
            let of_all = [Right::AllSessions, Right::Audit];
            return Ok(of_all.into_iter().any(|right| who.has(right)));
        };
        if bearer(headers).is_some_and(|bearer| token.is(bearer.token())) {
            return Ok(true);
        }
        match self.by_token(headers) {
            Ok(who) if who.has(Right::Audit) => self.count(&who.principal).map(|()| true),
            Ok(_) => Err(ApiError::Unauthorized(Needed::MetricsToken, Tried::Token)),
            Err(tried) => Err(ApiError::Unauthorized(Needed::MetricsToken, tried)),
        }
    }

    /// Returns the sessions as the caller sees them, if the caller has one of these grants. A
    /// signature counts if the request has no token, or the server has none; an invalid signature
    /// is always refused.
    ///
    /// # Errors
    /// If neither token nor signature allow any of them, the session of a signature has ended, or the caller
    /// sends too many requests.
    pub(super) async fn granted(
        &self,
        sessions: &Sessions,
        request: Asked<'_>,
        id: &SessionId,
        grants: &[Grant<'_>],
    ) -> Result<Sessions> {
        let Asked { headers, uri, any } = request;
        let query = Query::of(uri);
        let has_token = headers.contains_key(header::AUTHORIZATION);
        let takes_none = self.takes_no_tokens();
        let is_signed = any.is_some() || query.has_signature();
        if !is_signed || (has_token && !takes_none) {
            return Ok(sessions.seen_by(self.principal(headers)?));
        }
        let forged = || {
            let why = "This URL is not valid for this request: it was changed, was made for \
                       something else, or the server has restarted since. Ask for a new one.";
            ApiError::refused(StatusCode::FORBIDDEN, "invalid_signature", why)
        };
        // Each kind of signature has one place, path or query: valid in both, it could be taken for the
        // other kind.
        let signature = match any {
            Some(word) if !query.has_signature() => Signature::parse(word),
            Some(_) => None,
            None => query.signature(),
        };
        let signature = signature.ok_or_else(forged)?;
        let grants = if any.is_some() { &[Grant::ReadAny] } else { grants };
        let verdicts = grants.iter().map(|grant| self.urls.check(id, *grant, &signature));
        let genuine = verdicts.into_iter().find(|verdict| *verdict != Err(SignatureError::Invalid));
        let genuine = genuine.ok_or_else(forged)?;
        // Before the expiry is checked: if the session has ended, there is no new URL to ask for.
        let held = sessions.held(id, signature.number).await;
        let held = held.ok_or_else(|| ApiError::not_found(ENDED))?;
        genuine.map_err(|_| {
            let why = "This URL has expired. Ask for a new one.";
            ApiError::refused(StatusCode::FORBIDDEN, "url_expired", why)
        })?;
        self.count(held.caller())?;
        Ok(held)
    }

    /// Counts a request of a caller, and assigns its connection to the caller.
    fn count(&self, who: &Principal) -> Result<()> {
        connections::is_of(who).map_err(|TooMany| ApiError::TooManyConnections)?;
        let limit = self.sessions.host().permissions().settings(who).rate_limit;
        let Some(limit) = limit else { return Ok(()) };
        let new = || Arc::new(RateLimiter::keyed(Quota::per_minute(limit)));
        let rate = self.rates.lock().entry(limit).or_insert_with(new).clone();
        rate.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            ApiError::RateLimited(wait.as_secs() + 1)
        })
    }
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whose {
    /// The principal of a token.
    Principal(Principal),
    /// The holder of the session with this number, if the signature is valid.
    Number(u64),
}

/// The parts of a request that identify its sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) uri: &'a Uri,
    /// The signature for any file of the session, if the URL's path has one.
    pub(super) any: Option<&'a str>,
}

/// Returns the bearer token. If there are two authorization headers, neither counts: a proxy may have checked
/// the other one.
pub(super) fn bearer(headers: &HeaderMap) -> Option<Authorization<Bearer>> {
    let is_one = headers.get_all(header::AUTHORIZATION).iter().nth(1).is_none();
    headers.typed_get().filter(|_| is_one)
}

fn check(who: &Caller, right: Right) -> Result<()> {
    if who.has(right) {
        return Ok(());
    }
    let role = who.role().as_str();
    let why = format!("Callers with the role {role} may not do this. Use another token.");
    Err(ApiError::refused(StatusCode::FORBIDDEN, "forbidden", why))
}

/// The parameters in a URL's query.
#[derive(Debug, Default)]
pub(super) struct Query {
    pub(super) format: Option<String>,
    pub(super) overwrite: Option<String>,
    expires: Option<String>,
    signature: Option<String>,
}

impl Query {
    pub(super) fn of(uri: &Uri) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let field = match &*name {
                "format" => &mut query.format,
                "overwrite" => &mut query.overwrite,
                "expires" => &mut query.expires,
                "signature" => &mut query.signature,
                _ => continue,
            };
            *field = Some(value.into_owned());
        }
        query
    }

    /// How the URL says to treat an existing file.
    pub(super) fn existing(&self) -> Existing {
        Existing::overwritten_if(self.overwrite.as_deref() == Some("true"))
    }

    /// Whether the URL carries a signature, valid or not.
    pub(super) fn has_signature(&self) -> bool {
        self.signature.is_some()
    }

    /// Whether the URL was made for an upload.
    pub(super) fn is_for_upload(&self) -> bool {
        self.signature.is_some() && self.overwrite.is_some()
    }

    fn signature(&self) -> Option<Signature> {
        let signature = self.signature.as_deref()?;
        match &self.expires {
            None => Signature::parse(signature),
            Some(expires) => Signature::parse_long(expires, signature),
        }
    }
}
