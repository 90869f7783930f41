//! Accepts connections and ends those that hold a place without using it.
//!
//! ```text
//! accept (a place is free) --> task: heads and answers, each within its time
//!         ^                      |
//!         '---- place is free ---'
//! ```

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use super::limits::{Limits, MAX_HEAD};

enum Event {
    Accepted(io::Result<(TcpStream, OwnedSemaphorePermit)>),
    Ended,
    Stop,
}

/// Serves until `stop` is cancelled, and then for as long as what is under way takes, within bounds.
pub(super) async fn serve(
    socket: TcpListener,
    app: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(MAX_HEAD);
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => Event::Stop,
            Some(_) = connections.join_next() => Event::Ended,
            accepted = accept(&socket, &places) => Event::Accepted(accepted),
        };
        match event {
            Event::Accepted(Ok((stream, place))) => {
                let (http, app, stop) = (http.clone(), app.clone(), stop.clone());
                connections.spawn(async move {
                    connection(&http, app, stream, limits.stall, stop).await;
                    drop(place);
                });
            }
            // It left before its turn.
            Event::Accepted(Err(error)) if is_the_clients(&error) => {}
            Event::Accepted(Err(error)) => {
                // Out of descriptors, most likely. Without a pause this would be a busy loop.
                tracing::warn!(%error, "no connection could be accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Event::Ended => {}
            Event::Stop => break,
        }
    }
    drop(socket);
    // Whatever is left then is cut off.
    let _ = timeout(limits.grace, async { while connections.join_next().await.is_some() {} }).await;
}

/// The place comes first: who finds none waits in the kernel, and costs nothing here.
async fn accept(
    socket: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.expect("places are never closed");
    let (stream, _) = socket.accept().await?;
    Ok((stream, place))
}

async fn connection(
    http: &http1::Builder,
    app: Router,
    stream: TcpStream,
    stall: Duration,
    stop: CancellationToken,
) {
    // Pieces are large; waiting for more to send with them gains nothing.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    let service = TowerToHyperService::new(app);
    let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
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
