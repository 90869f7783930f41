//! Holding: the agent outlives its stream for as long as its server has asked for, and goes on with another.
//!
//! ```text
//!            hang-up, silence                  a visitor with the token
//! connected -----------------> lost ---------------------------------> connected
//!                                '--- for longer than the limit: the end
//! ```
//!
//! - [`leash`]: notices that the stream is lost, and ends what was lost for too long. [`door`]: how a new stream
//!   comes in. [`inbox`], [`outbox`]: the stream's two ends. [`connect`]: the other side of the door, a process of
//!   its own that whoever controls the sandbox from outside starts in it.
//!
//! Without a limit, as where nobody asks for one, the leash is as short as it ever was: the end of the stream ends
//! everything.

pub(crate) mod connect;
pub(crate) mod door;
pub(crate) mod guest;
pub(crate) mod inbox;
pub(crate) mod leash;
pub(crate) mod outbox;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use protocol::{
    frame::{Frame, Kind, PROTOCOL_VERSION},
    message::PeerVersion,
    resume::{Hold, HoldToken, Resume, Resumed},
};
use workspace::replies::Replies;

use self::{
    door::{Door, Visitor},
    guest::Guest,
    inbox::Inbox,
    leash::Leash,
    outbox::Outbox,
};

/// The stream to the server, and what there is to get another.
#[derive(Debug)]
pub(crate) struct Line {
    leash: Arc<Leash>,
    outbox: Arc<Mutex<Outbox>>,
    guest: Guest,
    /// How a new stream comes in, if one may.
    door: Option<Arc<Door>>,
    token: Option<HoldToken>,
    note: Vec<u8>,
}

/// What the server must know of the agent to go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// Frames that were received whole.
    pub(crate) received: u64,
    /// Highest call id of them.
    pub(crate) last_call: u32,
    /// The run in progress.
    pub(crate) running: Option<u32>,
}

impl Line {
    /// The one that standard input and output are; or none yet, for so long at most.
    ///
    /// # Errors
    /// If the door cannot be made that the first stream is to come through.
    pub(crate) fn open(first_within: Option<Duration>) -> io::Result<Self> {
        let leash = Arc::new(Leash::new()?);
        let outbox = Arc::new(Mutex::new(Outbox::new(leash.bell())));
        let mut line =
            Self { leash, outbox, guest: Guest::default(), door: None, token: None, note: vec![] };
        if let Some(limit) = first_within {
            line.door = Some(Arc::new(Door::make()?));
            line.leash.set_hold(Some(limit));
            line.leash.lose();
        }
        Ok(line)
    }

    /// Where replies go.
    pub(crate) fn replies(&self) -> Replies {
        Replies::to(self.outbox.clone())
    }

    /// Where frames come from.
    pub(crate) fn inbox(&self) -> Inbox {
        Inbox::new(self.leash.bell())
    }

    /// Who has brought the stream.
    pub(crate) fn guest(&self) -> Guest {
        self.guest.clone()
    }

    /// What watches over it.
    pub(crate) fn leash(&self) -> Arc<Leash> {
        self.leash.clone()
    }

    /// Takes in the first stream, and what came first on it, from whoever comes first: nobody else can, as no code of
    /// the user's has run yet. A server that looks for what others have left may come before the one that has made this
    /// sandbox; there is nothing to go on with.
    pub(crate) fn wait_for_first(&mut self) -> Frame {
        let door = self.door.clone().expect("it was made for this");
        self.leash.watch_door(door.clone());
        loop {
            let visitor = door.next(&self.leash);
            let Some(first) = visitor.first_frame().filter(|it| it.kind != Kind::Resume) else {
                continue;
            };
            let Visitor { input, output, guest } = visitor;
            self.outbox().connect(&output);
            self.take(&input, guest);
            self.leash.set_hold(None);
            return first;
        }
    }

    /// Does from now on as the server's hello says.
    ///
    /// # Errors
    /// If the door cannot be made.
    pub(crate) fn configure(&mut self, hold: Option<Hold>) -> io::Result<()> {
        let Some(Hold { limit_ms, token }) = hold else {
            self.door = None;
            return Ok(());
        };
        if self.door.is_none() {
            let door = Arc::new(Door::make()?);
            self.door = Some(door.clone());
            self.leash.watch_door(door);
        }
        self.leash.set_hold(Some(Duration::from_millis(limit_ms)));
        self.token = Some(token);
        self.outbox().keep();
        Ok(())
    }

    /// Keeps this for whoever resumes.
    pub(crate) fn remember(&mut self, note: Vec<u8>) {
        self.note = note;
    }

    /// Waits until a server goes on, which says how. Does not return if none does in time. What it is told of the run is
    /// asked for when it comes: that may have ended since, with a reply that another server does not get.
    pub(crate) fn wait_for_next(&mut self, standing: impl Fn() -> Standing) -> Resume {
        self.leash.lose();
        let Some((door, token)) = self.door.clone().zip(self.token.clone()) else { crate::end() };
        loop {
            let visitor = door.next(&self.leash);
            if let Some(resume) = self.admit(visitor, &token, &standing) {
                return resume;
            }
        }
    }

    /// Goes on with the stream of a visitor, if that is who it has to be. Nobody else is told anything but, if it
    /// has the token, our version.
    fn admit(
        &mut self,
        visitor: Visitor,
        token: &HoldToken,
        standing: impl Fn() -> Standing,
    ) -> Option<Resume> {
        let first = visitor.first_frame()?;
        if first.kind != Kind::Resume {
            return None;
        }
        let theirs: PeerVersion = serde_json::from_slice(&first.head).ok()?;
        if theirs.version != PROTOCOL_VERSION {
            visitor.refuse_version();
            return None;
        }
        let resume: Resume = serde_json::from_slice(&first.head).ok()?;
        if !resume.hold.token.is(token) {
            return None;
        }
        let Visitor { input, output, guest } = visitor;
        {
            // A run is over before its reply is sent, which waits here: so it is either told of, or not waited for.
            let mut outbox = self.outbox();
            let Standing { received, last_call, running } = standing();
            let head = serde_json::to_vec(&Resumed { received, last_call, running }).ok()?;
            outbox.resume(&output, resume.received, &head, &self.note).ok()?;
        }
        self.leash.set_hold(Some(Duration::from_millis(resume.hold.limit_ms)));
        self.leash.set_silence(resume.silence_limit_ms);
        self.take(&input, guest);
        Some(resume)
    }

    fn take(&self, input: &OwnedFd, guest: guest::Arrived) {
        inbox::connect(input);
        self.guest.replace(Some(guest));
        self.leash.found();
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().expect("no thread panics while it writes")
    }
}
