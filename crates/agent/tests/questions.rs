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
    message::{Answer, Ask, End, Pause, Run, RunDone, RuntimeName, ServerHello},
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
    assert_eq!(kind, Kind::Ask, "{}", String::from_utf8_lossy(&head));
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
    agent.ask(2, &Answer { ask: number }, b"1").unwrap();
    let (next, _, text) = question(&mut agent);
    assert!(next > number && text == "two");
    agent.ask(3, &Answer { ask: next }, b"2").unwrap();
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
        agent.ask(call, &Answer { ask: *number }, format!("<{text}>").as_bytes()).unwrap();
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
    agent.ask(2, &Answer { ask: withdrawn.call }, b"late").unwrap();
    agent.ask(3, &Answer { ask: of(b"r") }, b"in time").unwrap();
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
    agent.ask(3, &Answer { ask: number }, b"a").unwrap();
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
    for cell in [false, true] {
        let mut agent = agent();
        let code = "import subprocess, time\n\
                    child = subprocess.Popen(['sleep', '1000'])\n\
                    open('pid', 'w').write(str(os.getpid()))\n\
                    print(ask(b'may I?'))\nchild.kill()";
        run(&mut agent, 1, code, 2000, cell);
        let (number, ..) = question(&mut agent);
        agent.ask(2, &Pause { ask: number }, b"").unwrap();
        wait_for_stop(&agent, true);
        // Longer than the run may take.
        std::thread::sleep(Duration::from_millis(2500));
        wait_for_stop(&agent, true);
        agent.ask(3, &Answer { ask: number }, b"yes").unwrap();
        let (done, printed) = printed(&mut agent, 1);
        assert_eq!((done.end, &*printed), (End::Exited { code: 0 }, "b'yes'\n"));
        assert!(done.elapsed_us < 2_000_000, "{}", done.elapsed_us);
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
        agent.ask(2, &Pause { ask: number }, b"").unwrap();
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
    agent.ask(2, &Pause { ask: second }, b"").unwrap();
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
    agent.ask(8, &Answer { ask: second }, b"2").unwrap();
    wait_for_stop(&agent, false);
    agent.ask(9, &Answer { ask: first }, b"1").unwrap();
    let printed = printed(&mut agent, 1).1;
    assert!(["[b'1', b'2']\n", "[b'2', b'1']\n"].contains(&&*printed), "{printed}");
}
