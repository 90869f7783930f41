//! Outputs of programs besides the result: the rest of an output that was cut, and output that is being written now.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{sync::Arc, time::Duration};

use backend::{Backend, docker::Docker, local::Local};
use config::{Config, Tracebacks};
use llm_sandbox::{
    error::{Error, Result},
    progress::Progress,
    session::RunReport,
    sessions::{
        List, Options, OutputPart, Program, ReadOutput, RuntimeName, Sessions, Stream, Upload,
    },
};
use model::{DataPath, Existing, SessionId};
use protocol::message::Start;
use support::{On, PATIENCE, name, on_both};
use tokio::{sync::watch, time::timeout};

/// One session of a registry that only this test uses.
struct Bench {
    sessions: Sessions,
    id: SessionId,
}

impl Bench {
    fn start(on: On, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        if let Ok(image) = std::env::var("SANDBOX_IMAGE") {
            config.image = image;
        }
        change(&mut config);
        let backend: Arc<dyn Backend> = match on {
            On::Local => Arc::new(Local::new().unwrap()),
            On::Docker => Arc::new(Docker::new(&config.image, config.runtime.as_deref())),
            _ => unreachable!("it is asked of these alone"),
        };
        Self {
            sessions: Sessions::new(config, backend, Options::default()),
            id: name("outputs").parse().unwrap(),
        }
    }

    async fn try_run(&self, code: &str, progress: Option<watch::Sender<Progress>>) -> RunReport {
        let code = code.to_owned();
        let program = Program::new(RuntimeName::PYTHON, code, Duration::from_secs(60));
        let program = Program { progress, ..program };
        let (_, report) = soon(self.sessions.run(Some(self.id.clone()), program)).await;
        report.unwrap()
    }

    /// Runs code that must succeed.
    async fn run(&self, code: &str) -> RunReport {
        let report = self.try_run(code, None).await;
        assert_eq!(report.exit_code, 0, "{}", report.stderr.text);
        report
    }

    async fn read(&self, run: &str, stream: Stream, offset: u64, len: usize) -> Result<OutputPart> {
        soon(self.sessions.perform(
            &self.id,
            ReadOutput { run_id: run.to_owned(), stream, offset: Some(offset), len },
        ))
        .await
    }

    /// The whole kept output, read in pieces of `len` bytes, and the total length of the output.
    async fn read_all(&self, run: &str, stream: Stream, len: usize) -> (Vec<u8>, u64) {
        let mut all = vec![];
        loop {
            let part = self.read(run, stream, all.len() as u64, len).await.unwrap();
            assert_eq!(part.offset, all.len() as u64);
            if part.bytes.is_empty() {
                assert_eq!(part.kept, part.offset);
                return (all, part.total);
            }
            all.extend_from_slice(&part.bytes);
        }
    }

    async fn end(self) {
        assert!(soon(self.sessions.host().shutdown()).await);
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("in time")
}

on_both! {
    what_was_cut_from_an_output_can_be_read_on,
    only_the_last_four_are_kept,
    a_traceback_is_short_and_all_of_it_can_be_read,
    a_traceback_is_whole_where_the_settings_say_so,
    output_is_seen_while_the_program_runs,
    ; on docker alone:
    kept_output_is_seen_nowhere_and_counts_in_the_quota,
    an_upload_takes_the_room_of_what_is_only_kept,
    a_full_disk_keeps_what_fits_and_never_holds_up_the_run,
}

async fn what_was_cut_from_an_output_can_be_read_on(on: On) {
    let bench = Bench::start(on, |config| config.max_output = 10_000);
    let code = "for n in range(100_000): print('é', n)";
    let report = bench.run(code).await;
    let whole = (0..100_000).fold(String::new(), |text, n| text + &format!("é {n}\n"));
    let total = whole.len() as u64;
    let (run, stdout) = (report.run_id.as_str(), &report.stdout);
    assert!(stdout.truncated && stdout.total == total);
    assert!(stdout.head <= 6_000 && stdout.head > 5_980, "three fifths, in whole lines");
    let is_whole = |line: &str| line.starts_with("é ") || line.starts_with("[... ");
    assert!(stdout.text.lines().all(is_whole));
    assert_eq!((report.stderr.truncated, report.stderr.total, report.stderr.head), (false, 0, 0));

    // From the cut on, which splits no character.
    let part = bench.read(run, Stream::Stdout, stdout.head, 4_000).await.unwrap();
    let head = usize::try_from(stdout.head).unwrap();
    assert_eq!(part.bytes, whole.as_bytes()[head..head + 4_000]);
    assert_eq!((part.total, part.kept), (total, total));
    let (all, _) = bench.read_all(run, Stream::Stdout, usize::MAX).await;
    assert!(all == whole.as_bytes());

    for (run, stream) in [(run, Stream::Stderr), ("run_\u{1b}[2J", Stream::Stdout)] {
        let error = bench.read(run, stream, 0, 10).await.unwrap_err();
        assert!(matches!(error, Error::OutputNotKept(_)) && error.code() == "not_found");
        assert!(!error.to_string().contains('\u{1b}'));
    }
    let other = SessionId::mint();
    let nobody = bench.sessions.perform(
        &other,
        ReadOutput { run_id: run.to_owned(), stream: Stream::Stdout, offset: Some(0), len: 1 },
    );
    assert_eq!(soon(nobody).await.unwrap_err().code(), "session_not_found");
    bench.end().await;
}

const FAILS_IN_A_LIBRARY: &str = "import json\njson.loads('x')";

async fn a_traceback_is_short_and_all_of_it_can_be_read(on: On) {
    let bench = Bench::start(on, |_| {});
    let report = bench.try_run(FAILS_IN_A_LIBRARY, None).await;
    let short = &report.stderr.text;
    assert!(short.contains("    json.loads('x')\n"), "{short}");
    assert!(
        short.contains("  [2 library frames]\n") && short.contains("in raw_decode\n"),
        "{short}"
    );
    assert!(
        short.trim_end().ends_with("JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
    );
    let (whole, total) = bench.read_all(report.run_id.as_str(), Stream::Stderr, 100).await;
    let whole = String::from_utf8(whole).unwrap();
    assert_eq!(whole.len() as u64, total);
    assert_eq!(whole.matches("  File \"").count(), 4, "{whole}");

    let report = bench.try_run("1 / 0", None).await;
    let none = bench.read(report.run_id.as_str(), Stream::Stderr, 0, 1).await.unwrap_err();
    assert!(matches!(none, Error::OutputNotKept(_)), "it was not shortened");
    bench.end().await;
}

async fn a_traceback_is_whole_where_the_settings_say_so(on: On) {
    let bench = Bench::start(on, |config| config.tracebacks = Tracebacks::Full);
    let stderr = bench.try_run(FAILS_IN_A_LIBRARY, None).await.stderr.text;
    assert_eq!(stderr.matches("  File \"").count(), 4, "{stderr}");
    bench.end().await;
}

async fn only_the_last_four_are_kept(on: On) {
    let bench = Bench::start(on, |config| config.max_output = 1_000);
    let mut runs = vec![];
    for n in 0..5 {
        let report = bench.run(&format!("print('{n}' * 2_000)")).await;
        bench.run("print('not cut')").await;
        runs.push(report.run_id.as_str().to_owned());
    }
    let oldest = bench.read(&runs[0], Stream::Stdout, 0, 1).await;
    assert!(matches!(oldest, Err(Error::OutputNotKept(_))), "{oldest:?} of {runs:?}");
    for (n, run) in runs.iter().enumerate().skip(1) {
        let part = bench.read(run, Stream::Stdout, 1_999, 1).await.unwrap();
        assert_eq!(part.bytes, n.to_string());
    }
    bench.end().await;
}

async fn output_is_seen_while_the_program_runs(on: On) {
    let bench = Bench::start(on, |_| {});
    let (progress, mut seen) = watch::channel(Progress::default());
    let code = "import os, sys, time\n\
                print('first', flush=True)\n\
                while not os.path.exists('go'): time.sleep(0.01)\n\
                sys.stderr.write('\\r  0%|   |\\r 50%|#  |'); sys.stderr.flush()\n\
                while not os.path.exists('on'): time.sleep(0.01)";
    let watching = async {
        assert!(!seen.borrow().started);
        soon(seen.wait_for(|progress| progress.started)).await.unwrap();
        let first = soon(seen.wait_for(|progress| progress.written > 0)).await.unwrap();
        assert_eq!((first.lines.newest(), first.written), ("first", 6));
        drop(first);
        upload(&bench, "go").await;
        let bar = soon(seen.wait_for(|progress| progress.written > 6)).await.unwrap();
        assert_eq!((bar.bar.as_str(), bar.lines.newest(), bar.written), ("50%|#  |", "first", 26));
        drop(bar);
        upload(&bench, "on").await;
        soon(seen.wait_for(|_| false)).await.map(drop).expect_err("over when the run is");
    };
    let (report, ()) = tokio::join!(bench.try_run(code, Some(progress)), watching);
    assert_eq!((report.exit_code, report.stdout.text.as_str()), (0, "first\n"));
    bench.end().await;
}

async fn upload(bench: &Bench, name: &str) {
    let path = DataPath::relative(name).unwrap();
    let id = Some(bench.id.clone());
    soon(
        bench.sessions.perform_or_create(
            id,
            Upload { path, content: vec![].into(), existing: Existing::Keep },
        ),
    )
    .await
    .1
    .unwrap();
}

/// Code that prints how much of the data area is free, and what the program sees of it and in it.
const LOOK: &str = "import os\n\
    free = os.statvfs('.')\n\
    print(free.f_bavail * free.f_frsize, os.listdir('.'))\n\
    for fd in os.listdir('/proc/self/fd'):\n\
    \x20   try: name = os.readlink('/proc/self/fd/' + fd)\n\
    \x20   except FileNotFoundError: continue\n\
    \x20   assert 'mnt' not in name and 'deleted' not in name, name\n\
    try: print(os.listdir('/proc/1/fd'))\n\
    except PermissionError: pass";

async fn kept_output_is_seen_nowhere_and_counts_in_the_quota() {
    for preload in [None, Some(vec![])] {
        let is_forked = preload.is_some();
        let bench = Bench::start(On::Docker, |config| {
            config.max_output = 10_000;
            config.data_limit = 32 << 20;
            config.preload = preload;
        });
        // The output that is kept by then must not be among the descriptors of a new process.
        bench.run("print('small' * 10_000)").await;
        soon(async { while (bench.run("pass").await.start != Start::Cold) != is_forked {} }).await;
        let before = bench.run(LOOK).await.stdout.text;
        let cut = bench.run("import sys\nsys.stdout.write('x' * (2 << 20))").await;
        assert!(cut.artifacts.is_empty());
        let after = bench.run(LOOK).await.stdout.text;
        let free = |seen: &str| {
            let seen = seen.strip_suffix(" []\n").unwrap_or_else(|| panic!("{seen}"));
            seen.parse::<u64>().unwrap()
        };
        let used = free(&before) - free(&after);
        assert!((2 << 20..3 << 20).contains(&used), "{used} bytes");
        assert!(soon(bench.sessions.perform(&bench.id, List)).await.unwrap().artifacts.is_empty());
        let (all, _) = bench.read_all(cut.run_id.as_str(), Stream::Stdout, usize::MAX).await;
        assert!(all.len() == 2 << 20 && all.iter().all(|byte| *byte == b'x'));

        // A larger output is kept up to an eighth of 32 MiB: 4 MiB.
        let cut = bench.run("import sys\nsys.stdout.write('y' * (5 << 20))").await;
        let (all, total) = bench.read_all(cut.run_id.as_str(), Stream::Stdout, usize::MAX).await;
        assert!(all.len() == 4 << 20 && all.iter().all(|byte| *byte == b'y') && total == 5 << 20);
        bench.end().await;
    }
}

async fn an_upload_takes_the_room_of_what_is_only_kept() {
    let bench = Bench::start(On::Docker, |config| {
        config.max_output = 10_000;
        config.data_limit = 16 << 20;
        config.max_upload = 16 << 20;
    });
    let cut = bench.run("import sys\nsys.stdout.write('x' * (2 << 20))").await;
    let run = cut.run_id.as_str();
    assert_eq!(bench.read(run, Stream::Stdout, 0, 1).await.unwrap().kept, 2 << 20);
    let path = DataPath::relative("large").unwrap();
    let content = vec![7; 15 << 20];
    let id = Some(bench.id.clone());
    let (_, done) =
        soon(bench.sessions.perform_or_create(
            id,
            Upload { path, content: content.into(), existing: Existing::Keep },
        ))
        .await;
    assert_eq!(done.unwrap().size_bytes, 15 << 20);
    let report = bench.run("data = open('large', 'rb').read()\nprint(len(data), set(data))").await;
    assert_eq!(report.stdout.text, format!("{} {{7}}\n", 15 << 20));
    let gone = bench.read(run, Stream::Stdout, 0, 1).await;
    assert!(matches!(gone, Err(Error::OutputNotKept(_))));
    bench.end().await;
}

async fn a_full_disk_keeps_what_fits_and_never_holds_up_the_run() {
    let bench = Bench::start(On::Docker, |config| {
        config.max_output = 10_000;
        config.data_limit = 16 << 20;
    });
    // Fills the data area up to `room` bytes, and then prints a mebibyte.
    let code = |room: u64| {
        format!(
            "import os, sys\n\
             with open('filler', 'wb', buffering=0) as f:\n\
             \x20   try:\n\
             \x20       while True: f.write(bytes(4096))\n\
             \x20   except OSError: pass\n\
             \x20   f.truncate(f.tell() // 4096 * 4096 - {room})\n\
             sys.stdout.write('x' * (1 << 20))\n"
        )
    };
    let report = bench.run(&code(300 << 10)).await;
    assert!(report.stdout.truncated && report.stdout.total == 1 << 20);
    let run = report.run_id.as_str();
    let (some, total) = bench.read_all(run, Stream::Stdout, usize::MAX).await;
    assert!(some.iter().all(|byte| *byte == b'x') && total == 1 << 20);
    assert!((200 << 10..=300 << 10).contains(&some.len()), "{} bytes", some.len());

    // There is no room for any output; the run succeeds, and the output that was kept before does not change.
    let report = bench.run(&code(0)).await;
    assert_eq!(report.stdout.total, 1 << 20);
    let nothing = bench.read(report.run_id.as_str(), Stream::Stdout, 0, 10).await;
    assert!(nothing.map_or(true, |part| part.kept == 0 && part.bytes.is_empty()));
    let (still, _) = bench.read_all(run, Stream::Stdout, usize::MAX).await;
    assert_eq!(still.len(), some.len());

    // There is room again: the next output is kept whole.
    let report = bench.run("import os\nos.remove('filler')\nprint('x' * 20_000)").await;
    let (all, _) = bench.read_all(report.run_id.as_str(), Stream::Stdout, usize::MAX).await;
    assert_eq!(all.len(), 20_001);
    bench.end().await;
}
