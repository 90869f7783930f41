//! Accepts connections, and closes those that occupy a place without using it or whose place others need.
//!
//! ```text
//! accept (there is room) --> task: heads and answers, each within its time limit, until it is cut off
//!         ^                      |
//!         '---- place is free ---'
//! ```

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, header::CONNECTION},
    middleware::Next,
    response::Response,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use model::Principal;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use super::{
    body::holding,
    forward::PeerGate,
    limits::{Limits, MAX_HEAD},
    seats::{Places, Seat, Seats, TooMany},
    tls::{Tls, first_byte},
};

/// The step before the first request of a connection.
#[derive(Clone)]
pub(super) enum Entry {
    /// Nothing.
    Open,
    /// The handshake of TLS.
    Tls(Arc<Tls>),
    /// The proof that the peer is another server.
    Peers(PeerGate),
}

/// Round trips of a handshake of TLS 1.2, the longer one.
const HANDSHAKE_ROUND_TRIPS: u32 = 2;

enum Event {
    Accepted(io::Result<(TcpStream, IpAddr)>),
    Ended,
    Stop,
}

/// Serves until `stop` is cancelled, and then finishes requests in progress for at most `limits.grace`.
pub(super) async fn serve(
    socket: TcpListener,
    app: Router,
    limits: Limits,
    entry: Entry,
    stop: CancellationToken,
) {
    let round_trips = if matches!(entry, Entry::Tls(_)) { 1 + HANDSHAKE_ROUND_TRIPS } else { 1 };
    let seats = Seats::new(Places {
        strangers: limits.strangers,
        clients: limits.connections,
        round_trips,
    });
    let mut connections = JoinSet::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => Event::Stop,
            Some(_) = connections.join_next() => Event::Ended,
            accepted = accept(&socket, &seats) => Event::Accepted(accepted),
        };
        match event {
            Event::Accepted(Ok((stream, peer))) => {
                let (app, stop, entry) = (app.clone(), stop.clone(), entry.clone());
                let seat = seats.take(peer);
                connections.spawn(SEAT.scope(seat.clone(), async move {
                    let served = admit(Heard(stream, seat.clone()), app, limits, entry, stop);
                    tokio::select! {
                        () = served => {}
                        () = seat.cut() => tracing::debug!("connection closed to make room for another"),
                    }
                }));
            }
            // The client disconnected before its connection was accepted.
            Event::Accepted(Err(error)) if is_the_clients(&error) => {}
            Event::Accepted(Err(error)) => {
                // Probably out of file descriptors. Without a pause this would be a busy loop.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Event::Ended => {}
            Event::Stop => break,
        }
    }
    drop(socket);
    // Connections that are still open then are cut off.
    let _ = timeout(limits.grace, async { while connections.join_next().await.is_some() {} }).await;
}

/// Accepts a connection when there is room. Until then it waits in the kernel, at no cost to the server.
async fn accept(socket: &TcpListener, seats: &Seats) -> io::Result<(TcpStream, IpAddr)> {
    seats.room().await;
    let (stream, peer) = socket.accept().await?;
    Ok((stream, peer.ip()))
}

tokio::task_local! {
    /// The place of the connection that a task serves. Requests are handled in the task of their connection.
    static SEAT: Seat;
}

/// Assigns the current request's connection to this client. Does nothing outside a connection.
///
/// # Errors
/// If the client has reached its limit of connections.
pub(super) fn is_of(client: &Principal) -> Result<(), TooMany> {
    SEAT.try_with(|seat| seat.known(client)).unwrap_or(Ok(()))
}

/// Returns a token that cuts off the current request's connection when it is cancelled.
pub(super) fn cut_off() -> Option<CancellationToken> {
    SEAT.try_with(Seat::cut_off).ok()
}

/// Marks the connection as busy until the answer has been sent. A connection without a known client is closed
/// after one answer: answers that its peer never reads would be wasted work.
pub(super) async fn occupy(request: Request, next: Next) -> Response {
    let busy = SEAT.try_with(Seat::begin).ok();
    let mut response = next.run(request).await;
    if SEAT.try_with(Seat::is_strangers).unwrap_or(false) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| holding(body, busy))
}

/// A connection that records whether everything sent on it has been read.
struct Heard(TcpStream, Seat);

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        self.1.is_silent(read.is_pending());
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Fails writes if the client reads nothing for this time.
fn watched(stream: Heard, stall: Duration) -> Pin<Box<TimeoutStream<Heard>>> {
    // Pieces are large, so that delaying them to send more at once gains nothing.
    let _ = stream.0.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    Box::pin(stream)
}

/// Serves a connection, after what comes before its requests.
async fn admit(
    mut stream: Heard,
    app: Router,
    limits: Limits,
    entry: Entry,
    stop: CancellationToken,
) {
    let since = Instant::now();
    match entry {
        Entry::Open => {}
        Entry::Peers(gate) => {
            if let Err(error) = gate.admit(&mut stream.0).await {
                return tracing::debug!(%error, "connection closed: the peer did not prove that it is a server");
            }
        }
        Entry::Tls(tls) => {
            let shaking_hands = async {
                let first = first_byte(&stream.0, |waits| stream.1.is_silent(waits)).await?;
                tls.accept(watched(stream, limits.stall), first).await
            };
            let in_time = timeout(limits.head, shaking_hands);
            match stop.run_until_cancelled(in_time).await {
                Some(Ok(Ok(Some(stream)))) => {
                    let head = limits.head.saturating_sub(since.elapsed());
                    connection(app, stream, head, stop).await;
                }
                Some(Ok(Err(error))) => tracing::debug!(%error, "connection closed: no TLS"),
                Some(Ok(Ok(None)) | Err(_)) => tracing::debug!("connection closed: no TLS"),
                None => {}
            }
            return;
        }
    }
    connection(app, watched(stream, limits.stall), limits.head, stop).await;
}

/// Serves the requests of a connection. `head` is the most time for the head of each.
async fn connection(
    app: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    head: Duration,
    stop: CancellationToken,
) {
    let service = TowerToHyperService::new(app);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(MAX_HEAD);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}
