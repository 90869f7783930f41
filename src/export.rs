//! Artifacts as files of the host, for clients that run there.

use std::path::{Path, PathBuf};

use futures::TryStreamExt;
use tokio::io::AsyncWriteExt;

use crate::{
    session::{Artifact, SessionId},
    sessions::Sessions,
};

/// Writes the files below `folder/<session>` and says where each is, in the order in which they came.
/// One that cannot be written is left out, with a warning in the log.
///
/// The folder of the session keeps what a program names as it likes away from the files that mean
/// something where they lie.
pub(crate) async fn export(
    sessions: &Sessions,
    id: &SessionId,
    artifacts: &[Artifact],
    folder: &Path,
) -> Vec<Option<PathBuf>> {
    let mut written = vec![];
    for artifact in artifacts {
        let to = folder.join(id.as_str()).join(artifact.path.as_str());
        written.push(match write(sessions, id, artifact, &to).await {
            Ok(()) => Some(to),
            Err(error) => {
                // Without the message, which names files.
                tracing::warn!(session_id = %id, error = %error.kind(), "artifact not exported");
                None
            }
        });
    }
    written
}

/// Whole or not at all: under a passing name first.
async fn write(
    sessions: &Sessions,
    id: &SessionId,
    artifact: &Artifact,
    to: &Path,
) -> std::io::Result<()> {
    let reader = sessions.open(id, artifact.path.clone()).await.map_err(std::io::Error::other)?;
    let folder = to.parent().unwrap_or(to);
    tokio::fs::create_dir_all(folder).await?;
    let (file, passing) = tempfile::Builder::new()
        .prefix(".export-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)?
        .into_parts();
    let mut file = tokio::fs::File::from_std(file);
    let mut pieces = std::pin::pin!(reader.stream());
    while let Some(piece) = pieces.try_next().await.map_err(std::io::Error::other)? {
        file.write_all(&piece).await?;
    }
    file.flush().await?;
    passing.persist(to)?;
    Ok(())
}
