//! A relay between a server and its engine, for a server that must not have the engine's socket: a process that has it
//! can be root on the host.
//!
//! ```text
//! server --- the relay's socket --- relay --- the engine's socket
//!                                     |
//!         fourteen requests, written anew; a container is created only if it is exactly the one that
//!            these settings describe, and only containers created here are attached to and started
//! ```
//!
//! - [`request`]: the allowed requests. [`answer`]: answers one request. [`container`]: a container from its creation
//!   to its removal; [`description`]: what it may be. [`held`]: the containers of this relay. [`engine`]: connections
//!   to the engine.
//!
//! A container lives as long as the stream that its server attached. If either side of the stream ends, the relay ends
//! the other, and then makes sure that the container is removed, so a server that is killed leaves nothing. The relay
//! also removes a container that is never attached, and all of its containers when it ends.
//!
//! With `SANDBOX_HOLD_S` a container outlives its stream, its server and its relay for this time, and a server may
//! bring its agent another stream, by a process that does nothing else.

mod answer;
mod container;
mod description;
mod engine;
mod held;
mod request;
mod settings;

use std::{
    convert::Infallible,
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sandbox_container::{Host, MAX_FETCHERS, Profiles};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::settings::{LogFormat, Settings};
use self::{
    engine::Engine,
    held::Held,
    request::{ContainerId, Request},
};

/// A relay that listens.
#[derive(Debug)]
pub struct Relay {
    listener: UnixListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    engine: Engine,
    /// The engine's host, on which a container's options depend.
    host: OnceCell<Host>,
    /// The folder for files that the engine reads.
    folder: PathBuf,
    /// The files with the allowed system calls, if the engine takes files.
    profiles: Mutex<Option<Profiles>>,
    held: Held,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Time limit for receiving a head, and a body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum size of a head, and of a container's description, in bytes. The description is mostly the seccomp
/// profile, 10 KB.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Time for which a container may still write after its server has stopped writing.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

enum Event {
    Accepted(io::Result<(UnixStream, OwnedSemaphorePermit)>),
    Stop,
}

impl Relay {
    /// Listens on a new socket for the server with these settings. The socket's owner and group may use it. The engine
    /// sees `folder` by the same path.
    ///
    /// # Errors
    /// If the socket cannot be created, or another relay listens on it.
    pub fn bind(
        settings: Settings,
        engine: &Path,
        socket: &Path,
        folder: &Path,
    ) -> io::Result<Self> {
        // The socket of an earlier relay, which remains if the relay was killed.
        if let Ok(found) = std::fs::symlink_metadata(socket)
            && found.file_type().is_socket()
        {
            if std::os::unix::net::UnixStream::connect(socket).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(socket)?;
        }
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660))?;
        let shared = Shared {
            held: Held::new(2 * settings.max_sessions + MAX_FETCHERS),
            settings,
            engine: Engine::new(engine),
            host: OnceCell::new(),
            folder: folder.to_owned(),
            profiles: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Relays until `stop` is cancelled, and then removes the remaining containers.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { listener, shared } = self;
        // A container takes two connections; the others are short.
        let places = Arc::new(Semaphore::new(2 * shared.held.most() + 64));
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => Event::Stop,
                accepted = accept(&listener, &places) => Event::Accepted(accepted),
            };
            match event {
                Event::Accepted(Ok((stream, place))) => {
                    let serving = serve(shared.clone(), stream, place);
                    let stop = shared.stop.clone();
                    shared.tasks.spawn(async move { stop.run_until_cancelled(serving).await });
                }
                Event::Accepted(Err(error)) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Event::Stop => break,
            }
        }
        drop(listener);
        shared.stop.cancel();
        shared.tasks.close();
        let _ = timeout(DRAIN_TIMEOUT, shared.tasks.wait()).await;
        // Containers with a hold wait for another relay, or end by themselves.
        let holds =
            |id: &ContainerId| shared.settings.hold.is_some() && shared.held.is_attached(id);
        let left = shared.held.all().into_iter().filter(|id| !holds(id));
        futures::future::join_all(left.map(|id| shared.remove(id))).await;
    }
}

/// Checks that the engine behind the relay that listens on this socket answers.
///
/// # Errors
/// If the engine does not answer, or no relay listens on the socket.
pub async fn is_answered(socket: &Path) -> io::Result<()> {
    let response = Engine::new(socket).ask(&Request::Ping, None).await.map_err(io::Error::other)?;
    let status = response.status();
    if status.is_success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

async fn accept(
    listener: &UnixListener,
    places: &Arc<Semaphore>,
) -> io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.expect("places are never closed");
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn serve(shared: Arc<Shared>, stream: UnixStream, place: OwnedSemaphorePermit) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES);
    let place = Arc::new(place);
    let service = service_fn(move |request| {
        let (shared, place) = (shared.clone(), place.clone());
        async move { Ok::<_, Infallible>(shared.answer(request, place).await) }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended early");
    }
}
