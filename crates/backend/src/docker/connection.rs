//! The connection to the engine, and the files that it reads.

use bollard::{Docker as Engine, models::ContainerCreateBody};
use parking_lot::Mutex;
use sandbox_container::{Owner, Product, Profiles, folder_for_engine};

use super::{
    engine,
    facts::EngineFacts,
    sockets::{self, Found},
};
use crate::BackendError;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) engine: Engine,
    pub(super) facts: EngineFacts,
    /// The engine's address.
    pub(super) host: String,
    /// The path of the empty volume on the engine's host, once it is known.
    pub(super) empty: Mutex<Option<String>>,
    /// The files with the allowed system calls, if the engine takes files.
    profiles: Mutex<Option<Profiles>>,
}

impl Connection {
    pub(super) fn of(Found { host, engine, facts }: Found) -> Self {
        Self { engine, facts, host, empty: Mutex::default(), profiles: Mutex::default() }
    }

    /// Removes the files that this server has written for the engine.
    pub(super) fn close(&self) {
        self.profiles.lock().take();
    }

    /// Replaces the profile of the allowed system calls by the path of a file, if the engine takes a path.
    pub(super) fn place_profile(
        &self,
        owner: &Owner,
        body: &mut ContainerCreateBody,
    ) -> Result<(), BackendError> {
        if self.facts.host.product != Product::Podman || self.facts.is_relay {
            return Ok(());
        }
        if !sockets::is_local(&self.host) {
            return Err(engine::podman_is_remote(&self.host));
        }
        let mut profiles = self.profiles.lock();
        if profiles.is_none() {
            let made = Profiles::new(&folder_for_engine(), owner);
            *profiles = Some(made.map_err(engine::no_profile)?);
        }
        let options = body.host_config.as_mut().and_then(|it| it.security_opt.as_mut());
        match (&*profiles, options) {
            (Some(profiles), Some(options)) => profiles.place(options).map_err(engine::no_profile),
            _ => Ok(()),
        }
    }
}
