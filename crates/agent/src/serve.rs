//! The main thread: the server's hello, then requests in, replies out; and the same with the next stream, if the server
//! has asked for a hold.

use std::{fs::File, io, path::Path, sync::Arc, thread, time::Duration};

use agent_core::{Asks, Dispatcher, Frontend, next_frame};
use nix::unistd::AccessFlags;
use protocol::{
    frame::{Frame, Kind},
    message::{
        Abandon, Failure, FailureCode, Get, GetDone, Install, List, ListDone, Pong, Put, PutDone,
        ServerHello,
    },
};
use sandbox_files::{
    files::{self, Files},
    kept::OutputStore,
};

use crate::{
    end,
    gate::{self, Gate},
    hold::{Line, Standing},
    places::Places,
    processes,
    runner::{self, KillSwitch},
    usage::usage,
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

    let files = Files::open(&places.data)?.with_datasets(places.datasets.clone());
    // A volume has the owner and the mode of the folder in the image.
    nix::unistd::access(&places.data, AccessFlags::W_OK)
        .map_err(|error| format!("{} cannot be written to: {error}", places.data.display()))?;
    let data = files.root().try_clone()?;
    let gate = Gate::default();
    let (replies, connector) = (line.replies(), line.connector());
    let (orders, asks) = runner::start(&places, data, replies, connector, gate.clone())?;
    let store = Arc::new(OutputStore::new(files.root().try_clone()?));
    let standing = Standing { received: 0, last_call: 0, last_run: None };
    let replies = line.replies();
    let calls = (gate, asks.clone());
    let agent =
        Agent { files, packages: None, store: store.clone(), places, line, standing, calls };
    let mut agent = Dispatcher::new(agent, store, replies, asks.clone(), orders);
    let visited = first_within.map(|_| agent.frontend.line.wait_for_first());
    let mut input = agent.frontend.input();
    let first = match visited {
        Some(first) => first,
        None => next_frame(&mut input)?.unwrap_or_else(|| end()),
    };
    agent.frontend.prepare_hold(&first)?;
    agent.greet(&first)?;
    loop {
        agent.serve(&mut input)?;
        let is_another = resume(&mut agent);
        asks.repeat(is_another)?;
        input = agent.frontend.input();
    }
}

/// Waits for another stream and continues with it. Returns whether it is of another server.
fn resume(agent: &mut Dispatcher<Agent>) -> bool {
    let (Agent { line, standing, files, packages, places, .. }, last_run) = agent.split();
    let resume = line.wait_for_next(|| Standing { last_run: last_run(), ..*standing });
    let is_another = resume.received.is_none();
    if is_another {
        files.abandon_all();
        places.space.iter().for_each(|space| space.all_ended());
        packages.iter_mut().for_each(Files::abandon_all);
    }
    is_another
}

/// The agent's part of the main thread.
struct Agent {
    files: Files,
    /// The folder of packages, once it was used: most sandboxes never have a package.
    packages: Option<Files>,
    store: Arc<OutputStore>,
    places: Places,
    line: Line,
    standing: Standing,
    /// The socket of programs, and the questions that come over it.
    calls: (Gate, Asks),
}

/// Opens the folder of packages, if this sandbox has one: the image's own cannot be written to.
fn packages(folder: &Path) -> Result<Files, Failure> {
    let has_none = || Failure::new(FailureCode::NoRuntime, "there is no place for packages");
    nix::unistd::access(folder, AccessFlags::W_OK).map_err(|_| has_none())?;
    Files::open(folder).map_err(|_| has_none())
}

impl Agent {
    fn input(&self) -> impl io::Read + use<> {
        io::BufReader::with_capacity(64 << 10, self.line.inbox())
    }

    /// Applies the hold that the hello asks for, before the reply to it: the hold is in force when the server hears
    /// from the agent.
    fn prepare_hold(&mut self, first: &Frame) -> io::Result<()> {
        match serde_json::from_slice::<ServerHello>(&first.head) {
            Ok(hello) => self.line.configure(hello.hold),
            // Refused with the reply.
            Err(_) => Ok(()),
        }
    }
}

impl Frontend for Agent {
    type Switch = KillSwitch;

    fn configure(&mut self, hello: ServerHello) {
        let leash = self.line.leash();
        leash.heard();
        leash.set_silence(hello.silence_limit_ms);
        hello.timezone.into_iter().for_each(processes::set_timezone);
        let (gate, asks) = &self.calls;
        if hello.asks {
            match gate.listen(asks.clone()) {
                Ok(()) => processes::set_tools(gate::name()),
                Err(error) => eprintln!("agent: programs cannot call tools: {error}"),
            }
        }
    }

    fn receive(&mut self, call: u32, _: Kind) -> Result<(), Failure> {
        self.line.leash().heard();
        self.standing.received += 1;
        self.standing.last_call = self.standing.last_call.max(call);
        Ok(())
    }

    fn usage(&self) -> Pong {
        usage(&self.places)
    }

    fn put(&mut self, put: &Put, bytes: &[u8]) -> Result<PutDone, Failure> {
        if let Some(space) = &self.places.space
            && !space.admits(put, bytes.len())
            && !(self.store.clear() && space.admits(put, bytes.len()))
        {
            self.abandon(&Abandon { upload: put.upload });
            return Err(Failure::new(FailureCode::Full, "no space left"));
        }
        // The user's files take precedence over stored outputs.
        let done = self.files.put(put, bytes, || self.store.clear());
        if (put.last || done.is_err())
            && let Some(space) = &self.places.space
        {
            space.ended(put.upload);
        }
        done
    }

    fn abandon(&mut self, abandon: &Abandon) {
        self.files.abandon(abandon);
        self.places.space.iter().for_each(|space| space.ended(abandon.upload));
    }

    fn install(&mut self, all: &Install, body: &[u8]) -> Result<(), Failure> {
        let packages = match &mut self.packages {
            Some(packages) => packages,
            none => none.insert(packages(&self.places.packages)?),
        };
        files::install(all, body, |put, bytes| packages.put(put, bytes, || false).map(drop))
    }

    fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
        self.files.get(get)
    }

    fn open(&self, path: &str) -> Result<Option<File>, Failure> {
        self.files.open_file(path).map(Some)
    }

    fn list(&self, list: List) -> Result<(ListDone, Vec<u8>), Failure> {
        self.files.list(list)
    }

    fn remember(&mut self, note: Vec<u8>) -> Result<(), Failure> {
        self.line.remember(note);
        Ok(())
    }
}
