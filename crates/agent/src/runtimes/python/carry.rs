//! Saved variables on their way out of a kernel and into another: the bytes, which only Python understands, and the
//! limits of both ways. `carry.py` describes the format.
//!
//! A kernel writes into a pipe, and the agent holds the bytes in its own memory, which user code cannot reach.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use protocol::{
    limits::{MAX_CARRIED, MAX_VARIABLES},
    message::{Carried, CarryLimits, LostVariable},
};
use serde::Deserialize;

use super::kernel::short;

/// Bytes before the head of a record.
const START: usize = 12;

/// Time beyond its limit after which the agent gives up a kernel: a value that runs no Python code while it is pickled
/// cannot be interrupted.
const GRACE: Duration = Duration::from_secs(1);

/// Saved variables, and the report of what became of them.
pub(super) struct Written {
    pub(super) bytes: Vec<u8>,
    pub(super) carried: Carried,
}

/// The time at which the agent gives up a kernel with these limits.
pub(super) fn deadline(limits: &CarryLimits) -> Instant {
    Instant::now() + Duration::from_millis(limits.total_ms) + GRACE
}

/// The result of a wait.
enum Ready {
    Pipe,
    Answer,
    Nothing,
}

/// Waits until the pipe can be read or written, or there is an answer.
fn ready(pipe: &impl AsFd, flags: PollFlags, answers: &OwnedFd, until: Instant) -> Ready {
    let left = until.saturating_duration_since(Instant::now());
    let mut fds =
        [PollFd::new(pipe.as_fd(), flags), PollFd::new(answers.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
    let is_set = |at: usize| fds[at].revents().is_some_and(|events| !events.is_empty());
    if is_set(0) {
        Ready::Pipe
    } else if is_set(1) {
        Ready::Answer
    } else {
        Ready::Nothing
    }
}

fn never_wait(pipe: &impl AsFd) -> io::Result<()> {
    fcntl(pipe.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Reads what a kernel writes until it has closed its end, its time is over, or there are more bytes than allowed.
pub(super) fn collect(
    mut pipe: PipeReader,
    answers: &OwnedFd,
    limits: &CarryLimits,
    until: Instant,
) -> Vec<u8> {
    let most = usize::try_from(limits.total_bytes.min(MAX_CARRIED)).unwrap_or(usize::MAX);
    let mut bytes = vec![];
    let mut piece = vec![0; 1 << 20];
    if never_wait(&pipe).is_err() {
        return bytes;
    }
    while Instant::now() < until {
        match pipe.read(&mut piece) {
            Ok(0) => break,
            Ok(read) if bytes.len() + read > most => break,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match ready(&pipe, PollFlags::POLLIN, answers, until) {
                    // The kernel has answered, while another process holds the pipe open.
                    Ready::Answer if pipe.read(&mut piece).is_err() => break,
                    _ => {}
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    bytes
}

/// Writes to a kernel until it has all bytes, wants no more, or its time is over.
pub(super) fn feed(mut pipe: PipeWriter, bytes: &[u8], answers: &OwnedFd, until: Instant) {
    let mut rest = bytes;
    if never_wait(&pipe).is_err() {
        return;
    }
    while !rest.is_empty() && Instant::now() < until {
        match pipe.write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if matches!(ready(&pipe, PollFlags::POLLOUT, answers, until), Ready::Answer) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The fields of a record's head that the agent needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    all: Vec<String>,
    name: Option<String>,
    module: Option<String>,
}

/// Returns the records that are whole, with the kernel's report of them; if it has sent none, with what the records
/// themselves say.
pub(super) fn written(mut bytes: Vec<u8>, told: Option<Carried>) -> Written {
    let (whole, found) = whole(&bytes);
    bytes.truncate(whole);
    Written { bytes, carried: bounded(told.unwrap_or(found)) }
}

/// Length of the records that are whole, and the variables in them.
fn whole(bytes: &[u8]) -> (usize, Carried) {
    let (mut at, mut carried, mut all) = (0, Carried::default(), vec![]);
    while let Some((head, len)) = record(&bytes[at..]) {
        at += len;
        all.extend(head.all);
        match (head.module, head.name) {
            (Some(module), _) => carried.imports.push(module),
            (None, Some(name)) => carried.variables.push(name),
            (None, None) => {}
        }
        if let Some(name) = carried.variables.last() {
            all.retain(|other| other != name);
        }
    }
    let lost = all.into_iter().filter(|name| !carried.imports.contains(name));
    carried.lost =
        lost.map(|name| LostVariable { name, why: "it takes too long".into() }).collect();
    (at, carried)
}

fn record(bytes: &[u8]) -> Option<(Head, usize)> {
    let (head_len, rest) = bytes.split_first_chunk()?;
    let (body_len, rest) = rest.split_first_chunk()?;
    let head_len = usize::try_from(u32::from_le_bytes(*head_len)).ok()?;
    let body_len = usize::try_from(u64::from_le_bytes(*body_len)).ok()?;
    let head = rest.get(..head_len)?;
    rest.get(..head_len.checked_add(body_len)?)?;
    Some((serde_json::from_slice(head).unwrap_or_default(), START + head_len + body_len))
}

/// Cuts a report to the limits: user code can change what a kernel reports.
pub(super) fn bounded(mut carried: Carried) -> Carried {
    let more = carried.variables.len().saturating_sub(MAX_VARIABLES);
    carried.more = carried.more.saturating_add(more);
    let more_lost = carried.lost.len().saturating_sub(MAX_VARIABLES);
    carried.more_lost = carried.more_lost.saturating_add(more_lost);
    carried.variables.truncate(MAX_VARIABLES);
    carried.imports.truncate(MAX_VARIABLES);
    carried.lost.truncate(MAX_VARIABLES);
    for text in carried.variables.iter_mut().chain(&mut carried.imports) {
        *text = short(text);
    }
    for LostVariable { name, why } in &mut carried.lost {
        (*name, *why) = (short(name), short(why));
    }
    carried
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_of(head: &str, body: &[u8]) -> Vec<u8> {
        let lens = (u32::try_from(head.len()).expect("short"), body.len() as u64);
        [&lens.0.to_le_bytes()[..], &lens.1.to_le_bytes(), head.as_bytes(), body].concat()
    }

    #[test]
    fn what_is_not_whole_is_left_out_and_named() {
        let all = record_of(r#"{"all":["a","b","pd"]}"#, b"");
        let whole = [
            all,
            record_of(r#"{"name":"pd","module":"pd"}"#, b""),
            record_of(r#"{"name":"a"}"#, b"12345"),
        ];
        let whole = whole.concat();
        for cut in 0..whole.len() {
            let written = written(whole[..cut].to_vec(), None);
            assert!(written.bytes.len() < whole.len() && whole.starts_with(&written.bytes));
        }
        let torn = [whole.clone(), record_of(r#"{"name":"b"}"#, b"1234")[..20].to_vec()].concat();
        let written = written(torn, None);
        assert_eq!(written.bytes, whole);
        assert_eq!(written.carried.variables, ["a"]);
        assert_eq!(written.carried.imports, ["pd"]);
        assert_eq!(written.carried.lost.len(), 1);
        assert_eq!(written.carried.lost[0].name, "b");
    }

    #[test]
    fn lengths_that_cannot_be_are_the_end() {
        for lens in [(u32::MAX, 0), (2, u64::MAX), (u32::MAX, u64::MAX)] {
            let bytes = [&lens.0.to_le_bytes()[..], &lens.1.to_le_bytes(), b"{}"].concat();
            assert!(written(bytes, None).bytes.is_empty());
        }
    }

    #[test]
    fn only_so_much_is_told() {
        let names: Vec<_> = (0..MAX_VARIABLES + 3).map(|n| n.to_string()).collect();
        let lost = LostVariable { name: "x".repeat(1000), why: "y".repeat(1000) };
        let carried = bounded(Carried { variables: names, lost: vec![lost], ..Carried::default() });
        assert_eq!((carried.variables.len(), carried.more), (MAX_VARIABLES, 3));
        assert!(carried.lost[0].name.len() < 200 && carried.lost[0].why.len() < 200);
    }
}
