//! The main loop: the server's hello, then frames in, replies out.

use std::{io, sync::Arc, thread, time::Duration};

use protocol::{
    frame::{Frame, Kind},
    limits::MAX_UNDO,
    message::{
        Abandon, Empty, Export, Failure, FailureCode, Get, Hibernate, Import, Inspect, Kill, List,
        Output, Peek, PeekDone, Ping, Pong, Put, Reset, Run, ServerHello, Warm,
    },
};
use workspace::{
    files::Files,
    kept::OutputStore,
    outputs::SharedOutputs,
    replies::{Replies, greet, next_frame, parse},
    watch::Watch,
};

use crate::{
    end, memory,
    places::Places,
    run::{Job, KillSwitch, RunContext},
    runner::{Order, Runner},
    runtimes::Settings,
};

/// Silence that the agent bears before it has heard the server's own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Answers frames until the stream ends.
pub(crate) fn serve(places: Places) -> Result<(), Box<dyn std::error::Error>> {
    let watch = Arc::new(Watch::new(MAX_FIRST_SILENCE));
    let watcher = watch.clone();
    thread::Builder::new().name("watch".into()).spawn(move || watcher.run(|| end()))?;

    let replies = Replies::to_stdout();
    let runner = Runner::start(&places, replies.clone())?;
    let files = Files::open(&places.data)?;
    let store = Arc::new(OutputStore::new(files.root().try_clone()?));
    let mut agent = Agent { files, store, places, replies, runner, running: None };
    let mut input = io::BufReader::with_capacity(64 << 10, io::stdin().lock());
    let Some(first) = next_frame(&mut input)? else { end() };
    let hello = greet(&first, &agent.replies)?;
    watch.heard();
    watch.set_limit(hello.silence_limit_ms);
    let ServerHello { preload, undo, .. } = hello;
    let undo = undo.map(|undo| undo.min(MAX_UNDO));
    agent.runner.order(Order::Configure(Settings { preload, undo }));
    while let Some(frame) = next_frame(&mut input)? {
        watch.heard();
        agent.answer(frame)?;
    }
    end()
}

struct Agent {
    files: Files,
    store: Arc<OutputStore>,
    places: Places,
    replies: Replies,
    runner: Runner,
    running: Option<Running>,
}

/// What is left here of the run that was started last.
struct Running {
    call: u32,
    switch: KillSwitch,
    outputs: SharedOutputs,
}

impl Agent {
    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
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
                    // The user's files come before what was only kept.
                    self.files.put(&put, &body, || self.store.clear())
                });
                self.replies.answer(call, done.map(|done| (done, vec![])))
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
            Kind::Call | Kind::Forget | Kind::Hello | Kind::Reply | Kind::Failure => {
                self.replies.fail(call, Failure::bad_request("not a request"))
            }
        }
    }

    /// Leaves a request to the runner, which replies to it.
    fn order(&self, call: u32, order: Result<Order, Failure>) -> io::Result<()> {
        match order {
            Ok(order) => {
                self.runner.order(order);
                Ok(())
            }
            Err(failure) => self.replies.fail(call, failure),
        }
    }

    /// A failure while something runs.
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
