//! The archive's store: a folder or a bucket. Only this module uses `object_store`.
//!
//! Every request has a deadline of its own, so that a store which does not answer blocks no caller for longer.

use std::{
    fmt, io,
    ops::Range,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, buffered::BufWriter, local::LocalFileSystem,
    path::Path,
};
use tokio::{io::AsyncWriteExt, time::timeout};

/// The prefix of a setting that names a bucket.
pub(super) const S3: &str = "s3://";

/// Time limit for a store to answer, or to accept or send the next piece.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size from which an object is written in parts, and the size of each part, in bytes.
const PART_BYTES: usize = 8 << 20;

/// Why a request to the store failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// There is no such object.
    #[error("there is no such object")]
    Missing,
    /// The object is larger than allowed.
    #[error("it is larger than it can be")]
    TooLarge,
    /// The store did not answer in time.
    #[error("it did not answer in time")]
    Slow,
    /// The store refused the request, or could not be reached.
    #[error("{0}")]
    Failed(String),
}

impl From<object_store::Error> for StoreError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Missing,
            // The first lines say what went wrong; the rest may be a whole page.
            other => Self::Failed(other.to_string().chars().take(300).collect()),
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string().chars().take(300).collect())
    }
}

type Result<T> = std::result::Result<T, StoreError>;

/// An object that was found.
#[derive(Debug, Clone)]
pub(super) struct StoredObject {
    /// The object's name, below the prefix.
    pub(super) name: String,
    /// Time at which it was written, in seconds since the epoch.
    pub(super) written: i64,
}

/// A place for objects. Clones share it.
#[derive(Clone)]
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: String,
    answer: Duration,
    /// The store's folder; `None` for a bucket.
    folder: Option<PathBuf>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store that a setting names: `s3://bucket/prefix`, or a folder, which is made for its owner alone if it
    /// does not exist.
    ///
    /// # Errors
    /// If the folder cannot be made, or the variables for S3 cannot be used. A bucket is not asked yet.
    pub(super) fn open(place: &str) -> io::Result<Self> {
        if let Some(rest) = place.strip_prefix(S3) {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_matches('/').to_owned();
            let (objects, answer) = (bucket_of(bucket)?, ANSWER_TIMEOUT);
            return Ok(Self { objects, prefix, answer, folder: None });
        }
        let folder = std::path::absolute(FilePath::new(place))?;
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(&folder)?;
        let objects = LocalFileSystem::new_with_prefix(&folder).map_err(io::Error::other)?;
        let objects = objects.with_automatic_cleanup(true);
        let (objects, prefix) = (Arc::new(objects), String::new());
        Ok(Self { objects, prefix, answer: ANSWER_TIMEOUT, folder: Some(folder) })
    }

    /// A store with these objects, for tests.
    #[cfg(test)]
    pub(super) fn of(objects: Arc<dyn ObjectStore>, answer: Duration) -> Self {
        Self { objects, prefix: "prefix".into(), answer, folder: None }
    }

    /// Free bytes on the disk of the store's folder; `None` for a bucket, or if they cannot be read.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.folder.as_ref()?).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn path(&self, name: &str) -> Path {
        if self.prefix.is_empty() { name.into() } else { format!("{}/{name}", self.prefix).into() }
    }

    async fn in_time<T, E: Into<StoreError>>(
        &self,
        act: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T> {
        timeout(self.answer, act).await.map_err(|_| StoreError::Slow)?.map_err(Into::into)
    }

    /// Writes a small object atomically. It replaces one of the same name.
    pub(super) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        self.in_time(self.objects.put(&self.path(name), bytes.into())).await.map(drop)
    }

    /// Reads a small object of at most `most` bytes.
    pub(super) async fn get(&self, name: &str, most: usize) -> Result<Bytes> {
        let path = self.path(name);
        let got = self.in_time(self.objects.get(&path)).await?;
        if got.meta.size > most as u64 {
            return Err(StoreError::TooLarge);
        }
        self.in_time(got.bytes()).await
    }

    /// Streams a range of an object's bytes.
    pub(crate) async fn stream(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = Result<Bytes>> + Send + Unpin + use<>> {
        let (path, end) = (self.path(name), range.end);
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let got = match self.in_time(self.objects.get_opts(&path, options)).await {
            Err(error @ StoreError::Failed(_)) => {
                // If the object is shorter than it was, each store reports the missing range in its own words.
                let found = self.in_time(self.objects.head(&path)).await;
                let is_shorter = found.is_ok_and(|found| found.size < end);
                return Err(if is_shorter { StoreError::Missing } else { error });
            }
            got => got?,
        };
        let (pieces, answer) = (got.into_stream(), self.answer);
        Ok(Box::pin(futures::stream::try_unfold(pieces, move |mut pieces| async move {
            match timeout(answer, pieces.next()).await {
                Err(_) => Err(StoreError::Slow),
                Ok(None) => Ok(None),
                Ok(Some(piece)) => Ok(Some((piece?, pieces))),
            }
        })))
    }

    /// Creates an object, to be written piece by piece. It exists once it is finished.
    pub(super) fn write(&self, name: &str) -> Writer {
        let inner = BufWriter::with_capacity(self.objects.clone(), self.path(name), PART_BYTES);
        Writer { inner: inner.with_max_concurrency(2), answer: self.answer }
    }

    /// Deletes an object. It is no error if there is none.
    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        match self.in_time(self.objects.delete(&self.path(name))).await {
            Ok(()) | Err(StoreError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lists all objects in a folder, a few at a time.
    pub(super) fn list(
        &self,
        folder: &str,
    ) -> impl Stream<Item = Result<StoredObject>> + Send + Unpin + use<> {
        let (path, prefix) = (self.path(folder), self.prefix.clone());
        let (objects, answer) = (self.objects.clone(), self.answer);
        let found = objects.list(Some(&path)).map_err(StoreError::from);
        Box::pin(futures::stream::try_unfold(found, move |mut found| {
            let prefix = prefix.clone();
            async move {
                match timeout(answer, found.next()).await {
                    Err(_) => Err(StoreError::Slow),
                    Ok(None) => Ok(None),
                    Ok(Some(meta)) => {
                        let meta = meta?;
                        let name = meta.location.as_ref();
                        let name = name.strip_prefix(&prefix).unwrap_or(name);
                        let name = name.trim_start_matches('/').to_owned();
                        let written = meta.last_modified.timestamp();
                        Ok(Some((StoredObject { name, written }, found)))
                    }
                }
            }
        }))
    }
}

/// An object that is being written.
pub(super) struct Writer {
    inner: BufWriter,
    answer: Duration,
}

impl Writer {
    /// Writes more bytes. Waits if the store has not accepted the earlier ones yet.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let put = timeout(self.answer, self.inner.put(bytes)).await;
        put.map_err(|_| StoreError::Slow)?.map_err(Into::into)
    }

    /// Finishes the object, which exists when this returns.
    pub(super) async fn finish(mut self) -> Result<()> {
        timeout(self.answer * 3, self.inner.shutdown()).await.map_err(|_| StoreError::Slow)??;
        Ok(())
    }

    /// Discards the object. If the store still has parts of it, it deletes them by its own rules.
    pub(super) async fn abandon(mut self) {
        let _ = timeout(self.answer, self.inner.abort()).await;
    }
}

/// Opens the bucket of this name, with the usual variables `AWS_*`.
#[cfg(feature = "s3")]
fn bucket_of(bucket: &str) -> io::Result<Arc<dyn ObjectStore>> {
    use object_store::{BackoffConfig, ClientOptions, RetryConfig, aws::AmazonS3Builder};

    // The client comes without a provider of cryptography. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(3))
        .with_timeout(Duration::from_secs(60));
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 3,
        retry_timeout: ANSWER_TIMEOUT,
    };
    let from_environment = AmazonS3Builder::from_env().with_bucket_name(bucket);
    // A URL with `http://` is a deliberate choice: a private server without TLS.
    let is_plain = std::env::var("AWS_ENDPOINT_URL")
        .or_else(|_| std::env::var("AWS_ENDPOINT"))
        .is_ok_and(|url| url.starts_with("http://"));
    let client = client.with_allow_http(is_plain);
    let built = from_environment.with_client_options(client).with_retry(retry).build();
    Ok(Arc::new(built.map_err(io::Error::other)?))
}

#[cfg(not(feature = "s3"))]
fn bucket_of(_: &str) -> io::Result<Arc<dyn ObjectStore>> {
    Err(io::Error::other(
        "this program was built without S3: build it with `cargo build --release --features s3`, \
         or use the server's image",
    ))
}
