//! A live session, as its caller sees it.

use std::{sync::Arc, time::Duration};

use backend::Limits;
use jiff::Timestamp;
use model::{Dataset, SessionId};
use serde_json::{Map, Value};

use super::Sessions;
use crate::{
    archive::Restored,
    error::Result,
    session::{History, command::Command, handle::Handle, view::View},
};

/// A live session, as its caller sees it. Reading it does not count as use of the session.
#[derive(Debug)]
pub struct Live<'a> {
    sessions: &'a Sessions,
    handle: Handle,
}

/// The state of a session, for its viewers.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// The session's name.
    pub id: SessionId,
    /// Distinguishes sessions of one name.
    pub number: u64,
    /// The program that the session's caller used last, if it said which.
    pub client: Option<Arc<str>>,
    /// When a caller asked for the session.
    pub since: Timestamp,
    /// When the session was last used.
    pub used: Timestamp,
    /// The datasets that the session's sandbox can read.
    pub datasets: Vec<Arc<Dataset>>,
    /// The limits of the session's sandbox.
    pub limits: Limits,
    /// When the session expires if it is not used until then.
    pub expires: Timestamp,
    /// The session's runs and uploads so far, and its present phase.
    pub history: History,
}

impl SessionInfo {
    /// The resources that the session uses, as far as they are known, and their limits, as JSON. No figure exceeds its
    /// limit: the agent that reports it is not trusted.
    pub(crate) fn resources(&self) -> Map<String, Value> {
        let (used, limits) = (self.history.resources(), self.limits);
        let within = |figure: Option<u64>, limit: u64| figure.map(|it| it.min(limit).into());
        let hundredths = |cpu: Duration| (cpu.as_secs_f64() * 100.0).round() / 100.0;
        let fields: [(&str, Option<Value>); 6] = [
            ("memory_bytes", within(used.memory, limits.memory)),
            ("memory_peak_bytes", within(used.memory_peak, limits.memory)),
            ("memory_limit_bytes", Some(limits.memory.into())),
            ("cpu_seconds", used.cpu.map(|cpu| hundredths(cpu).into())),
            ("disk_bytes", within(used.data, limits.data)),
            ("disk_limit_bytes", Some(limits.data.into())),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl<'a> Live<'a> {
    pub(super) fn new(sessions: &'a Sessions, handle: Handle) -> Self {
        Self { sessions, handle }
    }

    /// The session's number, which distinguishes it from earlier and later sessions of its name.
    pub fn number(&self) -> u64 {
        self.sessions.host.number_in_urls(&self.sessions.caller, self.handle.number)
    }

    /// Whether the session ends with the call that it was started for.
    pub fn is_stateless(&self) -> bool {
        self.handle.is_stateless
    }

    /// The session's state.
    pub fn info(&self) -> SessionInfo {
        SessionInfo {
            id: self.handle.id.clone(),
            number: self.number(),
            client: self.handle.client.lock().clone(),
            since: self.handle.since,
            used: self.handle.used(),
            datasets: self.handle.datasets.clone(),
            limits: self.limits(),
            expires: self.handle.expires(),
            history: self.handle.history.borrow().clone(),
        }
    }

    /// The session's files and variables as they were after its last run or upload. All viewers share one view.
    ///
    /// # Errors
    /// If the session has ended, or its sandbox does not answer.
    pub async fn view(&self) -> Result<Arc<View>> {
        self.handle.ask(|reply| Command::View { reply }).await
    }

    /// The image of the session's sandbox, if known.
    pub(crate) fn image(&self) -> Option<Arc<str>> {
        self.handle.image.clone()
    }

    /// The limits of the session's sandbox.
    pub(crate) fn limits(&self) -> Limits {
        self.sessions.host.config.limits(&self.handle.own)
    }

    /// The note for the session's caller, if the session was restored.
    pub(crate) fn restored(&self) -> Option<Restored> {
        self.handle.archived.news.get()
    }

    /// Records that the caller was told that the session was restored.
    pub(crate) fn restored_told(&self) {
        self.handle.archived.news.told();
    }
}
