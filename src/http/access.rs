//! Who comes in, and how often.
//!
//! ```text
//! token for the figures --> the figures, and nothing else
//! token --> the principal it belongs to          none needed --> local
//! signed address --> the holder of the session that it is for, for what it was made for
//! anything else --> 401; a signature that is not good --> 403; too often --> 429
//! ```

use std::sync::Arc;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use headers::{Authorization, HeaderMapExt, authorization::Bearer};

use super::{connections, refuse, seats::TooMany};
use crate::{
    addresses::{Addresses, Grant, Incarnation, Signature, Worthless},
    auth::{Principal, Token, Tokens},
    config::Config,
    session::SessionId,
    sessions::Sessions,
};

/// The rules of one server. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Access {
    tokens: Tokens,
    /// Of whoever reads the figures, if that is nobody else.
    figures: Option<Token>,
    addresses: Addresses,
    rate: Option<Arc<DefaultKeyedRateLimiter<Principal>>>,
}

impl Access {
    pub(super) fn new(config: &Config, addresses: Addresses) -> Self {
        let rate = config
            .rate_limit
            .map(|per_minute| Arc::new(RateLimiter::keyed(Quota::per_minute(per_minute))));
        let (tokens, figures) = (config.auth_tokens.clone(), config.metrics_token.clone());
        Self { tokens, figures, addresses, rate }
    }

    /// Who sends this request, by its token.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal, Box<Response>> {
        let who = if self.tokens.is_empty() {
            Some(Principal::local())
        } else {
            bearer(headers).and_then(|bearer| self.tokens.principal(bearer.token()))
        };
        let who = who.ok_or_else(|| {
            let why =
                "Send one of the tokens of SANDBOX_AUTH_TOKENS: Authorization: Bearer <token>.";
            Box::new(unauthorized(headers, why))
        })?;
        self.count(&who)?;
        Ok(who)
    }

    /// The figures are about all callers. They are for the one who has the token for them, if there
    /// is one, and otherwise for everybody who may come in.
    pub(super) fn may_read_figures(&self, headers: &HeaderMap) -> Result<(), Box<Response>> {
        let Some(token) = &self.figures else { return self.principal(headers).map(drop) };
        if bearer(headers).is_some_and(|bearer| token.is(bearer.token())) {
            return Ok(());
        }
        let why = "Send the token of SANDBOX_METRICS_TOKEN: Authorization: Bearer <token>.";
        Err(Box::new(unauthorized(headers, why)))
    }

    /// The sessions as whoever may do this sees them. A signature counts where no token is given; one
    /// that is not good is never overlooked.
    pub(super) fn granted(
        &self,
        sessions: &Sessions,
        headers: &HeaderMap,
        uri: &Uri,
        id: &SessionId,
        grant: Grant,
    ) -> Result<Sessions, Box<Response>> {
        let query = Query::of(uri);
        if headers.contains_key(header::AUTHORIZATION) || query.signature.is_none() {
            return Ok(sessions.seen_by(self.principal(headers)?));
        }
        let forged = || {
            let why = "The address is not one that this server made for this session and file.";
            Box::new(refuse(StatusCode::FORBIDDEN, "invalid_signature", why))
        };
        let signature = query.signature().ok_or_else(forged)?;
        // Of a session that is gone nothing is left, not even the right to hear so.
        let (holder, number) = sessions.holder(id).ok_or_else(forged)?;
        let session = Incarnation { id, number };
        self.addresses.check(session, grant, &signature).map_err(|why| match why {
            Worthless::Forged => forged(),
            Worthless::Expired => Box::new(refuse(
                StatusCode::FORBIDDEN,
                "url_expired",
                "The address has expired. Ask for a new one.",
            )),
        })?;
        self.count(&holder)?;
        Ok(sessions.seen_by(holder).only(number))
    }

    /// Counts a request of a caller, and its connection.
    fn count(&self, who: &Principal) -> Result<(), Box<Response>> {
        connections::is_of(who).map_err(|TooMany| {
            let why = "This client has as many connections as it may have. Close some first.";
            let refusal = refuse(StatusCode::TOO_MANY_REQUESTS, "too_many_connections", why);
            let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "10")];
            Box::new((headers, refusal).into_response())
        })?;
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.check_key(who).map_err(|until| {
            let wait = until.wait_time_from(governor::clock::DefaultClock::default().now());
            let seconds = wait.as_secs() + 1;
            let why = format!("Too many requests. Try again in {seconds} s.");
            let refusal = refuse(StatusCode::TOO_MANY_REQUESTS, "rate_limited", &why);
            Box::new(([(header::RETRY_AFTER, seconds.to_string())], refusal).into_response())
        })
    }
}

/// Of two, nobody knows which one a proxy on the way has looked at.
fn bearer(headers: &HeaderMap) -> Option<Authorization<Bearer>> {
    let is_one = headers.get_all(header::AUTHORIZATION).iter().nth(1).is_none();
    headers.typed_get().filter(|_| is_one)
}

fn unauthorized(headers: &HeaderMap, why: &str) -> Response {
    // RFC 6750, section 3: no error code for who has not tried.
    let challenge = if headers.contains_key(header::AUTHORIZATION) {
        "Bearer realm=\"llm-sandbox\", error=\"invalid_token\""
    } else {
        "Bearer realm=\"llm-sandbox\""
    };
    let mut refusal = refuse(StatusCode::UNAUTHORIZED, "unauthorized", why);
    let challenge = HeaderValue::from_static(challenge);
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    refusal
}

/// What an address may carry besides its path.
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

    /// It was made for writing, and says so.
    pub(super) fn is_for_upload(&self) -> bool {
        self.signature.is_some() && self.overwrite.is_some()
    }

    fn signature(&self) -> Option<Signature> {
        let expires = self.expires.as_deref()?.parse().ok()?;
        let mac = hex::decode(self.signature.as_deref()?).ok()?;
        Some(Signature { expires, mac })
    }
}
