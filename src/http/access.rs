//! Who is let in, and how often.
//!
//! ```text
//! token for the metrics --> the metrics, and nothing else
//! token --> the principal it belongs to          none needed --> local
//! signed URL --> the holder of the session that it is for, for what it was made for
//! anything else --> 401; a signature that is not valid --> 403, of a session that is gone --> 404;
//! too often --> 429
//! ```
//!
//! Over stdio without tokens only signed URLs open anything: the server gave them to its own client.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, Uri, header};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use headers::{Authorization, HeaderMapExt, authorization::Bearer};
use model::{Existing, Principal, SessionId};

use super::{
    connections,
    error::{ApiError, Needed, Result, Tried},
    seats::TooMany,
};
use crate::{
    auth::{Token, Tokens},
    config::Config,
    sessions::Sessions,
    signed_urls::{Grant, Signature, SignatureError, SignedUrls, session_and_signature},
};

/// What the holder of a URL is told when its session has ended.
const ENDED: &str =
    "The session has ended and its files are gone. Start a new one to create them again.";

/// The rules of one server. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Access {
    tokens: Tokens,
    /// Whoever can reach the server is let in.
    is_open: bool,
    /// The token for the metrics, if they have one of their own.
    metrics: Option<Token>,
    urls: SignedUrls,
    rate: Option<Arc<DefaultKeyedRateLimiter<Principal>>>,
}

impl Access {
    pub(super) fn new(config: &Config, urls: SignedUrls) -> Self {
        let rate = config
            .rate_limit
            .map(|per_minute| Arc::new(RateLimiter::keyed(Quota::per_minute(per_minute))));
        let (tokens, metrics) = (config.auth_tokens.clone(), config.metrics_token.clone());
        Self { tokens, is_open: !config.requires_auth(), metrics, urls, rate }
    }

    /// Who sends this request, by its token.
    ///
    /// # Errors
    /// If the token is not known, or the caller asks too often.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal> {
        let who = if self.is_open {
            Some(Principal::local())
        } else {
            bearer(headers).and_then(|bearer| self.tokens.principal(bearer.token()))
        };
        let needed = if self.tokens.is_empty() { Needed::SignedUrl } else { Needed::Token };
        let who = who.ok_or_else(|| ApiError::Unauthorized(needed, tried(headers)))?;
        self.count(&who)?;
        Ok(who)
    }

    /// Who sends this request, as far as can be told without looking further into it, and without counting it: whether
    /// it may do what it asks for is another matter.
    pub(super) fn whose(&self, headers: &HeaderMap, uri: &Uri) -> Option<Whose> {
        if headers.contains_key(header::AUTHORIZATION) {
            let who = bearer(headers).and_then(|bearer| self.tokens.principal(bearer.token()));
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

    /// The metrics are about all callers. They are for the one who has the token for them, if there
    /// is one, and otherwise for everybody who is let in.
    ///
    /// # Errors
    /// If this request may not read them, or its caller asks too often.
    pub(super) fn may_read_metrics(&self, headers: &HeaderMap) -> Result<()> {
        let Some(token) = &self.metrics else {
            // Over stdio, too: they name no session and no file.
            if self.tokens.is_empty() {
                return self.count(&Principal::local());
            }
            return self.principal(headers).map(drop);
        };
        if bearer(headers).is_some_and(|bearer| token.is(bearer.token())) {
            return Ok(());
        }
        Err(ApiError::Unauthorized(Needed::MetricsToken, tried(headers)))
    }

    /// The sessions as whoever may do one of these things sees them. A signature counts where no token is
    /// given, or where none could be known; one that is not valid is never overlooked.
    ///
    /// # Errors
    /// If neither token nor signature allow any of them, the session of a signature has ended, or the
    /// caller asks too often.
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
        let takes_none = self.tokens.is_empty() && !self.is_open;
        let is_signed = any.is_some() || query.has_signature();
        if !is_signed || (has_token && !takes_none) {
            return Ok(sessions.seen_by(self.principal(headers)?));
        }
        let forged = || {
            let why = "This URL is not valid for this request: it was changed, was made for \
                       something else, or the server has restarted since. Ask for a new one.";
            ApiError::refused(StatusCode::FORBIDDEN, "invalid_signature", why)
        };
        // One place for each: a signature that is good in two could be taken for another.
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
        // Before its expiry is looked at: a new one is not to be had either.
        let held = match sessions.held(id, signature.number) {
            Some(held) => Some(held),
            None => sessions.held_archived(id, signature.number).await,
        };
        let held = held.ok_or_else(|| ApiError::not_found(ENDED))?;
        genuine.map_err(|_| {
            let why = "This URL has expired. Ask for a new one.";
            ApiError::refused(StatusCode::FORBIDDEN, "url_expired", why)
        })?;
        self.count(held.caller())?;
        Ok(held)
    }

    /// Counts a request of a caller, and its connection.
    fn count(&self, who: &Principal) -> Result<()> {
        connections::is_of(who).map_err(|TooMany| ApiError::TooManyConnections)?;
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            ApiError::RateLimited(wait.as_secs() + 1)
        })
    }
}

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whose {
    /// Whoever has this token.
    Principal(Principal),
    /// Whoever has the session of this number, if the signature is good.
    Number(u64),
}

/// What a request says of who sends it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) uri: &'a Uri,
    /// The signature for any file of the session, if the URL's path has one.
    pub(super) any: Option<&'a str>,
}

/// Of two, nobody knows which one a proxy on the way has looked at.
fn bearer(headers: &HeaderMap) -> Option<Authorization<Bearer>> {
    let is_one = headers.get_all(header::AUTHORIZATION).iter().nth(1).is_none();
    headers.typed_get().filter(|_| is_one)
}

fn tried(headers: &HeaderMap) -> Tried {
    if headers.contains_key(header::AUTHORIZATION) { Tried::Token } else { Tried::Nothing }
}

/// What a URL may carry besides its path.
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

    /// What is to become of a file that is there, by the URL.
    pub(super) fn existing(&self) -> Existing {
        Existing::overwritten_if(self.overwrite.as_deref() == Some("true"))
    }

    /// It carries a signature, valid or not.
    pub(super) fn has_signature(&self) -> bool {
        self.signature.is_some()
    }

    /// It was made for writing, and says so.
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
