//! A small child process of the server, which outlives it only to clean up.
//!
//! If the server is killed after it created a container but before it started it, the container never starts,
//! and so never ends by itself; and the next sweep comes only with the next server. The guard waits for its
//! input to close, which the kernel does however the server dies, and then removes what the server owned. A
//! server that ends normally dismisses it first.

use std::process::{ExitCode, Stdio};

use backend::{OwnerId, sweep};
use config::{Config, Engine};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

/// The server's side.
pub(super) struct Guard(Child);

/// The message of a server that leaves nothing behind.
const DISMISSED: u8 = b'.';

impl Guard {
    pub(super) fn start(engine: Engine, owner: &OwnerId) -> std::io::Result<Self> {
        // The file may have been replaced since this program started.
        let program = if cfg!(target_os = "linux") {
            "/proc/self/exe".into()
        } else {
            std::env::current_exe()?
        };
        let child = Command::new(program)
            .args(["guard", "--engine", engine.as_str(), &owner.to_string()])
            .stdin(Stdio::piped())
            // Not the server's own: a client waits for those to close.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of a signal to the server's group, such as a terminal's Ctrl-C.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    pub(super) async fn dismiss(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(&[DISMISSED]).await;
        }
        let _ = self.0.wait().await;
    }
}

/// The guard's side: waits for the server to end.
pub(super) async fn guard(config: &Config, owner: &OwnerId) -> ExitCode {
    let backend = match super::backend(config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    // The guard ends when its work is done. A signal to all processes must not stop that work.
    let ignored = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let _ignored: Vec<_> = ignored.into_iter().filter_map(|kind| signal(kind).ok()).collect();

    let mut message = [0];
    let dismissed = matches!(tokio::io::stdin().read(&mut message).await, Ok(1..));
    if !dismissed {
        sweep::clear(&*backend, owner).await;
    }
    ExitCode::SUCCESS
}
