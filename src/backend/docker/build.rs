//! Building the image through the engine's own builder, which every engine has and which needs
//! nothing but the socket.

use std::collections::HashMap;

use bollard::{
    body_full,
    query_parameters::{BuildImageOptionsBuilder, RemoveImageOptions},
};
use futures::StreamExt;

use super::Docker;
use crate::{backend::StartError, image};

/// Builds the image and tags it with the backend's name. `progress` gets every line of the
/// builder's output as it comes.
pub async fn build_image(
    docker: &Docker,
    base_image: Option<&str>,
    build_args: impl IntoIterator<Item = (String, String)>,
    certificates: &[u8],
    mut progress: impl FnMut(&str),
) -> Result<(), StartError> {
    let engine = &docker.connection().await?.engine;
    let before = engine.inspect_image(&docker.image).await.ok().and_then(|image| image.id);
    let labels = HashMap::from([
        (image::LABEL_PROTOCOL.to_owned(), image::PROTOCOL.to_string()),
        (image::LABEL_CONTENT.to_owned(), image::content_id(base_image)),
    ]);
    let mut args: HashMap<_, _> = build_args.into_iter().collect();
    args.extend(base_image.map(|base| ("BASE_IMAGE".to_owned(), base.to_owned())));
    let options = BuildImageOptionsBuilder::default()
        .dockerfile("Dockerfile")
        .t(&docker.image)
        .labels(&labels)
        .buildargs(&args)
        .rm(true)
        .forcerm(true)
        .build();
    let context = image::context(certificates)
        .map_err(|error| StartError(format!("The build context cannot be made: {error}.")))?;
    let mut lines = engine.build_image(options, None, Some(body_full(context.into())));
    while let Some(info) = lines.next().await {
        let info = info.map_err(|error| docker.explain(&error))?;
        if let Some(error) = info.error_detail {
            let message = error.message.unwrap_or_default();
            return Err(StartError(format!("The build failed: {}", message.trim())));
        }
        for line in info.stream.iter().chain(&info.status).flat_map(|text| text.lines()) {
            if !line.trim().is_empty() {
                progress(line.trim_end());
            }
        }
    }
    // The one that had the name until now would stay without any. What it shares with the new one
    // stays, and if a container or another image still needs it the engine refuses.
    if let Some(before) = before
        && let Ok(image) = engine.inspect_image(&before).await
        && image.repo_tags.is_none_or(|names| names.is_empty())
    {
        let unused = None::<RemoveImageOptions>;
        let _ = engine.remove_image(&before, unused, None).await;
    }
    Ok(())
}
