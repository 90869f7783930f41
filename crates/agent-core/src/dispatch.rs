//! The agent's end of the stream: requests in, replies out. Requests are answered here at once, or become orders to the
//! runner, which replies to them.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read},
    sync::{Arc, Mutex, mpsc},
};

use protocol::{
    frame::{self, Frame, Kind, MAX_BODY, MAX_HEAD, PROTOCOL_VERSION},
    limits::{MAX_NOTE, MAX_UNDO, MAX_UPLOADS},
    message::{
        Abandon, AgentHello, Answer, Empty, Failure, FailureCode, Get, GetDone, Hibernate, Inspect,
        Install, Kill, List, ListDone, Output, Pause, Peek, PeerVersion, Ping, Pong, Put, PutDone,
        Request, Run, ServerHello, Summarize, Warm,
    },
    resume::Remember,
};
use sandbox_files::kept::OutputStore;
use serde::Serialize;

use crate::{
    Asks, Job, Order, Settings,
    runner::{Running, Switch},
    summary::Summarizing,
};

/// The maximum length of a failure's detail, in characters. A path of thousands of control characters would grow
/// sixfold as JSON.
const MAX_DETAIL: usize = 512;

/// A receiver of whole frames.
pub trait Outlet: fmt::Debug + Send {
    /// Sends a frame. Fails if the other end is closed, and no other will follow.
    fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()>;
}

impl Outlet for io::Stdout {
    fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()> {
        frame::write(self, call, kind, head, body)
    }
}

/// The outlet for replies, one whole frame after another. Clones share it.
#[derive(Debug, Clone)]
pub struct Replies(Arc<Mutex<dyn Outlet>>);

impl Replies {
    /// Sends replies to standard output, to which nothing else may be written.
    pub fn to_stdout() -> Self {
        Self::to(Arc::new(Mutex::new(io::stdout())))
    }

    /// Sends replies to this outlet.
    pub fn to(outlet: Arc<Mutex<impl Outlet + 'static>>) -> Self {
        Self(outlet)
    }

    /// Sends the first frame.
    pub fn hello(&self, hello: &AgentHello) -> io::Result<()> {
        self.write(0, Kind::Hello, hello, &[])
    }

    /// Sends a frame that answers nothing.
    pub(crate) fn tell(
        &self,
        call: u32,
        kind: Kind,
        head: &impl Serialize,
        body: &[u8],
    ) -> io::Result<()> {
        self.write(call, kind, head, &[body])
    }

    /// Answers a request.
    pub fn reply(&self, call: u32, head: &impl Serialize, body: &[&[u8]]) -> io::Result<()> {
        self.write(call, Kind::Reply, head, body)
    }

    /// Reports why a request could not be carried out.
    pub fn fail(&self, call: u32, mut failure: Failure) -> io::Result<()> {
        failure.detail = failure.detail.chars().take(MAX_DETAIL).collect();
        self.write(call, Kind::Failure, &failure, &[])
    }

    /// Sends a reply or a failure, depending on the result.
    pub fn answer<T: Serialize>(
        &self,
        call: u32,
        done: Result<(T, Vec<u8>), Failure>,
    ) -> io::Result<()> {
        match done {
            Ok((head, body)) => self.reply(call, &head, &[&body]),
            Err(failure) => self.fail(call, failure),
        }
    }

    /// Carries a request out, and answers it.
    pub fn respond<R: Request>(
        &self,
        call: u32,
        head: &[u8],
        act: impl FnOnce(R) -> Result<(R::Reply, Vec<u8>), Failure>,
    ) -> io::Result<()> {
        self.answer(call, parse(head).and_then(act))
    }

    fn write(
        &self,
        call: u32,
        kind: Kind,
        head: &impl Serialize,
        body: &[&[u8]],
    ) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        debug_assert!(head.len() <= MAX_HEAD);
        let mut out = self.0.lock().expect("no thread panics while it writes");
        out.send(call, kind, &head, body)
    }
}

/// Answers the server's hello. Fails if the frame is not a hello. A server of another version gets the agent's version
/// before it is refused, so that it can say what is wrong.
pub fn greet(first: &Frame, replies: &Replies) -> Result<ServerHello, Box<dyn Error>> {
    if first.kind != Kind::Hello {
        return Err(format!("the server sent {:?} before its hello", first.kind).into());
    }
    let theirs: PeerVersion = serde_json::from_slice(&first.head)?;
    replies.hello(&AgentHello {
        version: PROTOCOL_VERSION,
        max_body: MAX_BODY,
        max_uploads: MAX_UPLOADS,
    })?;
    if theirs.version != PROTOCOL_VERSION {
        return Err(format!(
            "the server speaks protocol {}, this agent {PROTOCOL_VERSION}",
            theirs.version
        )
        .into());
    }
    Ok(serde_json::from_slice(&first.head)?)
}

/// Reads the next frame; `None` at the end of the stream, even in the middle of a frame: a server may be killed while
/// it writes.
pub fn next_frame(input: &mut impl Read) -> io::Result<Option<Frame>> {
    match frame::read(input) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

/// Parses the head of a request.
pub fn parse<R: Request>(head: &[u8]) -> Result<R, Failure> {
    serde_json::from_slice(head).map_err(|error| Failure::bad_request(error.to_string()))
}

/// Answers the requests that an agent need not pass to its runner.
pub trait Frontend {
    /// Ends a run of this agent.
    type Switch: Switch;

    /// Applies the settings of the server's hello, before the runner begins to prepare for programs.
    fn configure(&mut self, hello: ServerHello);

    /// Notes that a frame was received. Fails if requests of its kind cannot be answered yet.
    fn receive(&mut self, call: u32, kind: Kind) -> Result<(), Failure>;

    /// Answers [`Ping`].
    fn usage(&self) -> Pong;

    /// Answers [`Put`].
    fn put(&mut self, put: &Put, bytes: &[u8]) -> Result<PutDone, Failure>;

    /// Answers [`Abandon`].
    fn abandon(&mut self, abandon: &Abandon);

    /// Answers [`Install`].
    fn install(&mut self, all: &Install, body: &[u8]) -> Result<(), Failure>;

    /// Answers [`Get`].
    fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure>;

    /// Opens the file of a [`Summarize`]; `None` if the runner finds it by its path.
    fn open(&self, path: &str) -> Result<Option<File>, Failure>;

    /// Answers [`List`].
    fn list(&self, list: List) -> Result<(ListDone, Vec<u8>), Failure>;

    /// Answers [`Remember`]: keeps a note of a permitted length. Fails if the agent does not outlive its stream.
    fn remember(&mut self, note: Vec<u8>) -> Result<(), Failure>;
}

/// The way to the runner.
pub struct Orders<S> {
    sender: mpsc::Sender<Order<S>>,
    wake: Box<dyn Fn()>,
}

impl<S> Orders<S> {
    /// Creates a way to a runner that `wake` wakes if it waits for more than orders.
    pub fn new(sender: mpsc::Sender<Order<S>>, wake: impl Fn() + 'static) -> Self {
        Self { sender, wake: Box::new(wake) }
    }

    fn send(&self, order: Order<S>) {
        self.sender.send(order).expect("the runner ends with the process");
        (self.wake)();
    }
}

/// The main thread of an agent.
pub struct Dispatcher<F: Frontend> {
    /// The agent's own part.
    pub frontend: F,
    store: Arc<OutputStore>,
    replies: Replies,
    asks: Asks,
    orders: Orders<F::Switch>,
    /// The run that was started last.
    running: Option<Running<F::Switch>>,
    /// The switch of the summaries that were requested since an order last came that they give way to.
    summaries: Option<F::Switch>,
}

impl<F: Frontend> Dispatcher<F> {
    /// Creates a dispatcher. The store keeps the outputs of runs.
    pub fn new(
        frontend: F,
        store: Arc<OutputStore>,
        replies: Replies,
        asks: Asks,
        orders: Orders<F::Switch>,
    ) -> Self {
        Self { frontend, store, replies, asks, orders, running: None, summaries: None }
    }

    /// Answers the server's hello, and has the runner prepare for programs.
    pub fn greet(&mut self, first: &Frame) -> Result<(), Box<dyn Error>> {
        let mut hello = greet(first, &self.replies)?;
        let undo = hello.undo.map(|undo| undo.min(MAX_UNDO));
        let commands = std::mem::take(&mut hello.commands);
        let settings = Settings { preload: hello.preload.take(), undo, commands };
        if hello.asks {
            self.asks.enable();
        }
        self.frontend.configure(hello);
        self.orders.send(Order::Configure(settings));
        Ok(())
    }

    /// Answers requests until the stream ends. Fails if the stream breaks, or carries bytes that are not frames.
    pub fn serve(&mut self, input: &mut impl Read) -> io::Result<()> {
        while let Some(frame) = next_frame(input)? {
            self.answer(frame)?;
        }
        Ok(())
    }

    /// The agent's own part, and a function that returns the call id of the last run and whether it is in progress.
    pub fn split(&mut self) -> (&mut F, impl Fn() -> Option<(u32, bool)>) {
        let last = &self.running;
        (&mut self.frontend, || last.as_ref().map(|run| (run.call, run.in_progress().is_some())))
    }

    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
        if let Err(failure) = self.frontend.receive(call, kind) {
            return self.replies.fail(call, failure);
        }
        let Self { frontend, replies, store, .. } = self;
        let running = |run| self.running.as_ref().filter(|running| running.call == run);
        let done = (Empty {}, vec![]);
        match kind {
            Kind::Kill => replies.respond(call, head, |kill: Kill| {
                running(kill.run).inspect(|running| running.switch.throw());
                Ok(done)
            }),
            Kind::Peek => replies.respond(call, head, |peek: Peek| {
                running(peek.run)
                    .and_then(|running| running.outputs.peek(&peek))
                    .ok_or_else(|| Failure::new(FailureCode::NotFound, "no such run in progress"))
            }),
            Kind::Output => replies.respond(call, head, |output: Output| store.read(&output)),
            Kind::Put => replies.respond(call, head, |put: Put| {
                // A run is likely to follow an upload.
                if put.offset == 0 {
                    self.orders.send(Order::Prewarm);
                }
                Ok((frontend.put(&put, &body)?, vec![]))
            }),
            Kind::Abandon => replies.respond(call, head, |abandon: Abandon| {
                frontend.abandon(&abandon);
                Ok(done)
            }),
            Kind::Install => replies.respond(call, head, |all: Install| {
                frontend.install(&all, &body)?;
                Ok(done)
            }),
            Kind::Get => replies.respond(call, head, |get: Get| frontend.get(&get)),
            Kind::List => replies.respond(call, head, |list: List| frontend.list(list)),
            Kind::Ping => replies.respond(call, head, |Ping {}| Ok((frontend.usage(), vec![]))),
            Kind::Remember => replies.respond(call, head, |Remember {}| {
                if body.len() > MAX_NOTE {
                    return Err(Failure::bad_request("the note is too long"));
                }
                frontend.remember(body)?;
                Ok(done)
            }),
            Kind::Answer => replies.respond(call, head, |Answer { ask }| {
                self.asks.answer(ask, body);
                Ok(done)
            }),
            Kind::Pause => replies.respond(call, head, |Pause { ask, over }| {
                self.asks.pause(ask, !over);
                Ok(done)
            }),
            Kind::Run => {
                let order = self.when_idle(head).and_then(|run| self.start(call, run, body));
                self.later(call, order)
            }
            Kind::Summarize => {
                let order = self.when_idle(head).and_then(|it| self.summarize(call, it));
                self.later(call, order)
            }
            Kind::Warm => self.later(call, parse(head).map(|Warm {}| Order::Warm(call))),
            Kind::Hibernate => {
                let order = |Hibernate { keep }| Order::Hibernate(call, keep);
                self.later(call, parse(head).map(order))
            }
            Kind::Inspect => {
                let order = |Inspect { runtime }| Order::Inspect(call, runtime);
                self.later(call, self.when_idle(head).map(order))
            }
            Kind::Reset => {
                self.later(call, self.when_idle(head).map(|reset| Order::Reset(call, reset)))
            }
            Kind::Export => {
                self.later(call, self.when_idle(head).map(|export| Order::Export(call, export)))
            }
            Kind::Import => {
                let order = |import| Order::Import(call, import, body);
                self.later(call, self.when_idle(head).map(order))
            }
            Kind::Call
            | Kind::Forget
            | Kind::Ask
            | Kind::Withdraw
            | Kind::Hello
            | Kind::Resume
            | Kind::Reply
            | Kind::Failure => replies.fail(call, Failure::bad_request("not a request")),
        }
    }

    /// Passes a request to the runner, which replies to it.
    fn later(&mut self, call: u32, order: Result<Order<F::Switch>, Failure>) -> io::Result<()> {
        match order {
            Ok(order) => {
                if order.is_awaited()
                    && let Some(summaries) = self.summaries.take()
                {
                    summaries.throw();
                }
                self.orders.send(order);
                Ok(())
            }
            Err(failure) => self.replies.fail(call, failure),
        }
    }

    /// Parses a request that is not possible during a run.
    fn when_idle<R: Request>(&self, head: &[u8]) -> Result<R, Failure> {
        if self.running.as_ref().and_then(Running::in_progress).is_some() {
            return Err(Failure::new(FailureCode::Busy, "a run is in progress"));
        }
        parse(head)
    }

    fn summarize(&mut self, call: u32, request: Summarize) -> Result<Order<F::Switch>, Failure> {
        let file = self.frontend.open(&request.path)?;
        let switch = match &self.summaries {
            Some(switch) => switch.clone(),
            None => self.summaries.insert(F::Switch::new()?).clone(),
        };
        Ok(Order::Summarize(Box::new(Summarizing::new(call, request, file, switch))))
    }

    fn start(&mut self, call: u32, run: Run, body: Vec<u8>) -> Result<Order<F::Switch>, Failure> {
        let job = Job::new(call, run, body, &self.store)?;
        self.running = Some(job.running());
        Ok(Order::Run(Box::new(job)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use protocol::message::{Inspect, RuntimeName};

    use super::*;

    /// An agent that can do nothing.
    struct Nothing;

    fn cannot<T>() -> Result<T, Failure> {
        Err(Failure::new(FailureCode::NoRuntime, "not here"))
    }

    impl Frontend for Nothing {
        type Switch = NoSwitch;

        fn configure(&mut self, _: ServerHello) {}

        fn receive(&mut self, _: u32, _: Kind) -> Result<(), Failure> {
            Ok(())
        }

        fn usage(&self) -> Pong {
            Pong::default()
        }

        fn put(&mut self, _: &Put, _: &[u8]) -> Result<PutDone, Failure> {
            cannot()
        }

        fn abandon(&mut self, _: &Abandon) {}

        fn install(&mut self, _: &Install, _: &[u8]) -> Result<(), Failure> {
            cannot()
        }

        fn get(&self, _: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
            cannot()
        }

        fn open(&self, _: &str) -> Result<Option<File>, Failure> {
            Ok(None)
        }

        fn list(&self, _: List) -> Result<(ListDone, Vec<u8>), Failure> {
            Ok((ListDone { more: false, cut: false }, vec![]))
        }

        fn remember(&mut self, _: Vec<u8>) -> Result<(), Failure> {
            cannot()
        }
    }

    #[derive(Clone, Default)]
    struct NoSwitch(Arc<AtomicBool>);

    impl Switch for NoSwitch {
        fn new() -> Result<Self, Failure> {
            Ok(Self::default())
        }

        fn throw(&self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// The frames that were sent: kind and head.
    #[derive(Debug, Default)]
    struct Sent(Vec<(Kind, String)>);

    impl Outlet for Sent {
        fn send(&mut self, _: u32, kind: Kind, head: &[u8], _: &[&[u8]]) -> io::Result<()> {
            self.0.push((kind, String::from_utf8_lossy(head).into_owned()));
            Ok(())
        }
    }

    struct Agent {
        dispatcher: Dispatcher<Nothing>,
        orders: mpsc::Receiver<Order<NoSwitch>>,
        sent: Arc<Mutex<Sent>>,
    }

    impl Agent {
        fn new() -> Self {
            let (sender, orders) = mpsc::channel();
            let sent: Arc<Mutex<Sent>> = Arc::default();
            let store = Arc::new(OutputStore::in_memory(0));
            let orders_to = Orders::new(sender, || {});
            let replies = Replies::to(sent.clone());
            let asks = Asks::new(replies.clone(), || {});
            let dispatcher = Dispatcher::new(Nothing, store, replies, asks, orders_to);
            Self { dispatcher, orders, sent }
        }

        /// Sends a request; returns the orders that it becomes, and the frames that answer it.
        fn ask(
            &mut self,
            kind: Kind,
            head: &impl Serialize,
            body: &[u8],
        ) -> (Vec<Order<NoSwitch>>, Vec<(Kind, String)>) {
            let head = serde_json::to_vec(head).expect("serializes");
            self.dispatcher
                .answer(Frame { call: 7, kind, head, body: body.to_vec() })
                .expect("it is sent");
            let sent = std::mem::take(&mut self.sent.lock().expect("not poisoned").0);
            (self.orders.try_iter().collect(), sent)
        }
    }

    fn run(code_len: usize, output_cap: usize) -> Run {
        let runtime = RuntimeName::PYTHON;
        Run { runtime, code_len, has_stdin: false, timeout_ms: 1, output_cap, cell: false }
    }

    #[test]
    fn each_frame_gets_one_answer_or_becomes_one_order() {
        for kind in Kind::ALL {
            let (orders, sent) = Agent::new().ask(*kind, &Empty {}, b"");
            assert_eq!(orders.len() + sent.len(), 1, "{kind:?}");
        }
    }

    #[test]
    fn an_interpreter_is_asked_nothing_during_a_run() {
        let mut agent = Agent::new();
        let inspect = Inspect { runtime: RuntimeName::PYTHON };
        let (mut orders, _) = agent.ask(Kind::Run, &run(1, 1), b"x");
        let Some(Order::Run(job)) = orders.pop() else { panic!("it is no order") };
        for busy in
            [agent.ask(Kind::Run, &run(1, 1), b"x"), agent.ask(Kind::Inspect, &inspect, b"")]
        {
            assert!(busy.0.is_empty() && busy.1[0].1.contains("busy"), "{:?}", busy.1);
        }
        job.over.store(true, Ordering::Release);
        let (orders, sent) = agent.ask(Kind::Inspect, &inspect, b"");
        assert!(matches!(orders[..], [Order::Inspect(7, _)]), "{sent:?}");
    }

    #[test]
    fn a_summary_gives_way_to_what_a_caller_waits_for_and_to_nothing_else() {
        let mut agent = Agent::new();
        let summarize = |agent: &mut Agent| {
            let wanted =
                Summarize { path: "a.csv".into(), encoding: None, page: None, limit_ms: 9 };
            let (mut orders, sent) = agent.ask(Kind::Summarize, &wanted, b"");
            let Some(Order::Summarize(order)) = orders.pop() else { panic!("{sent:?}") };
            order.switch.0
        };
        let (one, other) = (summarize(&mut agent), summarize(&mut agent));
        agent.ask(Kind::Warm, &Empty {}, b"");
        agent.ask(Kind::Ping, &Empty {}, b"");
        assert!(!one.load(Ordering::Acquire) && !other.load(Ordering::Acquire));
        agent.ask(Kind::Inspect, &Inspect { runtime: RuntimeName::PYTHON }, b"");
        assert!(one.load(Ordering::Acquire) && other.load(Ordering::Acquire));
        assert!(!summarize(&mut agent).load(Ordering::Acquire), "it comes after the order");
        agent.ask(Kind::Run, &run(1, 1), b"x");
        let wanted = Summarize { path: "a.csv".into(), encoding: None, page: None, limit_ms: 9 };
        let (orders, sent) = agent.ask(Kind::Summarize, &wanted, b"");
        assert!(orders.is_empty() && sent[0].1.contains("busy"), "{sent:?}");
    }

    #[test]
    fn a_run_that_contradicts_its_body_is_refused() {
        for (code_len, cap, body) in [(2, 1, b"x".as_slice()), (1, 1, b"xy"), (1, 1 << 30, b"x")] {
            let (orders, sent) = Agent::new().ask(Kind::Run, &run(code_len, cap), body);
            assert!(orders.is_empty() && sent[0].1.contains("bad_request"), "{sent:?}");
        }
    }
}
