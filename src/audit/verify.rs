//! Whether a chain is whole, and where it is not.
//!
//! Each line must have the number after that of the line before, its hash and, with a key, a good MAC; and the last one
//! must be the one that the head file names. What is wrong does not end the search: it goes on from the line that is there.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::{
    Digest,
    chain::{FoundHead, Hash, Key, Known, Position, Seal, may_be_torn, read, seal},
    head::{self, Said},
    pieces, sealing_key,
    writer::MAX_LINE,
};
use crate::server_key::ServerKey;

/// Breaks that are told one by one.
const MAX_BREAKS: usize = 20;

/// Which part of a chain is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope {
    /// What comes after the line with this hash, be it there or not.
    pub from: Option<Hash>,
    /// What comes before, and the line with this hash itself, whatever comes after it.
    pub to: Option<Hash>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// Something that is to be said of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where it is.
    pub place: Place,
    /// What it is: the rest of a sentence.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Lines that were looked at.
    pub lines: u64,
    /// Files that they are in.
    pub files: usize,
    /// When the first and the last of them were written, as they say.
    pub times: Option<(String, String)>,
    /// The last of them.
    pub last: Option<Position>,
    /// They have MACs, and those are good.
    pub is_sealed: bool,
    /// What is as it should be and yet worth saying.
    pub remarks: Vec<Finding>,
    /// Where the chain is not whole, the first ones.
    pub breaks: Vec<Finding>,
    /// How many more places there are.
    pub more_breaks: u64,
}

impl Report {
    /// Nothing was changed, added or taken away, as far as this can be known.
    pub fn is_whole(&self) -> bool {
        self.breaks.is_empty()
    }
}

/// Looks at the chain in a file and those that it was rotated to.
///
/// # Errors
/// If one of them is there and cannot be read.
pub fn verify(audit: &Path, key: Option<&ServerKey>, scope: Scope) -> io::Result<Report> {
    let key = sealing_key(key);
    // In this order: a server that writes meanwhile is then only ahead of what its head file has said.
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
    /// All that was asked for was seen.
    Stop,
}

struct Search {
    key: Key,
    scope: Scope,
    said: Said,
    place: Place,
    /// The last line that was whole, from where the search begins on.
    at: Option<Position>,
    /// The one before it.
    before: Option<Hash>,
    /// What the chain begins with instead of its first line: the line before it, and what is to be said of that unless
    /// a server has removed what was there.
    beginning: Option<(Position, Finding)>,
    /// What was found since then that is no line, and where it begins.
    torn: Option<(Place, Vec<u8>)>,
    /// The line that the head file names was seen.
    has_met_head: bool,
    has_met_end: bool,
    seals: Seals,
    report: Report,
}

/// What lines so far are made with.
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
            // More than that no server leaves behind, and all of it need not be kept to say so.
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

    /// What stands between two lines must be what the second one says that it has found there.
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

    /// What a server has found when it started.
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

    /// What a server has removed is not missing.
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
        // One that was written as a whole was torn by somebody else.
        let was_whole = matches!(self.said, Said::Last(last) if last.seq > at.seq);
        if !may_be_torn(&torn, at) || was_whole {
            self.broken_at(place, "is no line of an audit file".into());
        } else if !is_in_use {
            let what = "a torn line: the server was killed while it wrote it";
            self.report.remarks.push(Finding { place, what: what.into() });
        }
    }

    /// Whether the last line is the one that the head file names.
    fn head(&mut self, at: Position, is_in_use: bool) {
        let what = match self.said {
            Said::Nothing | Said::Unreadable => {
                "there is no head file beside it that can be used: whether lines are missing after this one cannot be \
                 known (--to HASH verifies up to a line of which you know the hash)"
                    .to_owned()
            }
            Said::Last(last) if last == at => return,
            // It was looked at before the lines were.
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
