//! Calls for files: uploads, reading, listing, and packages.

use std::time::Duration;

use bytes::Bytes;
use model::{DataPath, Existing, FilePath};
#[cfg(doc)]
use protocol::message::FailureCode;
use protocol::{
    frame::MAX_BODY,
    limits::{MAX_PAGE, MAX_SUMMARY},
    message::{
        Abandon, Document, FileEntry, Forget, Get, GetDone, Install, List, PackagePiece, Put,
        PutDone, Summarize, SummarizeDone, Summary,
    },
};

use super::{
    Link, LinkError,
    wire::{Awaited, parse, within},
};

/// Maximum number of pages of a listing that are requested, each 1 MiB except the last: enough for all files of a data
/// area with names of ordinary length. A hostile agent could send pages forever.
const MAX_PAGES: usize = 4;

/// An upload in progress. The file appears with its last piece or not at all.
#[derive(Debug)]
pub struct Upload {
    link: Link,
    number: u32,
    path: String,
    existing: Existing,
    offset: u64,
}

impl Upload {
    /// Sends the next piece, at most [`MAX_BODY`] bytes. More may be sent before its answer arrives: the agent takes
    /// them in their order, and none after one that it refuses.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link ends before it is sent.
    pub async fn send(&mut self, piece: Bytes, last: bool) -> Result<Sent, LinkError> {
        let &mut Self { number: upload, existing, offset, .. } = self;
        let overwrite = existing.is_overwritten();
        let put = Put { upload, path: self.path.clone(), offset, last, overwrite };
        self.offset += piece.len() as u64;
        let (_, answer) = self.link.begin(&put, piece).await?;
        Ok(Sent { answer, silence: self.link.silence })
    }

    /// Sends the next piece and waits until it is written.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send) and [`Sent::written`].
    pub async fn put(&mut self, piece: Bytes, last: bool) -> Result<PutDone, LinkError> {
        self.send(piece, last).await?.written().await
    }

    /// Bytes that were sent so far.
    pub fn sent(&self) -> u64 {
        self.offset
    }

    /// Gives up the upload. The agent keeps nothing of it.
    ///
    /// # Errors
    /// The errors of every call, see [`Link::kill`].
    pub async fn abandon(self) -> Result<(), LinkError> {
        self.link.call(&Abandon { upload: self.number }, Bytes::new()).await.map(drop)
    }
}

/// A piece of an upload that the agent has not answered yet.
#[derive(Debug)]
pub struct Sent {
    answer: Awaited,
    silence: Duration,
}

impl Sent {
    /// Waits until the piece is written.
    ///
    /// # Errors
    /// The errors of every call, see [`Link::kill`]; [`FailureCode::Full`], [`FailureCode::Exists`] and
    /// [`FailureCode::BadPath`] say what is wrong with the file. The agent has then dropped the upload.
    pub async fn written(&mut self) -> Result<PutDone, LinkError> {
        let closed = self.answer.closed.clone();
        Ok(within(self.silence, &closed, self.answer.decode::<Put>()).await?.0)
    }
}

impl Link {
    /// Begins an upload; nothing is sent before its first piece.
    pub fn upload(&self, path: &DataPath, existing: Existing) -> Upload {
        let number = self.calls.number();
        let path = path.as_str().to_owned();
        Upload { link: self.clone(), number, path, existing, offset: 0 }
    }

    /// Writes pieces of files of packages, [`MAX_BODY`] bytes at most. Each file has a number of its own.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Full`] and [`FailureCode::BadPath`] as for an
    /// upload, [`FailureCode::NoRuntime`] if the sandbox has no place for packages.
    pub async fn install(&self, pieces: Vec<PackagePiece>, body: Bytes) -> Result<(), LinkError> {
        self.call(&Install { pieces }, body).await.map(drop)
    }

    /// A number for a file of a package.
    pub fn file_number(&self) -> u32 {
        self.calls.number()
    }

    /// Reads a piece of a file, at most [`MAX_BODY`] bytes.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] and [`FailureCode::BadPath`] if
    /// there is no such file.
    pub async fn get(
        &self,
        path: &FilePath,
        offset: u64,
        len: usize,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let (path, len) = (path.to_text(), len.min(MAX_BODY));
        self.piece(Get { path, offset, len, of: None }).await
    }

    /// Reads a piece of a file that a tool call has left.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn get_of(
        &self,
        call: u32,
        path: &DataPath,
        offset: u64,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let path = path.as_str().to_owned();
        self.piece(Get { path, offset, len: MAX_BODY, of: Some(call) }).await
    }

    async fn piece(&self, get: Get) -> Result<(GetDone, Bytes), LinkError> {
        let (done, bytes) = self.call(&get, Bytes::new()).await?;
        if bytes.len() > get.len {
            return Err(self.broken("more bytes than were asked for"));
        }
        Ok((done, bytes))
    }

    /// Reads the start of a file, by its path in a request.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn start_of(&self, path: &str, len: usize) -> Result<Bytes, LinkError> {
        let (path, len) = (path.to_owned(), len.min(MAX_BODY));
        Ok(self.piece(Get { path, offset: 0, len, of: None }).await?.1)
    }

    /// Makes the agent summarize a table's file. The texts may be anything within its limits.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if there is no summary,
    /// [`FailureCode::Busy`] if the agent has no time for it.
    pub async fn summarize(&self, wanted: &Summarize) -> Result<Summary, LinkError> {
        let (_, body) = self.call(wanted, Bytes::new()).await?;
        if body.len() > MAX_SUMMARY {
            return Err(self.broken("a summary longer than one may be"));
        }
        parse(&self.closed, &body)
    }

    /// Makes the agent draw a page of a PDF document, as [`Summarize::page`] says. The image may be anything within its
    /// limits.
    ///
    /// # Errors
    /// As for [`summarize`](Self::summarize).
    pub async fn draw(&self, wanted: &Summarize) -> Result<(Document, Bytes), LinkError> {
        let (SummarizeDone { document }, body) = self.call(wanted, Bytes::new()).await?;
        match document {
            Some(document) if body.len() <= MAX_PAGE => Ok((document, body)),
            _ => Err(self.broken("no page, or a longer one than may be")),
        }
    }

    /// Makes the agent delete the files that a tool call has left.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn forget(&self, call: u32) -> Result<(), LinkError> {
        self.call(&Forget { call }, Bytes::new()).await.map(drop)
    }

    /// Lists files, by path, up to [`MAX_PAGES`] pages: those of the data area, or those of this file or folder. The
    /// second value says whether there are more.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] and [`FailureCode::BadPath`] if
    /// there is no such file or folder.
    pub async fn list(
        &self,
        within: Option<&FilePath>,
    ) -> Result<(Vec<FileEntry>, bool), LinkError> {
        let mut all: Vec<FileEntry> = vec![];
        for _ in 0..MAX_PAGES {
            let after = all.last().map(|entry| entry.path.clone());
            let within = within.map(FilePath::to_text);
            let (done, body) = self.call(&List { after, within }, Bytes::new()).await?;
            let page: Vec<FileEntry> = parse(&self.closed, &body)?;
            if done.more && page.is_empty() {
                return Err(self.broken("an empty page that is not the last"));
            }
            all.extend(page);
            if !done.more {
                return Ok((all, done.cut));
            }
        }
        Ok((all, true))
    }
}
