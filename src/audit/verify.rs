//! Verifies that a chain is whole, and finds the places where it is not.
//!
//! Each line must have the next number, the hash of the line before and, with a key, a good MAC; and the head file must
//! name the last line. A fault does not end the search: it continues from the line that is there.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use config::server_key::ServerKey;

use super::{
    Digest,
    chain::{FoundHead, Hash, Key, Known, Position, Seal, may_be_torn, read, seal},
    head::{self, Said},
    pieces, sealing_key,
    writer::MAX_LINE,
};

/// The maximum number of breaks that are listed.
const MAX_BREAKS: usize = 20;

/// The part of a chain to verify.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scope {
    /// Only lines after the one with this hash; that line itself may be missing.
    pub from: Option<Hash>,
    /// Only lines up to and including the one with this hash, which must exist.
    pub to: Option<Hash>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    path: PathBuf,
    line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A remark or a fault at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The place.
    pub place: Place,
    /// The description: a sentence without its subject.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The result of verifying a chain.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The number of lines that were verified.
    pub lines: u64,
    /// The number of files of the chain.
    pub files: usize,
    /// The times in the first and the last of the lines.
    pub times: Option<(String, String)>,
    /// The position of the last of the lines.
    pub last: Option<Position>,
    /// Whether the MACs of the lines were checked.
    pub is_sealed: bool,
    /// Findings that are not faults.
    pub remarks: Vec<Finding>,
    /// The first places where the chain is not whole.
    pub breaks: Vec<Finding>,
    /// The number of further such places.
    pub more_breaks: u64,
}

impl Report {
    /// Whether no change, addition or removal was found.
    pub(crate) fn is_whole(&self) -> bool {
        self.breaks.is_empty()
    }
}

/// Verifies the chain in a file and its rotated predecessors.
///
/// # Errors
/// If there is no audit file, or one of the files cannot be read.
pub(crate) fn verify(audit: &Path, key: Option<&ServerKey>, scope: Scope) -> io::Result<Report> {
    let key = sealing_key(key);
    // In this order, so that if a server writes meanwhile, the lines are only ahead of the head file that was read.
    let was_in_use = head::is_in_use(audit);
    let said = head::said(audit, &key)?;
    let pieces = pieces::open(audit)?;
    if pieces.is_empty() && !head::path(audit).exists() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut search = Search::new(key, scope, said, audit);
    search.report.files = pieces.len();
    for piece in pieces {
        if search.file(piece.path, piece.file)? == Next::Stop {
            break;
        }
    }
    let is_in_use = was_in_use || head::is_in_use(audit);
    Ok(search.end(is_in_use))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// All lines of the scope were verified.
    Stop,
}

struct Search {
    key: Key,
    scope: Scope,
    said: Said,
    place: Place,
    /// The last whole line; `None` before the beginning of the scope.
    at: Option<Position>,
    /// The hash of the line before it.
    before: Option<Hash>,
    /// If the chain does not begin with its first line: the position before its beginning, and a fault to report unless
    /// a server has removed the earlier lines.
    beginning: Option<(Position, Finding)>,
    /// Bytes since the last whole line that are no line, and their place.
    torn: Option<(Place, Vec<u8>)>,
    /// Whether the line that the head file names was found.
    has_met_head: bool,
    has_met_end: bool,
    seals: Seals,
    report: Report,
}

/// Whether the lines so far have MACs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seals {
    Undecided,
    None,
    All,
}

impl Search {
    fn new(key: Key, scope: Scope, said: Said, audit: &Path) -> Self {
        Self {
            key,
            scope,
            said,
            place: Place { path: audit.to_owned(), line: 0 },
            at: scope.from.is_none().then_some(Position::START),
            before: None,
            beginning: None,
            torn: None,
            has_met_head: false,
            has_met_end: false,
            seals: Seals::Undecided,
            report: Report::default(),
        }
    }

    fn file(&mut self, path: PathBuf, file: File) -> io::Result<Next> {
        self.place = Place { path, line: 0 };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut line = vec![];
        loop {
            line.clear();
            if (&mut file).take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
                return Ok(Next::GoOn);
            }
            self.place.line += 1;
            if self.line(&line) == Next::Stop {
                return Ok(Next::Stop);
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Next {
        let Some(known) = read(line) else {
            let (_, torn) = self.torn.get_or_insert_with(|| (self.place.clone(), vec![]));
            // A server leaves fewer bytes than this, so the rest is not needed to report a fault.
            let room = (2 * MAX_LINE).saturating_sub(torn.len());
            torn.extend_from_slice(&line[..line.len().min(room)]);
            return Next::GoOn;
        };
        let hash = Hash::of(line);
        let position = Position { seq: known.seq, hash };
        let at = match (self.at, self.scope.from) {
            (Some(at), _) => at,
            (None, Some(from)) if from == hash => {
                self.torn = None;
                self.begin(position);
                return Next::GoOn;
            }
            (None, Some(from)) if from == known.prev => {
                self.torn = None;
                let at = Position { seq: known.seq.saturating_sub(1), hash: from };
                self.begin(at);
                at
            }
            (None, _) => {
                self.torn = None;
                return Next::GoOn;
            }
        };
        self.torn_before(&known, at);
        self.link(&known, at);
        self.sealed(line);
        self.started(&known);
        self.removed(&known);
        self.before = Some(known.prev);
        self.at = Some(position);
        self.has_met_head |= self.said == Said::Last(position);
        self.report.lines += 1;
        match &mut self.report.times {
            Some((_, last)) => *last = known.time,
            none => *none = Some((known.time.clone(), known.time)),
        }
        if self.scope.to == Some(hash) {
            self.has_met_end = true;
            return Next::Stop;
        }
        Next::GoOn
    }

    fn begin(&mut self, at: Position) {
        self.at = Some(at);
        self.has_met_head |= self.said == Said::Last(at);
        self.has_met_end |= self.scope.to == Some(at.hash);
    }

    /// Checks that the bytes between two lines are those that the second line reports.
    fn torn_before(&mut self, known: &Known, at: Position) {
        match (self.torn.take(), known.torn) {
            (None, None) => {}
            (Some((place, mut torn)), Some(found)) => {
                torn.pop();
                if Digest::of(&torn) != found {
                    self.broken_at(
                        place,
                        "is not what the server found there that started next".into(),
                    );
                } else if may_be_torn(&torn, at) {
                    let what = "a torn line: the server was killed while it wrote it, and the next one says so";
                    self.report.remarks.push(Finding { place, what: what.into() });
                } else {
                    self.broken_at(
                        place,
                        "is not the beginning of a line, as the next server says".into(),
                    );
                }
            }
            (Some((place, _)), None) => self.broken_at(place, "is no line of an audit file".into()),
            (None, Some(_)) => {
                self.broken("the torn line before it, which it has found, is gone".into());
            }
        }
    }

    fn link(&mut self, known: &Known, at: Position) {
        let (seq, prev) = (known.seq, known.prev);
        if seq == at.seq + 1 && prev == at.hash {
            return;
        }
        let what = if at == Position::START {
            let what = format!(
                "the chain begins with line {seq}; the lines before are not here (--from {prev} does without them)"
            );
            let before = Position { seq: seq.saturating_sub(1), hash: prev };
            self.beginning = Some((before, Finding { place: self.place.clone(), what }));
            return;
        } else if seq > at.seq + 2 {
            format!(
                "it is line {seq}, and lines {} to {} are missing before it",
                at.seq + 1,
                seq - 1
            )
        } else if seq == at.seq + 2 {
            format!("it is line {seq}, and line {} is missing before it", at.seq + 1)
        } else if seq == at.seq + 1 {
            format!(
                "the line before it, {}, is not what it was: it was changed or replaced",
                at.seq
            )
        } else {
            format!("it is line {seq}, where line {} belongs", at.seq + 1)
        };
        self.broken(what);
    }

    fn sealed(&mut self, line: &[u8]) {
        let seal = seal(line, &self.key);
        match seal {
            Seal::Bad => self.broken("it was not written by a server with this key".into()),
            Seal::None if self.key.is_some() => {
                self.broken("it has no MAC, and so may be anybody's".into());
            }
            Seal::None if self.seals == Seals::All => {
                self.broken("it has no MAC, where lines before it have".into());
            }
            Seal::Unknown if self.seals == Seals::None => {
                self.broken("it has a MAC, where lines before it have none".into());
            }
            _ => {}
        }
        if self.seals == Seals::Undecided {
            self.seals = if seal == Seal::None { Seals::None } else { Seals::All };
        }
    }

    /// Reports a head file that a server found wrong when it started.
    fn started(&mut self, known: &Known) {
        let Some(found) = known.head else { return };
        let before = known.seq.saturating_sub(1);
        self.broken(match found {
            FoundHead::None => format!(
                "the server that started here found no head file: whether lines were missing after line {before} \
                 cannot be known"
            ),
            FoundHead::Named(last) if last.seq > before => format!(
                "when the server started here, lines {} to {} were missing: their head file named the last one, {}",
                before + 1,
                last.seq,
                last.hash
            ),
            FoundHead::Named(last) => format!(
                "when the server started here, the head file named line {}, {}, as the last one",
                last.seq, last.hash
            ),
        });
    }

    /// Replaces the fault of missing first lines by a remark if a server has removed them.
    fn removed(&mut self, known: &Known) {
        if let Some((_, Finding { place, .. })) =
            self.beginning.take_if(|(before, _)| known.removed == Some(*before))
        {
            let what = format!(
                "the server has removed the lines before, and says so in line {} (SANDBOX_AUDIT_MAX_TOTAL)",
                known.seq
            );
            self.report.remarks.push(Finding { place, what });
        }
    }

    fn end(mut self, is_in_use: bool) -> Report {
        if let Some((_, finding)) = self.beginning.take() {
            self.report.breaks.insert(0, finding);
        }
        if !self.has_met_end {
            self.torn_at_end(is_in_use);
            match (self.at, self.scope) {
                (None, Scope { from: Some(from), .. }) => {
                    self.broken(format!(
                        "no line here has, or comes after, the hash {from} (--from)"
                    ));
                }
                (_, Scope { to: Some(to), .. }) => {
                    self.broken(format!("no line here has the hash {to} (--to)"));
                }
                (at, _) => self.head(at.unwrap_or(Position::START), is_in_use),
            }
        }
        self.report.last = self.at.filter(|at| *at != Position::START);
        self.report.is_sealed = self.key.is_some() && self.report.lines > 0;
        if self.key.is_none() && self.seals == Seals::All {
            let what = "the lines have MACs, which were not looked at: SANDBOX_KEY_FILE is not set";
            let place = self.place.clone();
            self.report.remarks.push(Finding { place, what: what.into() });
        }
        self.report
    }

    fn torn_at_end(&mut self, is_in_use: bool) {
        let Some((place, torn)) = self.torn.take() else { return };
        let Some(at) = self.at else { return };
        // If the head file names a later line, the torn line was written whole, and damaged afterwards.
        let was_whole = matches!(self.said, Said::Last(last) if last.seq > at.seq);
        if !may_be_torn(&torn, at) || was_whole {
            self.broken_at(place, "is no line of an audit file".into());
        } else if !is_in_use {
            let what = "a torn line: the server was killed while it wrote it";
            self.report.remarks.push(Finding { place, what: what.into() });
        }
    }

    /// Checks that the head file names the last line.
    fn head(&mut self, at: Position, is_in_use: bool) {
        let what = match self.said {
            Said::Nothing | Said::Unreadable => {
                "there is no head file beside it that can be used: whether lines are missing after this one cannot be \
                 known (--to HASH verifies up to a line of which you know the hash)"
                    .to_owned()
            }
            Said::Last(last) if last == at => return,
            // The head file was read before the lines.
            Said::Last(_) if is_in_use && self.has_met_head => return,
            Said::Last(last) if last.seq + 1 == at.seq && self.before == Some(last.hash) => {
                let what = "the head file does not name this line yet: the server was killed just then";
                let place = self.place.clone();
                self.report.remarks.push(Finding { place, what: what.into() });
                return;
            }
            Said::Last(last) if last.seq > at.seq => format!(
                "lines are missing after this one: by the head file the last one is {}, {}",
                last.seq, last.hash
            ),
            Said::Last(last) => {
                format!("by the head file the last line is {}, {}", last.seq, last.hash)
            }
        };
        self.broken(what);
    }

    fn broken(&mut self, what: String) {
        self.broken_at(self.place.clone(), what);
    }

    fn broken_at(&mut self, place: Place, what: String) {
        if self.report.breaks.len() < MAX_BREAKS {
            self.report.breaks.push(Finding { place, what });
        } else {
            self.report.more_breaks += 1;
        }
    }
}
