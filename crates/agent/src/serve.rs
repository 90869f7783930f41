//! The main loop: the server's hello, then frames in, replies out; and the same with the next stream, if the server has
//! asked for a hold.

use std::{io, path::Path, sync::Arc, thread, time::Duration};

use nix::unistd::AccessFlags;
use protocol::{
    frame::{Frame, Kind},
    limits::{MAX_NOTE, MAX_UNDO},
    message::{
        Abandon, Empty, Export, Failure, FailureCode, Get, Hibernate, Import, Inspect, Install,
        Kill, List, Output, Peek, PeekDone, Ping, Pong, Put, Reset, Run, ServerHello, Warm,
    },
    resume::Remember,
};
use sandbox_files::{
    files::{Files, install},
    kept::OutputStore,
    outputs::SharedOutputs,
    replies::{Replies, greet, next_frame, parse},
};

use crate::{
    end,
    hold::{Line, Standing, inbox::Inbox},
    memory,
    places::Places,
    processes,
    run::{Job, KillSwitch, RunContext},
    runner::{Order, Runner},
    runtimes::Settings,
};

/// Answers frames until the stream is lost and no other will come. With `first_within`, the first stream must come
/// within this time.
pub(crate) fn serve(
    places: Places,
    first_within: Option<Duration>,
) -> Result<(), Box<dyn std::error::Error>> {
    let line = Line::open(first_within)?;
    let leash = line.leash();
    thread::Builder::new().name("watch".into()).spawn(move || leash.run())?;

    let runner = Runner::start(&places, line.replies(), line.guest())?;
    let files = Files::open(&places.data)?;
    let store = Arc::new(OutputStore::new(files.root().try_clone()?));
    let replies = line.replies();
    let standing = Standing { received: 0, last_call: 0, running: None };
    let mut agent = Agent {
        files,
        packages: None,
        store,
        places,
        replies,
        runner,
        running: None,
        line,
        standing,
    };
    let visited = first_within.map(|_| agent.line.wait_for_first());
    let mut input = agent.input();
    let first = match visited {
        Some(first) => first,
        None => next_frame(&mut input)?.unwrap_or_else(|| end()),
    };
    agent.greet(&first)?;
    loop {
        while let Some(frame) = next_frame(&mut input)? {
            agent.line.leash().heard();
            agent.answer(frame)?;
        }
        agent.resume();
        input = agent.input();
    }
}

struct Agent {
    files: Files,
    packages: Option<Files>,
    store: Arc<OutputStore>,
    places: Places,
    replies: Replies,
    runner: Runner,
    running: Option<Running>,
    line: Line,
    standing: Standing,
}

/// Opens the folder of packages, if this sandbox has one: the image's own cannot be written to.
fn packages(folder: &Path) -> Result<Files, Failure> {
    let has_none = || Failure::new(FailureCode::NoRuntime, "there is no place for packages");
    nix::unistd::access(folder, AccessFlags::W_OK).map_err(|_| has_none())?;
    Files::open(folder).map_err(|_| has_none())
}

/// The main thread's handles of the run that was started last.
struct Running {
    call: u32,
    switch: KillSwitch,
    outputs: SharedOutputs,
}

impl Agent {
    fn input(&self) -> io::BufReader<Inbox> {
        io::BufReader::with_capacity(64 << 10, self.line.inbox())
    }

    fn greet(&mut self, first: &Frame) -> Result<(), Box<dyn std::error::Error>> {
        // Before the reply: the hold is in force when the server hears from the agent.
        if let Ok(hello) = serde_json::from_slice::<ServerHello>(&first.head) {
            self.line.configure(hello.hold)?;
        }
        let hello = greet(first, &self.replies)?;
        let ServerHello { silence_limit_ms, preload, undo, timezone, .. } = hello;
        let leash = self.line.leash();
        leash.heard();
        leash.set_silence(silence_limit_ms);
        let undo = undo.map(|undo| undo.min(MAX_UNDO));
        timezone.into_iter().for_each(processes::set_timezone);
        self.runner.order(Order::Configure(Settings { preload, undo }));
        Ok(())
    }

    /// Waits for another stream and continues with it.
    fn resume(&mut self) {
        let (running, standing) = (&self.running, self.standing);
        let resume = self.line.wait_for_next(|| {
            let running = running.as_ref().filter(|running| !running.switch.is_over());
            Standing { running: running.map(|running| running.call), ..standing }
        });
        if resume.received.is_none() {
            self.files.abandon_all();
            self.packages.iter_mut().for_each(Files::abandon_all);
        }
    }

    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
        self.standing.received += 1;
        self.standing.last_call = self.standing.last_call.max(call);
        match kind {
            Kind::Run => {
                let started = parse::<Run>(head).and_then(|run| self.start(call, run, body));
                started.or_else(|failure| self.replies.fail(call, failure))
            }
            Kind::Kill => {
                let done = parse::<Kill>(head).map(|kill| {
                    if let Some(running) = self.running(kill.run) {
                        running.switch.throw();
                    }
                    (Empty {}, vec![])
                });
                self.replies.answer(call, done)
            }
            Kind::Put => {
                let done = parse::<Put>(head).and_then(|put| {
                    if put.offset == 0 {
                        self.runner.order(Order::Prewarm);
                    }
                    // The user's files take precedence over kept outputs.
                    self.files.put(&put, &body, || self.store.clear())
                });
                self.replies.answer(call, done.map(|done| (done, vec![])))
            }
            Kind::Install => {
                let done = parse::<Install>(head).and_then(|all| self.install(&all, &body));
                self.replies.answer(call, done.map(|()| (Empty {}, vec![])))
            }
            Kind::Abandon => {
                let done = parse::<Abandon>(head).map(|abandon| {
                    self.files.abandon(&abandon);
                    (Empty {}, vec![])
                });
                self.replies.answer(call, done)
            }
            Kind::Output => {
                let done = parse::<Output>(head).and_then(|output| self.store.read(&output));
                self.replies.answer(call, done)
            }
            Kind::Peek => {
                self.replies.answer(call, parse::<Peek>(head).and_then(|peek| self.peek(&peek)))
            }
            Kind::Get => {
                self.replies.answer(call, parse::<Get>(head).and_then(|get| self.files.get(&get)))
            }
            Kind::List => {
                let done = parse::<List>(head).map(|list| self.files.list(list));
                self.replies.answer(call, done)
            }
            Kind::Ping => {
                let pong = parse::<Ping>(head).map(|_| Pong { memory_bytes: memory::in_use() });
                self.replies.answer(call, pong.map(|pong| (pong, vec![])))
            }
            Kind::Warm => self.order(call, parse::<Warm>(head).map(|_| Order::Warm(call))),
            Kind::Hibernate => {
                self.order(call, parse::<Hibernate>(head).map(|_| Order::Hibernate(call)))
            }
            Kind::Inspect => {
                let inspect = self.when_idle().and_then(|()| parse::<Inspect>(head));
                self.order(call, inspect.map(|inspect| Order::Inspect(call, inspect)))
            }
            Kind::Reset => {
                let reset = self.when_idle().and_then(|()| parse::<Reset>(head));
                self.order(call, reset.map(|reset| Order::Reset(call, reset)))
            }
            Kind::Export => {
                let export = self.when_idle().and_then(|()| parse::<Export>(head));
                self.order(call, export.map(|export| Order::Export(call, export)))
            }
            Kind::Import => {
                let import = self.when_idle().and_then(|()| parse::<Import>(head));
                self.order(call, import.map(|import| Order::Import(call, import, body)))
            }
            Kind::Remember => {
                let remembered = parse::<Remember>(head).and_then(|_| {
                    if body.len() > MAX_NOTE {
                        return Err(Failure::bad_request("the note is too long"));
                    }
                    self.line.remember(body);
                    Ok((Empty {}, vec![]))
                });
                self.replies.answer(call, remembered)
            }
            Kind::Call
            | Kind::Forget
            | Kind::Hello
            | Kind::Resume
            | Kind::Reply
            | Kind::Failure => self.replies.fail(call, Failure::bad_request("not a request")),
        }
    }

    fn install(&mut self, all: &Install, body: &[u8]) -> Result<(), Failure> {
        // Opened on first use: most sandboxes never have a package.
        let packages = match &mut self.packages {
            Some(packages) => packages,
            none => none.insert(packages(&self.places.packages)?),
        };
        install(all, body, |put, bytes| packages.put(put, bytes, || false).map(drop))
    }

    /// Passes a request to the runner, which replies to it.
    fn order(&self, call: u32, order: Result<Order, Failure>) -> io::Result<()> {
        match order {
            Ok(order) => {
                self.runner.order(order);
                Ok(())
            }
            Err(failure) => self.replies.fail(call, failure),
        }
    }

    /// Fails while a run is in progress.
    fn when_idle(&self) -> Result<(), Failure> {
        if self.running.as_ref().is_some_and(|running| !running.switch.is_over()) {
            return Err(Failure::new(FailureCode::Busy, "a run is in progress"));
        }
        Ok(())
    }

    fn start(&mut self, call: u32, run: Run, body: Vec<u8>) -> Result<(), Failure> {
        self.when_idle()?;
        let context =
            RunContext { places: &self.places, data: self.files.root(), store: &self.store };
        let job = Job::new(call, run, body, context)?;
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
            .ok_or_else(|| Failure::new(FailureCode::NotFound, "no such run in progress"))
    }
}
