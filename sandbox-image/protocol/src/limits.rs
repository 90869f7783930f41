//! Numbers that both sides, or several parts of one side, must agree on. The caps of a frame are
//! with the [frame](crate::frame).

use crate::frame::MAX_BODY;

/// Uploads that may be open at once; each holds two descriptors and its part of the data area.
pub const MAX_UPLOADS: usize = 32;

/// Longest path that is listed, in bytes, and that a caller may name. A program could otherwise make
/// the list of its files larger than all the memory there is.
pub const MAX_PATH: usize = 1024;

/// Longest that a sandbox outlives its stream, and that its agent bears silence, in milliseconds, whatever a server asks
/// for.
pub const MAX_HOLD_MS: u64 = 3_600_000;

/// Files and folders that fit into the data area, and into scratch space.
pub const MAX_FILES: u32 = 16_384;

/// Outputs that are longer than this are kept to be read later, cut or not: not every result has room
/// for more. In characters as a result shows them, see [`shown_len`].
pub const KEPT_FROM: usize = 14_000;

/// How long an output is at most where a result shows it: in JSON, where some characters are escaped.
pub fn shown_len(bytes: &[u8]) -> usize {
    let of_byte = |byte: &u8| match byte {
        b'\n' | b'\r' | b'\t' | b'"' | b'\\' | 0x08 | 0x0C => 2,
        0..0x20 => 6,
        _ => 1,
    };
    bytes.iter().map(of_byte).sum()
}

/// Most that is kept of one output, in bytes: a hundred thousand lines. A program that means to
/// leave more than that to be read has files.
pub const MAX_KEPT: u64 = 8 << 20;

/// Runs of which outputs are kept; the oldest goes first.
pub const MAX_KEPT_RUNS: usize = 4;

/// Most bytes of a line that [`Peek`](crate::message::Peek) shows; of a longer one it is the end.
pub const MAX_LINE: usize = 512;

/// Most bytes that are kept of the value of a cell's last expression.
pub const MAX_RESULT: usize = 32 << 10;

/// Variables of a workspace that are told.
pub const MAX_VARIABLES: usize = 500;

/// Most characters of a variable's name, or of the description of its value, that are told.
pub const MAX_VARIABLE_CHARS: usize = 100;

/// Most bytes that an agent holds of variables that are written down, or taken over.
pub const MAX_CARRIED: u64 = 256 << 20;

/// Most cells that can be kept to be taken back.
pub const MAX_UNDO: u32 = 20;

/// Most bytes of a run's reply that the list of changed files takes.
pub const MAX_CHANGED: usize = 256 << 10;

/// Most bytes that a run may ask to be captured of each output: what the list of changed files and a
/// cell's value leave.
pub const MAX_CAPTURE: usize = (MAX_BODY - MAX_CHANGED - MAX_RESULT) / 2;

/// Most bytes of the note that an agent keeps for whoever resumes.
pub const MAX_NOTE: usize = 8 << 10;
