//! Choice of the backend by the settings. No other module names all backends.

use std::{io, sync::Arc, time::Duration};

use config::{Config, Engine};
use tokio::time::timeout;

#[cfg(feature = "kubernetes")]
use super::kubernetes::Kubernetes;
#[cfg(feature = "wasm")]
use super::wasm::Wasm;
use super::{
    Backend, BackendErrorKind,
    docker::{Docker, PackageSettings},
    local::Local,
    template::Template,
};

/// Longest that an engine may take to answer whether it can be used.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The backend that these settings name.
///
/// # Errors
/// If the backend needs a folder on this machine that cannot be made, or a file that cannot be used, or this program
/// was built without the backend. The engine is not contacted yet.
pub fn of(config: &Config) -> io::Result<Arc<dyn Backend>> {
    Ok(match config.engine {
        // Docker is the default.
        Engine::Auto | Engine::Docker => {
            let packages = config.packages_within();
            let packages = packages
                .map(|limit| PackageSettings { limit, network: config.packages_network.clone() });
            let docker = Docker::new(&config.image, config.runtime.as_deref());
            let docker = docker.with_packages(packages).with_gpus(config.gpus.clone());
            Arc::new(docker.or_instead(config.engine_instead.clone()))
        }
        #[cfg(feature = "kubernetes")]
        Engine::Kubernetes => Arc::new(Kubernetes::new(config).map_err(io::Error::other)?),
        #[cfg(not(feature = "kubernetes"))]
        Engine::Kubernetes => {
            return Err(io::Error::other(
                "SANDBOX_ENGINE is kubernetes, and this program was built without it: build it with \
                 `cargo build --release --features kubernetes`, or use the server's image",
            ));
        }
        #[cfg(feature = "wasm")]
        Engine::Wasm => Arc::new(Wasm::new(config).map_err(io::Error::other)?),
        #[cfg(not(feature = "wasm"))]
        Engine::Wasm => {
            return Err(io::Error::other(
                "SANDBOX_ENGINE is wasm, and this program was built without the embedded engine",
            ));
        }
        Engine::Local => {
            let template = Template::in_settings("local", config).map_err(io::Error::other)?;
            Arc::new(Local::of(template)?)
        }
    })
}

/// The engine that `auto` selects on this machine now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// The reason.
    pub why: String,
    /// How to make the other engine usable, if it is not.
    pub instead: Option<String>,
}

/// Selects the engine that `auto` means on this machine now, with the reason.
pub async fn choose(config: &Config) -> Choice {
    let ready = async |engine| {
        let backend =
            of(&Config { engine, ..config.clone() }).map_err(|error| error.to_string())?;
        match backend.ready().await {
            // An operator who has given the image a label means Docker, and has to be told of its fault.
            Err(error) if error.kind != BackendErrorKind::TemplateInvalid => Err(error.to_string()),
            _ => Ok(()),
        }
    };
    let choice = first_ready(ready(Engine::Wasm), ready(Engine::Docker)).await;
    // Without the Cargo feature `wasm` the embedded engine cannot be set up.
    Choice { instead: choice.instead.filter(|_| cfg!(feature = "wasm")), ..choice }
}

/// Selects the engine for which this machine lacks the least: Docker if an engine answers, whether or not it has the
/// image, else the embedded engine.
pub async fn installable(config: &Config) -> Choice {
    let docker = async {
        let backend = of(&Config { engine: Engine::Docker, ..config.clone() })
            .map_err(|error| error.to_string())?;
        match backend.ready().await {
            Ok(()) => Ok("its engine answers, and has the image"),
            Err(error) => match error.kind {
                BackendErrorKind::TemplateMissing
                | BackendErrorKind::TemplateOutdated
                | BackendErrorKind::TemplateInvalid => Ok("its engine answers"),
                _ => Err(error.to_string()),
            },
        }
    };
    let (engine, why) = match timeout(ANSWER_TIMEOUT, docker).await {
        Ok(Ok(why)) => (Engine::Docker, why.to_owned()),
        _ if !cfg!(feature = "wasm") => (Engine::Docker, "this program has no other".to_owned()),
        Ok(Err(why)) => (Engine::Wasm, format!("Docker cannot be used: {why}")),
        Err(_) => (Engine::Wasm, "Docker did not answer in time".into()),
    };
    Choice { engine, why, instead: None }
}

/// Selects one of two engines, depending on whether they could start a sandbox now. If the embedded engine could not,
/// Docker is selected without asking it.
async fn first_ready(
    wasm: impl Future<Output = Result<(), String>>,
    docker: impl Future<Output = Result<(), String>>,
) -> Choice {
    let (engine, why) = if let Err(why) = wasm.await {
        return Choice {
            engine: Engine::Docker,
            instead: Some(format!("Or use the embedded engine, which needs no Docker. {why}")),
            why: "the embedded engine, which is the alternative, is not set up".into(),
        };
    } else {
        match timeout(ANSWER_TIMEOUT, docker).await {
            Ok(Ok(())) => (Engine::Docker, "its engine answers, and has the image".into()),
            Ok(Err(why)) => (Engine::Wasm, format!("Docker cannot be used: {why}")),
            Err(_) => (Engine::Wasm, "Docker did not answer in time".into()),
        }
    };
    Choice { engine, why, instead: None }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn docker_is_taken_where_it_is_ready_or_nothing_else_is() {
        let choice = first_ready(ready(Ok(())), ready(Ok(()))).await;
        assert_eq!((choice.engine, &choice.instead), (Engine::Docker, &None), "{choice:?}");
        let choice = first_ready(ready(Err("no runtime".into())), pending()).await;
        assert_eq!(choice.engine, Engine::Docker);
        assert!(choice.why.ends_with("is not set up"), "{choice:?}");
        assert!(choice.instead.is_some_and(|instead| instead.contains("no runtime")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_embedded_engine_is_taken_where_docker_is_missing_or_slow() {
        let choice = first_ready(ready(Ok(())), ready(Err("no image".into()))).await;
        assert_eq!(choice.engine, Engine::Wasm);
        assert!(choice.why.contains("no image"), "{choice:?}");
        let choice = first_ready(ready(Ok(())), pending()).await;
        assert_eq!(choice.engine, Engine::Wasm);
        assert!(choice.why.contains("in time"), "{choice:?}");
    }
}
