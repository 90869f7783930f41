//! Numbers that both sides, or several parts of one side, must agree on. The caps of a frame are
//! with the [frame](crate::frame).

use crate::frame::MAX_BODY;

/// The maximum number of open uploads; each takes two descriptors and its part of the data area.
pub const MAX_UPLOADS: usize = 32;

/// The maximum length of a path that is listed, or that a caller may name, in bytes. Without it, a program could make
/// the list of its files larger than the memory.
pub const MAX_PATH: usize = 1024;

/// The maximum time for which a sandbox outlives its stream, and for which its agent tolerates silence, in
/// milliseconds, whatever a server asks for.
pub const MAX_HOLD_MS: u64 = 3_600_000;

/// The maximum number of files and folders in the data area, and in scratch space.
pub const MAX_FILES: u32 = 16_384;

/// The length from which an output is stored to be read later, cut or not: not every result has room for more. In
/// characters as a result shows them, see [`shown_len`].
pub const KEPT_FROM: usize = 14_000;

/// The maximum length of an output in a result, which is JSON, so that some characters are escaped.
pub fn shown_len(bytes: &[u8]) -> usize {
    let of_byte = |byte: &u8| match byte {
        b'\n' | b'\r' | b'\t' | b'"' | b'\\' | 0x08 | 0x0C => 2,
        0..0x20 => 6,
        _ => 1,
    };
    bytes.iter().map(of_byte).sum()
}

/// The maximum size of a stored output, in bytes: a hundred thousand lines. A program that produces more to be read can
/// write a file.
pub const MAX_KEPT: u64 = 8 << 20;

/// The maximum number of runs whose outputs are stored; those of the oldest run are removed first.
pub const MAX_KEPT_RUNS: usize = 4;

/// The maximum number of bytes of each output in a reply to [`Peek`](crate::message::Peek): the newest ones.
pub const MAX_LIVE: usize = 16 << 10;

/// The maximum size of the value of a cell's last expression, in bytes; the rest is cut.
pub const MAX_RESULT: usize = 32 << 10;

/// The maximum number of a workspace's variables in a reply.
pub const MAX_VARIABLES: usize = 500;

/// The maximum length of a variable's name, or of the description of its value, in a reply, in characters.
pub const MAX_VARIABLE_CHARS: usize = 100;

/// The maximum size of exported or imported variables that an agent holds, in bytes.
pub const MAX_CARRIED: u64 = 256 << 20;

/// The maximum number of cells that can be undone.
pub const MAX_UNDO: u32 = 20;

/// The maximum size of the list of changed files in a run's reply, in bytes.
pub const MAX_CHANGED: usize = 256 << 10;

/// The maximum number of bytes of each output that a run may ask to be captured: what the list of changed files and a
/// cell's value leave of a body.
pub const MAX_CAPTURE: usize = (MAX_BODY - MAX_CHANGED - MAX_RESULT) / 2;

/// The maximum size of the note that an agent keeps for a server that resumes, in bytes.
pub const MAX_NOTE: usize = 64 << 10;

/// The folder in every sandbox that has a folder for each dataset.
pub const DATASETS: &str = "/data";

/// The maximum size of a [`Summary`](crate::message::Summary) as JSON, in bytes.
pub const MAX_SUMMARY: usize = 64 << 10;

/// The maximum size of the image of a page, in bytes.
pub const MAX_PAGE: usize = 900 << 10;

/// The longest time that an agent takes for a page, in milliseconds, whatever a server asks for.
pub const MAX_PAGE_MS: u64 = 30_000;

/// The longest time that an agent takes for a summary, in milliseconds, whatever a server asks for.
pub const MAX_SUMMARY_MS: u64 = 1000;
