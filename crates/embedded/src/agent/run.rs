//! One run: its request and its reply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::{
    limits::{MAX_CAPTURE, MAX_CHANGED},
    message::{CellDone, End, Facts, Failure, Run, RunDone, Start},
};
use sandbox_files::{
    facts,
    kept::OutputStore,
    outputs::SharedOutputs,
    python_errors,
    replies::Replies,
    tree::{self, Snapshot},
};

use super::SharedFiles;
use crate::machine::{Bounds, Switch};

/// Bytes at the end of standard error that are searched for its last line.
const LAST_LINE: usize = 4096;

/// Name in scratch space that stands for a program's text, and is not reported as a file of the run.
const SCRIPT: &str = "main.py";

/// Path of scratch space in guests.
const SCRATCH: &str = "/tmp";

/// A run that is ready to start.
pub(super) struct Job {
    pub(super) run: Run,
    pub(super) code: String,
    pub(super) stdin: Vec<u8>,
    pub(super) outputs: SharedOutputs,
    call: u32,
    switch: Switch,
    over: Arc<AtomicBool>,
    asked: Instant,
}

/// The main thread's share of a run.
pub(super) struct Running {
    pub(super) call: u32,
    pub(super) switch: Switch,
    pub(super) outputs: SharedOutputs,
    over: Arc<AtomicBool>,
}

impl Running {
    /// Whether the run's reply has been sent or is about to be.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The outcome of the code itself.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) start: Start,
    pub(super) elapsed: Duration,
    pub(super) facts: Facts,
    pub(super) cell: Option<CellDone>,
    /// Start and end of a cell's result.
    pub(super) result: Vec<u8>,
    pub(super) was_out_of_memory: bool,
}

/// The files before a run.
pub(super) struct Before {
    data: Snapshot,
    scratch: Snapshot,
}

impl Before {
    pub(super) fn look(files: &SharedFiles) -> Self {
        let now = files.now();
        Self { data: now.snapshot(), scratch: now.elsewhere() }
    }
}

impl Job {
    pub(super) fn new(
        call: u32,
        run: Run,
        mut body: Vec<u8>,
        store: &Arc<OutputStore>,
    ) -> Result<Self, Failure> {
        if run.code_len > body.len() || (!run.has_stdin && run.code_len != body.len()) {
            return Err(Failure::bad_request("the code's length is not the body's"));
        }
        if run.output_cap > MAX_CAPTURE {
            return Err(Failure::bad_request("the output cap is too large"));
        }
        let stdin = body.split_off(run.code_len);
        Ok(Self {
            code: String::from_utf8_lossy(&body).into_owned(),
            stdin,
            outputs: SharedOutputs::new(store, call, run.output_cap),
            run,
            call,
            switch: Switch::default(),
            over: Arc::default(),
            asked: Instant::now(),
        })
    }

    pub(super) fn running(&self) -> Running {
        let (switch, outputs) = (self.switch.clone(), self.outputs.clone());
        Running { call: self.call, switch, outputs, over: self.over.clone() }
    }

    /// The limits of the call, whose time begins now.
    pub(super) fn bounds(&self, fuel: Option<u64>) -> Bounds {
        let deadline = Instant::now() + Duration::from_millis(self.run.timeout_ms);
        Bounds { deadline: Some(deadline), switch: self.switch.clone(), fuel }
    }

    /// Replies with the outcome.
    pub(super) fn reply(
        self,
        ended: Ended,
        before: &Before,
        files: &SharedFiles,
        replies: &Replies,
    ) {
        let outputs = self.outputs.take().expect("nobody else takes them");
        let (after, scratch) = {
            let now = files.now();
            (now.snapshot(), now.elsewhere())
        };
        let Ended { end, start, elapsed, mut facts, cell, result, was_out_of_memory } = ended;
        facts.elsewhere = facts::elsewhere(&before.scratch, scratch, SCRIPT, SCRATCH.as_ref());
        if end != (End::Exited { code: 0 }) {
            let last = outputs.stderr().latest(LAST_LINE);
            let last = String::from_utf8_lossy(&last);
            let missing = python_errors::missing_file(&last);
            facts.missing_file = missing.map(|name| facts::missing_file(&name, &after));
            let wanting = python_errors::wanting_module(&last).map(|name| name.replace('.', "/"));
            let paths = wanting
                .into_iter()
                .flat_map(|path| [format!("{path}.py"), format!("{path}/__init__.py")]);
            facts.hidden_module = paths.into_iter().find(|path| after.contains_key(path));
        }
        let changed = tree::changed(&before.data, after);
        let (changed, changed_omitted) = tree::to_json(&changed, MAX_CHANGED);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let done = RunDone {
            end,
            start,
            elapsed_us: micros(elapsed),
            agent_us: micros(self.asked.elapsed()),
            cpu_us: micros(elapsed),
            oom_kills: u64::from(was_out_of_memory),
            stdout: outputs.stdout().captured(),
            stderr: outputs.stderr().captured(),
            changed_len: changed.len(),
            changed_omitted,
            facts,
            cell,
        };
        let (stdout, stderr) = (outputs.stdout().pieces(), outputs.stderr().pieces());
        let body = [&stdout[..], &stderr, &[&result, &changed]].concat();
        self.over.store(true, Ordering::Release);
        // If the server has ended, the watch ends the process once the states after the run are noted.
        let _ = replies.reply(self.call, &done, &body);
    }

    /// Replies with the reason why the run could not begin.
    pub(super) fn fail(self, failure: Failure, replies: &Replies) {
        self.over.store(true, Ordering::Release);
        let _ = replies.fail(self.call, failure);
    }
}
