//! A process that summarizes a file, or draws a page of it: a fork of a fork server. The other side is `summary.py`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::{sys::signal::Signal, unistd::Pid};
use protocol::limits::{MAX_PAGE, MAX_SUMMARY};

use super::zygote::pid_of;
use crate::{
    processes::Children,
    runtimes::channel::{Received, receive_up_to, send},
};

/// Whether a file's kind is read with a library.
pub(super) fn needs_libraries(path: &str) -> bool {
    let extension = path.rsplit('.').next().unwrap_or_default();
    ["parquet", "pq"].iter().any(|kind| extension.eq_ignore_ascii_case(kind))
}

/// The process, or one that will be. It does nothing before the agent knows it, so that none is left if it comes too
/// late.
#[derive(Debug)]
pub(crate) struct Summarizer {
    channel: OwnedFd,
    pid: Option<Pid>,
    /// The report so far: it comes in pieces.
    report: Vec<u8>,
    most: usize,
}

/// Bytes of the line that describes the document, before the image of a page.
const MAX_HEAD: usize = 1 << 10;

/// The longest piece of a report.
const MAX_PIECE: usize = 64 << 10;

/// The state of a summary.
pub(crate) enum Progress {
    Working,
    /// The report, which comes from a process that a file may have taken over.
    Done(Vec<u8>),
    /// There will be no summary.
    Failed,
}

impl Summarizer {
    pub(super) fn new(channel: OwnedFd, is_page: bool) -> Self {
        let most = if is_page { MAX_PAGE + MAX_HEAD } else { MAX_SUMMARY };
        Self { channel, pid: None, report: vec![], most }
    }

    /// Takes the next step. Never waits.
    pub(crate) fn attend(&mut self, children: &mut Children) -> Progress {
        if self.pid.is_none() {
            return match receive_up_to(&self.channel, size_of::<i32>(), pid_of) {
                Received::Nothing => Progress::Working,
                Received::End => Progress::Failed,
                Received::Message(pid) => {
                    // It is no process of the user's, and is reaped when it has ended.
                    children.keep(pid);
                    self.pid = Some(pid);
                    send(&self.channel, &[1], &[]).map_or(Progress::Failed, |()| Progress::Working)
                }
            };
        }
        loop {
            match receive_up_to(&self.channel, MAX_PIECE, |piece| Some(piece.to_vec())) {
                Received::Nothing => return Progress::Working,
                Received::Message(piece) if self.report.len() + piece.len() <= self.most => {
                    self.report.extend(piece);
                }
                Received::End if !self.report.is_empty() => {
                    return Progress::Done(std::mem::take(&mut self.report));
                }
                Received::Message(_) | Received::End => return Progress::Failed,
            }
        }
    }

    /// Ends the process, if it has not ended.
    pub(crate) fn end(self, children: &Children) {
        if let Some(pid) = self.pid {
            children.signal_spared(pid, Signal::SIGKILL);
        }
    }
}

impl AsFd for Summarizer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
