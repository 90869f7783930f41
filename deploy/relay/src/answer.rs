//! Answers one request.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use sandbox_container::{
    HOST_FIELDS, Host, LABEL_OWNER, Owner, Product, SETTLING, add_podman_info, empty_volume,
};

use super::{
    Shared,
    engine::{NoAnswer, whole},
    request::{self, ContainerId, Request},
};

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the relay does not pass this on: {0}")]
    NotAllowed(&'static str),
    #[error("{0} containers are already held, twice the session limit")]
    Full(usize),
    #[error("the file with the allowed system calls cannot be written: {0}")]
    Profile(std::io::Error),
    #[error("the container's description is incomplete")]
    Incomplete,
    #[error("behind the relay, {0}")]
    Engine(#[from] NoAnswer),
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotAllowed(_) => StatusCode::FORBIDDEN,
            Self::Full(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Incomplete => StatusCode::BAD_REQUEST,
            Self::Profile(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Engine(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl Shared {
    /// Answers a request. `place` is taken while the connection is open, which may be long after the answer.
    pub(super) async fn answer(
        self: &Arc<Self>,
        request: hyper::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Answer {
        let method = request.method().clone();
        let path = request.uri().path().escape_debug().to_string();
        let query = request.uri().query();
        let wanted = Request::read(&method, request.uri().path(), query, &self.settings.image);
        let answer = match wanted {
            None => Err(Refused::NotAllowed("the server does not need it")),
            Some(Request::Info) => self.info().await,
            Some(Request::EmptyVolume) => self.empty_volume().await.map(passed_on),
            Some(Request::Create(name)) => self.create(name, request.into_body()).await,
            Some(Request::Attach(id)) => self.attach(id, request, place).await,
            Some(Request::Connect(id)) => self.connect(id).await,
            Some(Request::Begin(exec)) => self.begin(exec, request, place).await,
            Some(wanted) => self.pass(wanted).await,
        };
        answer.unwrap_or_else(|refused| {
            tracing::warn!(%method, path, %refused, "request refused");
            json_answer(refused.status(), &json!({ "message": refused.to_string() }))
        })
    }

    async fn pass(&self, request: Request) -> Result<Answer, Refused> {
        match &request {
            Request::Wait(id) if !self.held.has(id) => return Err(not_held()),
            Request::Start(id) if !self.held.is_attached(id) => return Err(not_held()),
            Request::Remove(id) if !self.held.has(id) && !self.is_leftover(id).await? => {
                return Err(not_held());
            }
            _ => {}
        }
        Ok(passed_on(self.engine.ask(&request, None).await?))
    }

    /// The facts about the engine and its host that a server uses.
    async fn info(&self) -> Result<Answer, Refused> {
        const KEPT: [&str; 2] = ["DefaultRuntime", "Runtimes"];
        let response = whole(self.engine.ask(&Request::Info, None).await?).await?;
        let mut info: Value =
            serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
        if response.status().is_success() {
            let version = self.value(&Request::Version).await?;
            self.complete(&mut info, &version).await?;
        }
        if let Some(info) = info.as_object_mut().filter(|_| response.status().is_success()) {
            info.retain(|name, _| KEPT.iter().chain(&HOST_FIELDS).any(|kept| kept == name));
        }
        Ok(json_answer(response.status(), &info))
    }

    /// Whether a sweep may remove this container.
    async fn is_leftover(&self, id: &ContainerId) -> Result<bool, Refused> {
        let response = self.engine.inspect(id).await?;
        if response.status() == StatusCode::NOT_FOUND {
            // The request is passed on, so that the engine says so itself.
            return Ok(true);
        }
        let found: Value =
            serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
        Ok(is_leftover(&found, Timestamp::now()))
    }

    /// The path of the empty volume on the engine's host.
    pub(super) async fn empty(&self) -> Result<String, Refused> {
        let response = whole(self.empty_volume().await?).await?;
        let made: Value =
            serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
        Ok(made["Mountpoint"].as_str().ok_or(NoAnswer::Unexpected)?.to_owned())
    }

    /// Creates the empty volume, or finds it.
    async fn empty_volume(&self) -> Result<Response<Incoming>, Refused> {
        if self.settings.datasets.is_empty() {
            return Err(Refused::NotAllowed("the relay's settings have no datasets"));
        }
        let body = Bytes::from(json!(empty_volume()).to_string());
        Ok(self.engine.ask(&Request::EmptyVolume, Some(body)).await?)
    }

    pub(super) async fn host(&self) -> Result<Host, Refused> {
        let ask = async {
            let (info, version) = (self.value(&Request::Info), self.value(&Request::Version));
            let (mut info, version) = (info.await?, version.await?);
            self.complete(&mut info, &version).await?;
            Ok(Host::of(&info, &version))
        };
        self.host.get_or_try_init(|| ask).await.copied()
    }

    /// Adds to an answer to `/info` what Podman tells elsewhere. A server knows by it that a relay puts files for
    /// Podman.
    async fn complete(&self, info: &mut Value, version: &Value) -> Result<(), Refused> {
        if Product::of(version) == Product::Podman {
            let response = self.engine.podman_info().await?;
            let podman: Value =
                serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
            add_podman_info(info, &podman);
        }
        Ok(())
    }

    /// The engine's answer, if it is JSON.
    async fn value(&self, request: &Request) -> Result<Value, Refused> {
        let response = whole(self.engine.ask(request, None).await?).await?;
        Ok(serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?)
    }
}

/// Whether a container of this program has no owner, or does not run [some time](SETTLING) after it was created. The
/// relay cannot check whether an owner is alive: it may be behind another relay or none, and about to start the
/// container.
fn is_leftover(found: &Value, now: Timestamp) -> bool {
    let labels = &found["Config"]["Labels"];
    let owner = labels[LABEL_OWNER].as_str().and_then(|owner| owner.parse::<Owner>().ok());
    let runs = found["State"]["Running"] != false;
    let has_settled = || {
        let created = found["Created"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
        created.is_some_and(|created| {
            Duration::try_from(now.duration_since(created)).is_ok_and(|age| age > SETTLING)
        })
    };
    request::is_ours(labels) && (owner.is_none() || !runs && has_settled())
}

pub(super) fn not_held() -> Refused {
    Refused::NotAllowed("the container was not created through this relay, or is already attached")
}

pub(super) fn passed_on(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    answer(&head, body.boxed_unsync())
}

/// An answer with only the content type of the engine's headers: the others are about its own connection.
pub(super) fn answer(
    head: &hyper::http::response::Parts,
    body: UnsyncBoxBody<Bytes, hyper::Error>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = head.status;
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        answer.headers_mut().insert(CONTENT_TYPE, kind.clone());
    }
    answer
}

fn json_answer(status: StatusCode, body: &Value) -> Answer {
    let body = Full::from(body.to_string()).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_owner_may_still_start_is_no_leftover() {
        let now: Timestamp = "2026-05-04T12:00:00Z".parse().expect("valid");
        let (old, new) = ("2026-05-04T11:58:59.123456789Z", "2026-05-04T11:59:01.123456789Z");
        let (owner, none) = (json!("v1/boot/1/2/3"), json!(null));
        let cases = [
            // owner, runs, created, app -> a leftover
            (&owner, false, old, "llm-sandbox", true),
            (&owner, false, new, "llm-sandbox", false),
            (&owner, false, "some day", "llm-sandbox", false),
            (&owner, false, "2026-05-04T12:00:10Z", "llm-sandbox", false),
            (&owner, true, old, "llm-sandbox", false),
            (&none, false, new, "llm-sandbox", true),
            (&none, true, new, "llm-sandbox", true),
            (&none, false, old, "another", false),
        ];
        for (owner, runs, created, app, leftover) in cases {
            let found = json!({
                "Created": created,
                "State": { "Running": runs },
                "Config": { "Labels": { "app": app, LABEL_OWNER: owner } },
            });
            assert_eq!(is_leftover(&found, now), leftover, "{found}");
        }
    }
}
