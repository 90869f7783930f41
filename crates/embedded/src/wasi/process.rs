//! The process of one guest: descriptors, arguments, input and outputs.

use std::io::{self, Read};

use agent_core::Asks;
use protocol::message::{MAX_ASK, Stream};
use sandbox_files::outputs::SharedOutputs;
use serde::{Deserialize, Serialize};

use crate::files::{Base, Errno, Open};

/// Maximum number of open descriptors.
const MAX_OPEN: usize = 256;

/// The first descriptor of a folder that is open from the start.
const FIRST_FOLDER: usize = 3;

/// Largest report of our code in the guest, in bytes. Larger reports are discarded.
const MAX_REPORT: usize = 512 << 10;

/// Maximum number of bytes of output without a receiver that are stored: the end.
const MAX_UNHEARD: usize = 4096;

/// The file, folder or stream of a descriptor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Target {
    Stdin,
    Output(Stream),
    Report,
    /// A folder that is open from the start, by its index in [`Process::folders`].
    Preopened(usize),
    Node(u64),
    /// A file or a folder of a dataset.
    Dataset(Open),
    /// The file over which programs ask the server to call tools.
    Tools,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Descriptor {
    pub(super) target: Target,
    pub(super) offset: u64,
    pub(super) append: bool,
    pub(super) can_read: bool,
    pub(super) can_write: bool,
}

impl Descriptor {
    pub(super) fn new(target: Target) -> Self {
        Self { target, offset: 0, append: false, can_read: true, can_write: true }
    }
}

/// The open files of a guest. A copy preserves their present state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Descriptors(Vec<Option<Descriptor>>);

impl Descriptors {
    /// The descriptors of an interpreter at its start, with `folders` folders.
    fn standard(folders: usize) -> Self {
        let outputs =
            [Target::Stdin, Target::Output(Stream::Stdout), Target::Output(Stream::Stderr)];
        let folders = (0..folders).map(Target::Preopened);
        let targets = outputs.into_iter().chain(folders).chain([Target::Report]);
        Self(targets.map(|target| Some(Descriptor::new(target))).collect())
    }

    pub(super) fn get(&self, fd: u32) -> Result<&Descriptor, Errno> {
        self.0.get(fd as usize).and_then(Option::as_ref).ok_or(Errno::Badf)
    }

    pub(super) fn get_mut(&mut self, fd: u32) -> Result<&mut Descriptor, Errno> {
        self.0.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::Badf)
    }

    pub(super) fn open(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free >= MAX_OPEN {
            return Err(Errno::Mfile);
        }
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(descriptor);
        u32::try_from(free).map_err(|_| Errno::Mfile)
    }

    pub(super) fn close(&mut self, fd: u32) -> Result<Descriptor, Errno> {
        self.0.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::Badf)
    }

    /// Moves a descriptor to the number of another, which it replaces.
    pub(super) fn renumber(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        self.get(to)?;
        let moved = self.close(from)?;
        self.0[to as usize] = Some(moved);
        Ok(())
    }

    /// Whether a node is open.
    pub(crate) fn has(&self, inode: u64) -> bool {
        let is_it = |open: &Descriptor| matches!(open.target, Target::Node(node) if node == inode);
        self.0.iter().flatten().any(is_it)
    }

    /// Restores the descriptors that our code in the guest needs, as user code may have closed them.
    fn renew(&mut self, folders: usize) {
        let Self(standard) = Self::standard(folders);
        let report = standard.len() - 1;
        for (fd, descriptor) in standard.into_iter().enumerate() {
            if fd == report || self.0[fd].is_none() {
                self.0[fd] = descriptor;
            }
        }
    }
}

/// The process of a guest.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) descriptors: Descriptors,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<String>,
    /// Folders that are open from the start: their names and inodes.
    pub(super) folders: Vec<(String, u64)>,
    stdin: Vec<u8>,
    read: usize,
    outputs: Option<SharedOutputs>,
    report: Vec<u8>,
    /// The end of the guest's output without a receiver, as when our own code runs.
    unheard: Vec<u8>,
    /// The way to the server, while a run is in progress that may ask it.
    asks: Option<Asks>,
    /// The question that the guest is writing, and the answer that it is reading.
    question: Vec<u8>,
    answer: Option<io::Cursor<Vec<u8>>>,
}

impl Process {
    /// A process with these arguments and variables (`NAME=value`), and empty standard input.
    pub(crate) fn new(args: Vec<String>, env: Vec<String>, folders: Vec<(String, u64)>) -> Self {
        let descriptors = Descriptors::standard(folders.len());
        let (stdin, report, unheard) = (vec![], vec![], vec![]);
        Self {
            descriptors,
            args,
            env,
            folders,
            stdin,
            read: 0,
            outputs: None,
            report,
            unheard,
            asks: None,
            question: vec![],
            answer: None,
        }
    }

    /// A process without our code, and so without a descriptor for reports.
    pub(crate) fn program(
        args: Vec<String>,
        env: Vec<String>,
        folders: Vec<(String, u64)>,
    ) -> Self {
        let mut program = Self::new(args, env, folders);
        program.descriptors.0.pop();
        program
    }

    /// Sets its standard input, and the receiver of its outputs.
    pub(crate) fn connect(&mut self, stdin: Vec<u8>, outputs: SharedOutputs) {
        (self.stdin, self.outputs) = (stdin, Some(outputs));
    }

    /// The descriptor to which our code in the guest writes the report of a call.
    pub(crate) fn report_descriptor(&self) -> usize {
        FIRST_FOLDER + self.folders.len()
    }

    /// The node of a descriptor. No node of a dataset can be changed.
    pub(super) fn node(&self, fd: u32) -> Result<u64, Errno> {
        match self.base(fd)? {
            Base::Node(inode) => Ok(inode),
            Base::Dataset(_) => Err(Errno::Rofs),
        }
    }

    /// The file or folder of a descriptor.
    pub(super) fn base(&self, fd: u32) -> Result<Base<'_>, Errno> {
        match &self.descriptors.get(fd)?.target {
            Target::Node(inode) => Ok(Base::Node(*inode)),
            Target::Preopened(number) => {
                Ok(Base::Node(self.folders.get(*number).ok_or(Errno::Badf)?.1))
            }
            Target::Dataset(open) => Ok(Base::Dataset(open)),
            _ => Err(Errno::Notdir),
        }
    }

    /// Prepares for a call: sets its standard input, and the receiver of its outputs.
    pub(crate) fn begin(&mut self, stdin: Vec<u8>, outputs: Option<SharedOutputs>) {
        (self.stdin, self.read, self.outputs) = (stdin, 0, outputs);
        self.report.clear();
        self.descriptors.renew(self.folders.len());
    }

    /// Ends a call. Returns the report of our code in the guest.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        (self.outputs, self.asks) = (None, None);
        (self.stdin, self.question, self.answer) = (vec![], vec![], None);
        std::mem::take(&mut self.report)
    }

    /// Lets the guest ask the server during the next call.
    pub(crate) fn allow(&mut self, asks: Option<Asks>) {
        self.asks = asks;
    }

    /// The way to the server, if the guest may ask it now.
    pub(super) fn asks(&self) -> Option<Asks> {
        self.asks.clone()
    }

    /// Opens the file for questions.
    pub(super) fn open_tools(&mut self) -> Result<Target, Errno> {
        if self.asks.is_none() {
            return Err(Errno::Noent);
        }
        (self.question, self.answer) = (vec![], None);
        Ok(Target::Tools)
    }

    /// Takes a part of a question.
    pub(super) fn write_question(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.question.len() + bytes.len() > MAX_ASK {
            return Err(Errno::Fbig);
        }
        self.question.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// The question that must be answered before this descriptor can be read.
    pub(super) fn question(&mut self, fd: u32) -> Option<Vec<u8>> {
        let is_it = matches!(self.descriptors.get(fd).ok()?.target, Target::Tools);
        (is_it && self.answer.is_none()).then(|| std::mem::take(&mut self.question))
    }

    /// Sets the answer to that question.
    pub(super) fn answer(&mut self, answer: Vec<u8>) {
        self.answer = Some(io::Cursor::new(answer));
    }

    /// Reads the next bytes of the answer.
    pub(super) fn read_answer(&mut self, to: &mut [u8]) -> usize {
        // Reading from memory does not fail.
        self.answer.as_mut().and_then(|answer| answer.read(to).ok()).unwrap_or_default()
    }

    /// Reads the next bytes of standard input. Returns their number.
    pub(super) fn read_input(&mut self, to: &mut [u8]) -> usize {
        let rest = &self.stdin[self.read.min(self.stdin.len())..];
        let count = rest.len().min(to.len());
        to[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        count
    }

    /// All of standard input that was not read before.
    pub(crate) fn rest_of_input(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.stdin);
        rest.split_off(std::mem::take(&mut self.read).min(rest.len()))
    }

    /// Takes bytes that the guest writes to an output.
    pub(crate) fn write_output(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(outputs) = &self.outputs {
            outputs.push(stream, bytes);
        } else {
            // The vector never exceeds `MAX_UNHEARD` bytes, as it would not free the memory again.
            let end = &bytes[bytes.len().saturating_sub(MAX_UNHEARD)..];
            let over = (self.unheard.len() + end.len()).saturating_sub(MAX_UNHEARD);
            self.unheard.drain(..over);
            self.unheard.extend_from_slice(end);
        }
    }

    /// Takes the end of its output without a receiver.
    pub(crate) fn take_unheard(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.unheard)).into_owned()
    }

    /// Takes a part of the report of our code.
    pub(crate) fn write_report(&mut self, bytes: &[u8]) {
        if self.report.len() + bytes.len() <= MAX_REPORT {
            self.report.extend_from_slice(bytes);
        } else {
            self.report.clear();
        }
    }
}
