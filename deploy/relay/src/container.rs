//! A container from its creation to its removal.
//!
//! ```text
//! created --attach--> carrying bytes --either side ends--> removed
//!    |                                   '-- with a hold: --> waits --another stream--> carrying bytes
//!    '-- not attached for 30 s: removed                         '-- not in time: the agent ends it
//! ```

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE},
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader, copy_buf, split},
    sync::OwnedSemaphorePermit,
    time::timeout,
};

use sandbox_container::{CONNECT, LABEL_HOLD, Owner, Product, Profiles};

use super::{
    DRAIN_TIMEOUT, MAX_REQUEST_BYTES, REQUEST_TIMEOUT, Shared,
    answer::{Answer, Refused, answer, not_held, passed_on},
    description::{description, given_datasets},
    engine::{Attached, NoAnswer, whole},
    held::Place,
    request::{ContainerId, ExecId, Request, is_ours},
};
/// Time within which a new container must be attached.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after the limit of a hold, until which a container has certainly ended.
const HOLD_MARGIN: Duration = Duration::from_secs(15);

/// Size of the buffer for each direction of each stream, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

impl Shared {
    pub(super) async fn create(
        self: &Arc<Self>,
        name: String,
        body: Incoming,
    ) -> Result<Answer, Refused> {
        let place = self.held.place().ok_or(Refused::Full(self.held.most()))?;
        let body = timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_REQUEST_BYTES).collect()).await;
        let Ok(Ok(body)) = body else { return Err(Refused::Incomplete) };
        let given = serde_json::from_slice(&body.to_bytes()).map_err(|_| Refused::Incomplete)?;
        let has_datasets = given_datasets(&given).next().is_some();
        let empty = if has_datasets { Some(self.empty().await?) } else { None };
        let host = self.host().await?;
        let mut own = description(&self.settings, &host, (&name, empty), &given)?;
        if host.product == Product::Podman {
            self.place_profile(&mut own).map_err(Refused::Profile)?;
        }
        let making = self.clone().make(name, own, place);
        // In a task of its own: otherwise the container would remain if the client disconnects meanwhile.
        let made = self.tasks.spawn(making).await;
        made.unwrap_or_else(|_| Err(NoAnswer::Unexpected.into()))
    }

    /// Replaces the profile of a container by the path of a file of this relay, as Podman takes it.
    fn place_profile(&self, own: &mut Value) -> std::io::Result<()> {
        let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        let profiles = match &mut *profiles {
            Some(profiles) => profiles,
            none => none.insert(Profiles::new(&self.folder, &Owner::current())?),
        };
        let options = &mut own["HostConfig"]["SecurityOpt"];
        let mut placed: Vec<String> = serde_json::from_value(options.take())?;
        profiles.place(&mut placed)?;
        *options = json!(placed);
        Ok(())
    }

    async fn make(
        self: Arc<Self>,
        name: String,
        description: Value,
        place: Place,
    ) -> Result<Answer, Refused> {
        let body = Bytes::from(description.to_string());
        let response = whole(self.engine.ask(&Request::Create(name), Some(body)).await?).await?;
        if response.status() == StatusCode::CREATED {
            let made: Value =
                serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
            let id =
                made["Id"].as_str().and_then(ContainerId::parse).ok_or(NoAnswer::Unexpected)?;
            self.held.made(id.clone(), place);
            self.tasks.spawn(self.clone().remove_unattached(id));
        }
        let (head, body) = response.into_parts();
        Ok(answer(&head, Full::new(body).map_err(|never| match never {}).boxed_unsync()))
    }

    async fn remove_unattached(self: Arc<Self>, id: ContainerId) {
        let waited = self.stop.run_until_cancelled(tokio::time::sleep(ATTACH_TIMEOUT)).await;
        if waited.is_some() && self.held.has(&id) && !self.held.is_attached(&id) {
            self.remove(id).await;
        }
    }

    pub(super) async fn attach(
        self: &Arc<Self>,
        id: ContainerId,
        mut request: hyper::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Result<Answer, Refused> {
        if !self.held.attach(&id) {
            return Err(not_held());
        }
        let client = hyper::upgrade::on(&mut request);
        let shared = self.clone();
        // In a task of its own, which continues even if the client disconnects.
        let attaching = async move {
            match shared.engine.streams(&Request::Attach(id.clone()), None).await {
                Ok(Attached::Stream(engine)) => {
                    let holding = shared.clone().hold(id, client, engine, place);
                    shared.tasks.spawn(holding);
                    Ok(switching())
                }
                Ok(Attached::Refused(response)) => {
                    shared.remove(id).await;
                    Ok(passed_on(response))
                }
                Err(error) => {
                    shared.remove(id).await;
                    Err(error.into())
                }
            }
        };
        let attached = self.tasks.spawn(attaching).await;
        attached.unwrap_or_else(|_| Err(NoAnswer::Unexpected.into()))
    }

    /// Carries the bytes of a container until either side has ended, and then removes it, or with a hold waits for its
    /// end.
    async fn hold(
        self: Arc<Self>,
        id: ContainerId,
        client: OnUpgrade,
        engine: Upgraded,
        _place: Arc<OwnedSemaphorePermit>,
    ) {
        let carried = async {
            match client.await {
                Ok(client) => carry(client, engine).await,
                Err(error) => tracing::debug!(%error, "the server disconnected before the attach"),
            }
        };
        self.stop.run_until_cancelled(carried).await;
        match self.settings.hold {
            None => self.remove(id).await,
            Some(hold) => self.see_it_off(id, hold).await,
        }
    }

    /// Waits until a container that has lost its stream has another or has ended. If it has ended, frees its place.
    async fn see_it_off(self: Arc<Self>, id: ContainerId, hold: Duration) {
        let waited = self.stop.run_until_cancelled(tokio::time::sleep(hold + HOLD_MARGIN)).await;
        if waited.is_some() && !self.engine.inspect(&id).await.is_ok_and(|found| is_there(&found)) {
            self.held.gone(&id);
        }
    }

    /// Creates the process that brings the agent of a container another stream.
    pub(super) async fn connect(self: &Arc<Self>, id: ContainerId) -> Result<Answer, Refused> {
        if self.settings.hold.is_none() {
            return Err(Refused::NotAllowed("containers end with their streams"));
        }
        if !self.held.has(&id) {
            let found = self.engine.inspect(&id).await?;
            let found: Value =
                serde_json::from_slice(found.body()).map_err(|_| NoAnswer::Unexpected)?;
            let labels = &found["Config"]["Labels"];
            if !is_ours(labels) || !labels[LABEL_HOLD].is_string() {
                return Err(not_held());
            }
            let place = self.held.place().ok_or(Refused::Full(self.held.most()))?;
            self.held.taken_over(id.clone(), place);
            let hold = self.settings.hold.unwrap_or_default();
            self.tasks.spawn(self.clone().see_it_off(id.clone(), hold));
        }
        let description = json!({
            "AttachStdin": true, "AttachStdout": true, "AttachStderr": true, "Cmd": CONNECT,
        });
        let request = Request::Connect(id.clone());
        let body = Bytes::from(description.to_string());
        let response = whole(self.engine.ask(&request, Some(body)).await?).await?;
        if response.status() == StatusCode::CREATED {
            let made: Value =
                serde_json::from_slice(response.body()).map_err(|_| NoAnswer::Unexpected)?;
            let exec = made["Id"].as_str().and_then(ExecId::parse).ok_or(NoAnswer::Unexpected)?;
            self.held.may_begin(exec, id);
        }
        let (head, body) = response.into_parts();
        Ok(answer(&head, Full::new(body).map_err(|never| match never {}).boxed_unsync()))
    }

    /// Starts a process that [`connect`](Self::connect) created, and carries its bytes until either side has ended.
    pub(super) async fn begin(
        self: &Arc<Self>,
        exec: ExecId,
        mut request: hyper::Request<Incoming>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Result<Answer, Refused> {
        let id = self.held.begin(&exec).ok_or_else(not_held)?;
        // The stream follows the request on the same connection.
        let rest = Limited::new(request.body_mut(), MAX_REQUEST_BYTES).collect();
        if !matches!(timeout(REQUEST_TIMEOUT, rest).await, Ok(Ok(_))) {
            return Err(Refused::Incomplete);
        }
        let client = hyper::upgrade::on(&mut request);
        let body = Bytes::from_static(br#"{"Detach":false,"Tty":false}"#);
        match self.engine.streams(&Request::Begin(exec), Some(body)).await? {
            Attached::Stream(engine) => {
                self.tasks.spawn(self.clone().hold(id, client, engine, place));
                Ok(switching())
            }
            Attached::Refused(response) => Ok(passed_on(response)),
        }
    }

    /// Removes a container. Usually the engine has already begun to remove it.
    pub(super) async fn remove(&self, id: ContainerId) {
        let request = Request::Remove(id.clone());
        match timeout(REQUEST_TIMEOUT, self.engine.ask(&request, None)).await {
            Ok(Ok(response)) => {
                let status = response.status();
                let gone = matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT);
                if !(status.is_success() || gone) {
                    tracing::warn!(container = %id, %status, "failed to remove a container");
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(container = %id, %error, "failed to remove a container");
            }
            Err(_) => tracing::warn!(container = %id, "the engine did not confirm a removal"),
        }
        self.held.gone(&id);
    }
}

/// Whether an inspected container exists.
fn is_there(found: &Response<Bytes>) -> bool {
    found.status() != StatusCode::NOT_FOUND
}

/// Copies bytes in both directions until either side ends.
async fn carry(client: Upgraded, engine: Upgraded) {
    let (from_client, mut to_client) = split(TokioIo::new(client));
    let (from_engine, mut to_engine) = split(TokioIo::new(engine));
    let up = async {
        let _ = copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, from_client), &mut to_engine)
            .await;
        let _ = to_engine.shutdown().await;
    };
    let down = async {
        let _ = copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, from_engine), &mut to_client)
            .await;
        let _ = to_client.shutdown().await;
    };
    tokio::pin!(down);
    tokio::select! {
        () = &mut down => {}
        () = up => { let _ = timeout(DRAIN_TIMEOUT, down).await; }
    }
}

fn switching() -> Answer {
    let mut answer = Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("tcp"));
    let multiplexed = HeaderValue::from_static("application/vnd.docker.multiplexed-stream");
    headers.insert(CONTENT_TYPE, multiplexed);
    answer
}
