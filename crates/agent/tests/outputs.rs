//! The requests for outputs besides a run's reply: the rest of an output that was cut, and the output of a run in
//! progress.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use std::{fs, time::Instant};

use child::{Agent, TIMEOUT};
use protocol::{
    frame::MAX_BODY,
    message::{
        Abandon, Captured, End, FailureCode, List, Output, OutputDone, Peek, Put, Run, RunDone,
        Stream,
    },
};

/// Runs a program to its end.
fn run(agent: &mut Agent, call: u32, code: &str) -> (RunDone, Vec<u8>) {
    agent.run(call, code);
    agent.answer::<Run>(call).unwrap()
}

/// Asks for a piece of an output.
fn output(
    agent: &mut Agent,
    run: u32,
    stream: Stream,
    offset: u64,
    len: usize,
) -> Result<(OutputDone, Vec<u8>), FailureCode> {
    agent.ask(99, &Output { run, stream, offset, len }, b"")
}

/// Reads the whole stored output, in pieces of this size.
fn read_all(agent: &mut Agent, run: u32, stream: Stream, len: usize) -> Vec<u8> {
    let mut all = vec![];
    loop {
        let (done, piece) = output(agent, run, stream, all.len() as u64, len).unwrap();
        assert!(piece.len() <= len && done.kept <= done.total);
        all.extend_from_slice(&piece);
        if piece.is_empty() {
            assert_eq!(done.kept, all.len() as u64);
            return all;
        }
    }
}

/// A program that waits until the test makes the file `go`.
const WAIT: &str = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\n";

fn go(agent: &Agent) {
    fs::write(agent.folder.path().join("data/go"), "").unwrap();
}

#[test]
fn what_was_cut_from_an_output_can_be_read_on() {
    let mut agent = Agent::start();
    let code = "import sys\nfor n in range(50_000): print(n)\nsys.stderr.write('e' * 1000)";
    let (done, _) = run(&mut agent, 1, code);
    let whole = (0..50_000).fold(String::new(), |text, n| text + &format!("{n}\n"));
    let total = whole.len() as u64;
    assert_eq!(done.stdout, Captured { head: 600, tail: 400, total });
    assert_eq!(done.stderr, Captured { head: 600, tail: 400, total: 1000 });

    assert!(read_all(&mut agent, 1, Stream::Stdout, 100_000) == whole.as_bytes());
    let (done, piece) = output(&mut agent, 1, Stream::Stdout, 500, 10).unwrap();
    assert_eq!(done, OutputDone { total, kept: total });
    assert_eq!(piece, whole.as_bytes()[500..510]);
    let not_kept = Err(FailureCode::NotFound);
    assert_eq!(output(&mut agent, 1, Stream::Stderr, 0, 10), not_kept, "that was not cut");
    assert_eq!(output(&mut agent, 2, Stream::Stdout, 0, 10), not_kept, "there was no such run");

    // Also while another run is in progress.
    agent.run(2, WAIT);
    assert!(read_all(&mut agent, 1, Stream::Stdout, usize::MAX) == whole.as_bytes());
    go(&agent);
    agent.answer::<Run>(2).unwrap();
}

#[test]
fn more_than_can_be_kept_is_counted() {
    let mut agent = Agent::start();
    let code = "import sys\nfor n in range(9): sys.stderr.write(str(n) * (1 << 20))";
    let (done, _) = run(&mut agent, 1, code);
    assert_eq!((done.end, done.stderr.total), (End::Exited { code: 0 }, 9 << 20));
    let kept = read_all(&mut agent, 1, Stream::Stderr, MAX_BODY);
    assert_eq!(kept.len(), 8 << 20);
    for (n, piece) in kept.chunks(1 << 20).enumerate() {
        assert!(piece.iter().all(|byte| usize::from(byte - b'0') == n), "{n}");
    }
    let (done, piece) = output(&mut agent, 1, Stream::Stderr, 8 << 20, 10).unwrap();
    assert_eq!((done.total, done.kept, piece), (9 << 20, 8 << 20, vec![]));
}

#[test]
fn only_the_last_four_are_kept() {
    let mut agent = Agent::start();
    for call in 1..=5 {
        run(&mut agent, call, &format!("print('{call}' * 2000)"));
        run(&mut agent, 10 + call, "print('not cut')");
    }
    let mut first = |call| output(&mut agent, call, Stream::Stdout, 0, 1).map(|(_, piece)| piece);
    assert_eq!(first(1), Err(FailureCode::NotFound));
    for call in 2..=5 {
        assert_eq!(first(call), Ok(call.to_string().into_bytes()));
    }
}

#[test]
fn kept_output_is_seen_nowhere() {
    let mut agent = Agent::start();
    run(&mut agent, 1, "print('x' * 2000)");
    assert_eq!(fs::read_dir(agent.folder.path().join("data")).unwrap().count(), 0);
    let (_, listed) = agent.ask(2, &List { after: None, within: None }, b"").unwrap();
    assert_eq!(listed, b"[]");
    // Programs do not inherit it, either. The folder's own descriptor is closed when its link is read.
    let code = "import os\nfor fd in os.listdir('/proc/self/fd'):\n\
                \x20   try: print(os.readlink('/proc/self/fd/' + fd))\n\
                \x20   except FileNotFoundError: pass";
    let (_, printed) = run(&mut agent, 3, code);
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.starts_with("/dev/null\npipe:["), "{printed}");
    assert!(!printed.contains("deleted") && !printed.contains("data"), "{printed}");
    assert!(output(&mut agent, 1, Stream::Stdout, 0, 1).is_ok(), "it is there all the time");
}

/// The output of a run in progress since the last look, once the run has written this many bytes.
fn peek_at(agent: &mut Agent, peek: &Peek, stdout: u64, stderr: u64) -> String {
    let start = Instant::now();
    loop {
        let (done, body) = agent.ask(99, peek, b"").unwrap();
        if (done.stdout_total, done.stderr_total, done.loading) == (stdout, stderr, false) {
            return String::from_utf8(body).unwrap();
        }
        assert!(start.elapsed() < TIMEOUT, "only {done:?}");
        std::thread::yield_now();
    }
}

#[test]
fn output_is_seen_while_the_program_runs() {
    let mut agent = Agent::start();
    agent.run(
        1,
        &format!(
            "import sys\nprint('one')\nprint('two', flush=True)\n{WAIT}os.remove('go')\n\
             sys.stderr.write('\\r 50%|## |')\nsys.stderr.flush()\n{WAIT}print('x' * 5000)"
        ),
    );
    let peek = |run, stdout| Peek { run, stdout, stderr: 0 };
    assert_eq!(peek_at(&mut agent, &peek(1, 0), 8, 0), "one\ntwo\n");
    assert_eq!(agent.ask(2, &peek(7, 0), b""), Err(FailureCode::NotFound));
    go(&agent);
    assert_eq!(peek_at(&mut agent, &peek(1, 8), 8, 10), "\r 50%|## |");
    agent.wait_until_gone("go");
    go(&agent);
    let (done, _) = agent.answer::<Run>(1).unwrap();
    assert_eq!(done.stdout.total, 5009);
    assert_eq!(agent.ask(3, &peek(1, 0), b""), Err(FailureCode::NotFound), "it is over");
}

#[test]
fn an_upload_that_is_abandoned_is_forgotten() {
    let mut agent = Agent::start();
    let put = |offset, last| Put { upload: 1, path: "a".into(), offset, last, overwrite: true };
    agent.ask(1, &put(0, false), b"12").unwrap();
    agent.ask(2, &Abandon { upload: 1 }, b"").unwrap();
    assert_eq!(agent.ask(3, &put(2, true), b"3"), Err(FailureCode::BadRequest));
    let whole =
        |agent: &mut Agent, call| agent.ask(call, &put(0, true), b"123").unwrap().0.replaced;
    assert_eq!((whole(&mut agent, 4), whole(&mut agent, 5)), (false, true));
}
