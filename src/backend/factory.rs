//! Which backend the settings name: the one place that knows them all.

use std::{io, sync::Arc, time::Duration};

use tokio::time::timeout;

#[cfg(feature = "wasm")]
use super::wasm::Wasm;
use super::{Backend, docker::Docker, local::Local};
use crate::config::{Config, Engine};

/// Longest that an engine may take to say whether it can be used.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The backend that these settings name.
///
/// # Errors
/// If it needs a folder on this machine that cannot be made, or this program was built without it. Whether an engine
/// answers shows later.
pub fn of(config: &Config) -> io::Result<Arc<dyn Backend>> {
    Ok(match config.engine {
        // Whoever has not chosen means Docker.
        Engine::Auto | Engine::Docker => {
            Arc::new(Docker::new(&config.image, config.runtime.as_deref()))
        }
        #[cfg(feature = "wasm")]
        Engine::Wasm => Arc::new(Wasm::new(config)),
        #[cfg(not(feature = "wasm"))]
        Engine::Wasm => {
            return Err(io::Error::other(
                "SANDBOX_ENGINE is wasm, and this program was built without the embedded engine",
            ));
        }
        Engine::Local => Arc::new(Local::new()?),
    })
}

/// The engine that `auto` means here and now, and why.
pub async fn choose(config: &Config) -> (Engine, String) {
    let ready = async |engine| {
        let backend =
            of(&Config { engine, ..config.clone() }).map_err(|error| error.to_string())?;
        backend.ready().await.map_err(|error| error.to_string())
    };
    first_ready(ready(Engine::Wasm), ready(Engine::Docker)).await
}

/// Which of two it is, by whether they could start a sandbox now. Docker is not asked where there is no choice.
async fn first_ready(
    wasm: impl Future<Output = Result<(), String>>,
    docker: impl Future<Output = Result<(), String>>,
) -> (Engine, String) {
    if let Err(why) = wasm.await {
        return (Engine::Docker, format!("the embedded engine cannot be used: {why}"));
    }
    match timeout(ANSWER_TIMEOUT, docker).await {
        Ok(Ok(())) => (Engine::Docker, "its engine answers, and has the image".into()),
        Ok(Err(why)) => (Engine::Wasm, format!("Docker cannot be used: {why}")),
        Err(_) => (Engine::Wasm, "Docker did not answer in time".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn docker_is_taken_where_it_is_ready_or_nothing_else_is() {
        let (engine, why) = first_ready(ready(Ok(())), ready(Ok(()))).await;
        assert_eq!(engine, Engine::Docker, "{why}");
        let (engine, why) = first_ready(ready(Err("no runtime".into())), pending()).await;
        assert_eq!(engine, Engine::Docker);
        assert!(why.contains("no runtime"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_embedded_engine_is_taken_where_docker_is_missing_or_slow() {
        let (engine, why) = first_ready(ready(Ok(())), ready(Err("no image".into()))).await;
        assert_eq!(engine, Engine::Wasm);
        assert!(why.contains("no image"), "{why}");
        let (engine, why) = first_ready(ready(Ok(())), pending()).await;
        assert_eq!(engine, Engine::Wasm);
        assert!(why.contains("in time"), "{why}");
    }
}
