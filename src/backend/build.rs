//! Making what sandboxes are made from.

use futures::future::BoxFuture;

use super::BackendError;

/// Makes the image of a backend's sandboxes.
pub trait Builder: Send + Sync {
    /// Whether the image is there and was built from what this program would build it from.
    ///
    /// # Errors
    /// If the engine cannot be reached, or declines to say.
    fn is_current<'a>(
        &'a self,
        base_image: Option<&'a str>,
    ) -> BoxFuture<'a, Result<bool, BackendError>>;

    /// Builds the image, and returns its size in bytes, 0 if the engine does not say. `progress` gets every
    /// line of the builder's output as it comes.
    ///
    /// # Errors
    /// If the engine cannot be reached, or a step of the build fails.
    fn build<'a>(
        &'a self,
        request: BuildRequest<'a>,
        progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<u64, BackendError>>;
}

/// What an image is built with.
#[derive(Debug, Clone, Default)]
pub struct BuildRequest<'a> {
    /// Image to build on, if not the usual one.
    pub base_image: Option<&'a str>,
    /// Build arguments: name and value.
    pub args: Vec<(String, String)>,
    /// PEM bundle that the build trusts besides its own authorities; may be empty.
    pub certificates: &'a [u8],
}
