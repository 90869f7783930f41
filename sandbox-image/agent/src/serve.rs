//! The main loop: frames in, replies out.

use std::{
    io::{self, Read},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use protocol::{
    frame::{self, Frame, Kind, MAX_BODY, MAX_HEAD, PROTOCOL_VERSION},
    message::{
        Abandon, AgentHello, Empty, Failure, FailureCode, Get, Kill, List, ListDone, Output, Peek,
        PeekDone, Ping, Pong, Put, Request, Rest, Run, ServerHello, Warm,
    },
};
use serde::Serialize;

use crate::{
    Places,
    files::{Files, MAX_UPLOADS, fail},
    kept::Shelf,
    memory,
    outputs::Shared,
    run::{Ground, Job, KillSwitch},
    runner::{Order, Runner},
    tree,
    watch::{self, Watch},
};

/// Silence that the agent bears before it has heard the server's own limit.
const FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Answers frames until the stream ends.
pub(crate) fn serve(places: Places) -> Result<(), Box<dyn std::error::Error>> {
    let watch = Arc::new(Watch::new(FIRST_SILENCE));
    let watcher = watch.clone();
    thread::Builder::new().name("watch".into()).spawn(move || watcher.run())?;

    let out = Out(Arc::new(Mutex::new(io::stdout())));
    let hello =
        AgentHello { version: PROTOCOL_VERSION, max_body: MAX_BODY, max_uploads: MAX_UPLOADS };
    out.send(0, Kind::Hello, &hello, &[])?;

    let runner = Runner::start(places.clone(), out.clone())?;
    let files = Files::open(&places.data)?;
    let shelf = Arc::new(Shelf::new(files.root().try_clone()?));
    let mut agent = Agent { files, shelf, places, out, runner, running: None };
    let mut input = io::BufReader::with_capacity(64 << 10, io::stdin().lock());
    while let Some(frame) = next_frame(&mut input)? {
        watch.heard();
        if frame.kind == Kind::Hello {
            let hello: ServerHello = serde_json::from_slice(&frame.head)?;
            if hello.version != PROTOCOL_VERSION {
                return Err(format!(
                    "the server speaks protocol {}, this agent {PROTOCOL_VERSION}",
                    hello.version
                )
                .into());
            }
            watch.set_limit(hello.silence_limit_ms);
            agent.runner.order(Order::Configure(hello.preload));
            continue;
        }
        agent.answer(frame)?;
    }
    watch::end()
}

/// The next frame; `None` at the end of the stream, even in the middle of a frame: a server that
/// dies while it writes has done nothing wrong.
fn next_frame(input: &mut impl Read) -> io::Result<Option<Frame>> {
    match frame::read(input) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

/// The writing half of the stream, shared by the main thread and the run's.
#[derive(Debug, Clone)]
pub(crate) struct Out(Arc<Mutex<io::Stdout>>);

impl Out {
    pub(crate) fn send(
        &self,
        call: u32,
        kind: Kind,
        head: &impl Serialize,
        body: &[&[u8]],
    ) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        debug_assert!(head.len() <= MAX_HEAD);
        let mut out = self.0.lock().expect("no thread panics while it writes");
        frame::write(&mut *out, call, kind, &head, body)
    }

    /// Sends a reply without a body. Where nobody listens there is nothing left to do.
    pub(crate) fn reply(&self, call: u32, head: &impl Serialize) {
        if self.send(call, Kind::Reply, head, &[]).is_err() {
            watch::end();
        }
    }

    fn finish<T: Serialize>(
        &self,
        call: u32,
        done: Result<(T, Vec<u8>), Failure>,
    ) -> io::Result<()> {
        match done {
            Ok((head, body)) => self.send(call, Kind::Reply, &head, &[&body]),
            Err(mut failure) => {
                // A path of thousands of control characters grows sixfold as JSON.
                failure.detail = failure.detail.chars().take(512).collect();
                self.send(call, Kind::Failure, &failure, &[])
            }
        }
    }
}

struct Agent {
    files: Files,
    shelf: Arc<Shelf>,
    places: Places,
    out: Out,
    runner: Runner,
    running: Option<Running>,
}

/// What is left here of the run that was started last.
struct Running {
    call: u32,
    switch: KillSwitch,
    outputs: Shared,
}

impl Agent {
    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
        match kind {
            Kind::Run => {
                let started = parse::<Run>(head).and_then(|run| self.start(call, run, body));
                started.or_else(|failure| self.out.finish::<Empty>(call, Err(failure)))
            }
            Kind::Kill => {
                let done = parse::<Kill>(head).map(|kill| {
                    if let Some(running) = self.running(kill.run) {
                        running.switch.throw();
                    }
                    (Empty {}, vec![])
                });
                self.out.finish(call, done)
            }
            Kind::Put => {
                let done = parse::<Put>(head).and_then(|put| {
                    if put.offset == 0 {
                        self.runner.order(Order::Stir);
                    }
                    // The user's files come before what was only kept.
                    self.files.put(&put, &body, || self.shelf.clear())
                });
                self.out.finish(call, done.map(|done| (done, vec![])))
            }
            Kind::Abandon => {
                let done = parse::<Abandon>(head).map(|abandon| {
                    self.files.abandon(&abandon);
                    (Empty {}, vec![])
                });
                self.out.finish(call, done)
            }
            Kind::Output => {
                let done = parse::<Output>(head).and_then(|output| self.shelf.read(&output));
                self.out.finish(call, done)
            }
            Kind::Peek => {
                self.out.finish(call, parse::<Peek>(head).and_then(|peek| self.peek(&peek)))
            }
            Kind::Get => {
                self.out.finish(call, parse::<Get>(head).and_then(|get| self.files.get(&get)))
            }
            Kind::List => {
                let done = parse::<List>(head).map(|list| self.list(list));
                self.out.finish(call, done)
            }
            Kind::Ping => {
                let pong = parse::<Ping>(head).map(|_| Pong { memory_bytes: memory::in_use() });
                self.out.finish(call, pong.map(|pong| (pong, vec![])))
            }
            Kind::Warm => match parse::<Warm>(head) {
                Ok(_) => {
                    self.runner.order(Order::Warm(call));
                    Ok(())
                }
                Err(failure) => self.out.finish::<Empty>(call, Err(failure)),
            },
            Kind::Rest => match parse::<Rest>(head) {
                Ok(_) => {
                    self.runner.order(Order::Rest(call));
                    Ok(())
                }
                Err(failure) => self.out.finish::<Empty>(call, Err(failure)),
            },
            Kind::Hello | Kind::Reply | Kind::Failure => {
                self.out.finish::<Empty>(call, Err(bad_request("not a request")))
            }
        }
    }

    fn start(&mut self, call: u32, run: Run, body: Vec<u8>) -> Result<(), Failure> {
        if self.running.as_ref().is_some_and(|running| !running.switch.is_over()) {
            return Err(Failure { code: FailureCode::Busy, detail: "a run is in progress".into() });
        }
        let ground = Ground { places: &self.places, data: self.files.root(), shelf: &self.shelf };
        let job = Job::new(call, run, body, ground)?;
        self.running = Some(Running { call, switch: job.kill_switch(), outputs: job.outputs() });
        self.runner.order(Order::Run(Box::new(job)));
        Ok(())
    }

    fn running(&self, call: u32) -> Option<&Running> {
        self.running.as_ref().filter(|running| running.call == call)
    }

    fn peek(&self, peek: &Peek) -> Result<(PeekDone, Vec<u8>), Failure> {
        self.running(peek.run)
            .and_then(|running| running.outputs.peek())
            .ok_or_else(|| fail(FailureCode::NotFound, "no such run in progress".into()))
    }

    fn list(&self, list: List) -> (ListDone, Vec<u8>) {
        let mut all = tree::snapshot(self.files.root());
        if let Some(after) = list.after {
            all = all.split_off(&after);
            all.remove(&after);
        }
        let entries = tree::changed(&tree::Snapshot::new(), all);
        let (json, omitted) = tree::to_json(&entries, MAX_BODY);
        (ListDone { more: omitted > 0 }, json)
    }
}

fn parse<R: Request>(head: &[u8]) -> Result<R, Failure> {
    serde_json::from_slice(head).map_err(|error| bad_request(&error.to_string()))
}

pub(crate) fn bad_request(detail: &str) -> Failure {
    Failure { code: FailureCode::BadRequest, detail: detail.into() }
}

/// Reads what is there; `None` when nobody can write any more.
pub(crate) fn read_available(source: &mut impl Read, buffer: &mut [u8]) -> Option<usize> {
    match source.read(buffer) {
        Ok(0) => None,
        Ok(n) => Some(n),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Some(0)
        }
        Err(_) => None,
    }
}
