//! Getting the image of sandboxes.

use futures::future::BoxFuture;

use super::{BackendError, Recipes};

/// Builds or pulls the image of a backend's sandboxes.
pub trait Builder: Send + Sync {
    /// Whether the image exists and was built from the same files, base image and recipes that this program would use
    /// now. Without recipes, those that the image has.
    ///
    /// # Errors
    /// If the engine cannot be reached, or refuses to inspect the image.
    fn is_current<'a>(
        &'a self,
        base_image: Option<&'a str>,
        recipes: Option<&'a Recipes>,
    ) -> BoxFuture<'a, Result<bool, BackendError>>;

    /// Builds the image, and returns its size in bytes, 0 if the engine does not report it. `progress` receives every
    /// line of the builder's output as it arrives.
    ///
    /// # Errors
    /// If the engine cannot be reached, or a step of the build fails.
    fn build<'a>(
        &'a self,
        request: BuildRequest<'a>,
        progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<u64, BackendError>>;

    /// Pulls the image of this name from its registry, and uses it from now on. `progress` receives a line for each
    /// step of each layer.
    ///
    /// # Errors
    /// If the engine cannot be reached or does not get the image, or the image is not for this version.
    fn pull<'a>(
        &'a self,
        reference: &'a str,
        progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), BackendError>>;
}

/// The parameters of an image build.
#[derive(Debug, Clone, Default)]
pub struct BuildRequest<'a> {
    /// The image to build on, if not the default one.
    pub base_image: Option<&'a str>,
    /// The recipes that the image will have; `None` for those that it has.
    pub recipes: Option<&'a Recipes>,
    /// Build arguments: name and value.
    pub args: Vec<(String, String)>,
    /// PEM bundle that the build trusts besides its own authorities; may be empty.
    pub certificates: &'a [u8],
}
