//! Hold: the agent outlives its stream for as long as its server has asked for, and continues with another.
//!
//! ```text
//!            hang-up, silence                  a visitor with the token
//! connected -----------------> lost ---------------------------------> connected
//!                                '--- for longer than the limit: the end
//! ```
//!
//! - [`leash`]: notices that the stream is lost, and ends the agent if that lasts too long.
//! - [`door`]: takes in a new stream.
//! - [`stream`]: its two ends.
//! - [`connect`]: the other side of the door, a process that the server starts in the sandbox from outside.
//!
//! If the server has asked for no hold, the end of the stream ends the agent.

pub(crate) mod connect;
pub(crate) mod connector;
pub(crate) mod door;
pub(crate) mod leash;
pub(crate) mod stream;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use agent_core::Replies;
use protocol::{
    frame::{Frame, Kind, PROTOCOL_VERSION},
    message::PeerVersion,
    resume::{Hold, HoldToken, Resume, Resumed},
};

use self::{
    connector::Connector,
    door::{Door, Visitor},
    leash::Leash,
    stream::{Inbox, Outbox},
};

/// The stream to the server, and the means to take in another.
#[derive(Debug)]
pub(crate) struct Line {
    leash: Arc<Leash>,
    outbox: Arc<Mutex<Outbox>>,
    connector: Connector,
    /// Takes in a new stream; `None` if no other stream can come.
    door: Option<Arc<Door>>,
    token: Option<HoldToken>,
    note: Vec<u8>,
}

/// The state of the agent that a server needs to resume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// Number of frames that were received whole.
    pub(crate) received: u64,
    /// Highest call id of these frames.
    pub(crate) last_call: u32,
    /// Call id of the last run, and whether it is in progress.
    pub(crate) last_run: Option<(u32, bool)>,
}

impl Line {
    /// The stream on standard input and output. With `first_within` there is none yet: it must come within this time.
    ///
    /// # Errors
    /// If the door for the first stream cannot be created.
    pub(crate) fn open(first_within: Option<Duration>) -> io::Result<Self> {
        let leash = Arc::new(Leash::new()?);
        let outbox = Arc::new(Mutex::new(Outbox::new(leash.bell())));
        let mut line = Self {
            leash,
            outbox,
            connector: Connector::default(),
            door: None,
            token: None,
            note: vec![],
        };
        if let Some(limit) = first_within {
            line.door = Some(Arc::new(Door::make()?));
            line.leash.set_hold(Some(limit));
            line.leash.lose();
        }
        Ok(line)
    }

    /// Returns the sender of replies, which go to the outbox.
    pub(crate) fn replies(&self) -> Replies {
        Replies::to(self.outbox.clone())
    }

    /// Returns the receiving end of the stream.
    pub(crate) fn inbox(&self) -> Inbox {
        Inbox::new(self.leash.bell())
    }

    /// Returns the process that has connected the stream.
    pub(crate) fn connector(&self) -> Connector {
        self.connector.clone()
    }

    /// Returns the leash that watches over the stream.
    pub(crate) fn leash(&self) -> Arc<Leash> {
        self.leash.clone()
    }

    /// Takes in the first stream and its first frame, from the first visitor: it comes from a server, as no user code
    /// has run yet. A server that looks for sandboxes that others have left may come before the one that has started
    /// this sandbox; its resume is rejected, because there is nothing to resume.
    pub(crate) fn wait_for_first(&mut self) -> Frame {
        let door = self.door.clone().expect("it was made for this");
        self.leash.watch_door(door.clone());
        loop {
            let visitor = door.next(&self.leash);
            let Some(first) = visitor.first_frame().filter(|it| it.kind != Kind::Resume) else {
                continue;
            };
            let Visitor { input, output, connector } = visitor;
            self.outbox().connect(&output);
            self.take(&input, connector);
            self.leash.set_hold(None);
            return first;
        }
    }

    /// Applies the hold that the server's hello asks for.
    ///
    /// # Errors
    /// If the door cannot be created.
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

    /// Keeps this note for the server that resumes.
    pub(crate) fn remember(&mut self, note: Vec<u8>) {
        self.note = note;
    }

    /// Waits until a server resumes, and returns its request. Ends the agent if none comes in time. Calls `standing`
    /// only after a server has connected: a run may end while the agent waits.
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

    /// Takes over the stream of a visitor whose first frame is a resume with the token. A visitor with another protocol
    /// version gets the agent's version as answer; others get no answer.
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
        let Visitor { input, output, connector } = visitor;
        {
            // A run is marked as over before its reply is sent, which waits for this lock. So the server either learns
            // of the run or does not wait for its reply.
            let mut outbox = self.outbox();
            let Standing { received, last_call, last_run } = standing();
            let running = last_run.filter(|&(call, in_progress)| in_progress || outbox.has(call));
            let running = running.map(|(call, _)| call);
            let missed = outbox.missed(running);
            let head =
                serde_json::to_vec(&Resumed { received, last_call, running, missed }).ok()?;
            outbox.resume(&output, resume.received, running, &head, &self.note).ok()?;
        }
        self.leash.set_hold(Some(Duration::from_millis(resume.hold.limit_ms)));
        self.leash.set_silence(resume.silence_limit_ms);
        self.take(&input, connector);
        Some(resume)
    }

    fn take(&self, input: &OwnedFd, connector: connector::Arrived) {
        stream::connect(input);
        self.connector.replace(Some(connector));
        self.leash.found();
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().expect("no thread panics while it writes")
    }
}
