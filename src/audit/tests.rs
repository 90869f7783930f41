//! Tests of writing audit files, and of the faults that are found in them.

use std::{
    fs,
    num::NonZeroU32,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use config::server_key::ServerKey;
use proptest::{prelude::*, sample::Index};
use serde_json::Value;

use super::{
    Audit, Hash, OpenError, Position, Record, Rotation,
    chain::{line, sealed},
    head, pieces, sealing_key,
    verify::{Report, Scope, verify},
};

/// Room for all lines of a test in one file.
const ROOMY: Rotation = Rotation { max_bytes: 1 << 20, max_total: None };

/// Room for about three lines in a file.
const NARROW: Rotation = Rotation { max_bytes: 1000, max_total: None };

fn record(n: usize) -> Record {
    let outcome = "ok".to_owned();
    Record { caller: "ann".into(), tool: format!("tool_{n}"), outcome, ..Record::default() }
}

/// Opens the file, writes this many lines of calls, and drops the server as if it were killed.
fn write(path: &Path, key: Option<&ServerKey>, rotation: Rotation, lines: usize) -> Position {
    let audit = Audit::open(path, rotation, None, key).expect("opened");
    (0..lines).for_each(|n| audit.write(record(n)));
    audit.last()
}

struct Chain {
    _folder: tempfile::TempDir,
    path: PathBuf,
    key: Option<ServerKey>,
}

impl Chain {
    /// Makes a chain of a server's start and this many calls.
    fn new(has_key: bool, rotation: Rotation, lines: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let key = has_key.then(ServerKey::random);
        write(&path, key.as_ref(), rotation, lines);
        Self { _folder: folder, path, key }
    }

    fn verify(&self) -> Report {
        self.verify_within(Scope::default())
    }

    fn verify_within(&self, scope: Scope) -> Report {
        verify(&self.path, self.key.as_ref(), scope).expect("read")
    }

    /// The first break.
    #[track_caller]
    fn broken(&self) -> String {
        self.verify().breaks.first().expect("it is not whole").to_string()
    }

    fn start(&self) -> Result<Audit, OpenError> {
        Audit::open(&self.path, ROOMY, None, self.key.as_ref())
    }

    /// All its files, the oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let pieces = pieces::open(&self.path).expect("opened");
        pieces.into_iter().map(|piece| piece.path).collect()
    }

    /// The lines of its only file.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).expect("UTF-8");
        text.split_inclusive('\n').map(str::to_owned).collect()
    }

    fn set_lines(&self, lines: &[String]) {
        fs::write(&self.path, lines.concat()).expect("written");
    }

    /// Cuts the last line to this many bytes, as a server does that is killed while it writes.
    fn tear(&self, bytes: usize) {
        let lines = self.lines();
        let (last, before) = lines.split_last().expect("a line");
        self.set_lines(&[before, &[last[..bytes].to_owned()]].concat());
        self.set_head(position(before.last().expect("another one")));
    }

    fn set_head(&self, last: Position) {
        let text = sealed(&last, &sealing_key(self.key.as_ref()));
        fs::write(head::path(&self.path), text).expect("written");
    }
}

fn position(line: &str) -> Position {
    let seq = json(line)["seq"].as_u64().expect("a number");
    Position { seq, hash: Hash::of(line.as_bytes()) }
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn what_a_server_has_written_is_whole_with_and_without_a_key() {
    for has_key in [false, true] {
        for rotation in [ROOMY, NARROW] {
            let chain = Chain::new(has_key, rotation, 10);
            let report = chain.verify();
            assert!(report.is_whole() && report.remarks.is_empty(), "{report:?}");
            assert_eq!((report.lines, report.is_sealed), (11, has_key));
            assert_eq!(report.files > 2, rotation == NARROW, "{}", report.files);
            assert_eq!(report.last.map(|last| last.seq), Some(11));
        }
    }
}

#[test]
fn files_are_for_their_owner_alone() {
    let chain = Chain::new(true, NARROW, 10);
    for path in chain.files().into_iter().chain([head::path(&chain.path)]) {
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn the_next_server_goes_on_where_the_last_one_ended() {
    let chain = Chain::new(true, ROOMY, 2);
    let audit = chain.start().expect("it goes on");
    audit.write(record(9));
    audit.close();
    drop(audit);
    let report = chain.verify();
    assert!(report.is_whole() && report.remarks.is_empty(), "{report:?}");
    let says = |line: &String| json(line)["event"].as_str().map(str::to_owned);
    let events: Vec<_> = chain.lines().iter().map(says).collect();
    let some = |event: &str| Some(event.to_owned());
    assert_eq!(events, [some("started"), None, None, some("started"), None, some("stopped")]);
}

#[test]
fn a_file_is_one_servers_at_a_time() {
    let chain = Chain::new(false, ROOMY, 1);
    let first = chain.start().expect("opened");
    let second = chain.start().expect_err("it is the first one's");
    assert!(matches!(second, OpenError::IsAnothers(_)), "{second}");
    // The lock also holds for another name of the file.
    let other = chain.path.with_file_name("link.jsonl");
    symlink(&chain.path, &other).expect("linked");
    let by_link = Audit::open(&other, ROOMY, None, None).expect_err("it is the first one's");
    assert!(matches!(by_link, OpenError::IsAnothers(_)), "{by_link}");
    drop(first);
    assert!(chain.start().is_ok());
    assert!(chain.verify().is_whole());
}

#[test]
fn a_line_that_was_torn_by_a_kill_is_said_and_goes_on_being_said() {
    for has_key in [false, true] {
        let len = Chain::new(has_key, ROOMY, 3).lines()[3].len();
        for bytes in [1, 7, 20, 100, len - 2] {
            let chain = Chain::new(has_key, ROOMY, 3);
            chain.tear(bytes);
            let report = chain.verify();
            assert!(report.is_whole(), "{bytes}: {report:?}");
            assert!(report.remarks[0].to_string().contains("audit.jsonl:4: a torn line"));
            drop(chain.start().expect("it goes on"));
            let report = chain.verify();
            assert!(report.is_whole() && report.lines == 4, "{bytes}: {report:?}");
            assert!(report.remarks[0].to_string().contains("audit.jsonl:4: a torn line"));
            // A later change of the torn line is found.
            let mut all = fs::read(&chain.path).expect("read");
            let torn = chain.lines()[..3].concat().len();
            all[torn] ^= 1;
            fs::write(&chain.path, all).expect("written");
            assert!(chain.broken().contains("audit.jsonl:4: is not what the server found"));
        }
    }
}

#[test]
fn a_server_may_be_killed_while_it_says_that_the_one_before_was() {
    let len = Chain::new(true, ROOMY, 3).lines()[3].len();
    for bytes in [0, 1, 30, 200] {
        let chain = Chain::new(true, ROOMY, 3);
        chain.tear(len / 2);
        let head = fs::read(head::path(&chain.path)).expect("read");
        let torn = fs::metadata(&chain.path).expect("there").len();
        drop(chain.start().expect("it goes on"));
        // Keep the newline, and this many bytes of the line.
        let all = fs::read(&chain.path).expect("read");
        let kept = usize::try_from(torn).expect("few") + 1 + bytes;
        fs::write(&chain.path, &all[..kept]).expect("written");
        fs::write(head::path(&chain.path), head).expect("written");
        drop(chain.start().expect("it goes on"));
        let report = chain.verify();
        assert!(report.is_whole() && report.lines == 4, "{bytes}: {report:?}");
        assert_eq!(report.remarks.len(), 1);
    }
}

#[test]
fn a_server_may_be_killed_before_its_first_line_is_whole() {
    let len = Chain::new(true, ROOMY, 0).lines()[0].len();
    for bytes in [0, 1, 40, len - 1] {
        let chain = Chain::new(true, ROOMY, 0);
        let all = fs::read(&chain.path).expect("read");
        fs::write(&chain.path, &all[..bytes]).expect("written");
        chain.set_head(Position::START);
        drop(chain.start().expect("it begins again"));
        let report = chain.verify();
        let lines = if bytes == len - 1 { 2 } else { 1 };
        assert!(report.is_whole() && report.lines == lines, "{bytes}: {report:?}");
    }
}

#[test]
fn a_line_that_lacks_its_newline_alone_is_completed() {
    let chain = Chain::new(true, ROOMY, 3);
    let lines = chain.lines();
    chain.tear(lines[3].len() - 1);
    assert!(chain.verify().is_whole());
    drop(chain.start().expect("it goes on"));
    let report = chain.verify();
    assert!(report.is_whole() && report.lines == 5 && report.remarks.is_empty(), "{report:?}");
    assert_eq!(chain.lines()[..4], lines);
}

#[test]
fn a_line_that_lacks_its_newline_and_was_not_made_with_the_key_is_not_taken_in() {
    let chain = Chain::new(true, ROOMY, 3);
    let last = position(chain.lines().last().expect("a line"));
    let forged = format!(
        r#"{{"seq":{},"prev":"{}","time":"2026-01-01T00:00:00Z","server":"x","caller":"bob"}}"#,
        last.seq + 1,
        last.hash
    );
    let all = fs::read_to_string(&chain.path).expect("UTF-8") + &forged;
    fs::write(&chain.path, all).expect("written");
    drop(chain.start().expect("it goes on"));
    // The forged line is found from then on, and the server's next line follows the line before it.
    assert!(chain.broken().ends_with("it has no MAC, and so may be anybody's"));
    let own = position(chain.lines().last().expect("a line"));
    assert_eq!(own.seq, last.seq + 1);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    assert!(Audit::open(&pipe, ROOMY, None, None).is_err());
    assert!(pieces::open(&pipe).is_err());
}

fn make_pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
}

#[test]
fn a_kill_between_a_line_and_the_head_is_told_from_lines_that_were_added() {
    for has_key in [false, true] {
        let chain = Chain::new(has_key, ROOMY, 4);
        let lines = chain.lines();
        chain.set_head(position(&lines[3]));
        let report = chain.verify();
        assert!(report.is_whole() && report.remarks.len() == 1, "{report:?}");
        drop(chain.start().expect("it goes on"));
        assert!(chain.verify().is_whole());

        let chain = Chain::new(has_key, ROOMY, 4);
        chain.set_head(position(&chain.lines()[2]));
        assert!(chain.broken().contains("by the head file the last line is 3"));
        drop(chain.start().expect("it goes on"));
        assert!(chain.broken().contains("audit.jsonl:6: when the server started here"));
    }
}

#[test]
fn lines_that_are_gone_from_the_end_are_missed_even_when_a_server_has_gone_on() {
    let chain = Chain::new(true, ROOMY, 5);
    let lines = chain.lines();
    chain.set_lines(&lines[..3]);
    assert!(chain.broken().contains("audit.jsonl:3: lines are missing after this one"));
    drop(chain.start().expect("it goes on"));
    assert!(chain.broken().contains("when the server started here, lines 4 to 6 were missing"));

    let chain = Chain::new(true, ROOMY, 5);
    chain.set_lines(&chain.lines()[..3]);
    fs::remove_file(head::path(&chain.path)).expect("removed");
    assert!(chain.broken().contains("audit.jsonl:3: there is no head file"));
    drop(chain.start().expect("it goes on"));
    assert!(
        chain.broken().contains("audit.jsonl:4: the server that started here found no head file")
    );
}

#[test]
fn a_file_that_is_gone_is_missed_and_the_rest_can_be_verified_without_it() {
    let chain = Chain::new(true, NARROW, 12);
    let files = chain.files();
    let last_of = |path: &Path| {
        let text = fs::read_to_string(path).expect("UTF-8");
        position(text.split_inclusive('\n').next_back().expect("a line"))
    };
    let (first, second) = (last_of(&files[0]), last_of(&files[1]));
    let kept = fs::read(&files[1]).expect("read");
    fs::remove_file(&files[1]).expect("removed");
    assert!(chain.broken().contains("are missing before it"), "{}", chain.broken());
    fs::remove_file(&files[0]).expect("removed");
    assert!(chain.broken().contains("the chain begins with line"));
    let from = |hash| Scope { from: Some(hash), to: None };
    assert!(chain.verify_within(from(second.hash)).is_whole());
    assert!(!chain.verify_within(from(first.hash)).is_whole());
    fs::write(&files[1], kept).expect("written");
    assert!(chain.verify_within(from(first.hash)).is_whole());
    assert!(chain.verify_within(from(second.hash)).is_whole());
}

#[test]
fn a_chain_goes_on_where_its_files_were_moved_away() {
    let chain = Chain::new(true, ROOMY, 3);
    let last = position(&chain.lines()[3]);
    fs::remove_file(&chain.path).expect("removed");
    drop(chain.start().expect("it goes on"));
    assert!(chain.broken().contains("the chain begins with line 5"));
    assert!(chain.verify_within(Scope { from: Some(last.hash), to: None }).is_whole());
}

#[test]
fn whoever_knows_a_hash_can_verify_up_to_it_without_the_head_file() {
    let chain = Chain::new(false, ROOMY, 5);
    let lines = chain.lines();
    fs::remove_file(head::path(&chain.path)).expect("removed");
    let to = |line: &str| Scope { from: None, to: Some(position(line).hash) };
    assert!(chain.verify_within(to(&lines[5])).is_whole());
    let report = chain.verify_within(to(&lines[2]));
    assert!(report.is_whole() && report.lines == 3, "{report:?}");
    chain.set_lines(&lines[..3]);
    assert!(!chain.verify_within(to(&lines[5])).is_whole());
    let scope = Scope { from: to(&lines[0]).to, to: to(&lines[2]).to };
    let report = chain.verify_within(scope);
    assert!(report.is_whole() && report.lines == 2, "{report:?}");
}

#[test]
fn a_chain_has_one_key_or_none() {
    let begun = |key: Option<&ServerKey>, then: Option<&ServerKey>| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        write(&path, key, ROOMY, 1);
        Audit::open(&path, ROOMY, None, then).map(drop).map_err(|error| error.to_string())
    };
    let (key, other) = (ServerKey::random(), ServerKey::random());
    assert!(begun(Some(&key), Some(&key)).is_ok());
    for (first, then) in [(None, Some(&key)), (Some(&key), None), (Some(&key), Some(&other))] {
        let refused = begun(first, then).expect_err("it is another's");
        assert!(refused.contains("Move the file away"), "{refused}");
    }
    let not_one = tempfile::NamedTempFile::new().expect("a file");
    fs::write(not_one.path(), "important\n").expect("written");
    assert!(Audit::open(not_one.path(), ROOMY, None, None).is_err());
    assert_eq!(fs::read(not_one.path()).expect("read"), b"important\n", "it is left alone");
}

#[test]
fn without_the_key_of_a_chain_its_macs_are_said_not_to_be_known() {
    let chain = Chain { key: None, ..Chain::new(true, ROOMY, 2) };
    let report = chain.verify();
    assert!(report.is_whole() && report.remarks[0].what.contains("MACs"), "{report:?}");
}

#[test]
fn nobody_without_the_key_can_make_a_line() {
    let chain = Chain::new(true, ROOMY, 3);
    let lines = chain.lines();
    // A reader of the file knows only the lines before, and how a hash is made.
    let forged = |after: &str, key| line(position(after), &key, &serde_json::json!({ "time": "" }));
    for key in [None, sealing_key(Some(&ServerKey::random()))] {
        let (added, last) = forged(&lines[3], key);
        let added = String::from_utf8(added).expect("UTF-8");
        chain.set_lines(&[&lines[..], std::slice::from_ref(&added)].concat());
        assert!(!chain.verify().is_whole());
        fs::write(head::path(&chain.path), sealed(&last, &key)).expect("written");
        assert!(!chain.verify().is_whole());
    }
}

#[test]
fn a_chain_is_whole_at_any_moment_while_a_server_writes_and_rotates() {
    let chain = Chain::new(true, NARROW, 1);
    let audit = Audit::open(&chain.path, NARROW, None, chain.key.as_ref()).expect("opened");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            (0..2000).for_each(|n| audit.write(record(n)));
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let report = chain.verify();
            assert!(report.is_whole(), "{report:#?}");
        }
    });
    assert_eq!(chain.verify().lines, 2003);
}

#[test]
fn a_head_file_that_was_changed_is_found() {
    for has_key in [false, true] {
        let chain = Chain::new(has_key, ROOMY, 1);
        let path = head::path(&chain.path);
        let whole = fs::read(&path).expect("read");
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&path, bytes).expect("written");
                assert!(!chain.verify().is_whole(), "byte {at}, bit {bit}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_byte_that_is_changed_or_taken_out_or_added_is_found(
        has_key: bool,
        is_narrow: bool,
        file in any::<Index>(),
        at in any::<Index>(),
        bit in 0..8_u32,
        how in 0..3,
    ) {
        let chain = Chain::new(has_key, if is_narrow { NARROW } else { ROOMY }, 6);
        let files = chain.files();
        let path = file.get(&files);
        let mut bytes = fs::read(path).expect("read");
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << bit,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b'0'),
        }
        fs::write(path, bytes).expect("written");
        prop_assert!(!chain.verify().is_whole());
    }

    #[test]
    fn any_end_that_is_cut_off_is_found(
        has_key: bool,
        is_narrow: bool,
        file in any::<Index>(),
        at in any::<Index>(),
    ) {
        let chain = Chain::new(has_key, if is_narrow { NARROW } else { ROOMY }, 6);
        let files = chain.files();
        let path = file.get(&files);
        let bytes = fs::read(path).expect("read");
        fs::write(path, &bytes[..at.index(bytes.len())]).expect("written");
        prop_assert!(!chain.verify().is_whole());
    }

    #[test]
    fn lines_that_are_taken_out_or_swapped_or_there_twice_are_found(
        has_key: bool,
        one in any::<Index>(),
        other in any::<Index>(),
        how in 0..3,
    ) {
        let chain = Chain::new(has_key, ROOMY, 6);
        let mut lines = chain.lines();
        let (one, other) = (one.index(lines.len()), other.index(lines.len()));
        match how {
            0 => drop(lines.remove(one)),
            1 if one == other => return Ok(()),
            1 => lines.swap(one, other),
            _ => lines.insert(other, lines[one].clone()),
        }
        chain.set_lines(&lines);
        prop_assert!(!chain.verify().is_whole());
        drop(chain.start());
        prop_assert!(!chain.verify().is_whole());
    }
}

#[test]
fn calls_that_are_refused_have_few_lines_and_are_all_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.jsonl");
    let audit = Audit::open(&path, ROOMY, NonZeroU32::new(3), None).expect("opened");
    let refused = |caller: &str, outcome: &str| Record {
        caller: caller.into(),
        tool: "run_python".into(),
        outcome: outcome.into(),
        ..Record::default()
    };
    for _ in 0..1000 {
        audit.write(refused("ann", "invalid_argument"));
    }
    audit.write(refused("bob", "invalid_argument"));
    audit.write(refused("ann", "ok"));
    audit.write(refused("ann", "session_busy"));
    audit.close();
    let text = fs::read_to_string(&path).expect("UTF-8");
    let lines: Vec<_> = text.lines().map(json).collect();
    let of = |caller: &str| lines.iter().filter(|it| it["caller"] == caller).collect::<Vec<_>>();
    assert_eq!(of("bob").len(), 1, "each caller has lines of its own");
    assert!(of("ann").len() < 10, "{text}");
    let omitted: u64 = of("ann").iter().filter_map(|it| it["omitted"].as_u64()).sum();
    let calls = of("ann").iter().filter(|it| it["event"].is_null()).count() as u64;
    assert_eq!(omitted + calls, 1002, "{text}");
    assert!(verify(&path, None, Scope::default()).expect("read").is_whole());
}

#[test]
fn the_oldest_files_are_removed_if_all_together_would_be_too_large_and_the_rest_is_whole() {
    for has_key in [false, true] {
        let rotation = Rotation { max_bytes: 2000, max_total: Some(7000) };
        let chain = Chain::new(has_key, rotation, 200);
        let sizes = chain.files().into_iter().map(|it| fs::metadata(it).expect("there").len());
        let total: u64 = sizes.sum();
        assert!((3000..=7000).contains(&total), "{total}");
        let report = chain.verify();
        assert!(report.is_whole(), "{report:?}");
        assert!(report.remarks[0].what.contains("has removed the lines before"), "{report:?}");
        write(&chain.path, chain.key.as_ref(), rotation, 3);
        assert!(chain.verify().is_whole());
        // A file that was removed without a line that says so is missing.
        fs::remove_file(&chain.files()[0]).expect("removed");
        assert!(chain.broken().contains("the lines before are not here"));
    }
}
