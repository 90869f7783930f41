//! The agent as a process: programs put questions to the server, and may have to wait for a person.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use std::{
    fs,
    time::{Duration, Instant},
};

use child::{Agent, TIMEOUT};
use protocol::{
    frame::{Frame, Kind, PROTOCOL_VERSION},
    message::{Ask, End, Pause, Run, RunDone, RuntimeName, ServerHello},
    resume::{Hold, Resume, Resumed},
};

/// The part of a program that asks.
const ASK: &str = r"
import os, socket, struct
def connect():
    it = socket.socket(socket.AF_UNIX)
    it.connect('\0' + os.environ['SANDBOX_TOOLS'])
    return it
def send(it, question):
    it.sendall(struct.pack('<I', len(question)) + question)
def ask(question, it=None):
    it = it or connect()
    send(it, question)
    length = it.recv(4, socket.MSG_WAITALL)
    return it.recv(struct.unpack('<I', length)[0], socket.MSG_WAITALL) if length else None
";

/// An agent whose server answers questions, and that outlives its stream.
fn agent() -> Agent {
    let mut agent = Agent::spawn();
    agent.say(&ServerHello {
        version: PROTOCOL_VERSION,
        silence_limit_ms: 45_000,
        preload: None,
        undo: Some(1),
        hold: Some(hold()),
        timezone: None,
        asks: true,
        commands: vec![],
    });
    agent
}

fn hold() -> Hold {
    Hold { limit_ms: 60_000, token: "token".to_owned().into() }
}

fn run(agent: &mut Agent, call: u32, code: &str, timeout_ms: u64, is_cell: bool) {
    let code = format!("{ASK}{code}");
    let runtime = RuntimeName::PYTHON;
    let (code_len, has_stdin, output_cap) = (code.len(), false, 1000);
    let run = Run { runtime, code_len, has_stdin, timeout_ms, output_cap, cell: is_cell };
    agent.send(call, Kind::Run, &run, code.as_bytes());
}

/// Receives the next question.
fn question(agent: &mut Agent) -> (u32, Ask, String) {
    let Frame { call, kind, head, body } = agent.receive();
    let said = || String::from_utf8_lossy(&[&head[..], &body].concat()).into_owned();
    assert_eq!(kind, Kind::Ask, "{}", said());
    (call, serde_json::from_slice(&head).unwrap(), String::from_utf8(body).unwrap())
}

fn printed(agent: &mut Agent, call: u32) -> (RunDone, String) {
    let (done, body) = agent.answer::<Run>(call).unwrap();
    let outputs = body.len() - done.changed_len;
    (done, String::from_utf8_lossy(&body[..outputs]).into_owned())
}

/// Waits until the program whose process id is in the file `pid` has stopped, or goes on.
fn wait_for_stop(agent: &Agent, is_stopped: bool) {
    let begun = Instant::now();
    let pid = fs::read_to_string(agent.folder.path().join("data/pid")).unwrap();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.contains(") T ") == is_stopped {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{stat}");
        std::thread::yield_now();
    }
}

#[test]
fn a_question_goes_to_the_server_and_its_answer_to_the_program() {
    let mut agent = agent();
    run(&mut agent, 1, "it = connect()\nprint(ask(b'one', it), ask(b'two', it))", 60_000, false);
    let (number, ask, text) = question(&mut agent);
    assert_eq!((ask, &*text), (Ask { run: 1, again: false, paused: false }, "one"));
    agent.tell(2, number, b"1");
    let (next, _, text) = question(&mut agent);
    assert!(next > number && text == "two");
    agent.tell(3, next, b"2");
    assert_eq!(printed(&mut agent, 1).1, "b'1' b'2'\n");
}

#[test]
fn threads_ask_at_the_same_time_and_get_their_own_answers() {
    let mut agent = agent();
    let code = "from concurrent.futures import ThreadPoolExecutor\n\
                print(list(ThreadPoolExecutor(8).map(ask, [b'%d' % n for n in range(8)])))";
    run(&mut agent, 1, code, 60_000, false);
    let asked: Vec<_> = (0..8).map(|_| question(&mut agent)).collect();
    for (at, (number, _, text)) in asked.iter().rev().enumerate() {
        let call = 2 + u32::try_from(at).unwrap();
        agent.tell(call, *number, format!("<{text}>").as_bytes());
    }
    let all: Vec<_> = (0..8).map(|n| format!("b'<{n}>'")).collect();
    assert_eq!(printed(&mut agent, 1).1, format!("[{}]\n", all.join(", ")));
}

#[test]
fn a_question_is_withdrawn_when_its_program_goes_away() {
    let mut agent = agent();
    run(
        &mut agent,
        1,
        "it = connect()\nsend(it, b'q')\nit.close()\nprint(ask(b'r'))",
        60_000,
        false,
    );
    let frames = [agent.receive(), agent.receive(), agent.receive()];
    let withdrawn = frames.iter().find(|frame| frame.kind == Kind::Withdraw).unwrap();
    let of = |text: &[u8]| frames.iter().find(|frame| frame.body == text).unwrap().call;
    assert_eq!(withdrawn.call, of(b"q"));
    // An answer that comes too late is no error.
    agent.tell(2, withdrawn.call, b"late");
    agent.tell(3, of(b"r"), b"in time");
    assert_eq!(printed(&mut agent, 1).1, "b'in time'\n");
}

#[test]
fn nothing_can_be_asked_once_a_run_is_over() {
    let mut agent = agent();
    run(&mut agent, 1, "it = connect()\nit.setblocking(True)", 60_000, true);
    printed(&mut agent, 1);
    // The connection of the cell before has ended; a new one works.
    run(
        &mut agent,
        2,
        "try: print(ask(b'old', it))\nexcept OSError: print('closed')\nprint(ask(b'new'))",
        60_000,
        true,
    );
    let (number, ask, text) = question(&mut agent);
    assert_eq!((ask.run, &*text), (2, "new"));
    agent.tell(3, number, b"a");
    let printed = printed(&mut agent, 2).1;
    assert!(["closed\nb'a'\n", "None\nb'a'\n"].contains(&&*printed), "{printed}");
}

#[test]
fn nobody_listens_if_the_server_answers_no_questions() {
    let mut agent = Agent::start();
    run(&mut agent, 1, "print(os.environ.get('SANDBOX_TOOLS'))", 60_000, false);
    assert_eq!(printed(&mut agent, 1).1, "None\n");
}

#[test]
fn a_run_that_waits_for_a_person_is_stopped_and_its_time_does_not_count() {
    // The program and the cell wait at the same time.
    std::thread::scope(|threads| {
        for cell in [false, true] {
            threads.spawn(move || a_run_is_stopped_while_it_waits(cell));
        }
    });
}

fn a_run_is_stopped_while_it_waits(cell: bool) {
    // A busy computer takes seconds to start the interpreter and the child.
    const LIMIT: Duration = Duration::from_secs(8);
    let mut agent = agent();
    let code = "import subprocess, time\n\
                child = subprocess.Popen(['sleep', '1000'])\n\
                open('pid', 'w').write(str(os.getpid()))\n\
                print(ask(b'may I?'))\nchild.kill()";
    let limit_ms = u64::try_from(LIMIT.as_millis()).unwrap();
    run(&mut agent, 1, code, limit_ms, cell);
    let (number, ..) = question(&mut agent);
    agent.ask(2, &Pause { ask: number, over: false }, b"").unwrap();
    wait_for_stop(&agent, true);
    // Longer than the run may still take.
    std::thread::sleep(LIMIT);
    wait_for_stop(&agent, true);
    agent.tell(3, number, b"yes");
    let (done, printed) = printed(&mut agent, 1);
    assert_eq!((done.end, &*printed), (End::Exited { code: 0 }, "b'yes'\n"));
    assert!(done.elapsed_us < u64::try_from(LIMIT.as_micros()).unwrap(), "{}", done.elapsed_us);
}

#[test]
fn the_time_between_a_decision_and_the_answer_counts() {
    for cell in [false, true] {
        let mut agent = agent();
        let code = "open('pid', 'w').write(str(os.getpid()))\nask(b'may I?')";
        run(&mut agent, 1, code, 8000, cell);
        let (number, ..) = question(&mut agent);
        agent.ask(2, &Pause { ask: number, over: false }, b"").unwrap();
        wait_for_stop(&agent, true);
        agent.ask(3, &Pause { ask: number, over: true }, b"").unwrap();
        // The question stays without an answer.
        let end = loop {
            let frame = agent.receive();
            if frame.call == 1 && frame.kind == Kind::Reply {
                break serde_json::from_slice::<RunDone>(&frame.head).unwrap().end;
            }
        };
        assert_eq!(end, End::TimedOut);
    }
}

/// Continues its process every second by a timer, uses 50 ms of processor time, and stops again.
const BURSTS: &str = r"
import ctypes, signal, time
signal.signal(signal.SIGCONT, lambda *_: None)
begun, begin = os.pipe()
def ask_once_it_has_begun():
    os.read(begun, 1)
    ask(b'may I?')
def bursts():
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = struct.pack('=QIi48x', 0, signal.SIGCONT, 0)
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    every_second = struct.pack('=qqqq', 1, 0, 0, 500_000_000)
    assert libc.timer_settime(timer, 0, every_second, None) == 0
    os.write(begin, b'.')
    while True:
        until = time.monotonic() + 0.05
        while time.monotonic() < until: pass
        os.kill(os.getpid(), signal.SIGSTOP)
";

#[test]
fn a_program_that_continues_itself_while_it_waits_for_a_person_gains_no_time() {
    // Its own process, a child that nobody waits for, and a thread whose process has lost its first thread.
    let parts = [
        "threading.Thread(target=bursts, daemon=True).start()\nask_once_it_has_begun()",
        "os.fork() or bursts()\nask_once_it_has_begun()",
        "threading.Thread(target=bursts).start()\n\
         threading.Thread(target=ask_once_it_has_begun).start()\n\
         ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)",
    ];
    for part in parts {
        let mut agent = agent();
        let code = format!("{BURSTS}import threading\n{part}");
        run(&mut agent, 1, &code, 2000, false);
        let (number, ..) = question(&mut agent);
        agent.ask(2, &Pause { ask: number, over: false }, b"").unwrap();
        let end = loop {
            let frame = agent.try_receive().ok().flatten();
            let frame = frame.unwrap_or_else(|| panic!("it goes on: {part}"));
            if frame.call == 1 && frame.kind == Kind::Reply {
                break serde_json::from_slice::<RunDone>(&frame.head).unwrap().end;
            }
        };
        assert_eq!(end, End::TimedOut, "{part}");
    }
}

#[test]
fn nonsense_on_the_socket_ends_its_connection_and_nothing_else() {
    let mut agent = agent();
    let code = r"
def closes(first, more=b''):
    it = connect()
    try:
        it.sendall(first)
        for _ in range(64): it.sendall(more)
        it.shutdown(socket.SHUT_WR)
        return it.recv(1) == b''
    except OSError:
        return True
print(closes(b''), closes(b'\xff'), closes(struct.pack('<I', 1_000_001)), closes(b'\xff' * 4, bytes(1 << 16)))
print(closes(struct.pack('<I', 1_000_000), bytes(100)))
held = []
for _ in range(300):
    try: held.append(connect())
    except OSError: pass
for it in held:
    try: it.send(struct.pack('<I', 1_000_000) + b'x')
    except OSError: pass
for it in held: it.close()
while True:
    try: got = ask(b'after all that')
    except OSError: got = None
    if got: break
print(got)
";
    run(&mut agent, 1, code, 60_000, false);
    let (number, _, text) = question(&mut agent);
    assert_eq!(text, "after all that");
    agent.tell(2, number, b"fine");
    let (done, printed) = printed(&mut agent, 1);
    assert_eq!(printed, "True True True True\nTrue\nb'fine'\n", "{done:?}");
}

#[test]
fn a_process_that_outlives_its_run_or_cell_asks_nothing() {
    for cell in [false, true] {
        let mut agent = agent();
        let code = "it = connect()\n\
                    if os.fork() == 0:\n    os.setsid()\n    \
                    while True:\n        try: ask(b'of the child')\n        except OSError: pass\n";
        // The first questions of the child may come before the end of its run.
        let mut numbers = vec![];
        run(&mut agent, 1, &format!("{code}print('done')"), 60_000, cell);
        loop {
            let frame = agent.receive();
            match frame.kind {
                Kind::Ask => numbers.push(frame.call),
                Kind::Reply if frame.call == 1 => break,
                _ => {}
            }
        }
        for run_number in 2..5 {
            run(&mut agent, run_number, "print(ask(b'of the run'))", 60_000, cell);
            let (number, ask, text) = question(&mut agent);
            assert_eq!((ask.run, &*text), (run_number, "of the run"));
            agent.tell(100 + run_number, number, b"yes");
            assert_eq!(printed(&mut agent, run_number).1, "b'yes'\n");
        }
    }
}

#[test]
fn a_run_that_waits_for_a_person_can_be_killed() {
    for cell in [false, true] {
        let mut agent = agent();
        run(
            &mut agent,
            1,
            "open('pid', 'w').write(str(os.getpid()))\nask(b'may I?')",
            60_000,
            cell,
        );
        let (number, ..) = question(&mut agent);
        agent.ask(2, &Pause { ask: number, over: false }, b"").unwrap();
        wait_for_stop(&agent, true);
        agent.send(3, Kind::Kill, &protocol::message::Kill { run: 1 }, b"");
        // The withdrawal may come before or after the replies.
        let mut end = None;
        while end.is_none() {
            let frame = agent.receive();
            if frame.call == 1 && frame.kind == Kind::Reply {
                end = serde_json::from_slice::<RunDone>(&frame.head).ok().map(|done| done.end);
            }
        }
        assert_eq!(end, Some(End::Killed));
    }
}

#[test]
fn questions_come_again_over_the_next_stream() {
    let mut agent = agent();
    let code = "open('pid', 'w').write(str(os.getpid()))\n\
                from concurrent.futures import ThreadPoolExecutor\n\
                print(list(ThreadPoolExecutor(2).map(ask, [b'a', b'b'])))";
    run(&mut agent, 1, code, 60_000, false);
    let (first, ..) = question(&mut agent);
    let (second, ..) = question(&mut agent);
    agent.ask(2, &Pause { ask: second, over: false }, b"").unwrap();
    wait_for_stop(&agent, true);
    // The same server, and then another, which learns for which of them the run is paused.
    for (received, again) in [(Some(1), false), (None, true)] {
        let resume =
            Resume { version: PROTOCOL_VERSION, silence_limit_ms: 45_000, hold: hold(), received };
        agent.stdin = None;
        let resumed = loop {
            let mut visitor = agent.visit();
            agent.try_send(0, Kind::Resume, &resume);
            if let Ok(Some(frame)) = agent.try_receive() {
                break serde_json::from_slice::<Resumed>(&frame.head).unwrap();
            }
            visitor.wait().unwrap();
        };
        assert_eq!(resumed.running, Some(1));
        let asked = [question(&mut agent), question(&mut agent)].map(|(call, ask, _)| (call, ask));
        let ask = |paused| Ask { run: 1, again, paused };
        assert_eq!(asked, [(first, ask(false)), (second, ask(true))]);
    }
    agent.tell(8, second, b"2");
    wait_for_stop(&agent, false);
    agent.tell(9, first, b"1");
    let printed = printed(&mut agent, 1).1;
    assert!(["[b'1', b'2']\n", "[b'2', b'1']\n"].contains(&&*printed), "{printed}");
}
