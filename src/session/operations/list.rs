//! The files of a session, as its sandbox lists them now.

use link::{Link, LinkError};
use model::{Artifact, FilePath, FoundFile};

use super::{Done, Operation, OperationContext, OperationError, open::refused};

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
    /// Memory that it uses, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let paths = self.artifacts.iter().map(|file| file.path.as_str().len());
        paths.sum::<usize>() + self.artifacts.len() * size_of::<Artifact>()
    }
}

/// Asks the agent for a listing of the data area.
pub(in crate::session) async fn list(link: &Link) -> Result<Listing, LinkError> {
    let (entries, more) = link.list(None).await?;
    let artifacts = entries.into_iter().filter_map(Artifact::from_entry);
    Ok(Listing { artifacts: artifacts.collect(), more })
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

/// Lists the files of a folder, or one file.
#[derive(Debug, Clone)]
pub struct ListWithin {
    /// The folder, or the file.
    pub path: FilePath,
}

/// Files that were found, by path.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The files.
    pub files: Vec<FoundFile>,
    /// Whether there are more files than can be listed.
    pub more: bool,
}

impl From<Listing> for Found {
    fn from(Listing { artifacts, more }: Listing) -> Self {
        let files = artifacts.into_iter().map(|Artifact { path, size_bytes, modified_ns }| {
            FoundFile { path: path.into(), size_bytes, modified_ns }
        });
        Self { files: files.collect(), more }
    }
}

/// Asks the agent for the files of a folder, or of the data area.
pub(super) async fn find(link: &Link, within: Option<&FilePath>) -> Result<Found, LinkError> {
    let (entries, more) = link.list(within).await?;
    Ok(Found { files: entries.iter().filter_map(FoundFile::from_entry).collect(), more })
}

impl Operation for ListWithin {
    type Output = Found;

    async fn perform(self, context: OperationContext) -> Result<Done<Found>, OperationError> {
        let _turn = context.turns.call().await;
        let Self { path } = self;
        match find(&context.link, Some(&path)).await {
            Ok(found) => Ok(Done::unchanged(found)),
            Err(error) => Err(refused(&context.link, &path, error).await),
        }
    }
}
