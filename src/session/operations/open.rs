//! Opens a file for reading.

use std::collections::BTreeSet;

use link::{Link, LinkError};
use model::{FilePath, text::nearest};
use protocol::message::FailureCode;

use super::{
    Done, Operation, OperationContext, OperationError,
    list::{Found, find},
};
use crate::{error::Error, session::FileReader};

/// Maximum number of names of similar files in the error for a missing file.
const MAX_NEAREST: usize = 5;

/// Opens a file of a session.
#[derive(Debug, Clone)]
pub struct Open {
    /// The file's path.
    pub path: FilePath,
}

impl Operation for Open {
    type Output = FileReader;

    async fn perform(self, context: OperationContext) -> Result<Done<FileReader>, OperationError> {
        let (Self { path }, OperationContext { link, turns, usage, reads, .. }) = (self, context);
        let _turn = turns.call().await;
        match link.get(&path, 0, 0).await {
            Ok((done, _)) => {
                let reader = FileReader {
                    link,
                    path,
                    stamp: done.stamp,
                    _reading: usage.read(),
                    observer: reads,
                };
                Ok(Done::unchanged(reader))
            }
            Err(error) => Err(refused(&link, &path, error).await),
        }
    }
}

/// The error for a path at which nothing can be read.
pub(super) async fn refused(link: &Link, path: &FilePath, error: LinkError) -> OperationError {
    match error.code() {
        Some(FailureCode::BadPath) => Error::InvalidPath(format!(
            "The path {path} leads through a file or a link, or may not be read. list_artifacts lists the files \
             that can be."
        ))
        .into(),
        Some(FailureCode::NotFound) => not_found(link, path).await,
        _ => OperationError::Link(error, path.to_text()),
    }
}

/// The error for a missing file, with similar names of the data area or of the dataset.
async fn not_found(link: &Link, path: &FilePath) -> OperationError {
    let dataset = path.dataset();
    let text = path.to_text();
    match find(link, dataset.as_ref()).await {
        Ok(Found { files, .. }) => {
            let names: Vec<_> = files.iter().map(|file| file.path.to_text()).collect();
            let folders: BTreeSet<_> = names.iter().flat_map(|name| folders(name)).collect();
            let names = || folders.iter().copied().chain(names.iter().map(String::as_str));
            let is_below =
                |name: &str| name.strip_prefix(&*text).is_some_and(|rest| rest.starts_with('/'));
            let near: Vec<_> = nearest(&text, names(), MAX_NEAREST).map(str::to_owned).collect();
            if names().any(is_below) {
                Error::IsFolder(text).into()
            } else if near.is_empty() {
                Error::NotFound(text).into()
            } else {
                Error::NotFoundNear { path: text, near }.into()
            }
        }
        Err(LinkError::Refused(_)) => Error::NotFound(text).into(),
        Err(error) => OperationError::Link(error, text),
    }
}

/// The folders above a file, except those that are no part of the data area or of one dataset.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    let least = if path.starts_with('/') { 3 } else { 0 };
    path.match_indices('/').map(|(at, _)| &path[..at]).skip(least)
}
