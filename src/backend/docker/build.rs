//! Building the image through the engine's own builder, which every engine has and which needs
//! nothing but the socket.

use std::collections::HashMap;

use bollard::{body_full, query_parameters::BuildImageOptionsBuilder};
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
    Ok(())
}
