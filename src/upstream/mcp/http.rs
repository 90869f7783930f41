//! Servers of MCP over streamable HTTP. Answers are limited in size while they are read.

use std::{collections::HashMap, io, sync::Arc};

use bytes::{Bytes, BytesMut};
use config::upstreams::{Reached, Upstream as Settings};
use futures::{StreamExt, stream::BoxStream};
use reqwest::{
    Client, Error, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, ErrorData, RequestId, ServerJsonRpcMessage},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport,
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE},
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse,
        },
        worker::WorkerQuitReason,
    },
};
use sse_stream::{Error as SseError, Sse, SseStream};
use url::Url;

use super::{super::net, max_message, too_large};

/// Most characters of the body of an error.
const MAX_ERROR: usize = 300;

/// A client that limits answers.
#[derive(Debug, Clone)]
pub(super) struct Bounded {
    client: Client,
    max: usize,
}

type Failed = StreamableHttpError<Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// The transport to an upstream.
///
/// # Errors
/// If its address is none that it may have.
pub(super) fn transport(
    settings: &Settings,
) -> Result<StreamableHttpClientTransport<Bounded>, String> {
    let Reached::Mcp { url, headers } = &settings.reached else {
        return Err("it is no server of MCP over HTTP".into());
    };
    let parsed: Url = url.reveal().parse().map_err(|_| "its URL is invalid")?;
    let client = net::client(&parsed, settings.private)?;
    let headers = net::headers(headers)?;
    let headers = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let max = max_message(settings);
    let config = StreamableHttpClientTransportConfig::with_uri(url.reveal())
        .custom_headers(headers)
        .max_concurrent_requests(64)
        .max_sse_event_size(max);
    Ok(StreamableHttpClientTransport::with_client(Bounded { client, max }, config))
}

impl StreamableHttpClient for Bounded {
    type Error = Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let body = serde_json::to_vec(&message)?;
        let mut request = self.client.post(&*uri).headers(headers.into_iter().collect());
        let both = format!("{EVENT_STREAM_MIME_TYPE}, {JSON_MIME_TYPE}");
        request = request.header(ACCEPT, both).header(CONTENT_TYPE, JSON_MIME_TYPE).body(body);
        let has_session = session_id.is_some();
        if let Some(id) = session_id {
            request = request.header(HEADER_SESSION_ID, &*id);
        }
        let response = request.send().await.map_err(without_url)?;
        let asked = Asked::of(&message);
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            return self.refused(response, &asked, has_session).await;
        }
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let (session, kind) = (header(HEADER_SESSION_ID), header(CONTENT_TYPE.as_str()));
        match kind {
            Some(kind) if kind.starts_with(EVENT_STREAM_MIME_TYPE) => {
                Ok(StreamableHttpPostResponse::Sse(self.events(response, asked.id), session))
            }
            kind => {
                let Some(body) = self.read(response).await? else {
                    let error = ServerJsonRpcMessage::error(too_large(), asked.id);
                    return Ok(StreamableHttpPostResponse::Json(error, session));
                };
                match (serde_json::from_slice(&body), asked.id) {
                    (Ok(message), _) => Ok(StreamableHttpPostResponse::Json(message, session)),
                    // Nothing needs an answer but a request.
                    (Err(_), None) => Ok(StreamableHttpPostResponse::Accepted),
                    (Err(_), Some(_)) if kind.as_deref().is_some_and(is_json) => {
                        Err(unexpected("it answered with something that is no answer".into()))
                    }
                    (Err(_), Some(_)) => Err(StreamableHttpError::UnexpectedContentType(kind)),
                }
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        self.client.delete_session(uri, session_id, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let Self { client, max } = self;
        let stream = client.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            auth,
            headers,
            *max,
        );
        stream.await
    }
}

/// The request in a message, if it is one.
struct Asked {
    id: Option<RequestId>,
    is_discover: bool,
}

impl Asked {
    fn of(message: &ClientJsonRpcMessage) -> Self {
        match message {
            ClientJsonRpcMessage::Request(request) => Self {
                id: Some(request.id.clone()),
                is_discover: matches!(request.request, ClientRequest::DiscoverRequest(_)),
            },
            _ => Self { id: None, is_discover: false },
        }
    }
}

impl Bounded {
    /// The answer with a status of failure. An old server refuses the first request of the newer generation so, and is
    /// then asked as the older one does.
    async fn refused(
        &self,
        response: Response,
        asked: &Asked,
        has_session: bool,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let status = response.status();
        let body = self.read(response).await?.unwrap_or_default();
        // Some servers answer so, and not with 404, if they have lost the session. They have not carried out the
        // request, which is repeated in a new session, as after 404.
        if has_session && status == StatusCode::BAD_REQUEST && is_about_session(&body) {
            return Err(StreamableHttpError::SessionExpired);
        }
        let is_login = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let told = match serde_json::from_slice(&body) {
            Ok(ServerJsonRpcMessage::Error(error)) => Some(error),
            _ => None,
        };
        let is_old = asked.is_discover && !has_session && status.is_client_error();
        if !is_login && is_old {
            let refused = || ErrorData::invalid_request(format!("HTTP {status}"), None);
            let error = told.map_or_else(refused, |told| told.error);
            let error = ServerJsonRpcMessage::error(error, asked.id.clone());
            return Ok(StreamableHttpPostResponse::Json(error, None));
        }
        if !is_login && let Some(told) = told {
            let error = ServerJsonRpcMessage::error(told.error, told.id.or(asked.id.clone()));
            return Ok(StreamableHttpPostResponse::Json(error, None));
        }
        let start: String = String::from_utf8_lossy(&body).chars().take(MAX_ERROR).collect();
        Err(unexpected(format!("HTTP {status}: {start}")))
    }

    /// The body of a response; `None` if it is too large.
    async fn read(&self, mut response: Response) -> Result<Option<Bytes>, Failed> {
        let mut all = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(without_url)? {
            if all.len() + chunk.len() > self.max {
                return Ok(None);
            }
            all.extend_from_slice(&chunk);
        }
        Ok(Some(all.freeze()))
    }

    /// The events of a response. If they are too large together, the request gets an error, and they end.
    fn events(
        &self,
        response: Response,
        id: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let mut left = self.max;
        let limited = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(|error| io::Error::other(net::told(error)))?;
            match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => return Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            }
            Ok(chunk)
        });
        let events = SseStream::from_bytes_stream(limited);
        let events = events.map(move |event| match event {
            Err(error) if is_too_large(&error) => {
                let error = ServerJsonRpcMessage::error(too_large(), id.clone());
                let data = serde_json::to_string(&error).expect("a message can be written");
                Ok(Sse { data: Some(data), ..Sse::default() })
            }
            other => other,
        });
        events.boxed()
    }
}

/// The words of an error of this transport, if it is one.
pub(super) fn told(error: &DynamicTransportError) -> Option<String> {
    let error = error.error.as_ref() as &(dyn std::error::Error + 'static);
    let failed = match error.downcast_ref::<WorkerQuitReason<Failed>>() {
        Some(WorkerQuitReason::Fatal { error, .. }) => error,
        _ => error.downcast_ref::<Failed>()?,
    };
    Some(match failed {
        StreamableHttpError::Client(error) => net::chain(error),
        StreamableHttpError::UnexpectedServerResponse(why) => why.to_string(),
        other => other.to_string(),
    })
}

fn is_too_large(error: &SseError) -> bool {
    let SseError::Body(error) = error else { return false };
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
}

/// Whether the body of an error has the word session.
fn is_about_session(body: &[u8]) -> bool {
    let start = &body[..body.len().min(MAX_ERROR)];
    String::from_utf8_lossy(start).to_ascii_lowercase().contains("session")
}

fn is_json(kind: &str) -> bool {
    kind.starts_with(JSON_MIME_TYPE)
}

fn unexpected(why: String) -> Failed {
    StreamableHttpError::UnexpectedServerResponse(why.into())
}

/// The error without the URL, which can have secrets.
fn without_url(error: Error) -> Failed {
    StreamableHttpError::Client(error.without_url())
}
