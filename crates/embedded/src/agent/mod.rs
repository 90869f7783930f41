//! The agent of a sandbox: reads frames and writes replies, as PID 1 of a container does.
//!
//! ```text
//! main thread    reads frames; answers requests for files, lists, pings and outputs of a run itself
//!   |- watch     ends the process when the stream closes or the server is silent for too long
//!   '- runner    does one run after another, and has the states of the interpreters
//! ```

mod keeper;
mod kernel;
mod runner;

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use agent_core::{Asks, Dispatcher, Frontend, Replies, next_frame};
use nix::time::{ClockId, clock_gettime};
use protocol::{
    frame::Kind,
    message::{
        Abandon, Failure, FailureCode, Get, GetDone, Install, List, ListDone, Pong, Put, PutDone,
        ServerHello,
    },
};
use sandbox_files::{files::install, kept::OutputStore, watch::Watch};

use self::keeper::Keeper;
use crate::{
    files::{Datasets, FileSystem, PIECE_BYTES, PackageUploads, Store, Uploads, is_of_dataset},
    kept, lockdown,
    machine::Switch,
    memory::Pages,
    python,
    runtime::Runtime,
};

/// Longest silence of the server before it has sent its own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Long outputs may have this fraction of the data area's size (1/8), as in containers. Here they do not count in its
/// quota.
const OUTPUT_SHARE: u64 = 8;

/// Maximum number of pieces that are not full: the last ones of files and of uploads.
const MAX_PARTIAL: u64 = 2 * protocol::limits::MAX_FILES as u64;

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
    /// Names and folders of the datasets.
    pub datasets: Vec<(String, PathBuf)>,
    /// File in which the sandbox is saved when its server ends, and from which it is restored.
    pub state: Option<PathBuf>,
    /// Folder for the contents of the data area; `None` if they are in memory. With a state file they are in that file,
    /// otherwise in one without a name, so that nothing is left when this process ends.
    pub disk: Option<PathBuf>,
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

fn serve(folder: &Path, settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::open(folder)?;
    let pages = Pages::open()?;
    let memory = File::open("/proc/self/statm")?;
    let status = File::open("/proc/self/status")?;
    let state = settings.state.as_deref().map(kept::open).transpose()?.map(Arc::new);
    let store = match (&settings.disk, &state) {
        (None, _) => None,
        (Some(_), Some(state)) => Some(Store::new(state.clone(), most_slots(&runtime, settings))),
        (Some(folder), None) => {
            let file = Arc::new(tempfile::tempfile_in(folder)?);
            let store = Store::new(file, most_slots(&runtime, settings));
            store.open(&[].into())?;
            Some(store)
        }
    };
    let datasets = Datasets::open(&settings.datasets)?;
    let most = most_memory(&runtime, settings);
    let most_file = store.as_ref().map_or(0, |store| store.most_bytes()).max(most);
    lockdown::lock_down(most, most_file, &datasets)?;
    datasets.check()?;

    let files = FileSystem::new(runtime.library.clone(), settings.data, settings.scratch);
    let files = files.with_datasets(datasets).with_store(store.clone());
    let datasets = files.datasets().clone();
    let files = SharedFiles::new(files);
    let keeper = Keeper::new(files.clone());
    let watch = Arc::new(Watch::new(MAX_FIRST_SILENCE));
    let (watcher, at_end) = (watch.clone(), keeper.clone());
    thread::Builder::new().name("watch".into()).spawn(move || watcher.run(|| at_end.end()))?;
    let replies = Replies::to_stdout();
    let saved = (state.map(|state| (state, store)), keeper.clone());
    // The guest looks itself whether it must pause.
    let asks = Asks::new(replies.clone(), || {});
    let orders = runner::start(
        runtime,
        settings,
        pages,
        files.clone(),
        replies.clone(),
        asks.clone(),
        saved,
    )?;
    let agent = Agent {
        files,
        datasets,
        uploads: Uploads::default(),
        packages: settings.packages.map(PackageUploads::new),
        memory,
        status,
        keeper: keeper.clone(),
        watch,
    };
    let store = Arc::new(OutputStore::in_memory(settings.data / OUTPUT_SHARE));
    let mut agent = Dispatcher::new(agent, store, replies, asks, orders);
    let mut input = io::BufReader::with_capacity(64 << 10, io::stdin().lock());
    let Some(first) = next_frame(&mut input)? else { keeper.end() };
    if agent.greet(&first).is_ok() {
        // A broken stream ends the agent just as a closed one does.
        let _ = agent.serve(&mut input);
    }
    keeper.end()
}

/// Bytes of private memory that this process may have: for its guests, their older states, files and packages, and
/// the engine. A process that needs more ends.
fn most_memory(runtime: &Runtime, settings: &Settings) -> u64 {
    const ENGINE: u64 = 512 << 20;
    // Bytes of memory for each piece of a content on disk.
    const PER_PIECE: u64 = 64;
    let in_memory = match settings.disk {
        None => settings.data,
        Some(_) => settings.data / u64::from(PIECE_BYTES) * PER_PIECE,
    };
    let images = runtime.interpreters.iter().map(|one| one.image.len() as u64);
    // The guest of the workspace, the spare for the next program, and a guest that is about to replace one of them.
    let guests = images.map(|image| 3 * (image + settings.memory)).sum::<u64>();
    guests
        + 4 * settings.memory
        + 3 * (in_memory + settings.scratch)
        + settings.packages.unwrap_or_default()
        + ENGINE
}

/// Number of slots that the store may have: for the present files, those before the run in progress, and those of the
/// last saved state; and for two saved states.
fn most_slots(runtime: &Runtime, settings: &Settings) -> u32 {
    let pieces = settings.data / u64::from(PIECE_BYTES) + MAX_PARTIAL;
    let memory = runtime.interpreters.iter().map(|one| one.image.len() as u64 + settings.memory);
    let state = 2 * memory.sum::<u64>() + settings.scratch + settings.packages.unwrap_or_default();
    let slots = 1 + 3 * pieces + 2 * (state / u64::from(PIECE_BYTES) + MAX_PARTIAL);
    u32::try_from(slots).unwrap_or(u32::MAX)
}

/// Reads a file of the kernel about this process.
fn read(file: &File) -> Option<String> {
    let mut text = [0; 4096];
    let read = file.read_at(&mut text, 0).ok()?;
    Some(std::str::from_utf8(&text[..read]).ok()?.to_owned())
}

/// The agent's part of the main thread.
struct Agent {
    files: SharedFiles,
    datasets: Arc<Datasets>,
    uploads: Uploads,
    /// `None` if installing is disabled.
    packages: Option<PackageUploads>,
    /// `/proc/self/statm`, which reports this process's memory.
    memory: File,
    /// `/proc/self/status`, which reports the most memory that it had.
    status: File,
    keeper: Keeper,
    watch: Arc<Watch>,
}

impl Agent {
    /// Bytes of memory of this process and, of these, bytes of pages that it shares with others.
    fn memory(&self) -> Option<(u64, u64)> {
        let text = read(&self.memory)?;
        let mut pages = text.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
        let (resident, shared) = (pages.next()?, pages.next()?);
        let bytes = |pages: u64| pages * rustix::param::page_size() as u64;
        Some((bytes(resident), bytes(shared)))
    }

    /// The most memory in bytes that this process has had, without pages that it shares now.
    fn peak_memory(&self) -> Option<u64> {
        let text = read(&self.status)?;
        let most = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kilobytes: u64 = most.trim().strip_suffix(" kB")?.parse().ok()?;
        Some((kilobytes << 10).saturating_sub(self.memory()?.1))
    }
}

impl Frontend for Agent {
    type Switch = Switch;

    fn configure(&mut self, hello: ServerHello) {
        self.watch.heard();
        self.watch.set_limit(hello.silence_limit_ms);
        hello.timezone.into_iter().for_each(python::set_timezone);
    }

    fn receive(&mut self, _: u32, kind: Kind) -> Result<(), Failure> {
        self.watch.heard();
        if !self.keeper.is_ready() && !matches!(kind, Kind::Ping | Kind::Warm) {
            return Err(Failure::new(FailureCode::Busy, "what was kept is not there yet"));
        }
        Ok(())
    }

    fn usage(&self) -> Pong {
        let memory = self.memory().map(|(resident, shared)| resident.saturating_sub(shared));
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok().map(Duration::from);
        Pong {
            memory_bytes: memory,
            memory_peak_bytes: self.peak_memory(),
            cpu_ms: cpu.and_then(|time| time.as_millis().try_into().ok()),
            data_bytes: Some(self.files.now().used_bytes()),
        }
    }

    fn put(&mut self, put: &Put, bytes: &[u8]) -> Result<PutDone, Failure> {
        self.keeper.changes();
        let mut now = self.files.now();
        let mut before = self.files.before();
        self.uploads.put(put, bytes, &mut now, before.as_mut())
    }

    fn abandon(&mut self, abandon: &Abandon) {
        let mut now = self.files.now();
        let mut before = self.files.before();
        self.uploads.abandon(abandon, &mut now, before.as_mut());
    }

    fn install(&mut self, all: &Install, body: &[u8]) -> Result<(), Failure> {
        let Some(packages) = &mut self.packages else {
            return Err(Failure::new(FailureCode::NoRuntime, "there is no place for packages"));
        };
        self.keeper.changes();
        let mut now = self.files.now();
        install(all, body, |put, bytes| packages.put(put, bytes, &mut now))
    }

    fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
        // The files are not locked while a disk of the host is read.
        if is_of_dataset(&get.path) { self.datasets.get(get) } else { self.files.now().get(get) }
    }

    fn open(&self, _: &str) -> Result<Option<File>, Failure> {
        // The guest opens it.
        Ok(None)
    }

    fn list(&self, list: List) -> Result<(ListDone, Vec<u8>), Failure> {
        match list.within.as_deref().filter(|within| is_of_dataset(within)) {
            Some(within) => self.datasets.list(within, list.after.as_deref()),
            None => self.files.now().list(list),
        }
    }

    fn remember(&mut self, _: Vec<u8>) -> Result<(), Failure> {
        // The agent ends with its stream, so it cannot be resumed.
        Err(Failure::bad_request("not a request"))
    }
}
