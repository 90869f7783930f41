//! Finding the engine, reading its images' properties, and explaining its errors.

use std::{env, io, path::PathBuf, sync::Arc};

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error};
use model::{Dataset, DatasetSource};
use sandbox_container::UIDS;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::facts::EngineFacts;
use crate::{BackendError, BackendErrorKind as Kind, Recipes, Template, image};

/// Longest wait for the first byte of an answer, in seconds. Engines can be slow, but no call of this program takes
/// that long.
const TIMEOUT_S: u64 = 60;

/// Properties of an image.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageFacts {
    /// The image's id.
    pub id: String,
    /// Protocol version of its agent, from a label.
    pub protocol: Option<u32>,
    /// [`image::content_id`] of the files from which it was built, from a label.
    pub content: Option<String>,
    /// The recipes that it was built with, from a label.
    pub recipes: Recipes,
    /// The template of its sandboxes, from a label, or the fault of that label.
    pub template: Result<Option<Template>, String>,
    /// Size in bytes.
    pub size: u64,
}

/// Connects to the engine that `docker` itself would use, or else to one at another usual place. The order is
/// `DOCKER_HOST`, the current context, the system's socket, the user's, Docker Desktop's. Podman's is not tried,
/// because Podman refuses the seccomp profile and file limits of sandboxes.
pub(super) fn connect() -> Result<Docker, Error> {
    if env::var_os("DOCKER_HOST").is_some_and(|host| !host.is_empty()) {
        return Docker::connect_with_defaults();
    }
    if let Some(host) = context_host() {
        return Docker::connect_with_host(&host);
    }
    let system = PathBuf::from("/var/run/docker.sock");
    let socket = [system.clone()]
        .into_iter()
        .chain(dir("XDG_RUNTIME_DIR", "docker.sock"))
        .chain(dir("HOME", ".docker/run/docker.sock"))
        .find(|socket| socket.exists())
        .unwrap_or(system);
    Docker::connect_with_unix(&socket.to_string_lossy(), TIMEOUT_S, API_DEFAULT_VERSION)
}

fn dir(variable: &str, below: &str) -> Option<PathBuf> {
    Some(PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?).join(below))
}

/// The endpoint of the context from `DOCKER_CONTEXT` or `docker context use`.
fn context_host() -> Option<String> {
    let folder = dir("DOCKER_CONFIG", "").or_else(|| dir("HOME", ".docker"))?;
    let read = |path: PathBuf| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    };
    let chosen = env::var("DOCKER_CONTEXT").ok().filter(|name| !name.is_empty());
    let name = chosen.or_else(|| {
        Some(read(folder.join("config.json"))?["currentContext"].as_str()?.to_owned())
    })?;
    if name == "default" {
        return None;
    }
    // The folder's name is the hash of the context's name.
    let hash = hex::encode(Sha256::digest(&name));
    let meta = read(folder.join("contexts/meta").join(hash).join("meta.json"))?;
    Some(meta["Endpoints"]["docker"]["Host"].as_str()?.to_owned())
}

pub(super) async fn image_facts(engine: &Docker, name: &str) -> Result<Option<ImageFacts>, Error> {
    let image = match engine.inspect_image(name).await {
        Ok(image) => image,
        Err(error) if status(&error) == Some(404) => return Ok(None),
        Err(error) => return Err(error),
    };
    let labels = image.config.and_then(|config| config.labels).unwrap_or_default();
    let id = image.id.unwrap_or_default();
    let label = labels.get(image::LABEL_TEMPLATE);
    Ok(Some(ImageFacts {
        template: label.map(|label| Template::of_label(&*id, Some(label))).transpose(),
        id,
        protocol: labels.get(image::LABEL_PROTOCOL).and_then(|label| label.parse().ok()),
        content: labels.get(image::LABEL_CONTENT).cloned(),
        recipes: Recipes::of_label(labels.get(image::LABEL_RECIPES).map_or("", String::as_str)),
        size: image.size.and_then(|size| size.try_into().ok()).unwrap_or(0),
    }))
}

pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Replaces the error of a container that did not start because the folder of a dataset cannot be mounted. Callers need
/// not know the paths in the engine's message.
pub(super) fn explain_start(error: BackendError, datasets: &[Arc<Dataset>]) -> BackendError {
    let (message, _) = error.parts();
    let is_reason = |dataset: &&Arc<Dataset>| match &dataset.source {
        DatasetSource::Folder(path) | DatasetSource::Root(path) => {
            message.contains("mount") && message.contains(&*path.to_string_lossy())
        }
        DatasetSource::Volume(_) => false,
    };
    let Some(dataset) = datasets.iter().find(is_reason) else { return error };
    let text =
        format!("The folder of the dataset {} cannot be used: it may be missing.", dataset.name);
    BackendError::new(Kind::Refused, text)
        .with_fix("`llm-sandbox doctor` says what is wrong with it.")
        .caused_by(error)
}

/// Converts an error of the client: the kind, and a sentence or two with how to fix it.
pub(super) fn explain(error: Error, image: &str) -> BackendError {
    let (kind, message) = match &error {
        Error::DockerResponseServerError { status_code, message } => {
            let message = message.trim();
            match status_code {
                404 if message.contains("image") => return image_missing(image).caused_by(error),
                400 if message.contains("runtime name") => (
                    Kind::TemplateMissing,
                    format!(
                        "The engine does not have the runtime named in SANDBOX_RUNTIME \
                         ({message}). `llm-sandbox doctor` lists those it has."
                    ),
                ),
                401 | 403 => (Kind::Denied, refused(message)),
                _ if message.to_ascii_lowercase().contains("cdi") => (
                    Kind::TemplateMissing,
                    format!(
                        "The engine does not have a device named in SANDBOX_GPUS, or does not support \
                         CDI, which Docker 28.2 and newer do ({message}). See docs/image.md."
                    ),
                ),
                _ => (Kind::Refused, refused(message)),
            }
        }
        Error::SocketNotFoundError(_) => (Kind::Unreachable, no_engine()),
        Error::RequestTimeoutError => (Kind::Timeout, unusable(&error)),
        _ => match io_kind(&error) {
            Some(io::ErrorKind::PermissionDenied) => (
                Kind::Denied,
                "This user may not use the Docker engine's socket. Add the user to its group \
                 (`sudo usermod -aG docker $USER`, then log in again) or run the engine rootless."
                    .into(),
            ),
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                (Kind::Unreachable, no_engine())
            }
            Some(io::ErrorKind::TimedOut) => (Kind::Timeout, unusable(&error)),
            _ => (Kind::Unreachable, unusable(&error)),
        },
    };
    BackendError::new(kind, message).caused_by(error)
}

fn refused(message: &str) -> String {
    format!("The Docker engine refused ({message}). `llm-sandbox doctor` may show why.")
}

fn unusable(error: &Error) -> String {
    format!("The Docker engine cannot be used ({error}). `llm-sandbox doctor` may show why.")
}

fn no_engine() -> String {
    "No Docker engine answers. Start it (`sudo systemctl start docker`, or Docker Desktop) or \
     install one; if it is not at the usual place, set DOCKER_HOST."
        .into()
}

pub(super) fn runtime_missing(wanted: &str, facts: &EngineFacts) -> BackendError {
    let message = format!(
        "The engine has no runtime {wanted}; it has: {}. Set SANDBOX_RUNTIME to one of these, or \
         register yours in the engine's daemon.json.",
        facts.runtimes.join(", ")
    );
    BackendError::new(Kind::TemplateMissing, message)
}

pub(super) fn uids_taken(tried: u32) -> BackendError {
    let message = format!(
        "No free user id was found for another sandbox: {tried} ids between {} and {}, chosen at \
         random, were all taken by containers of this engine. `docker ps --all --filter \
         name=llm-sandbox-u` lists them.",
        UIDS.start(),
        UIDS.end()
    );
    BackendError::new(Kind::Refused, message)
}

pub(super) fn image_missing(image: &str) -> BackendError {
    let message = format!(
        "The image {image} does not exist. Run `llm-sandbox image build` on the server's host."
    );
    BackendError::new(Kind::TemplateMissing, message)
}

pub(super) fn image_outdated(image: &str) -> BackendError {
    let message = format!(
        "The image {image} was built for another version of this server. Run `llm-sandbox image \
         build` on the server's host; then rebuild any image of your own that is based on it."
    );
    BackendError::new(Kind::TemplateOutdated, message)
}

/// The error if the label for the contents of an image is invalid.
pub(super) fn template_invalid(image: &str, fault: &str) -> BackendError {
    let message =
        format!("The label {} of the image {image} is invalid. {fault}", image::LABEL_TEMPLATE);
    BackendError::new(Kind::TemplateInvalid, message)
        .with_fix("Correct the label and build the image again: see docs/image.md.")
}

fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.into() }
    }

    fn broken(kind: io::ErrorKind) -> Error {
        Error::IOError { err: kind.into() }
    }

    #[test]
    fn each_failure_of_the_engine_has_its_kind_and_says_what_to_do() {
        let cases = [
            (answer(404, "No such image: x"), Kind::TemplateMissing, "llm-sandbox image build"),
            (
                answer(400, "unknown or invalid runtime name: x"),
                Kind::TemplateMissing,
                "SANDBOX_RUNTIME",
            ),
            (answer(404, "No such container: x"), Kind::Refused, "llm-sandbox doctor"),
            (answer(500, "no space left on device"), Kind::Refused, "no space left on device"),
            (
                answer(500, "could not select device driver \"cdi\" with capabilities: []"),
                Kind::TemplateMissing,
                "SANDBOX_GPUS",
            ),
            (answer(403, "not passed on"), Kind::Denied, "not passed on"),
            (broken(io::ErrorKind::PermissionDenied), Kind::Denied, "usermod -aG docker"),
            (broken(io::ErrorKind::NotFound), Kind::Unreachable, "systemctl start docker"),
            (broken(io::ErrorKind::ConnectionRefused), Kind::Unreachable, "DOCKER_HOST"),
            (Error::SocketNotFoundError("/x".into()), Kind::Unreachable, "DOCKER_HOST"),
            (broken(io::ErrorKind::BrokenPipe), Kind::Unreachable, "llm-sandbox doctor"),
            (broken(io::ErrorKind::TimedOut), Kind::Timeout, "llm-sandbox doctor"),
            (Error::RequestTimeoutError, Kind::Timeout, "llm-sandbox doctor"),
        ];
        for (error, kind, remedy) in cases {
            let text = error.to_string();
            let explained = explain(error, "own:latest");
            assert_eq!(explained.kind, kind, "{text}");
            assert!(explained.to_string().contains(remedy), "{text}: {explained}");
            assert!(std::error::Error::source(&explained).is_some(), "{text}");
        }
        assert!(image_missing("own:latest").to_string().contains("own:latest"));
    }

    #[test]
    fn what_somebody_has_to_change_is_not_worth_another_try() {
        for kind in [Kind::Unreachable, Kind::Refused, Kind::Timeout] {
            assert!(kind.is_transient(), "{kind:?}");
        }
        for kind in [Kind::Denied, Kind::TemplateMissing, Kind::TemplateOutdated] {
            assert!(!kind.is_transient(), "{kind:?}");
        }
    }
}
