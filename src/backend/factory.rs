//! Which backend the settings name: the one place that knows them all.

use std::{io, sync::Arc};

use super::{Backend, docker::Docker, local::Local};
use crate::config::{Config, Engine};

/// The backend that these settings name.
///
/// # Errors
/// If it needs a folder on this machine that cannot be made. Whether an engine answers shows later.
pub fn of(config: &Config) -> io::Result<Arc<dyn Backend>> {
    Ok(match config.engine {
        Engine::Docker => Arc::new(Docker::new(&config.image, config.runtime.as_deref())),
        Engine::Local => Arc::new(Local::new()?),
    })
}
