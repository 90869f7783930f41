//! Pulling the image from a registry, with the engine's own settings for registries.

use std::collections::HashMap;

use bollard::query_parameters::{CreateImageOptionsBuilder, TagImageOptionsBuilder};
use futures::StreamExt;

use super::{Docker, build::remove_unnamed, engine};
use crate::{BackendError, BackendErrorKind as Kind, image};

/// Pulls an image and gives it the backend's name. An image that had the name and has no other is removed.
pub(super) async fn pull_image(
    docker: &Docker,
    reference: &str,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), BackendError> {
    let engine = &docker.connection().await?.engine;
    let explain = |error| docker.explain(error);
    // Without a tag the engine would pull all of the repository's.
    let (name, tag) = name_and_tag(reference);
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(tag).build();
    let mut states: HashMap<String, String> = HashMap::new();
    let mut lines = engine.create_image(Some(options), None, None);
    while let Some(info) = lines.next().await {
        let info = info.map_err(|error| failed(reference, &error.to_string()))?;
        if let Some(error) = info.error_detail {
            return Err(failed(reference, error.message.unwrap_or_default().trim()));
        }
        let (part, state) = (info.id.unwrap_or_default(), info.status.unwrap_or_default());
        // The engine repeats a state for each piece of a layer.
        if states.get(&part) != Some(&state) {
            progress(&engine::line(&format!("{part} {state}")));
            states.insert(part, state);
        }
    }
    let pulled = engine::image_facts(engine, reference).await.map_err(explain)?;
    let pulled = pulled.ok_or_else(|| failed(reference, "the engine does not have it"))?;
    match pulled.protocol {
        Some(image::PROTOCOL) => {}
        Some(_) => return Err(engine::image_outdated(reference)),
        None => return Err(failed(reference, "it is not a sandbox image")),
    }
    let before = engine.inspect_image(&docker.image).await.ok().and_then(|image| image.id);
    let (name, tag) = name_and_tag(&docker.image);
    let options = TagImageOptionsBuilder::default().repo(name).tag(tag).build();
    engine.tag_image(&pulled.id, Some(options)).await.map_err(explain)?;
    if let Some(before) = before.filter(|before| *before != pulled.id) {
        remove_unnamed(engine, &before).await;
    }
    Ok(())
}

fn failed(reference: &str, why: &str) -> BackendError {
    let why = engine::line(why);
    let message = format!("The image {reference} could not be pulled: {why}.");
    BackendError::new(Kind::Refused, message)
}

/// The parts of an image's name. A digest counts as a tag; the port of a registry does not.
fn name_and_tag(reference: &str) -> (&str, &str) {
    let after_host = reference.rfind('/').map_or(0, |at| at + 1);
    let at = reference.find('@').or_else(|| Some(after_host + reference[after_host..].find(':')?));
    at.map_or((reference, "latest"), |at| (&reference[..at], &reference[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_tag() {
        for (reference, name, tag) in [
            ("sandbox", "sandbox", "latest"),
            ("sandbox:1.0", "sandbox", "1.0"),
            ("127.0.0.1:5000/a/sandbox", "127.0.0.1:5000/a/sandbox", "latest"),
            ("127.0.0.1:5000/a/sandbox:2", "127.0.0.1:5000/a/sandbox", "2"),
            ("a/sandbox@sha256:0f", "a/sandbox", "sha256:0f"),
        ] {
            assert_eq!(name_and_tag(reference), (name, tag), "{reference}");
        }
    }
}
