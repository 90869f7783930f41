//! What interprets programs, each in a folder of its own. Nothing outside knows more of one than its
//! name.
//!
//! ```text
//! runner -- Runtimes --+-- python    a new interpreter, or a fork of one that has loaded its modules
//!                      '-- ..        the next: a folder here, a folder in the image, a row below
//! ```

pub(crate) mod channel;
pub(crate) mod program;
mod python;

use std::{os::fd::BorrowedFd, time::Instant};

use protocol::message::{Failure, FailureCode, RuntimeName, Start};

use crate::{
    places::Places,
    processes::{Children, Unkillable},
};
use program::{Program, Source};

/// Runs programs of one language.
trait Runtime: Send {
    /// How a run asks for it.
    fn name(&self) -> RuntimeName;

    /// Starts a program, in the quickest way that there is now. When it starts there is nobody beside
    /// the agent but those that are spared, and what these have forked for themselves.
    fn start(&mut self, source: Source<'_>, children: &mut Children) -> Result<Program, RunError>;

    /// The file that a program has looked for in vain, if it ended with that.
    fn missing_file(&self, stderr: &[u8]) -> Option<String>;

    /// Files of the user's, of which each would have stood for a library's module, if a program ended for
    /// want of something in that: paths below the data area.
    fn hiding_files(&self, stderr: &[u8]) -> Vec<String>;

    /// Where a program's text lies in scratch space.
    fn script_name(&self) -> &'static str;

    /// Begins to load these modules, so that programs start faster; `None` if nothing is to be loaded
    /// before a program asks for it.
    fn configure(&mut self, preload: Option<&[String]>, children: &mut Children);

    /// Sees what has become of its processes, and does what is next. Never waits.
    fn attend(&mut self, children: &mut Children);

    /// How the next program starts; `None` while that is not known yet.
    fn outlook(&self) -> Option<Outlook>;

    /// Gives up the memory that only makes programs start faster, until it is needed.
    fn hibernate(&mut self, children: &mut Children);

    /// There will be a program soon.
    fn prewarm(&mut self, children: &mut Children);

    /// Goes on after a run, whose program had started so.
    fn resume(&mut self, start: Start, children: &mut Children);

    /// What to wait for: when one of them can be read, there is something to attend to.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// When there is something to attend to at the latest.
    fn alarm(&self) -> Option<Instant>;
}

/// Why a run came to nothing.
pub(crate) enum RunError {
    Failed(Failure),
    Unkillable(Unkillable),
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Unkillable> for RunError {
    fn from(unkillable: Unkillable) -> Self {
        Self::Unkillable(unkillable)
    }
}

/// What is known of the next program's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// It starts warm.
    pub(crate) ready: bool,
    /// What went wrong on the way there.
    pub(crate) problems: Vec<String>,
}

/// The runtimes that this sandbox has.
pub(crate) struct Runtimes(Vec<Box<dyn Runtime>>);

impl Runtimes {
    pub(crate) fn new(places: &Places) -> Self {
        Self(vec![Box::new(python::Python::new(places))])
    }

    /// Starts a program in the runtime of this name.
    pub(crate) fn start(
        &mut self,
        name: &RuntimeName,
        source: Source<'_>,
        children: &mut Children,
    ) -> Result<Program, RunError> {
        match self.0.iter_mut().find(|runtime| runtime.name() == *name) {
            Some(runtime) => runtime.start(source, children),
            None => Err(self.unknown(name).into()),
        }
    }

    /// The file that a program of this runtime has looked for in vain, if it ended with that.
    pub(crate) fn missing_file(&self, name: &RuntimeName, stderr: &[u8]) -> Option<String> {
        self.of(name)?.missing_file(stderr)
    }

    /// Files of the user's that may have stood for a library's module, if a program of this runtime ended
    /// for want of something in that.
    pub(crate) fn hiding_files(&self, name: &RuntimeName, stderr: &[u8]) -> Vec<String> {
        self.of(name).map_or_else(Vec::new, |runtime| runtime.hiding_files(stderr))
    }

    /// Where the text of a program of this runtime lies in scratch space.
    pub(crate) fn script_name(&self, name: &RuntimeName) -> Option<&'static str> {
        Some(self.of(name)?.script_name())
    }

    fn of(&self, name: &RuntimeName) -> Option<&dyn Runtime> {
        self.0.iter().find(|runtime| runtime.name() == *name).map(|runtime| &**runtime)
    }

    fn unknown(&self, name: &RuntimeName) -> Failure {
        let names: Vec<_> = self.0.iter().map(|runtime| runtime.name()).collect();
        let known: Vec<_> = names.iter().map(RuntimeName::as_str).collect();
        let detail = format!("no runtime {:?} here, only {}", name.as_str(), known.join(", "));
        Failure::new(FailureCode::NoRuntime, detail)
    }

    pub(crate) fn configure(&mut self, preload: Option<&[String]>, children: &mut Children) {
        self.each(|runtime| runtime.configure(preload, children));
    }

    pub(crate) fn attend(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.attend(children));
    }

    /// How the next programs start; `None` until it is known of all runtimes.
    pub(crate) fn outlook(&self) -> Option<Outlook> {
        let mut all = Outlook { ready: true, problems: vec![] };
        for runtime in &self.0 {
            let Outlook { ready, problems } = runtime.outlook()?;
            all.ready &= ready;
            all.problems.extend(problems);
        }
        Some(all)
    }

    pub(crate) fn hibernate(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.hibernate(children));
    }

    pub(crate) fn prewarm(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.prewarm(children));
    }

    pub(crate) fn resume(&mut self, start: Start, children: &mut Children) {
        self.each(|runtime| runtime.resume(start, children));
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().flat_map(|runtime| runtime.fds())
    }

    pub(crate) fn alarm(&self) -> Option<Instant> {
        self.0.iter().filter_map(|runtime| runtime.alarm()).min()
    }

    fn each(&mut self, act: impl FnMut(&mut Box<dyn Runtime>)) {
        self.0.iter_mut().for_each(act);
    }
}
