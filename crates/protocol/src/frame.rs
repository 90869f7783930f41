//! Frames: the units that are sent on the stream, without their meaning.
//!
//! ```text
//!  0          4          8      9              13        13+head
//!  | len: u32 | call: u32 | kind | head len: u32 | head ... | body ... |
//!             |<-------------------- len bytes ----------------------->|
//! ```
//!
//! Integers are little-endian. The head is a small JSON object, the body raw bytes. Both have a
//! cap that is checked before anything is allocated. The body's cap splits large data into pieces, so that a ping or a
//! kill never waits for a whole file.

use std::io::{self, Read, Write};

use thiserror::Error;

/// The version that both sides speak; raised with every change that an older peer would misread.
pub const PROTOCOL_VERSION: u32 = 13;

/// Bytes before the head: length, call, kind, head length.
pub const PREFIX_LEN: usize = 13;

/// The maximum size of a head, in bytes.
pub const MAX_HEAD: usize = 64 << 10;

/// The maximum size of a body, in bytes.
pub const MAX_BODY: usize = 1 << 20;

/// Declares the kinds once: a kind whose number could be sent but not read would end every session in
/// which it is used.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The kind of a frame. The numbers are those on the wire and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }

        impl TryFrom<u8> for Kind {
            type Error = FrameError;

            fn try_from(byte: u8) -> Result<Self, FrameError> {
                match byte {
                    $($number => Ok(Self::$name),)*
                    other => Err(FrameError::UnknownKind(other)),
                }
            }
        }
    };
}

kinds! {
    /// Version and limits; the first frame in each direction, and the server's comes first.
    Hello = 1,
    /// Request: run a program.
    Run = 2,
    /// Request: end the program that is running.
    Kill = 3,
    /// Request: write a piece of a file.
    Put = 4,
    /// Request: read a piece of a file.
    Get = 5,
    /// Request: list files.
    List = 6,
    /// Request: a sign of life. Also keeps the agent from ending itself.
    Ping = 7,
    /// The reply to a request; its form depends on the request.
    Reply = 8,
    /// The request could not be carried out.
    Failure = 9,
    /// Request: reply when runs are as fast as they can be.
    Warm = 10,
    /// Request: release the memory that only makes runs faster.
    Hibernate = 11,
    /// Request: read a piece of a long output.
    Output = 12,
    /// Request: read what the program that is running has written.
    Peek = 13,
    /// Request: discard an upload in progress.
    Abandon = 14,
    /// Request: list what the interpreter of a workspace contains.
    Inspect = 15,
    /// Request: undo cells, or end the interpreter.
    Reset = 16,
    /// Request: run a tool's program once.
    Call = 17,
    /// Request: remove the files of such a call.
    Forget = 18,
    /// Request: export the variables of a workspace.
    Export = 19,
    /// Request: import exported variables.
    Import = 20,
    /// Request: resume a sandbox that has lost its stream. The first frame of a later stream.
    Resume = 21,
    /// Request: keep a note for a server that resumes.
    Remember = 22,
    /// Request: write pieces of files of packages.
    Install = 23,
    /// Request: summarize a table's file.
    Summarize = 24,
    /// From the agent: a program asks for the call of a tool.
    Ask = 25,
    /// From the agent: nobody waits for the answer to such a question any more.
    Withdraw = 26,
    /// Request: pass the answer to such a question on.
    Answer = 27,
    /// Request: stop the run's processes until such a question is answered.
    Pause = 28,
}

/// Why bytes are not a frame. The stream cannot be resumed after any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The kind byte is not one of [`Kind`].
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The head is larger than [`MAX_HEAD`].
    #[error("frame head of {0} bytes, more than {MAX_HEAD}")]
    HeadTooLarge(usize),
    /// The body is larger than [`MAX_BODY`].
    #[error("frame body of {0} bytes, more than {MAX_BODY}")]
    BodyTooLarge(usize),
    /// The length does not cover the prefix and the head that it announces.
    #[error("frame length {0} is too short for what it holds")]
    TooShort(usize),
}

/// The decoded first [`PREFIX_LEN`] bytes of a frame: the numbers that a reader needs before it
/// allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The call that this frame belongs to; 0 for [`Kind::Hello`].
    pub call: u32,
    /// The kind of the frame.
    pub kind: Kind,
    /// Bytes of head that follow.
    pub head_len: usize,
    /// Bytes of body that follow the head.
    pub body_len: usize,
}

impl Prefix {
    /// Checks and decodes a prefix.
    ///
    /// # Errors
    ///
    /// [`FrameError`], if the kind is unknown, a cap is exceeded, or the lengths contradict each other.
    pub fn decode(bytes: [u8; PREFIX_LEN]) -> Result<Self, FrameError> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let len = word(0) as usize;
        let head_len = word(9) as usize;
        let kind = Kind::try_from(bytes[8])?;
        if head_len > MAX_HEAD {
            return Err(FrameError::HeadTooLarge(head_len));
        }
        let body_len = len
            .checked_sub(PREFIX_LEN - 4)
            .and_then(|rest| rest.checked_sub(head_len))
            .ok_or(FrameError::TooShort(len))?;
        if body_len > MAX_BODY {
            return Err(FrameError::BodyTooLarge(body_len));
        }
        Ok(Self { call: word(4), kind, head_len, body_len })
    }

    /// Checks and encodes a prefix.
    ///
    /// # Errors
    ///
    /// [`FrameError`], if the head or the body is over its cap.
    pub fn encode(self) -> Result<[u8; PREFIX_LEN], FrameError> {
        if self.head_len > MAX_HEAD {
            return Err(FrameError::HeadTooLarge(self.head_len));
        }
        if self.body_len > MAX_BODY {
            return Err(FrameError::BodyTooLarge(self.body_len));
        }
        let word = |n: usize| u32::try_from(n).expect("the caps fit u32").to_le_bytes();
        let mut bytes = [0; PREFIX_LEN];
        bytes[0..4].copy_from_slice(&word(PREFIX_LEN - 4 + self.head_len + self.body_len));
        bytes[4..8].copy_from_slice(&self.call.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9..13].copy_from_slice(&word(self.head_len));
        Ok(bytes)
    }
}

/// A frame as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The call that the frame belongs to; 0 for [`Kind::Hello`].
    pub call: u32,
    /// The kind of the frame.
    pub kind: Kind,
    /// JSON.
    pub head: Vec<u8>,
    /// Raw bytes.
    pub body: Vec<u8>,
}

/// Reads one frame from a blocking reader; `None` at a clean end of the stream.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] with a [`FrameError`] in it for a broken frame,
/// [`io::ErrorKind::UnexpectedEof`] for one that is cut short, and any error of the reader.
pub fn read(reader: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut bytes = [0; PREFIX_LEN];
    loop {
        match reader.read(&mut bytes[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            // A signal does not end the stream; `read_exact` retries by itself.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    reader.read_exact(&mut bytes[1..])?;
    let Prefix { call, kind, head_len, body_len } = Prefix::decode(bytes).map_err(invalid_data)?;
    let mut head = vec![0; head_len];
    reader.read_exact(&mut head)?;
    let mut body = vec![0; body_len];
    reader.read_exact(&mut body)?;
    Ok(Some(Frame { call, kind, head, body }))
}

/// Writes one frame to a blocking writer and flushes it. The body is given in pieces that are sent
/// one after the other, so that the caller need not join them.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] with a [`FrameError`] in it if a cap is exceeded, and then nothing is written;
/// otherwise any error of the writer.
pub fn write(
    writer: &mut impl Write,
    call: u32,
    kind: Kind,
    head: &[u8],
    body: &[&[u8]],
) -> io::Result<()> {
    let body_len = body.iter().map(|piece| piece.len()).sum();
    let prefix = Prefix { call, kind, head_len: head.len(), body_len };
    let mut start = Vec::with_capacity(PREFIX_LEN + head.len());
    start.extend_from_slice(&prefix.encode().map_err(invalid_data)?);
    start.extend_from_slice(head);
    writer.write_all(&start)?;
    for piece in body {
        writer.write_all(piece)?;
    }
    writer.flush()
}

fn invalid_data(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(Kind::ALL)
    }

    proptest! {
        #[test]
        fn a_written_frame_is_read_back_unchanged(
            call: u32,
            kind in any_kind(),
            head in prop::collection::vec(any::<u8>(), 0..200),
            body in prop::collection::vec(any::<u8>(), 0..2000),
            cut in 0usize..2000,
        ) {
            let cut = cut.min(body.len());
            let mut wire = Vec::new();
            write(&mut wire, call, kind, &head, &[&body[..cut], &body[cut..]])?;
            let back = read(&mut wire.as_slice())?.expect("a frame");
            prop_assert_eq!(back, Frame { call, kind, head, body });
        }

        #[test]
        fn any_prefix_is_decoded_within_the_caps_or_refused(bytes: [u8; PREFIX_LEN]) {
            if let Ok(prefix) = Prefix::decode(bytes) {
                prop_assert!(prefix.head_len <= MAX_HEAD && prefix.body_len <= MAX_BODY);
                prop_assert_eq!(prefix.encode().expect("what decodes also encodes"), bytes);
            }
        }
    }

    #[test]
    fn a_frame_cut_short_is_an_error_and_not_an_end() {
        let mut wire = Vec::new();
        write(&mut wire, 1, Kind::Ping, b"{}", &[b"abc"]).expect("writes to memory");
        for len in 1..wire.len() {
            let error = read(&mut &wire[..len]).expect_err("cut short");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "at {len}");
        }
        assert!(read(&mut &wire[..0]).expect("clean end").is_none());
    }

    #[test]
    fn a_signal_in_the_middle_of_reading_is_no_end() {
        /// A reader that is interrupted before every byte.
        struct Interrupted<'a>(&'a [u8], bool);
        impl Read for Interrupted<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let len = buffer.len().min(1);
                self.0.read(&mut buffer[..len])
            }
        }
        let mut wire = Vec::new();
        write(&mut wire, 1, Kind::Ping, b"{}", &[b"abc"]).expect("writes to memory");
        let frame = read(&mut Interrupted(&wire, false)).expect("no error").expect("a frame");
        assert_eq!((frame.call, &frame.body[..]), (1, &b"abc"[..]));
    }

    #[test]
    fn a_frame_over_the_caps_is_refused_before_its_bytes_are_asked_for() {
        let huge = Prefix { call: 1, kind: Kind::Put, head_len: 0, body_len: MAX_BODY };
        let mut bytes = huge.encode().expect("at the cap");
        bytes[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(Prefix::decode(bytes), Err(FrameError::BodyTooLarge(_))));
        bytes[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(Prefix::decode(bytes), Err(FrameError::HeadTooLarge(_))));
        bytes[0..4].copy_from_slice(&3u32.to_le_bytes());
        bytes[9..13].copy_from_slice(&0u32.to_le_bytes());
        assert_eq!(Prefix::decode(bytes), Err(FrameError::TooShort(3)));
    }
}
