//! The agent of a tool: reads calls and writes replies, several calls at a time. The server limits their number.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use agent_core::{Ended, Replies, Switch as _, greet, next_frame, parse};
use protocol::{
    frame::{Frame, Kind},
    limits::MAX_CAPTURE,
    message::{
        Call, CallInput, Empty, End, Facts, Failure, FailureCode, Forget, Get, Kill, Ping, Pong,
        RunDone, Start, WarmDone,
    },
};
use sandbox_files::{kept::OutputStore, outputs::SharedOutputs, tree, watch::Watch};
use wasmtime::InstancePre;

use super::compile::START;
use crate::{
    Error,
    files::{Content, DATA, Datasets, FileSystem, Library, ROOT, Shared},
    lockdown,
    machine::{self, Bounds, Guest, Halt, Machine, Switch},
    memory,
    wasi::Process,
};

/// Longest silence of the server before it has sent its own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Bytes of stack of a call's thread. Programs have stacks of their own.
const STACK: usize = 1 << 20;

/// Maximum number of files and folders in a folder of the host.
const MAX_SHOWN: usize = 20_000;

/// Size in bytes from which on a file of the host is mapped instead of copied.
const MAPPED_FROM: u64 = 1 << 20;

/// Bytes of memory for the engine, and for calls and replies in transit.
const ENGINE: u64 = 512 << 20;

/// Path of scratch space in programs.
const SCRATCH: &str = "/tmp";

/// The limits of a tool, and the folders that it can access.
#[derive(Debug, Clone)]
pub struct ToolSettings {
    /// Absolute path of its own folder in the program.
    pub folder: String,
    /// Folders of the host that it may read, by their absolute paths in the program.
    pub shown: Vec<(String, PathBuf)>,
    /// Bytes of memory of a call.
    pub memory: u64,
    /// Bytes of files of a call.
    pub data: u64,
    /// Bytes of scratch space of a call.
    pub scratch: u64,
    /// Maximum number of calls at a time.
    pub calls: u64,
}

/// Runs the agent of the tool whose compiled code is in this file: speaks the protocol on standard input and output
/// until they close.
pub fn tool_agent(code: &Path, settings: &ToolSettings) -> ExitCode {
    // A call whose thread has panicked would never be answered. Ending the process fails it, and the next call gets a
    // new process.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    match serve(code, settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(code: &Path, settings: &ToolSettings) -> Result<(), Box<dyn std::error::Error>> {
    let engine = machine::tool_engine().map_err(Error::from)?;
    let module = memory::load(&engine, code).map_err(Error::from)?;
    let pre = machine::prelink(&engine, &module, |_| Ok(())).map_err(Error::from)?;
    let shown = settings.shown.iter().map(|(path, folder)| read_folder(path, folder));
    let shown = shown.collect::<io::Result<Vec<_>>>()?.into_iter().flatten();
    let library = Arc::new(Library::new(shown));
    let ToolSettings { memory, data, scratch, calls, .. } = *settings;
    lockdown::lock_down(
        calls * (memory + 2 * (data + scratch)) + ENGINE,
        memory,
        &Datasets::default(),
    )?;

    let watch = Arc::new(Watch::new(MAX_FIRST_SILENCE));
    let watcher = watch.clone();
    let watching = move || watcher.run(|| std::process::exit(0));
    thread::Builder::new().name("watch".into()).spawn(watching)?;
    let replies = Replies::to_stdout();
    let mut input = io::BufReader::with_capacity(64 << 10, io::stdin().lock());
    let Some(first) = next_frame(&mut input)? else { return Ok(()) };
    let hello = greet(&first, &replies)?;
    watch.heard();
    watch.set_limit(hello.silence_limit_ms);
    let tool = Arc::new(Tool {
        pre,
        library,
        settings: settings.clone(),
        replies,
        store: Arc::new(OutputStore::in_memory(0)),
        running: Mutex::default(),
        left: Mutex::default(),
    });
    // A broken stream ends the agent just as a closed one does.
    while let Ok(Some(frame)) = next_frame(&mut input) {
        watch.heard();
        if tool.answer(frame).is_err() {
            break;
        }
    }
    // Calls in progress are not awaited: their replies could not be sent.
    std::process::exit(0)
}

/// The present files of a folder of the host. Links are followed.
fn read_folder(path: &str, folder: &Path) -> io::Result<Vec<(String, Content)>> {
    let named = |error: io::Error, at: &Path| {
        io::Error::new(error.kind(), format!("{}: {error}", at.display()))
    };
    let (mut found, mut looked_at) = (vec![], 0);
    let mut folders = vec![(path.trim_end_matches('/').to_owned(), folder.to_owned())];
    while let Some((path, folder)) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| named(error, &folder))? {
            let at = entry?.path();
            // Programs could not name a file whose name is not valid UTF-8.
            let Some(name) = at.file_name().and_then(|name| name.to_str()) else { continue };
            let path = format!("{path}/{name}");
            let Ok(metadata) = fs::metadata(&at) else { continue };
            if metadata.is_dir() {
                // A cycle of links ends when the path becomes too long.
                folders.push((path, at));
            } else if metadata.is_file() {
                let file = File::open(&at).map_err(|error| named(error, &at))?;
                found.push((path, content(&file, metadata.len())?));
            }
            // Two links to their own folder multiply the paths to it, to more than can be walked.
            looked_at += 1;
            if looked_at > MAX_SHOWN {
                let why = format!("it holds more than {MAX_SHOWN} files and folders");
                return Err(named(io::Error::other(why), &folder));
            }
        }
    }
    Ok(found)
}

fn content(file: &File, len: u64) -> io::Result<Content> {
    let all: Shared = if len >= MAPPED_FROM {
        Arc::new(memory::map(file)?)
    } else {
        let mut bytes = vec![];
        io::Read::read_to_end(&mut &*file, &mut bytes)?;
        Arc::new(bytes)
    };
    let len = (*all).as_ref().len();
    Ok(Content::Fixed { all, start: 0, len })
}

struct Tool {
    pre: InstancePre<Guest>,
    library: Arc<Library>,
    settings: ToolSettings,
    replies: Replies,
    store: Arc<OutputStore>,
    /// Calls in progress.
    running: Mutex<HashMap<u32, Running>>,
    /// Files of calls that have ended, until the server sends [`Forget`].
    left: Mutex<HashMap<u32, FileSystem>>,
}

/// A call in progress.
struct Running {
    /// Ends the call.
    switch: Switch,
    /// Whether the server will not request the call's files.
    is_forgotten: bool,
}

impl Tool {
    fn running(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().expect("a panic ends the process")
    }

    fn left(&self) -> MutexGuard<'_, HashMap<u32, FileSystem>> {
        self.left.lock().expect("a panic ends the process")
    }

    fn answer(self: &Arc<Self>, frame: Frame) -> io::Result<()> {
        let Frame { call, kind, ref head, body } = frame;
        let (replies, nothing) = (&self.replies, (Empty {}, vec![]));
        match kind {
            Kind::Call => {
                let begun = parse(head).and_then(|asked: Call| self.begin(call, asked, &body));
                begun.or_else(|failure| replies.fail(call, failure))
            }
            Kind::Kill => replies.respond(call, head, |kill: Kill| {
                if let Some(running) = self.running().get(&kill.run) {
                    running.switch.throw();
                }
                Ok(nothing)
            }),
            Kind::Get => replies.respond(call, head, |get: Get| self.get(&get)),
            Kind::Forget => replies.respond(call, head, |forget: Forget| {
                match self.running().get_mut(&forget.call) {
                    Some(running) => running.is_forgotten = true,
                    None => drop(self.left().remove(&forget.call)),
                }
                Ok(nothing)
            }),
            Kind::Ping => replies.respond(call, head, |Ping {}| Ok((Pong::default(), vec![]))),
            Kind::Warm => {
                let warm = WarmDone { ready: true, problems: vec![], went_on: None };
                replies.reply(call, &warm, &[])
            }
            _ => replies.fail(call, Failure::bad_request("a tool does not do that")),
        }
    }

    fn get(&self, get: &Get) -> Result<(protocol::message::GetDone, Vec<u8>), Failure> {
        let left = self.left();
        let files = get.of.and_then(|call| left.get(&call));
        files.ok_or_else(|| Failure::new(FailureCode::NotFound, "no such call"))?.get(get)
    }

    /// Starts a call on a thread of its own.
    fn begin(self: &Arc<Self>, call: u32, asked: Call, body: &[u8]) -> Result<(), Failure> {
        let begun = Instant::now();
        let input: CallInput = serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(error.to_string()))?;
        if asked.output_cap > MAX_CAPTURE {
            return Err(Failure::bad_request("the output cap is too large"));
        }
        let switch = Switch::default();
        let running = Running { switch: switch.clone(), is_forgotten: false };
        self.running().insert(call, running);
        let tool = self.clone();
        let work = move || {
            let done = tool.run(call, &asked, input, switch, begun);
            let mut running = tool.running();
            let is_wanted = running.remove(&call).is_some_and(|call| !call.is_forgotten);
            let done = done.map(|(done, body, left)| {
                // Inserted before `running` is unlocked, where `Forget` looks first.
                if let Some(left) = left.filter(|_| is_wanted) {
                    tool.left().insert(call, left);
                }
                (done, body)
            });
            drop(running);
            // If the server has ended, this process is about to end as well.
            let _ = match done {
                Ok((done, body)) => tool.replies.reply(call, &done, &[&body]),
                Err(failure) => tool.replies.fail(call, failure),
            };
        };
        let thread = thread::Builder::new().name("call".into()).stack_size(STACK).spawn(work);
        thread.map(drop).map_err(|error| {
            self.running().remove(&call);
            Failure::new(FailureCode::System, error.to_string())
        })
    }

    fn run(
        &self,
        call: u32,
        asked: &Call,
        input: CallInput,
        switch: Switch,
        begun: Instant,
    ) -> Result<(RunDone, Vec<u8>, Option<FileSystem>), Failure> {
        let CallInput { args, env, files, stdin } = input;
        let mut system =
            FileSystem::new(self.library.clone(), self.settings.data, self.settings.scratch);
        for (path, text) in &files {
            system.place(path, text.as_bytes()).map_err(|errno| {
                Failure::new(FailureCode::Full, format!("a file cannot be made: {errno:?}"))
            })?;
        }
        let before = system.snapshot();
        let outputs = SharedOutputs::exact(&self.store, call, asked.output_cap);
        let mut process = Process::program(args, env, self.folders(&system));
        process.connect(stdin.into_bytes(), outputs.clone());
        let system = Arc::new(Mutex::new(system));
        let memory = usize::try_from(self.settings.memory).unwrap_or(usize::MAX);
        let guest = Guest::new(process, system.clone(), memory);
        let deadline = Instant::now() + Duration::from_millis(asked.timeout_ms);
        let bounds =
            Bounds { deadline: Some(deadline), switch, fuel: asked.fuel, ..Bounds::default() };
        let (end, was_denied) = self.execute(guest, bounds);
        let elapsed = begun.elapsed();

        let outputs = outputs.take().expect("nobody else takes them");
        let system = Arc::into_inner(system).expect("its program has ended");
        let system = system.into_inner().expect("a panic ends the process");
        let changed = tree::changed(&before, system.snapshot());
        let left = (!changed.is_empty()).then_some(system);
        let ended = Ended {
            end,
            start: Start::Warm,
            elapsed,
            cpu: elapsed,
            oom_kills: u64::from(was_denied && end != (End::Exited { code: 0 })),
            facts: Facts::default(),
            cell: None,
            result: vec![],
        };
        let (done, body) = ended.report(&outputs, &changed, begun);
        Ok((done, body, left))
    }

    /// Runs the program. Returns how it ended, and whether it was denied memory.
    fn execute(&self, guest: Guest, bounds: Bounds) -> (End, bool) {
        let mut machine = match Machine::within(&self.pre, guest, bounds) {
            Ok(machine) => machine,
            Err((halt, was_denied)) => return (halt.end(was_denied), was_denied),
        };
        let halted = match machine.call(START, &[]) {
            Ok(_) => Halt::Exit(0),
            Err(halt) => halt,
        };
        let was_denied = machine.guest().was_denied;
        let end = match halted.end(was_denied) {
            // The program reports a failure itself, after it was denied memory.
            End::Exited { code: 1.. } if was_denied => End::OutOfMemory,
            end => end,
        };
        (end, was_denied)
    }

    /// The folders of a program, its own first.
    fn folders(&self, system: &FileSystem) -> Vec<(String, u64)> {
        let ToolSettings { folder, shown, .. } = &self.settings;
        let scratch = system.find(ROOT, SCRATCH, true).ok();
        // Old programs cannot tell which folder a path belongs to if one folder is within the other.
        let scratch = scratch.filter(|_| folder != "/" && folder != SCRATCH);
        let scratch = scratch.map(|inode| (SCRATCH.to_owned(), inode));
        let shown = shown
            .iter()
            .filter_map(|(path, _)| Some((path.clone(), system.find(ROOT, path, true).ok()?)));
        [(folder.clone(), DATA)].into_iter().chain(scratch).chain(shown).collect()
    }
}
