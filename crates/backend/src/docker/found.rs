//! Makes a [`ListedSandbox`] of each container that the engine lists.

use std::time::{Duration, SystemTime};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use sandbox_container::{LABEL_HOLD, LABEL_OWNER, Owner};

use crate::{Life, ListedSandbox, SandboxOwner, SandboxState};

pub(super) fn found(container: ContainerSummary) -> Option<ListedSandbox> {
    use ContainerSummaryStateEnum as State;
    let created = u64::try_from(container.created.unwrap_or(0)).unwrap_or(0);
    let labels = container.labels?;
    let owner: Option<Owner> = labels.get(LABEL_OWNER).and_then(|label| label.parse().ok());
    Some(ListedSandbox {
        id: container.id?,
        created: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
        state: match container.state {
            Some(State::RUNNING | State::PAUSED | State::RESTARTING | State::STOPPING) => {
                SandboxState::Running
            }
            _ => SandboxState::Stopped,
        },
        owner: owner.map(|owner| SandboxOwner { life: life(&owner), id: owner.to_string().into() }),
        is_resumable: labels.contains_key(LABEL_HOLD),
        caller: None,
        is_in_use: false,
    })
}

fn life(owner: &Owner) -> Life {
    match owner.is_alive() {
        Some(true) => Life::Alive,
        Some(false) => Life::Dead,
        None => Life::Unknown,
    }
}
