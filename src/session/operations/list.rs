//! The files of a session, as its sandbox lists them now.

use link::{Link, LinkError};
use model::Artifact;
use protocol::message::FileEntry;

use super::{Done, Operation, OperationContext, OperationError};

/// The subject of a listing in error messages.
pub(in crate::session) const LISTING: &str = "the data area";

/// Lists all files.
#[derive(Debug, Clone, Copy)]
pub struct List;

/// The files of a session.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The files, by path.
    pub artifacts: Vec<Artifact>,
    /// Whether there are more files than are listed.
    pub more: bool,
}

impl Listing {
    fn new(entries: Vec<FileEntry>, more: bool) -> Self {
        let artifacts = entries.into_iter().filter_map(Artifact::from_entry);
        Self { artifacts: artifacts.collect(), more }
    }

    /// Memory that it uses, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let paths = self.artifacts.iter().map(|file| file.path.as_str().len());
        paths.sum::<usize>() + self.artifacts.len() * size_of::<Artifact>()
    }
}

/// Asks the agent for a listing.
pub(in crate::session) async fn list(link: &Link) -> Result<Listing, LinkError> {
    let (entries, more) = link.list().await?;
    Ok(Listing::new(entries, more))
}

impl Operation for List {
    type Output = Listing;

    async fn perform(self, context: OperationContext) -> Result<Done<Listing>, OperationError> {
        let _turn = context.turns.call().await;
        let listing = list(&context.link).await;
        let listing = listing.map_err(|error| OperationError::Link(error, LISTING.into()))?;
        Ok(Done::unchanged(listing))
    }
}
