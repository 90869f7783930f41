//! All files of a session as one archive, created while it is sent.

use std::{
    io::{self, Write},
    mem,
    sync::Arc,
};

use axum::body::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use jiff::{Timestamp, civil::datetime, tz::TimeZone};
use model::{Artifact, DataPath, SessionId};
use parking_lot::Mutex;
use protocol::message::Stamp;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use zip::{ZipWriter, write::SimpleFileOptions};

use super::body::written;
use crate::{
    session::PieceSizes,
    sessions::{ArchivedSession, Open, Sessions},
};

/// Kinds of archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Deflated files.
    Zip,
    /// Uncompressed files.
    Tar,
}

impl Kind {
    pub(super) fn mime(self) -> &'static str {
        match self {
            Self::Zip => "application/zip",
            Self::Tar => "application/x-tar",
        }
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Zip => "zip",
            Self::Tar => "tar",
        }
    }
}

/// The session that has the files.
pub(super) enum FilesOf {
    Live(Sessions, SessionId),
    Archived(Box<ArchivedSession>),
}

impl FilesOf {
    /// Opens a file in its current state: its stamp, and its content in small pieces.
    ///
    /// # Errors
    /// If there is no such file, or its session has ended.
    pub(super) async fn open(
        &self,
        path: &DataPath,
    ) -> io::Result<(Stamp, impl Stream<Item = io::Result<Bytes>> + Send + use<>)> {
        match self {
            Self::Live(sessions, id) => {
                let reader = sessions.perform(id, Open { path: path.clone().into() }).await;
                let reader = reader.map_err(io::Error::other)?;
                let stamp = reader.stamp();
                let pieces = reader.range(0..stamp.size, PieceSizes::new(0));
                Ok((stamp, pieces.map_err(io::Error::other).left_stream()))
            }
            Self::Archived(session) => {
                let file = session.file(path).ok_or(io::ErrorKind::NotFound)?;
                let stamp = file.stamp();
                Ok((stamp, file.range(0..stamp.size).map_err(io::Error::other).right_stream()))
            }
        }
    }
}

/// The archive's bytes. The stream ends with an error if a file changes or the session ends meanwhile, so
/// that a partial archive is never taken for a complete one.
pub(super) fn stream(
    kind: Kind,
    session: FilesOf,
    files: Vec<Artifact>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let source = Source { session, files };
    written(move |writer| async move {
        match kind {
            Kind::Zip => source.zip(writer).await,
            Kind::Tar => source.tar(writer).await,
        }
    })
}

/// A time as ZIP archives store it: here in UTC, in steps of two seconds, from 1980 to 2107.
fn zip_date(modified_ns: i64) -> zip::DateTime {
    let at = Timestamp::from_nanosecond(modified_ns.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    let at = at.to_zoned(TimeZone::UTC).datetime();
    let at = at.clamp(datetime(1980, 1, 1, 0, 0, 0, 0), datetime(2107, 12, 31, 23, 59, 58, 0));
    at.try_into().expect("clamped to the range of ZIP dates")
}

/// Bytes of an archive that are written but not sent yet. Writing never waits.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Vec<u8> {
        mem::take(&mut *self.0.lock())
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut *self.0.lock(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Source {
    session: FilesOf,
    files: Vec<Artifact>,
}

impl Source {
    async fn zip(self, mut writer: DuplexStream) -> io::Result<()> {
        let written = Written::default();
        let mut archive = ZipWriter::new_stream(written.clone());
        for file in &self.files {
            let (Stamp { size, .. }, pieces) = self.session.open(&file.path).await?;
            // Deflated even if that gains nothing: some readers refuse an uncompressed file whose length
            // only follows it.
            let options = SimpleFileOptions::default()
                .unix_permissions(0o644)
                .last_modified_time(zip_date(file.modified_ns))
                .large_file(size >= u32::MAX.into());
            archive.start_file(file.path.as_str(), options)?;
            let mut pieces = std::pin::pin!(pieces);
            while let Some(piece) = pieces.try_next().await? {
                archive.write_all(&piece)?;
                writer.write_all(&written.take()).await?;
            }
        }
        archive.finish()?;
        writer.write_all(&written.take()).await?;
        writer.shutdown().await
    }

    async fn tar(self, mut writer: DuplexStream) -> io::Result<()> {
        const BLOCK: usize = 512;
        let mut archive = tar::Builder::new(Vec::new());
        for file in &self.files {
            let (Stamp { size, .. }, pieces) = self.session.open(&file.path).await?;
            let mut header = tar::Header::new_gnu();
            // Without a type, Python takes a path that is cut off after a slash for a folder.
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(size);
            header.set_mode(0o644);
            header.set_mtime(u64::try_from(file.modified_ns / 1_000_000_000).unwrap_or(0));
            // Only the header: the builder copies contents from blocking readers only.
            archive.append_data(&mut header, file.path.as_str(), io::empty())?;
            writer.write_all(&mem::take(archive.get_mut())).await?;
            let mut pieces = std::pin::pin!(pieces);
            while let Some(piece) = pieces.try_next().await? {
                writer.write_all(&piece).await?;
            }
            let over = usize::try_from(size % BLOCK as u64).expect("a remainder of `BLOCK`");
            writer.write_all(&[0; BLOCK][over..][..(BLOCK - over) % BLOCK]).await?;
        }
        writer.write_all(&archive.into_inner()?).await?;
        writer.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_an_archive_cannot_have_is_the_nearest_that_it_can() {
        let date = |seconds: i64| {
            let date = zip_date(seconds * 1_000_000_000);
            (date.year(), date.month(), date.day(), date.hour(), date.minute(), date.second())
        };
        assert_eq!(date(1_780_000_001), (2026, 5, 28, 20, 26, 40));
        assert_eq!(date(0), (1980, 1, 1, 0, 0, 0));
        assert_eq!(date(-5), (1980, 1, 1, 0, 0, 0));
        assert_eq!(date(5_000_000_000), (2107, 12, 31, 23, 59, 58));
    }
}
