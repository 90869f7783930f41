//! The agent of a sandbox: reads frames and writes replies, as PID 1 of a container does.
//!
//! ```text
//! main thread    reads frames; answers requests for files, lists, pings and outputs of a run itself
//!   |- watch     ends the process when the stream closes or the server is silent for too long
//!   '- runner    does one run after another, and has the states of the interpreters
//! ```

mod kernel;
mod run;
mod runner;

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use protocol::{
    frame::{Frame, Kind},
    limits::MAX_UNDO,
    message::{
        Abandon, Empty, Failure, FailureCode, Get, Hibernate, Inspect, Install, Kill, List, Output,
        Peek, PeekDone, Ping, Pong, Put, Reset, Run, Warm,
    },
};
use sandbox_files::{
    files::install,
    kept::OutputStore,
    replies::{Replies, greet, next_frame, parse},
    watch::Watch,
};

use self::{
    kernel::KeptStates,
    run::{Job, Running},
    runner::{Order, Runner},
};
use crate::{
    files::{FileSystem, PackageUploads, Uploads},
    kept::{self, StateFile},
    lockdown,
    memory::Pages,
    python,
    runtime::Runtime,
};

/// Longest silence of the server before it has sent its own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Long outputs may have this fraction of the data area's size (1/8), as in containers. Here they do not count in its
/// quota.
const OUTPUT_SHARE: u64 = 8;

/// Bytes of stack of the thread that runs guests. Guests have stacks of their own.
const STACK: usize = 8 << 20;

/// The limits of a sandbox.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of memory that an interpreter may have beyond what it starts with.
    pub memory: u64,
    /// Bytes of the data area.
    pub data: u64,
    /// Bytes of scratch space.
    pub scratch: u64,
    /// Bytes of packages that may be installed; `None` if installing is disabled.
    pub packages: Option<u64>,
    /// Instructions of one call; `None` if they are not limited.
    pub fuel: Option<u64>,
    /// File in which the sandbox is saved when its server ends, and from which it is restored.
    pub state: Option<PathBuf>,
}

/// Runs the agent of one sandbox: speaks the protocol on standard input and output until they close. It takes over
/// the whole process, and gives up all rights that it does not need.
pub fn agent(folder: &Path, settings: Settings) -> ExitCode {
    match serve(folder, &settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The present files and, while a run is in progress, the files before it.
#[derive(Debug, Clone)]
pub(crate) struct SharedFiles {
    pub(crate) now: Arc<Mutex<FileSystem>>,
    pub(crate) before: Arc<Mutex<Option<FileSystem>>>,
}

impl SharedFiles {
    fn new(files: FileSystem) -> Self {
        Self { now: Arc::new(Mutex::new(files)), before: Arc::default() }
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, FileSystem> {
        self.now.lock().expect("no thread panics while it holds this")
    }

    /// Always locked after [`now`](Self::now).
    pub(crate) fn before(&self) -> MutexGuard<'_, Option<FileSystem>> {
        self.before.lock().expect("no thread panics while it holds this")
    }
}

/// Saves the sandbox, so that it can be restored after its server has ended.
#[derive(Clone)]
pub(crate) struct Keeper(Arc<KeeperParts>);

struct KeeperParts {
    files: SharedFiles,
    /// The state file; `None` if the sandbox is not saved, and until the saved state has been read.
    file: Mutex<Option<StateFile>>,
    /// The sandbox may differ from the saved state.
    is_changed: AtomicBool,
    /// The saved state, if there is one, has been loaded or found unusable.
    is_ready: AtomicBool,
    /// The states of the interpreters after the last call.
    kernels: Mutex<Vec<KeptStates>>,
    /// Locked from before the reply to a call until the states after the call are noted.
    settling: Mutex<()>,
}

impl Keeper {
    fn new(files: SharedFiles) -> Self {
        let (file, kernels, settling) = Default::default();
        let (is_changed, is_ready) = Default::default();
        Self(Arc::new(KeeperParts { files, file, is_changed, is_ready, kernels, settling }))
    }

    fn file(&self) -> MutexGuard<'_, Option<StateFile>> {
        self.0.file.lock().expect("no thread panics while it holds this")
    }

    /// Notes that loading is over. From now on the sandbox is saved in this file.
    fn ready(&self, file: Option<StateFile>) {
        *self.file() = file;
        self.0.is_ready.store(true, Ordering::Release);
    }

    fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Acquire)
    }

    /// Notes that the sandbox differs from the saved state, which could not be restored.
    fn differs(&self) {
        self.0.is_changed.store(true, Ordering::Release);
    }

    /// Marks the saved state as outdated: the sandbox is about to differ from it.
    fn changes(&self) {
        if !self.0.is_changed.swap(true, Ordering::AcqRel)
            && let Some(file) = &mut *self.file()
        {
            file.leave();
        }
    }

    /// Saves the sandbox between two calls. Returns false if that fails.
    fn keep(&self) -> bool {
        let mut file = self.file();
        let Some(file) = file.as_mut() else { return false };
        let is_kept = file.is_last() && !self.0.is_changed.load(Ordering::Acquire);
        is_kept || self.write(file)
    }

    fn write(&self, file: &mut StateFile) -> bool {
        let (now, before) = (self.0.files.now(), self.0.files.before());
        let files = before.as_ref().unwrap_or(&now).save();
        drop((now, before));
        let kernels = self.0.kernels.lock().expect("no thread panics while it holds this");
        let kernels = kernels.iter().map(KeptStates::save).collect();
        let written = file.write(&kept::Kept { key: crate::key(), files, kernels });
        self.0.is_changed.store(written.is_err(), Ordering::Release);
        written.is_ok()
    }

    /// A lock: [`end`](Self::end) saves nothing until it is dropped.
    fn settling(&self) -> MutexGuard<'_, ()> {
        self.0.settling.lock().expect("no thread panics while it holds this")
    }

    /// Notes the new states of the interpreters.
    fn note(&self, kernels: Vec<KeptStates>) {
        *self.0.kernels.lock().expect("no thread panics while it holds this") = kernels;
    }

    /// Saves the sandbox and ends the process. A run in progress is rolled back.
    fn end(&self) -> ! {
        // Locked until the process ends: another thread that calls this must not end the process before.
        let mut file = self.file();
        if let Some(mut file) = file.take()
            && self.0.is_changed.load(Ordering::Acquire)
        {
            let _settled = self.settling();
            // If this fails, the next agent finds the older state, marked as outdated.
            self.write(&mut file);
        }
        std::process::exit(0)
    }
}

fn serve(folder: &Path, settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::open(folder)?;
    let pages = Pages::open()?;
    let memory = File::open("/proc/self/statm")?;
    let state = settings.state.as_deref().map(kept::open).transpose()?;
    let most = most_memory(&runtime, settings);
    lockdown::lock_down(most, most)?;

    let files = FileSystem::new(runtime.library.clone(), settings.data, settings.scratch);
    let files = SharedFiles::new(files);
    let keeper = Keeper::new(files.clone());
    let watch = Arc::new(Watch::new(MAX_FIRST_SILENCE));
    let (watcher, at_end) = (watch.clone(), keeper.clone());
    thread::Builder::new().name("watch".into()).spawn(move || watcher.run(|| at_end.end()))?;
    let replies = Replies::to_stdout();
    let runner = Runner::start(
        runtime,
        settings,
        pages,
        files.clone(),
        replies.clone(),
        (state, keeper.clone()),
    )?;
    let store = Arc::new(OutputStore::in_memory(settings.data / OUTPUT_SHARE));
    let mut input = io::BufReader::with_capacity(64 << 10, io::stdin().lock());
    let Some(first) = next_frame(&mut input)? else { keeper.end() };
    let Ok(hello) = greet(&first, &replies) else { keeper.end() };
    watch.heard();
    watch.set_limit(hello.silence_limit_ms);
    hello.timezone.into_iter().for_each(python::set_timezone);
    runner.order(Order::Configure(hello.undo.map(|undo| undo.min(MAX_UNDO))));
    let uploads = Uploads::default();
    let ended = keeper.clone();
    let packages = settings.packages.map(PackageUploads::new);
    let mut agent =
        Agent { files, uploads, packages, store, memory, replies, runner, keeper, running: None };
    // A broken stream ends the agent just as a closed one does.
    while let Ok(Some(frame)) = next_frame(&mut input) {
        watch.heard();
        if agent.answer(frame).is_err() {
            break;
        }
    }
    ended.end()
}

/// Bytes of private memory that this process may have: for its guests, their older states, files and packages, and
/// the engine. A process that needs more ends.
fn most_memory(runtime: &Runtime, settings: &Settings) -> u64 {
    const ENGINE: u64 = 512 << 20;
    let images = runtime.interpreters.iter().map(|one| one.image.len() as u64);
    // The guest of the workspace, the spare for the next program, and a guest that is about to replace one of them.
    let guests = images.map(|image| 3 * (image + settings.memory)).sum::<u64>();
    guests
        + 4 * settings.memory
        + 3 * (settings.data + settings.scratch)
        + settings.packages.unwrap_or_default()
        + ENGINE
}

struct Agent {
    files: SharedFiles,
    uploads: Uploads,
    /// `None` if installing is disabled.
    packages: Option<PackageUploads>,
    store: Arc<OutputStore>,
    /// `/proc/self/statm`, which reports this process's memory.
    memory: File,
    replies: Replies,
    runner: Runner,
    keeper: Keeper,
    running: Option<Running>,
}

impl Agent {
    fn answer(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
        if !self.keeper.is_ready() && !matches!(kind, Kind::Ping | Kind::Warm) {
            let failure = Failure::new(FailureCode::Busy, "what was kept is not there yet");
            return self.replies.fail(call, failure);
        }
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
                let done = parse::<Put>(head).and_then(|put| self.put(&put, &body));
                self.replies.answer(call, done.map(|done| (done, vec![])))
            }
            Kind::Abandon => {
                let done = parse::<Abandon>(head).map(|abandon| {
                    let mut now = self.files.now();
                    let mut before = self.files.before();
                    self.uploads.abandon(&abandon, &mut now, before.as_mut());
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
                let done = parse::<Get>(head).and_then(|get| self.files.now().get(&get));
                self.replies.answer(call, done)
            }
            Kind::List => {
                let done = parse::<List>(head).map(|list| self.files.now().list(list));
                self.replies.answer(call, done)
            }
            Kind::Ping => {
                let pong = parse::<Ping>(head).map(|_| Pong { memory_bytes: self.memory_in_use() });
                self.replies.answer(call, pong.map(|pong| (pong, vec![])))
            }
            Kind::Warm => {
                let order = parse::<Warm>(head).map(|_| Order::Warm(call));
                self.order(call, order)
            }
            Kind::Hibernate => {
                let order = parse::<Hibernate>(head);
                let order = order.map(|hibernate| Order::Hibernate(call, hibernate.keep));
                self.order(call, order)
            }
            Kind::Inspect => {
                let inspect = self.when_idle().and_then(|()| parse::<Inspect>(head));
                self.order(call, inspect.map(|inspect| Order::Inspect(call, inspect)))
            }
            Kind::Reset => {
                let reset = self.when_idle().and_then(|()| parse::<Reset>(head));
                self.order(call, reset.map(|reset| Order::Reset(call, reset)))
            }
            Kind::Install => {
                let done = parse::<Install>(head).and_then(|all| self.install(&all, &body));
                self.replies.answer(call, done.map(|()| (Empty {}, vec![])))
            }
            Kind::Export | Kind::Import => {
                // Saving includes all variables, so they are not exported separately.
                let detail = "variables are kept with all of the state here";
                self.replies.fail(call, Failure::new(FailureCode::NoRuntime, detail))
            }
            // The agent ends with its stream, so it cannot be resumed.
            Kind::Resume
            | Kind::Remember
            | Kind::Call
            | Kind::Forget
            | Kind::Hello
            | Kind::Reply
            | Kind::Failure => self.replies.fail(call, Failure::bad_request("not a request")),
        }
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

    fn install(&mut self, all: &Install, body: &[u8]) -> Result<(), Failure> {
        let Some(packages) = &mut self.packages else {
            return Err(Failure::new(FailureCode::NoRuntime, "there is no place for packages"));
        };
        self.keeper.changes();
        let mut now = self.files.now();
        install(all, body, |put, bytes| packages.put(put, bytes, &mut now))
    }

    fn put(&mut self, put: &Put, bytes: &[u8]) -> Result<protocol::message::PutDone, Failure> {
        self.keeper.changes();
        let mut now = self.files.now();
        let mut before = self.files.before();
        self.uploads.put(put, bytes, &mut now, before.as_mut())
    }

    /// Returns a failure while a run is in progress.
    fn when_idle(&self) -> Result<(), Failure> {
        if self.running.as_ref().is_some_and(|running| !running.is_over()) {
            return Err(Failure::new(FailureCode::Busy, "a run is in progress"));
        }
        Ok(())
    }

    fn start(&mut self, call: u32, run: Run, body: Vec<u8>) -> Result<(), Failure> {
        self.when_idle()?;
        let job = Job::new(call, run, body, &self.store)?;
        self.running = Some(job.running());
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

    /// Bytes of private memory of this sandbox, without pages that it shares with others.
    fn memory_in_use(&self) -> Option<u64> {
        let mut text = [0; 128];
        let read = self.memory.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..read]).ok()?;
        let mut pages = text.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
        let (resident, shared) = (pages.next()?, pages.next()?);
        Some(resident.saturating_sub(shared) * crate::memory::PAGE as u64)
    }
}
