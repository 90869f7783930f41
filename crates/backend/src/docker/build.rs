//! Building the image with the engine's classic builder, which every engine has and which needs nothing but the
//! socket.
//!
//! ```text
//! libraries   the Dockerfile up to its last stage: minutes; reused while it would be the same
//!     |
//!  a recipe   each on the one before it: seconds to minutes; reused as well
//!     |
//!  the image  the Dockerfile's last stage, based on them: seconds
//! ```
//!
//! The builder leaves the result of each stage as an untagged image. The images of the libraries and of the recipes stay,
//! because the image is based on them. The images of the stages before it are leftovers and are removed.

use std::collections::HashMap;

use bollard::{
    Docker as Engine, body_full,
    models::ContainerCreateBody,
    query_parameters::{
        AttachContainerOptionsBuilder, BuildImageOptionsBuilder, CreateContainerOptions,
        ListImagesOptionsBuilder, RemoveImageOptions,
    },
};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use sandbox_container::Product;

use super::{Connection, Docker, EngineFacts, engine::line, pull::pull_image};
use crate::{
    Backend, BackendError, BackendErrorKind as Kind, BuildRequest, Builder, Recipes, image, recipes,
};

impl Builder for Docker {
    fn is_current<'a>(
        &'a self,
        base_image: Option<&'a str>,
        recipes: Option<&'a Recipes>,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        Box::pin(async move {
            // A derived image (FROM) inherits the labels, so this works for it, too.
            Ok(self.image_facts().await?.is_some_and(|facts| {
                let wanted = recipes.unwrap_or(&facts.recipes);
                facts.content.as_deref() == Some(&image::content_id(base_image, wanted))
                    && facts.protocol == Some(image::PROTOCOL)
                    && matches!(facts.template, Ok(Some(_)))
            }))
        })
    }

    fn build<'a>(
        &'a self,
        request: BuildRequest<'a>,
        progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<u64, BackendError>> {
        Box::pin(async move {
            build_image(self, request, progress).await?;
            Ok(self.image_facts().await.ok().flatten().map_or(0, |facts| facts.size))
        })
    }

    fn pull<'a>(
        &'a self,
        reference: &'a str,
        progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        pull_image(self, reference, progress).boxed()
    }
}

/// Builds the image and tags it with the backend's name.
async fn build_image(
    docker: &Docker,
    BuildRequest { base_image, recipes, args, certificates }: BuildRequest<'_>,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), BackendError> {
    let Connection { engine, facts, .. } = docker.connection().await?;
    let before = engine.inspect_image(&docker.image).await.ok().and_then(|image| image.id);
    let there = docker.image_facts().await?.map(|facts| facts.recipes).unwrap_or_default();
    let recipes = recipes.unwrap_or(&there);
    let mut args: HashMap<_, _> = args.into_iter().collect();
    let mut id = libraries_id(base_image, &args);
    args.extend(base_image.map(|base| ("BASE_IMAGE".to_owned(), base.to_owned())));

    let base = base_image.unwrap_or(image::default_base());
    let mut libraries = if let Some(libraries) = kept_libraries(engine, facts, &id, base).await {
        progress("The libraries image exists and is up to date.");
        libraries
    } else {
        let stage = Stage {
            context: image::context(None, certificates),
            labels: HashMap::from([(image::LABEL_LIBRARIES.to_owned(), id.clone())]),
            args: &args,
            target: image::LIBRARIES,
            name: &name(facts, &id),
        };
        let built = build(docker, engine, stage, progress).await?;
        for image in built.stages {
            remove_unnamed(engine, &image).await;
        }
        built.id
    };
    for recipe in recipes.iter() {
        id = recipe.id(&id);
        if let Some(kept) = kept_libraries(engine, facts, &id, &libraries).await {
            libraries = kept;
            continue;
        }
        let stage = Stage {
            context: recipe.context(&libraries, certificates),
            labels: HashMap::from([(image::LABEL_LIBRARIES.to_owned(), id.clone())]),
            args: &args,
            target: "",
            name: &name(facts, &id),
        };
        libraries = build(docker, engine, stage, progress).await?.id;
    }
    let label = recipes::label(&measured(docker, engine, &libraries).await?).ok_or_else(|| {
        BackendError::new(Kind::Refused, "The recipes describe no languages and libraries.")
    })?;
    let stage = Stage {
        context: image::context(Some(&libraries), certificates),
        labels: HashMap::from([
            (image::LABEL_PROTOCOL.to_owned(), image::PROTOCOL.to_string()),
            (image::LABEL_CONTENT.to_owned(), image::content_id(base_image, recipes)),
            (image::LABEL_RECIPES.to_owned(), recipes.to_label()),
            (image::LABEL_TEMPLATE.to_owned(), label),
        ]),
        args: &HashMap::new(),
        target: "",
        name: &docker.image,
    };
    build(docker, engine, stage, progress).await?;
    // The image that had the name before would stay without a name, as would libraries that only it uses.
    if let Some(before) = before {
        remove_unnamed(engine, &before).await;
    }
    Ok(())
}

/// [`image::libraries_id`] of these arguments, without proxy settings, which change only how packages are reached.
fn libraries_id(base_image: Option<&str>, args: &HashMap<String, String>) -> String {
    let is_proxy = |name: &str| name.to_ascii_lowercase().ends_with("_proxy");
    let mut args: Vec<_> = args.iter().map(|(name, value)| (&**name, &**value)).collect();
    args.retain(|(name, _)| !is_proxy(name));
    args.sort_unstable();
    image::libraries_id(base_image, args)
}

/// The image of libraries or of a recipe with this id from an earlier build, if it is based on this one.
async fn kept_libraries(
    engine: &Engine,
    facts: &EngineFacts,
    id: &str,
    base: &str,
) -> Option<String> {
    let base = layers(engine, base).await?;
    let name = name(facts, id);
    if !name.is_empty() {
        let named = engine.inspect_image(&name).await.ok()?;
        let layers = named.root_fs?.layers?;
        return named.id.filter(|_| layers.starts_with(&base));
    }
    let filters = HashMap::from([("label", vec![format!("{}={id}", image::LABEL_LIBRARIES)])]);
    // All images, because the libraries image has no name.
    let list = ListImagesOptionsBuilder::default().all(true).filters(&filters).build();
    let mut kept = vec![];
    for found in engine.list_images(Some(list)).await.ok()? {
        // Images that are based on it, and the steps to them, have its label, too, and others.
        let is_whole = found.labels.contains_key(image::LABEL_PROTOCOL);
        let layers = if is_whole { None } else { layers(engine, &found.id).await };
        if let Some(layers) = layers.filter(|layers| layers.starts_with(&base)) {
            kept.push((layers.len(), found.id));
        }
    }
    kept.into_iter().min().map(|(_, id)| id)
}

/// The name of an image of libraries or of a recipe; empty for none. On Podman the images of the stages before it have
/// its label, too, so that only a name tells it from them.
fn name(facts: &EngineFacts, id: &str) -> String {
    match facts.host.product {
        Product::Docker => String::new(),
        Product::Podman => format!("llm-sandbox-libraries:{id}"),
    }
}

async fn layers(engine: &Engine, image: &str) -> Option<Vec<String>> {
    engine.inspect_image(image).await.ok()?.root_fs?.layers
}

/// The output of [`recipes::MEASURE`] in an image.
async fn measured(docker: &Docker, engine: &Engine, image: &str) -> Result<String, BackendError> {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: words(&["python3"]),
        cmd: words(&["-I", "-c", recipes::MEASURE]),
        network_disabled: Some(true),
        ..Default::default()
    };
    let explain = |error| docker.explain(error);
    let create = None::<CreateContainerOptions>;
    let id = engine.create_container(create, body).await.map_err(explain)?.id;
    let said = async {
        let attach = AttachContainerOptionsBuilder::default().stream(true).stdout(true).build();
        let mut output = engine.attach_container(&id, Some(attach)).await?.output;
        engine.start_container(&id, None).await?;
        let mut said = vec![];
        while let Some(part) = output.next().await {
            said.extend_from_slice(&part?.into_bytes());
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    let said = said.await.map_err(explain);
    docker.remove(id).await?;
    said
}

struct Stage<'a> {
    context: std::io::Result<Vec<u8>>,
    labels: HashMap<String, String>,
    args: &'a HashMap<String, String>,
    /// The stage to build; empty for the last one.
    target: &'a str,
    /// The image's name; empty for none.
    name: &'a str,
}

struct Built {
    id: String,
    /// The images of the stages before the one that was built.
    stages: Vec<String>,
}

async fn build(
    docker: &Docker,
    engine: &Engine,
    stage: Stage<'_>,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<Built, BackendError> {
    let context = stage.context.map_err(|error| {
        let message = format!("The build context could not be created: {error}.");
        BackendError::new(Kind::Refused, message).caused_by(error)
    })?;
    let options = BuildImageOptionsBuilder::default()
        .dockerfile("Dockerfile")
        .t(stage.name)
        .target(stage.target)
        .labels(&stage.labels)
        .buildargs(stage.args)
        .rm(true)
        .forcerm(true)
        .build();
    let (mut id, mut stages) = (None, Stages::default());
    let mut lines = engine.build_image(options, None, Some(body_full(context.into())));
    while let Some(info) = lines.next().await {
        let info = info.map_err(|error| docker.explain(error))?;
        if let Some(error) = info.error_detail {
            let message = error.message.unwrap_or_default();
            let message = format!("The build failed: {}", line(&message));
            return Err(BackendError::new(Kind::Refused, message));
        }
        id = info.aux.and_then(|aux| aux.id).or(id);
        for line in info.stream.iter().chain(&info.status).flat_map(|text| text.lines()) {
            if !line.trim().is_empty() {
                stages.line(line);
                progress(line.trim_end());
            }
        }
    }
    let unnamed = || {
        BackendError::new(Kind::Refused, "The builder did not report the id of the image it built.")
    };
    let id = id.ok_or_else(unnamed)?;
    Ok(Built { id, stages: stages.before_last() })
}

/// The last image of each stage so far, as read from the builder's output.
#[derive(Debug, Default)]
struct Stages(Vec<Option<String>>);

impl Stages {
    fn line(&mut self, line: &str) {
        if line.starts_with("Step ") && line.contains(" : FROM ") {
            self.0.push(None);
        } else if let (Some(id), Some(stage)) = (line.strip_prefix(" ---> "), self.0.last_mut())
            && id.len() >= 12
            && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            *stage = Some(id.to_owned());
        }
    }

    fn before_last(mut self) -> Vec<String> {
        self.0.pop();
        self.0.into_iter().flatten().collect()
    }
}

/// Removes an image if it has no name, and the images that only it is based on. The engine refuses if a container or
/// another image needs it.
pub(super) async fn remove_unnamed(engine: &Engine, id: &str) {
    let Ok(image) = engine.inspect_image(id).await else { return };
    let is_empty = |names: Option<Vec<String>>| names.is_none_or(|names| names.is_empty());
    if is_empty(image.repo_tags) && is_empty(image.repo_digests) {
        let unused = None::<RemoveImageOptions>;
        let _ = engine.remove_image(id, unused, None).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_stage_came_to_is_read_from_the_builders_output() {
        let output = "Step 1/9 : ARG BASE_IMAGE=debian:trixie-slim\n\
                      Step 2/9 : FROM ${BASE_IMAGE} AS runtime\n ---> 128c05f3ae41\n\
                      Step 3/9 : RUN true\n ---> Running in 0123456789ab\n ---> 95f1fd1e81ec\n\
                      Step 4/9 : FROM runtime AS build\n ---> 95f1fd1e81ec\n\
                      Step 5/9 : COPY a /\n ---> Using cache\n ---> b45582a9302e\n\
                      Removing intermediate container 0123456789ab\n\
                      Step 6/9 : FROM runtime AS libraries\n ---> 95f1fd1e81ec\n\
                      Step 7/9 : COPY --from=build /a /\n ---> 5f738662be08\n\
                      Successfully built 5f738662be08";
        let mut stages = Stages::default();
        output.lines().for_each(|line| stages.line(line));
        assert_eq!(stages.before_last(), ["95f1fd1e81ec", "b45582a9302e"]);
        assert_eq!(Stages::default().before_last(), Vec::<String>::new());
    }

    #[test]
    fn how_packages_are_reached_makes_no_other_libraries() {
        let id = |args: &[(&str, &str)]| {
            let args = args.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            libraries_id(None, &args.collect())
        };
        assert_eq!(id(&[]), id(&[("HTTP_PROXY", "http://a:1"), ("no_proxy", "b")]));
        assert_ne!(id(&[]), id(&[("PIP_INDEX_URL", "https://a.test")]));
        assert_eq!(id(&[("A", "1"), ("B", "2")]), id(&[("B", "2"), ("A", "1")]));
    }
}
