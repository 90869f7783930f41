//! A small child of the server that outlives it just long enough.
//!
//! A container that was created but not started when its server is killed never starts, so it never
//! ends by itself; and a sweep comes only with the next server. The guard waits for its input to
//! close, which the kernel does for every way of dying, and then removes what the server owned.
//! A server that ends in good order dismisses it first.

use std::process::{ExitCode, Stdio};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::{
    backend::{OwnerId, sweep},
    config::{Config, Engine},
};

/// The server's side.
pub(super) struct Guard(Child);

/// What a server says that leaves nothing behind.
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
            // Not the server's: a client waits for these to close.
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

/// The guard's side: waits for the server's end.
pub(super) async fn guard(config: &Config, owner: &OwnerId) -> ExitCode {
    let backend = match super::backend(config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    // It ends when its work is done, and whoever ends the server by a signal to all wants it done.
    let ignored = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let _ignored: Vec<_> = ignored.into_iter().filter_map(|kind| signal(kind).ok()).collect();

    let mut message = [0];
    let dismissed = matches!(tokio::io::stdin().read(&mut message).await, Ok(1..));
    if !dismissed {
        sweep::clear(&*backend, owner).await;
    }
    ExitCode::SUCCESS
}
