//! Opens a file for reading.

use link::{Link, LinkError};
use model::{DataPath, text::nearest};
use protocol::message::FailureCode;

use super::{
    Done, Operation, OperationContext, OperationError,
    list::{Listing, list},
};
use crate::{error::Error, session::FileReader};

/// Maximum number of names of similar files in the error for a missing file.
const MAX_NEAREST: usize = 5;

/// Opens a file of a session.
#[derive(Debug, Clone)]
pub struct Open {
    /// The file's path.
    pub path: DataPath,
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
            Err(error) if error.code() == Some(FailureCode::BadPath) => {
                let why = format!(
                    "The path {path} leads through a file or a link, or may not be read. \
                     list_artifacts lists the files that can be."
                );
                Err(Error::InvalidPath(why).into())
            }
            Err(error) if error.code() == Some(FailureCode::NotFound) => {
                Err(not_found(&link, &path).await)
            }
            Err(error) => Err(OperationError::Link(error, path.as_str().into())),
        }
    }
}

/// The error for a missing file, with similar names.
async fn not_found(link: &Link, path: &DataPath) -> OperationError {
    match list(link).await {
        Ok(Listing { artifacts, .. }) => {
            let names = || artifacts.iter().map(|artifact| artifact.path.as_str());
            let is_below = |name: &str| {
                name.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
            };
            let near: Vec<_> =
                nearest(path.as_str(), names(), MAX_NEAREST).map(str::to_owned).collect();
            let path = path.as_str().to_owned();
            if names().any(is_below) {
                Error::IsFolder(path).into()
            } else if near.is_empty() {
                Error::NotFound(path).into()
            } else {
                Error::NotFoundNear { path, near }.into()
            }
        }
        Err(LinkError::Refused(_)) => Error::NotFound(path.as_str().to_owned()).into(),
        Err(error) => OperationError::Link(error, path.as_str().into()),
    }
}
