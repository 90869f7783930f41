//! Turns at opening workspaces: whoever comes for one that is just being opened waits for that.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::which::{Workspace, WorkspaceKey};
use crate::auth::Principal;

type Turn = tokio::sync::Mutex<()>;

/// The workspaces that are being opened.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<(Principal, WorkspaceKey), Weak<Turn>>>);

impl Turns {
    /// Waits until nobody else opens this workspace of the caller. It is the caller's turn while the guard
    /// lives.
    pub(super) async fn of(
        &self,
        caller: &Principal,
        workspace: &Workspace,
    ) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock();
            // Those that nobody holds or waits for.
            all.retain(|_, turn| turn.strong_count() > 0);
            let turn = all.entry((caller.clone(), workspace.key().clone())).or_default();
            turn.upgrade().unwrap_or_else(|| {
                let new = Arc::<Turn>::default();
                *turn = Arc::downgrade(&new);
                new
            })
        };
        turn.lock_owned().await
    }
}
