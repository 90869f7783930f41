//! Properties that hold for any bytes from a sandbox. The fuzz target and the tests both check them with the function
//! here.

use std::{fmt, io};

use protocol::{
    frame::{self, Frame, MAX_BODY, MAX_HEAD},
    message::{
        Abandon, AgentHello, Answer, Ask, Call, CallInput, Carried, Contents, Empty, Export,
        ExportDone, Failure, FileEntry, Forget, Get, GetDone, Hibernate, HibernateDone, Import,
        ImportDone, Inspect, InspectDone, Install, Kill, List, ListDone, Output, OutputDone, Pause,
        Peek, PeekDone, PeerVersion, Ping, Pong, Put, PutDone, Reset, ResetDone, Run, RunDone,
        ServerHello, Summarize, SummarizeDone, Summary, Warm, WarmDone, Withdraw,
    },
    resume::{Remember, Resume, Resumed},
};
use serde::{Serialize, de::DeserializeOwned};

/// The frames and messages in some bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Frames up to the end or the first error.
    pub frames: usize,
    /// Ways in which the heads and bodies of these frames can be read as messages.
    pub messages: usize,
}

/// Reads frames to the end or to the first error.
///
/// # Panics
///
/// If a frame is over the caps, differs from the wire, or is refused without a valid reason; if a message changes when
/// it is written and read again.
pub fn stream(mut bytes: &[u8]) -> Found {
    let mut found = Found::default();
    loop {
        let before = bytes;
        match frame::read(&mut bytes) {
            Ok(Some(frame)) => {
                same(&frame, &before[..before.len() - bytes.len()]);
                found.frames += 1;
                found.messages += messages(&frame);
            }
            Ok(None) => {
                assert!(before.is_empty(), "an end in the middle");
                return found;
            }
            Err(error) => {
                let broken = error.kind() == io::ErrorKind::InvalidData;
                let cut_short = error.kind() == io::ErrorKind::UnexpectedEof && bytes.is_empty();
                assert!(broken || cut_short, "{error}");
                return found;
            }
        }
    }
}

/// Checks that the frame is within the caps, and is exactly these bytes.
fn same(frame: &Frame, wire: &[u8]) {
    assert!(frame.head.len() <= MAX_HEAD && frame.body.len() <= MAX_BODY);
    let mut again = vec![];
    frame::write(&mut again, frame.call, frame.kind, &frame.head, &[&frame.body])
        .expect("what was read can be written");
    assert!(again == wire, "another frame than was on the wire");
}

/// Reads the head as every kind of message, and the body as each kind of JSON. Returns the number of successes.
fn messages(frame: &Frame) -> usize {
    let head = &frame.head;
    [
        steady::<PeerVersion>(head),
        steady::<ServerHello>(head),
        steady::<AgentHello>(head),
        steady::<Resume>(head),
        steady::<Resumed>(head),
        steady::<Remember>(head),
        steady::<Run>(head),
        steady::<RunDone>(head),
        steady::<Inspect>(head),
        steady::<InspectDone>(head),
        steady::<Reset>(head),
        steady::<ResetDone>(head),
        steady::<Export>(head),
        steady::<ExportDone>(head),
        steady::<Import>(head),
        steady::<ImportDone>(head),
        steady::<Call>(head),
        steady::<Forget>(head),
        steady::<Ask>(head),
        steady::<Withdraw>(head),
        steady::<Answer>(head),
        steady::<Pause>(head),
        steady::<Kill>(head),
        steady::<Output>(head),
        steady::<OutputDone>(head),
        steady::<Peek>(head),
        steady::<PeekDone>(head),
        steady::<Put>(head),
        steady::<PutDone>(head),
        steady::<Install>(head),
        steady::<Abandon>(head),
        steady::<Get>(head),
        steady::<GetDone>(head),
        steady::<List>(head),
        steady::<ListDone>(head),
        steady::<Summarize>(head),
        steady::<SummarizeDone>(head),
        steady::<Ping>(head),
        steady::<Warm>(head),
        steady::<WarmDone>(head),
        steady::<Hibernate>(head),
        steady::<HibernateDone>(head),
        steady::<Empty>(head),
        steady::<Pong>(head),
        steady::<Failure>(head),
        steady::<Vec<FileEntry>>(&frame.body),
        steady::<Contents>(&frame.body),
        steady::<Summary>(&frame.body),
        steady::<CallInput>(&frame.body),
        steady::<Carried>(&frame.body),
    ]
    .into_iter()
    .filter(|readable| *readable)
    .count()
}

/// Whether the JSON can be read as this type. If so, checks that it stays the same when written and read again.
fn steady<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(json: &[u8]) -> bool {
    let Ok(message) = serde_json::from_slice::<T>(json) else { return false };
    let again = serde_json::to_vec(&message).expect("what was read can be written");
    let again: T = serde_json::from_slice(&again).expect("what was written can be read");
    assert_eq!(again, message);
    true
}
