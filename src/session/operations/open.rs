//! Opening a file for reading.

use protocol::message::FailureCode;

use super::{Done, Operation, OperationContext, OperationError};
use crate::{artifact::DataPath, error::Error, session::FileReader};

/// Opens a file of a session.
#[derive(Debug, Clone)]
pub struct Open {
    /// Where it is.
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
                let why = format!("{path} leads through a file or a link, or may not be read.");
                Err(Error::InvalidPath(why).into())
            }
            Err(error) => Err(OperationError::Link(error, path.as_str().into())),
        }
    }
}
