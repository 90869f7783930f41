//! The process of a tool: it starts with the tool's first call, serves many calls at a time, and ends when it is idle.
//!
//! ```text
//! none --a call--> running --idle--> none
//!                     '-- dies: its calls fail --> none
//! ```
//!
//! It is linked to the server like a sandbox. Its messages are not trusted. If it dies, its current calls are
//! lost, and the next call starts a new process.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use link::{Link, LinkError, LinkOwner, Opening, RunReply, Stream, Timing};
use model::{DataPath, Principal, text::human_size};
use protocol::message::{Call, CallInput, FailureCode};
use tokio::{
    io::AsyncReadExt,
    process::Command,
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Maximum number of calls of one tool at a time; others wait.
pub(super) const MAX_CALLS: usize = 8;

/// Maximum number of calls of one client at a time, among these, so that other clients need not wait for it.
const MAX_OWN_CALLS: usize = 4;

/// Maximum number of bytes of a call's input.
const MAX_INPUT: usize = protocol::frame::MAX_BODY;

/// Maximum number of bytes of a process's standard error in the log.
const MAX_WORDS: u64 = 2000;

/// The parameters of a process.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// The file with the compiled code.
    pub(super) code: PathBuf,
    pub(super) folder: String,
    pub(super) shown: Vec<(String, PathBuf)>,
    /// Limits of memory, files and scratch space of each call, in bytes.
    pub(super) memory: u64,
    pub(super) data: u64,
    pub(super) scratch: u64,
    /// Time without a call after which the process ends.
    pub(super) idle: Duration,
}

/// The limits of a call.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) who: Principal,
    pub(super) deadline: Duration,
    pub(super) fuel: Option<u64>,
    pub(super) output_cap: usize,
    pub(super) cancel: CancellationToken,
}

/// A program, whether its process runs or not.
#[derive(Debug)]
pub(super) struct Program {
    settings: Settings,
    process: Mutex<Option<Process>>,
    slots: Arc<Semaphore>,
    /// The part of the slots that each client may use. Clients without a call have no entry.
    own_slots: parking_lot::Mutex<HashMap<Principal, Weak<Semaphore>>>,
}

/// The slots of a call, its client's and the tool's. The client's slot keeps its semaphore alive.
#[derive(Debug)]
pub(super) struct Slots {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Process {
    link: Link,
    last_used: Instant,
    /// Shared by all users of the process. Dropping the last clone ends the process.
    life: Arc<Life>,
}

#[derive(Debug)]
struct Life {
    _link: LinkOwner,
    /// Killed when this is dropped.
    _child: tokio::process::Child,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) reply: RunReply,
    pub(crate) files: LeftFiles,
}

/// Files that a call has written. The process deletes them when this is dropped.
#[derive(Debug)]
pub(crate) struct LeftFiles {
    link: Link,
    call: u32,
    has_any: bool,
    life: Arc<Life>,
}

impl LeftFiles {
    /// The content of a file with at most `most` bytes; `None` if it is larger or does not exist.
    pub(crate) async fn read(&self, path: &DataPath, most: u64) -> Option<Bytes> {
        let mut all = Vec::new();
        loop {
            let (done, piece) = self.link.get_of(self.call, path, all.len() as u64).await.ok()?;
            all.extend_from_slice(&piece);
            if all.len() as u64 >= done.stamp.size.min(most + 1) || piece.is_empty() {
                return (all.len() as u64 <= most).then(|| all.into());
            }
        }
    }
}

impl Drop for LeftFiles {
    fn drop(&mut self) {
        if !self.has_any {
            return;
        }
        let (link, call, life) = (self.link.clone(), self.call, self.life.clone());
        tokio::spawn(async move {
            let _ = link.forget(call).await;
            drop(life);
        });
    }
}

impl Program {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let (process, own_slots) = Default::default();
        Arc::new(Self { settings, process, slots: Arc::new(Semaphore::new(MAX_CALLS)), own_slots })
    }

    /// The slots of a client, which exist while one of its calls uses them.
    fn slots_of(&self, who: &Principal) -> Arc<Semaphore> {
        let mut all = self.own_slots.lock();
        all.retain(|_, slots| slots.strong_count() > 0);
        let known = all.get(who).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let slots = Arc::new(Semaphore::new(MAX_OWN_CALLS));
            all.insert(who.clone(), Arc::downgrade(&slots));
            slots
        })
    }

    /// Waits until the client may start one more call.
    ///
    /// # Errors
    /// If the call is cancelled meanwhile.
    pub(super) async fn slots(self: &Arc<Self>, bounds: &Bounds) -> Result<Slots> {
        let (own, all) = (self.slots_of(&bounds.who), self.slots.clone());
        let taking = async {
            let own = own.acquire_owned().await.expect("nothing closes the semaphore");
            Slots {
                _own: own,
                _all: all.acquire_owned().await.expect("nothing closes the semaphore"),
            }
        };
        tokio::select! {
            slots = taking => Ok(slots),
            () = bounds.cancel.cancelled() => Err(cancelled()),
        }
    }

    /// Runs the program once, in the slots that were taken for it.
    ///
    /// # Errors
    /// If the input is too long, or the process cannot be started or has died.
    pub(super) async fn call(
        self: &Arc<Self>,
        input: &CallInput,
        bounds: Bounds,
        slots: Slots,
    ) -> Result<Called> {
        let body = serde_json::to_vec(input).expect("an input has only texts");
        if body.len() > MAX_INPUT {
            let (size, limit) = (body.len(), human_size(MAX_INPUT as u64));
            let why = format!("The arguments are {size} bytes; a tool takes at most {limit}.");
            return Err(Error::InvalidArgument(why));
        }
        let (link, life) = self.process().await?;
        let call = Call {
            timeout_ms: u64::try_from(bounds.deadline.as_millis()).unwrap_or(u64::MAX),
            fuel: bounds.fuel,
            output_cap: bounds.output_cap,
        };
        let running = link.call_tool(&call, body.into()).await.map_err(lost)?;
        let number = running.call;
        // If the caller disconnects, its call is killed.
        let killing = Killing { link: Some((link.clone(), life.clone())), call: number };
        let finishing = running.finish();
        let mut finishing = std::pin::pin!(finishing);
        let reply = tokio::select! {
            reply = &mut finishing => reply,
            () = bounds.cancel.cancelled() => {
                let _ = link.kill(number).await;
                finishing.await
            }
        };
        killing.over();
        drop(slots);
        let reply = reply.map_err(lost)?;
        let has_any = !reply.changed.is_empty() || reply.changed_omitted > 0;
        Ok(Called { reply, files: LeftFiles { link, call: number, has_any, life } })
    }

    /// The process, which is started if necessary.
    async fn process(self: &Arc<Self>) -> Result<(Link, Arc<Life>)> {
        let mut process = self.process.lock().await;
        if process.as_ref().is_none_or(|process| process.link.is_closed()) {
            let started = start(&self.settings).await?;
            let life = Arc::downgrade(&started.life);
            tokio::spawn(end_when_idle(Arc::downgrade(self), life, self.settings.idle));
            *process = Some(started);
        }
        let process = process.as_mut().expect("started above if there was none");
        process.last_used = Instant::now();
        Ok((process.link.clone(), process.life.clone()))
    }
}

/// Kills a call that nothing waits for any more.
struct Killing {
    link: Option<(Link, Arc<Life>)>,
    call: u32,
}

impl Killing {
    fn over(mut self) {
        self.link = None;
    }
}

impl Drop for Killing {
    fn drop(&mut self) {
        let Some((link, life)) = self.link.take() else { return };
        let call = self.call;
        tokio::spawn(async move {
            let _ = link.kill(call).await;
            let _ = link.forget(call).await;
            drop(life);
        });
    }
}

/// Ends a process when it has been idle for this time. Returns if another process has replaced it.
async fn end_when_idle(program: Weak<Program>, life: Weak<Life>, idle: Duration) {
    loop {
        tokio::time::sleep(idle).await;
        let Some(program) = program.upgrade() else { return };
        let mut slot = program.process.lock().await;
        let own = slot.as_ref().filter(|process| life.ptr_eq(&Arc::downgrade(&process.life)));
        let Some(process) = own else { return };
        if Arc::strong_count(&process.life) == 1 && process.last_used.elapsed() >= idle {
            *slot = None;
            return;
        }
    }
}

async fn start(settings: &Settings) -> Result<Process> {
    let failed = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "failed to start a tool's process");
        Error::SandboxUnavailable(
            "The tool's process could not be started; the server's log says why. Tell the person."
                .into(),
        )
    };
    let child = command(settings).and_then(|mut command| command.spawn());
    let mut child = child.map_err(|error| failed(&error))?;
    let reader = child.stdout.take().expect("piped in `command`");
    let writer = child.stdin.take().expect("piped in `command`");
    let words = child.stderr.take().expect("piped in `command`");
    let stream = Stream { reader: Box::new(reader), writer: Box::new(writer) };
    match Link::connect(stream, Timing::default(), Opening::default()).await {
        Ok((link, owner)) => {
            let life = Arc::new(Life { _link: owner, _child: child });
            Ok(Process { link, last_used: Instant::now(), life })
        }
        Err(error) => {
            let mut said = String::new();
            let _ = child.start_kill();
            let _ = words.take(MAX_WORDS).read_to_string(&mut said).await;
            Err(failed(&format!("{error}; it said: {:?}", said.trim())))
        }
    }
}

fn command(settings: &Settings) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("tool-agent")
        .arg("--code")
        .arg(&settings.code)
        .arg("--folder")
        .arg(&settings.folder);
    for (name, value) in [
        ("--memory", settings.memory),
        ("--data", settings.data),
        ("--scratch", settings.scratch),
        ("--calls", MAX_CALLS as u64),
    ] {
        command.arg(name).arg(value.to_string());
    }
    for (path, folder) in &settings.shown {
        command.arg("--show").arg(path).arg(folder);
    }
    command.env_clear().current_dir("/").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// The error of a call whose process died.
fn lost(error: LinkError) -> Error {
    if error.code() == Some(FailureCode::Full) {
        let why = "With these arguments the tool's files do not fit. Give shorter ones.";
        return Error::InvalidArgument(why.into());
    }
    tracing::error!(%error, "a tool's process died during a call");
    Error::ToolDied
}

pub(super) fn cancelled() -> Error {
    Error::InvalidArgument("The call was cancelled before it began.".into())
}
