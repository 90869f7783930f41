//! The wire format, byte for byte: a change that an older peer would misread must show
//! here, and raise the protocol version.

use protocol::{
    frame::{self, Kind, PROTOCOL_VERSION},
    message::{
        Abandon, AgentHello, Answer, Ask, Call, Captured, Carried, CarryLimits, CellDone,
        CellState, Column, ColumnKind, CommandRuntime, Contents, Document, Empty, End, Export,
        ExportDone, Facts, Failure, FailureCode, FileEntry, Forget, Get, GetDone, Hibernate,
        HibernateDone, Import, ImportDone, Inspect, InspectDone, Install, Kill, List, ListDone,
        LostVariable, MissingFile, Names, Output, OutputDone, PackagePiece, PageProblem, Pause,
        Peek, PeekDone, PeerVersion, Ping, Pong, Position, Put, PutDone, Reset, ResetDone, Run,
        RunDone, RuntimeName, ServerHello, Shape, Sheet, Stamp, Start, Stream, Summarize,
        SummarizeDone, Summary, SummaryKind, Variable, Warm, WarmDone, WentOn, Withdraw,
    },
    resume::{Hold, Remember, Resume, Resumed},
};
use serde::Serialize;

/// A frame as text: the prefix in hexadecimal, then head and body.
fn golden(call: u32, kind: Kind, head: &impl Serialize, body: &[u8]) -> String {
    let mut wire = vec![];
    let head = serde_json::to_vec(head).expect("serializes");
    frame::write(&mut wire, call, kind, &head, &[body]).expect("written");
    let prefix: Vec<_> = wire[..frame::PREFIX_LEN].iter().map(|b| format!("{b:02x}")).collect();
    format!("{} {}", prefix.concat(), String::from_utf8_lossy(&wire[frame::PREFIX_LEN..]))
}

/// All facts that a run can have.
fn every_fact() -> Facts {
    let names = |name: &str| Names { names: vec![name.into()], more: 6 };
    Facts {
        dropped_value: Some("int".into()),
        unsaved_figures: 1,
        columns: names("Region"),
        missing_file: Some(MissingFile {
            name: "a".into(),
            there: names("b"),
            in_datasets: names("/data/c/a"),
        }),
        elsewhere: names("/tmp/c"),
        position: Some(Position {
            file: "/tmp/main.py".into(),
            line: 2,
            function: "f".into(),
            text: Some("g()".into()),
        }),
        left_out: names("%d"),
        sheets: names("North"),
        hidden_module: Some("random.py".into()),
        header: Some(1),
        shape: Some(Shape { line: 4, separator: ';', next: 0 }),
        fuel: Some(9),
    }
}

/// All values of [`WentOn`].
fn went_on() -> String {
    let all =
        [WentOn::Nothing, WentOn::Last, WentOn::Older, WentOn::Unusable, WentOn::Taken].map(Some);
    let lines = all.map(|went_on| {
        let done = WarmDone { ready: true, problems: vec![], went_on };
        golden(14, Kind::Reply, &done, b"")
    });
    lines.join("\n")
}

/// Every kind of failure.
fn failures() -> String {
    golden(
        0xFFFF_FFFF,
        Kind::Failure,
        &[
            FailureCode::NotFound,
            FailureCode::Exists,
            FailureCode::BadPath,
            FailureCode::Full,
            FailureCode::Busy,
            FailureCode::BadRequest,
            FailureCode::NoRuntime,
            FailureCode::NothingToUndo,
            FailureCode::System,
        ]
        .map(|code| Failure { code, detail: "why".into() }),
        b"",
    )
}

/// The messages of workspaces. A cell's reply is a run's with more fields.
fn of_workspaces(captured: Captured, done: &RunDone) -> Vec<String> {
    let cell = |state| CellDone {
        state,
        fresh: true,
        count: 1,
        result: Some(captured),
        memory_bytes: Some(2),
        can_undo: 3,
        lost_threads: 4,
        at_risk: true,
    };
    let of_cell = |state| RunDone { cell: Some(cell(state)), ..done.clone() };
    let variable = Variable { name: "sales".into(), summary: "DataFrame 1000x5".into() };
    let contents =
        Contents { variables: vec![variable], more: 1, imports: vec!["pandas as pd".into()] };
    let runtime = RuntimeName::JAVASCRIPT;
    vec![
        golden(20, Kind::Inspect, &Inspect { runtime: runtime.clone() }, b""),
        golden(
            21,
            Kind::Reset,
            &Reset { runtime: runtime.clone(), undo: Some(2), files: false },
            b"",
        ),
        golden(22, Kind::Reset, &Reset { runtime, undo: None, files: true }, b""),
        golden(7, Kind::Reply, &of_cell(CellState::Kept), b""),
        golden(7, Kind::Reply, &of_cell(CellState::RolledBack), b""),
        golden(7, Kind::Reply, &of_cell(CellState::Lost), b""),
        golden(
            20,
            Kind::Reply,
            &InspectDone { live: true, count: 1, can_undo: 2, memory_bytes: Some(3) },
            &serde_json::to_vec(&contents).expect("serializes"),
        ),
        golden(21, Kind::Reply, &ResetDone { count: 1, can_undo: 2, lost_threads: 3 }, b""),
    ]
}

/// A server's first message.
fn hello(preload: Option<Vec<String>>, undo: Option<u32>) -> ServerHello {
    ServerHello {
        version: 1,
        silence_limit_ms: 45_000,
        preload,
        undo,
        hold: None,
        timezone: None,
        asks: false,
        commands: vec![],
    }
}

/// The messages of sandboxes that outlive their stream.
fn of_holding() -> Vec<String> {
    let hold = || Hold { limit_ms: 60_000, token: "secret".to_owned().into() };
    let resume = |received| Resume { version: 1, silence_limit_ms: 45_000, hold: hold(), received };
    let resumed = |running| Resumed { received: 1, last_call: 2, running, missed: 1 };
    vec![
        golden(0, Kind::Hello, &ServerHello { hold: Some(hold()), ..hello(None, None) }, b""),
        golden(
            0,
            Kind::Hello,
            &ServerHello {
                timezone: Some("Europe/Berlin".into()),
                asks: true,
                ..hello(None, None)
            },
            b"",
        ),
        golden(
            0,
            Kind::Hello,
            &ServerHello {
                commands: vec![CommandRuntime {
                    name: "r".to_owned().into(),
                    command: vec!["Rscript".into(), "{file}".into()],
                    file: "main.R".into(),
                }],
                ..hello(None, None)
            },
            b"",
        ),
        golden(0, Kind::Resume, &resume(Some(3)), b""),
        golden(0, Kind::Resume, &resume(None), b""),
        golden(26, Kind::Remember, &Remember {}, b"a note"),
        golden(0, Kind::Reply, &resumed(Some(7)), b"a note"),
        golden(0, Kind::Reply, &resumed(None), b""),
    ]
}

/// The messages that export and import variables.
fn of_variables() -> Vec<String> {
    let limits = CarryLimits { each_bytes: 1, total_bytes: 2, each_ms: 3, total_ms: 4 };
    let runtime = RuntimeName::PYTHON;
    let export = |begin| Export { runtime: runtime.clone(), begin, offset: 5, len: 6 };
    let import = |last| Import { runtime: runtime.clone(), offset: 7, last, count: 8 };
    let carried = Carried {
        variables: vec!["sales".into()],
        more: 1,
        imports: vec!["pandas".into()],
        lost: vec![LostVariable { name: "file".into(), why: "an open file".into() }],
        more_lost: 2,
    };
    let carried = serde_json::to_vec(&carried).expect("serializes");
    vec![
        golden(30, Kind::Export, &export(Some(limits)), b""),
        golden(30, Kind::Reply, &ExportDone { live: true, count: 8, total: 9 }, &carried),
        golden(31, Kind::Export, &export(None), b""),
        golden(31, Kind::Reply, &ExportDone { live: true, count: 8, total: 9 }, b"bytes"),
        golden(32, Kind::Import, &import(None), b"bytes"),
        golden(32, Kind::Reply, &ImportDone { count: 0 }, b""),
        golden(33, Kind::Import, &import(Some(limits)), b"bytes"),
        golden(33, Kind::Reply, &ImportDone { count: 8 }, &carried),
    ]
}

/// The messages of summaries.
fn of_summaries() -> Vec<String> {
    let request = |path: &str, encoding: Option<&str>| {
        let encoding = encoding.map(str::to_owned);
        let request = Summarize { path: path.into(), encoding, page: None, limit_ms: 250 };
        golden(34, Kind::Summarize, &request, b"")
    };
    let column = Column {
        name: "day".into(),
        kind: ColumnKind::DateDayFirst,
        missing: Some(1),
        unsure: true,
        examples: vec!["31.1.2026".into()],
    };
    let whole = Summary {
        kind: SummaryKind::JsonLines,
        encoding: Some("cp1252".into()),
        separator: Some(';'),
        decimal: Some(','),
        thousands: Some('.'),
        gzip: true,
        header_line: 4,
        header: false,
        within: Some("data".into()),
        rows: Some(1),
        at_least: true,
        looked_at: Some(2),
        columns: vec![column],
        more_columns: 3,
        sheets: vec![Sheet { name: "North".into(), rows: Some(5) }],
        more_sheets: 6,
    };
    let least: Summary =
        serde_json::from_str(r#"{"kind":"parquet","columns":[]}"#).expect("all else may be absent");
    let reply = |summary| {
        let body = serde_json::to_vec(&summary).expect("serializes");
        golden(34, Kind::Reply, &SummarizeDone::default(), &body)
    };
    let page = Summarize { path: "a.pdf".into(), encoding: None, page: Some(2), limit_ms: 8000 };
    let document = |pages, problem| {
        let document = Some(Document { pages, problem });
        golden(35, Kind::Reply, &SummarizeDone { document }, b"")
    };
    vec![
        request("a.csv", None),
        request("/data/b/c.csv", Some("cp1252")),
        reply(whole),
        reply(least),
        golden(35, Kind::Summarize, &page, b""),
        document(7, None),
        document(1, Some(PageProblem::NoSuchPage)),
    ]
}

/// The messages of programs that ask for calls of tools.
fn of_asks() -> Vec<String> {
    let ask = |again, paused| golden(1, Kind::Ask, &Ask { run: 7, again, paused }, b"{}");
    vec![
        ask(false, false),
        ask(true, true),
        golden(1, Kind::Withdraw, &Withdraw {}, b""),
        golden(36, Kind::Pause, &Pause { ask: 1, over: false }, b""),
        golden(37, Kind::Answer, &Answer { ask: 1 }, b"{}"),
    ]
}

const PEEKED: PeekDone = PeekDone { stdout_total: 300, stderr_total: 4, stdout: 6, loading: false };

#[test]
fn every_message_has_the_form_that_it_always_had() {
    let stamp = Stamp { ino: 1, size: 2, mtime_ns: 3, ctime_ns: -4 };
    let captured = Captured { head: 1, tail: 2, total: 300 };
    let done = |end| RunDone {
        end,
        start: Start::Fork,
        elapsed_us: 1,
        agent_us: 6,
        cpu_us: 2,
        oom_kills: 3,
        stdout: captured,
        stderr: captured,
        changed_len: 4,
        changed_omitted: 5,
        facts: Facts::default(),
        cell: None,
    };
    let facts = every_fact();
    let path = || "a/é.csv".to_owned();
    let output = |stream| Output { run: 7, stream, offset: 1, len: 2 };
    let run = Run {
        runtime: RuntimeName::PYTHON,
        code_len: 1,
        has_stdin: true,
        timeout_ms: 2,
        output_cap: 3,
        cell: false,
    };
    let problems = vec!["no such module".to_owned()];
    let piece = PackagePiece { upload: 2, path: path(), offset: 0, len: 5, last: true };
    let install = Install { pieces: vec![piece] };
    let lines = [
        format!("version {PROTOCOL_VERSION}"),
        golden(0, Kind::Hello, &hello(None, None), b""),
        golden(0, Kind::Hello, &hello(Some(vec!["numpy".into()]), Some(5)), b""),
        golden(0, Kind::Hello, &AgentHello { version: 1, max_body: 2, max_uploads: 3 }, b""),
        golden(7, Kind::Run, &run, b"1in"),
        golden(
            19,
            Kind::Run,
            &Run { runtime: RuntimeName::BASH, cell: true, ..run.clone() },
            b"1in",
        ),
        golden(8, Kind::Kill, &Kill { run: 7 }, b""),
        golden(
            9,
            Kind::Put,
            &Put { upload: 1, path: path(), offset: 2, last: true, overwrite: false },
            b"bytes",
        ),
        golden(10, Kind::Get, &Get { path: path(), offset: 1, len: 2, of: None }, b""),
        golden(10, Kind::Get, &Get { path: path(), offset: 1, len: 2, of: Some(24) }, b""),
        golden(24, Kind::Call, &Call { timeout_ms: 1, fuel: Some(2), output_cap: 3 }, b"{}"),
        golden(24, Kind::Call, &Call { timeout_ms: 1, fuel: None, output_cap: 3 }, b"{}"),
        golden(25, Kind::Forget, &Forget { call: 24 }, b""),
        golden(11, Kind::List, &List { after: Some(path()), within: Some(path()) }, b""),
        golden(12, Kind::List, &List { after: None, within: None }, b""),
        golden(13, Kind::Ping, &Ping {}, b""),
        golden(14, Kind::Warm, &Warm {}, b""),
        golden(15, Kind::Hibernate, &Hibernate { keep: false }, b""),
        golden(15, Kind::Hibernate, &Hibernate { keep: true }, b""),
        golden(15, Kind::Reply, &HibernateDone { kept: false }, b""),
        golden(15, Kind::Reply, &HibernateDone { kept: true }, b""),
        golden(16, Kind::Output, &output(Stream::Stdout), b""),
        golden(17, Kind::Output, &output(Stream::Stderr), b""),
        golden(18, Kind::Peek, &Peek { run: 7, stdout: 8, stderr: 9 }, b""),
        golden(19, Kind::Abandon, &Abandon { upload: 1 }, b""),
        golden(20, Kind::Install, &install, b"bytes"),
        golden(7, Kind::Reply, &done(End::Exited { code: -1 }), b"out"),
        golden(7, Kind::Reply, &done(End::Signaled { signal: 9 }), b""),
        golden(7, Kind::Reply, &done(End::OutOfMemory), b""),
        golden(7, Kind::Reply, &done(End::TimedOut), b""),
        golden(7, Kind::Reply, &done(End::Killed), b""),
        golden(7, Kind::Reply, &RunDone { facts, ..done(End::TimedOut) }, b""),
        golden(8, Kind::Reply, &Empty {}, b""),
        golden(13, Kind::Reply, &Pong::default(), b""),
        golden(13, Kind::Reply, &Pong { memory_bytes: Some(159_000_000), ..Pong::default() }, b""),
        golden(9, Kind::Reply, &PutDone { replaced: true }, b""),
        golden(10, Kind::Reply, &GetDone { stamp }, b"bytes"),
        golden(16, Kind::Reply, &OutputDone { total: 300, kept: 200 }, b"bytes"),
        golden(18, Kind::Reply, &PEEKED, b"newest line"),
        golden(14, Kind::Reply, &WarmDone { ready: true, problems, went_on: None }, b""),
        went_on(),
        golden(
            11,
            Kind::Reply,
            &ListDone { more: false, cut: false },
            &serde_json::to_vec(&[FileEntry { path: path(), stamp }]).expect("serializes"),
        ),
        failures(),
    ];
    let of_workspaces = of_workspaces(captured, &done(End::TimedOut));
    let rest = [of_variables(), of_holding(), of_summaries(), of_asks()].concat();
    let lines = [&lines[..], &of_workspaces, &rest];
    let lines = lines.concat().join("\n");
    for kind in Kind::ALL {
        // The byte after the length and the call.
        let byte = Some(format!("{:02x}", *kind as u8));
        let has_one = lines.lines().any(|line| line.get(16..18) == byte.as_deref());
        assert!(has_one, "no message of kind {kind:?}");
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn the_version_is_read_from_a_hello_of_any_other() {
    let hellos = [
        r#"{"version":3,"max_body":1048576,"max_uploads":32}"#,
        r#"{"version":3,"silence_limit_ms":45000,"preload":null}"#,
        r#"{"version":3,"all":["that"],"may":{"come":null}}"#,
    ];
    for hello in hellos {
        let version: PeerVersion = serde_json::from_str(hello).expect(hello);
        assert_eq!(version, PeerVersion { version: 3 });
    }
}

#[test]
fn a_pong_and_an_empty_reply_are_read_as_each_other() {
    let older: Pong = serde_json::from_str("{}").expect("an agent that says nothing of memory");
    assert_eq!(older, Pong::default());
    let newer = serde_json::to_string(&Pong { memory_bytes: Some(7), ..Pong::default() })
        .expect("serializes");
    serde_json::from_str::<Empty>(&newer).expect("a server that wants nothing of it");
}
