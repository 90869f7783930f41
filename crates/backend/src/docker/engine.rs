//! Properties of images, and the engine's errors.

use std::{io, ops::RangeInclusive, sync::Arc};

use bollard::{Docker, errors::Error};
use model::{Dataset, DatasetSource};

use super::facts::EngineFacts;
use crate::{BackendError, BackendErrorKind as Kind, Recipes, Template, image};

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

/// Whether another container has the name.
pub(super) fn is_name_taken(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { status_code: 409, .. } => true,
        // Podman's answer.
        Error::DockerResponseServerError { status_code: 500, message } => {
            message.contains("that name is already in use")
        }
        _ => false,
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

/// The maximum length of a message of the engine, in characters: some contain a whole profile or description.
const MAX_MESSAGE: usize = 300;

/// A message of the engine as one line of at most [`MAX_MESSAGE`] characters: its start, and its end, which often has
/// the cause.
pub(super) fn line(message: &str) -> String {
    let words = message.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_MESSAGE {
        return line;
    }
    let half = (MAX_MESSAGE - " ... ".len()) / 2;
    let end = line.chars().skip(line.chars().count() - half);
    line.chars().take(half).chain(" ... ".chars()).chain(end).collect()
}

fn shortened(error: Error) -> Error {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            Error::DockerResponseServerError { status_code, message: line(&message) }
        }
        other => other,
    }
}

/// Converts an error of the client: the kind, and a sentence or two with how to fix it.
pub(super) fn explain(error: Error, image: &str) -> BackendError {
    let error = shortened(error);
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
                _ if message.contains("opening seccomp profile failed") => {
                    (Kind::Refused, format!("{} ({message})", profile_not_seen()))
                }
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
    let error = line(&error.to_string());
    format!("The Docker engine cannot be used ({error}). `llm-sandbox doctor` may show why.")
}

fn no_engine() -> String {
    "No Docker engine answers. Start it (`sudo systemctl start docker`, Docker Desktop, or for \
     Podman `systemctl --user start podman.socket`) or install one; if it is not at the usual \
     place, set DOCKER_HOST."
        .into()
}

fn profile_not_seen() -> &'static str {
    "Podman takes the allowed system calls as a file of its own machine, and does not see the files \
     of this server. Run the server where Podman runs, or a relay there (docs/compose.md)."
}

/// The error of a Podman engine that takes files of another machine.
pub(super) fn podman_is_remote(host: &str) -> BackendError {
    BackendError::new(Kind::TemplateMissing, format!("{host}: {}", profile_not_seen()))
}

/// The error if the file with the allowed system calls cannot be written.
pub(super) fn no_profile(error: io::Error) -> BackendError {
    let text = format!("The file with the allowed system calls cannot be written: {error}.");
    BackendError::new(Kind::Refused, text)
        .with_fix("Set XDG_RUNTIME_DIR to a folder of this user's, which Podman sees as well.")
        .caused_by(error)
}

/// The error if the engine maps too few user ids.
pub(super) fn too_few_ids(ids: u32) -> BackendError {
    let text = format!("The engine maps {ids} user ids, which are too few for sandboxes.");
    BackendError::new(Kind::TemplateMissing, text).with_fix(
        "Give its user 65,536 in /etc/subuid and /etc/subgid (`sudo usermod --add-subuids \
         100000-165535 --add-subgids 100000-165535 USER`), then run `podman system migrate`.",
    )
}

pub(super) fn runtime_missing(wanted: &str, facts: &EngineFacts) -> BackendError {
    let message = format!(
        "The engine has no runtime {wanted}; it has: {}. Set SANDBOX_RUNTIME to one of these, or \
         register yours in the engine's daemon.json.",
        facts.runtimes.join(", ")
    );
    BackendError::new(Kind::TemplateMissing, message)
}

pub(super) fn uids_taken(tried: u32, uids: &RangeInclusive<u32>) -> BackendError {
    let message = format!(
        "No free user id was found for another sandbox: {tried} ids between {} and {}, chosen at \
         random, were all taken by containers of this engine. `docker ps --all --filter \
         name=llm-sandbox-u` lists them.",
        uids.start(),
        uids.end()
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
    fn a_name_that_is_taken_is_known_on_each_engine() {
        let podman = "container create: creating container storage: the container name \"x\" is \
                      already in use by 1f. You have to remove that container to be able to reuse \
                      that name: that name is already in use";
        assert!(is_name_taken(&answer(409, "Conflict.")) && is_name_taken(&answer(500, podman)));
        assert!(!is_name_taken(&answer(500, "no space left on device")));
    }

    #[test]
    fn a_message_of_the_engine_is_one_short_line_in_every_error() {
        let profile = "{\n  \"archMap\": [ ]\t}".repeat(1000);
        let cases = [
            answer(500, &format!("container create: opening seccomp profile failed: {profile}")),
            answer(400, &format!("unknown or invalid runtime name: {profile}")),
            answer(403, &profile),
            answer(500, &format!("cdi {profile}")),
            answer(500, &profile),
            Error::IOError { err: io::Error::other(profile.clone()) },
        ];
        for error in cases {
            let explained = explain(error, "own:latest");
            let source = std::error::Error::source(&explained).map(ToString::to_string);
            let text = explained.to_string();
            assert!(text.chars().count() < 700 && !text.contains('\n'), "{text}");
            assert!(explained.kind != Kind::Refused || source.is_some_and(|it| it.len() < 700));
        }
        assert_eq!(line(" a\n\tb \u{7}c "), "a b c");
        let cut = line(&format!("opening {} no space left", "é".repeat(1000)));
        assert!(cut.chars().count() <= MAX_MESSAGE && cut.ends_with("no space left"), "{cut}");
        assert!(cut.starts_with("opening é"), "{cut}");
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
