//! Who comes in, and how often.
//!
//! ```text
//! token for the figures --> the figures, and nothing else
//! token --> the principal it belongs to          none needed --> local
//! signed address --> the holder of the session that it is for, for what it was made for
//! anything else --> 401; a signature that is not good --> 403, of a session that is gone --> 404;
//! too often --> 429
//! ```
//!
//! Over stdio without tokens only signed addresses open anything: the one who may come in has them from us.

use std::sync::Arc;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use headers::{Authorization, HeaderMapExt, authorization::Bearer};

use serde_json::json;

use super::{connections, not_found, refuse, reply, seats::TooMany};
use crate::{
    addresses::{Addresses, Grant, Signature, Worthless},
    auth::{Principal, Token, Tokens},
    config::Config,
    session::SessionId,
    sessions::Sessions,
};

/// What is left of a session to whoever has an address of it.
const ENDED: &str =
    "The session has ended; its files are gone. Start a new one to make them again.";

/// The rules of one server. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Access {
    tokens: Tokens,
    /// Whoever can reach the server may come in.
    is_open: bool,
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
        Self { tokens, is_open: !config.requires_auth(), figures, addresses, rate }
    }

    /// Who sends this request, by its token.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal, Box<Response>> {
        let who = if self.is_open {
            Some(Principal::local())
        } else {
            bearer(headers).and_then(|bearer| self.tokens.principal(bearer.token()))
        };
        let who = who.ok_or_else(|| Box::new(self.unauthorized(headers)))?;
        self.count(&who)?;
        Ok(who)
    }

    /// The figures are about all callers. They are for the one who has the token for them, if there
    /// is one, and otherwise for everybody who may come in.
    pub(super) fn may_read_figures(&self, headers: &HeaderMap) -> Result<(), Box<Response>> {
        let Some(token) = &self.figures else {
            // Over stdio, too: they name no session and no file.
            if self.tokens.is_empty() {
                return self.count(&Principal::local());
            }
            return self.principal(headers).map(drop);
        };
        if bearer(headers).is_some_and(|bearer| token.is(bearer.token())) {
            return Ok(());
        }
        let why = "Send the token of SANDBOX_METRICS_TOKEN: Authorization: Bearer <token>.";
        Err(Box::new(challenge(headers, refuse(StatusCode::UNAUTHORIZED, "unauthorized", why))))
    }

    /// The sessions as whoever may do one of these things sees them. A signature counts where no token is
    /// given, or where none could be known; one that is not good is never overlooked.
    pub(super) fn granted(
        &self,
        sessions: &Sessions,
        headers: &HeaderMap,
        uri: &Uri,
        id: &SessionId,
        grants: &[Grant],
    ) -> Result<Sessions, Box<Response>> {
        let query = Query::of(uri);
        let has_token = headers.contains_key(header::AUTHORIZATION);
        let takes_none = self.tokens.is_empty() && !self.is_open;
        if query.signature.is_none() || (has_token && !takes_none) {
            return Ok(sessions.seen_by(self.principal(headers)?));
        }
        let forged = || {
            let why = "This URL was not made by this server for this, or it was changed, or the server \
                       has restarted since. Ask for a new one.";
            Box::new(refuse(StatusCode::FORBIDDEN, "invalid_signature", why))
        };
        let signature = query.signature().ok_or_else(forged)?;
        let verdicts = grants.iter().map(|grant| self.addresses.check(id, *grant, &signature));
        let genuine = verdicts.into_iter().find(|verdict| *verdict != Err(Worthless::Forged));
        let genuine = genuine.ok_or_else(forged)?;
        // Before its time: a new one is not to be had either.
        let Some(held) = sessions.held(id, signature.number) else {
            return Err(Box::new(not_found(ENDED)));
        };
        genuine.map_err(|_| {
            let why = "This URL has expired. Ask for a new one.";
            Box::new(refuse(StatusCode::FORBIDDEN, "url_expired", why))
        })?;
        self.count(held.caller())?;
        Ok(held)
    }

    fn unauthorized(&self, headers: &HeaderMap) -> Response {
        let refusal = if self.tokens.is_empty() {
            // What a browser's page can do about it is told apart by this field.
            let body = json!({
                "error": "unauthorized",
                "message": "Open one of the URLs that this server gave to its MCP client: there is no \
                            token here, and list_artifacts gives a page_url and download URLs.",
                "needs": "url",
            });
            reply(StatusCode::UNAUTHORIZED, &body)
        } else {
            let why = "Send one of the tokens of this server, which `llm-sandbox token` prints: \
                       Authorization: Bearer <token>.";
            refuse(StatusCode::UNAUTHORIZED, "unauthorized", why)
        };
        challenge(headers, refusal)
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

/// Says what is to be sent, as a 401 has to.
fn challenge(headers: &HeaderMap, mut refusal: Response) -> Response {
    // RFC 6750, section 3: no error code for who has not tried.
    let challenge = if headers.contains_key(header::AUTHORIZATION) {
        "Bearer realm=\"llm-sandbox\", error=\"invalid_token\""
    } else {
        "Bearer realm=\"llm-sandbox\""
    };
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

    /// It carries a signature, good or not.
    pub(super) fn has_signature(&self) -> bool {
        self.signature.is_some()
    }

    /// It was made for writing, and says so.
    pub(super) fn is_for_upload(&self) -> bool {
        self.signature.is_some() && self.overwrite.is_some()
    }

    fn signature(&self) -> Option<Signature> {
        Signature::parse(self.expires.as_deref()?, self.signature.as_deref()?)
    }
}
