//! Cells in JavaScript and in the shell: what they keep, what ends them, and what they can break.
//!
//! The tests speak to the agent over links of their own, as a session does, to see each answer whole.

use std::{sync::Arc, time::Duration};

use backend::{self, Backend, Sandbox, Spec};
use config::{Config, Engine};
use link::{
    CapturedOutput, CellReply, Link, LinkOwner, Opening, RunReply, RunRequest, Stream, Timing,
};
use model::SessionId;
use protocol::message::{CellState, Contents, End, Reset, RuntimeName, Start};
use support::{On, PATIENCE, name, on_both};
use tokio::time::timeout;

/// A sandbox, and a link to its agent.
struct Bench {
    link: Link,
    _owner: LinkOwner,
    _sandbox: Sandbox,
    _backend: Arc<dyn Backend>,
    language: RuntimeName,
}

/// The result of a cell.
struct Ran {
    reply: RunReply,
    cell: CellReply,
}

impl Bench {
    async fn of(on: On, language: RuntimeName) -> Self {
        Self::with(on, language, None).await
    }

    async fn with(on: On, language: RuntimeName, preload: Option<Vec<String>>) -> Self {
        let engine = match on {
            On::Local => Engine::Local,
            On::Docker => Engine::Docker,
            _ => unreachable!("it is asked of these alone"),
        };
        let mut config = Config { engine, ..Config::default() };
        if let Ok(image) = std::env::var("SANDBOX_IMAGE") {
            config.image = image;
        }
        let backend = backend::factory::of(&config).expect("a backend");
        let session: SessionId = name("javascript").parse().expect("a name");
        let mut sandbox = backend
            .start(Spec::new(&config, &session, &model::OwnSettings::default()))
            .await
            .expect("a sandbox starts");
        let reader = std::mem::replace(&mut sandbox.reader, Box::new(tokio::io::empty()));
        let writer = std::mem::replace(&mut sandbox.writer, Box::new(tokio::io::sink()));
        let opening = Opening { preload, undo: Some(5), ..Opening::default() };
        let connected = Link::connect(Stream { reader, writer }, Timing::default(), opening);
        let (link, owner) = connected.await.expect("an agent answers");
        Self { link, _owner: owner, _sandbox: sandbox, _backend: backend, language }
    }

    async fn javascript(on: On) -> Self {
        Self::of(on, RuntimeName::JAVASCRIPT).await
    }

    fn request(&self, code: &str, seconds: u64) -> RunRequest {
        RunRequest {
            runtime: self.language.clone(),
            code: code.to_owned().into(),
            stdin: None,
            timeout: Duration::from_secs(seconds),
            output_cap: 100_000,
            cell: true,
        }
    }

    async fn ask(&self, request: RunRequest) -> Ran {
        let running = self.link.run(request).await.expect("sent");
        let reply = timeout(PATIENCE, running.finish()).await.expect("in time").expect("answered");
        let cell = reply.cell.clone().expect("it was a cell");
        Ran { reply, cell }
    }

    /// Runs a cell.
    async fn cell(&self, code: &str) -> Ran {
        self.ask(self.request(code, 30)).await
    }

    /// Runs a cell that does not end by itself.
    async fn endless(&self, code: &str) -> Ran {
        self.ask(self.request(code, 1)).await
    }

    /// Runs a cell that must succeed; returns its result.
    async fn result(&self, code: &str) -> String {
        let ran = self.cell(code).await;
        assert_eq!(ran.reply.end, End::Exited { code: 0 }, "{code}: {}", ran.stderr());
        ran.result()
    }

    /// Runs a cell that must fail; returns its standard error.
    async fn failure(&self, code: &str) -> String {
        let ran = self.cell(code).await;
        assert_eq!(ran.reply.end, End::Exited { code: 1 }, "{code}: {}", ran.result());
        assert_eq!(ran.cell.state, CellState::Kept);
        ran.stderr()
    }

    async fn inspect(&self) -> Contents {
        self.link.inspect(self.language.clone()).await.expect("told").1
    }
}

impl Ran {
    fn stdout(&self) -> String {
        text(&self.reply.stdout)
    }

    fn stderr(&self) -> String {
        text(&self.reply.stderr)
    }

    fn result(&self) -> String {
        self.cell.result.as_ref().map_or_else(String::new, text)
    }
}

fn text(output: &CapturedOutput) -> String {
    String::from_utf8_lossy(&[&output.head[..], &output.tail].concat()).into_owned()
}

on_both!(
    what_a_cell_declares_is_there_in_the_next_and_can_be_declared_again,
    the_value_of_the_last_expression_is_shown_as_node_shows_it,
    modules_are_had_by_require_and_import,
    both_outputs_are_the_cells_own,
    an_error_names_the_line_of_its_cell,
    what_nobody_catches_is_told_and_the_variables_stay,
    a_blocked_cell_is_lost_with_its_variables,
    a_killed_interpreter_is_lost,
    a_first_cell_that_dies_has_lost_nothing,
    a_cell_that_breaks_its_realm_harms_itself_only,
    what_all_objects_inherit_does_not_stand_in_the_way,
    an_interpreter_that_can_run_no_more_cells_is_lost_and_says_so,
    a_kernel_that_a_program_beside_it_has_killed_is_not_the_next_cells_fault,
    a_cell_ends_when_it_is_done_and_not_when_another_was,
    standard_input_is_the_cells_own,
    what_was_begun_with_files_is_done_when_the_cell_ends,
    an_inspection_names_variables_and_modules,
    a_reset_begins_anew,
    a_spare_waits_from_the_first_cell_on_where_there_is_room,
    a_program_is_a_new_process,
    the_shells_folder_carries_over,
    workspaces_do_not_meet,
    // The first five tests interrupt code. Plain processes use the machine's Node; a version before 24 is lost together
    // with the code that awaits.
    ; on docker alone:
    a_signal_to_itself_is_a_signal_and_no_more,
    what_a_cell_has_left_does_not_fail_a_later_one,
    cells_may_be_cancelled_at_any_moment,
    an_endless_cell_is_interrupted_and_the_variables_stay,
    a_cell_may_exit_and_the_variables_stay,
    children_end_with_their_cell,
    nothing_runs_between_cells,
    a_cell_without_bounds_takes_its_own_interpreter,
    the_image_has_node_on_its_path,
);

async fn what_a_cell_declares_is_there_in_the_next_and_can_be_declared_again(on: On) {
    let bench = Bench::javascript(on).await;
    let first =
        bench.cell("let a = 1; const b = 2; class C { x = 3 } function f() { return a }").await;
    assert!(first.cell.fresh);
    assert_eq!((first.cell.state, first.cell.count), (CellState::Kept, 1));
    let second = bench.cell("let a = 40; const b = 2; f() + b").await;
    assert_eq!(second.result(), "42");
    assert!(!second.cell.fresh);
    assert_eq!(second.cell.count, 2);
    assert_eq!(bench.result("class C { x = 4 }\nnew C().x").await, "4");
    assert_eq!(
        bench.result("const late = await new Promise(r => setTimeout(r, 20, 7)); late").await,
        "7"
    );
    assert_eq!(
        bench.result("async function main() { await null; return 'done' }\nmain()").await,
        "'done'"
    );
}

async fn the_value_of_the_last_expression_is_shown_as_node_shows_it(on: On) {
    let bench = Bench::javascript(on).await;
    for (code, shown) in [
        ("1 + 1", "2"),
        ("'text'", "'text'"),
        ("undefined", ""),
        ("let a = 1", ""),
        ("null", "null"),
        ("10n ** 20n", "100000000000000000000n"),
        ("-0", "-0"),
        ("Symbol('s')", "Symbol(s)"),
        ("({ a: 1, get b() { throw new Error() } })", "{ a: 1, b: [Getter] }"),
        ("[1, 'two', [3]]", "[ 1, 'two', [ 3 ] ]"),
        ("new Map([[1, new Set([2])]])", "Map(1) { 1 => Set(1) { 2 } }"),
        ("new (class Point { x = 1 })", "Point { x: 1 }"),
        ("(function named() {})", "[Function: named]"),
        ("new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 } })", "{}"),
        ("Buffer.from('ab')", "<Buffer 61 62>"),
    ] {
        assert_eq!(bench.result(code).await, shown, "{code}");
    }
    let long = bench.cell("'a'.repeat(9000) + 'ü'.repeat(30000)").await;
    let result = long.cell.result.clone().expect("one");
    assert!(result.head.len() + result.tail.len() <= 32 << 10 && result.total > 10_000);
}

async fn modules_are_had_by_require_and_import(on: On) {
    let bench = Bench::javascript(on).await;
    bench.result("require('fs').writeFileSync('one.js', 'exports.value = 41')").await;
    bench
        .result("require('fs').writeFileSync('two.mjs', 'export default 42; export const x = 1')")
        .await;
    assert_eq!(bench.result("require('./one').value").await, "41");
    assert_eq!(bench.result("(await import('./two.mjs')).default").await, "42");
    let statements = "import two, { x as y } from './two.mjs'\nimport * as path from 'node:path'\n\
                      console.log(\"import('nothing')\")\ntwo + y + path.sep";
    let ran = bench.cell(statements).await;
    assert_eq!((ran.result().as_str(), ran.stdout().as_str()), ("'43/'", "import('nothing')\n"));
    assert!(bench.failure("require('nowhere')").await.contains("Cannot find module 'nowhere'"));
    assert_eq!(bench.result("require.main === module").await, "true");
}

async fn both_outputs_are_the_cells_own(on: On) {
    let bench = Bench::javascript(on).await;
    let ran = bench
        .cell("console.log('a', { b: 1 }); console.error('c'); process.stdout.write('d')")
        .await;
    assert_eq!((ran.stdout().as_str(), ran.stderr().as_str()), ("a { b: 1 }\nd", "c\n"));
    let ran = bench.cell("for (let i = 1000; i < 4000; i++) console.log(i + 'x'.repeat(95))").await;
    assert_eq!(ran.reply.stdout.total, 300_000);
    assert_eq!(bench.cell("1").await.reply.stdout.total, 0);
}

async fn an_error_names_the_line_of_its_cell(on: On) {
    let bench = Bench::javascript(on).await;
    bench.result("function outer(x) {\n  return x.y\n}").await;
    let told = bench.failure("\n\nouter(null)").await;
    let frames = ["at outer (cell-1:2:12)", "at cell-2:3:1"];
    assert!(told.starts_with("cell-2:3\nouter(null)\n^\n\nTypeError: "), "{told}");
    assert!(frames.iter().all(|frame| told.contains(frame)), "{told}");
    assert!(!told.contains("node:inspector") && !told.contains("kernel"), "{told}");
    let told = bench.failure("let x = 1\nlet ( = 2").await;
    assert!(told.starts_with("cell-3:2\nlet ( = 2\n"), "{told}");
    assert!(told.contains("SyntaxError: "), "{told}");
    assert!(bench.failure("throw 'text'").await.contains("Uncaught 'text'"));
    assert!(bench.failure("await Promise.reject(new Error('late'))").await.contains("Error: late"));
}

async fn what_nobody_catches_is_told_and_the_variables_stay(on: On) {
    let bench = Bench::javascript(on).await;
    bench.result("let kept = 1").await;
    let timer = "setTimeout(() => { throw new Error('of a timer') }); await new Promise(r => setTimeout(r, 30))";
    assert!(bench.failure(timer).await.contains("Error: of a timer"));
    let rejection =
        "Promise.reject(new Error('of a promise')); await new Promise(r => setTimeout(r, 10))";
    assert!(bench.failure(rejection).await.contains("Error: of a promise"));
    assert_eq!(bench.result("kept").await, "1");
}

/// Code that never ends, but can be interrupted.
const ENDLESS: [&str; 10] = [
    "while (true);",
    "await new Promise(() => {})",
    "await 0; while (true);",
    "setTimeout(() => { while (true); }); await new Promise(() => {})",
    "/(a+)+b/.test('a'.repeat(50))",
    "for (;;) try { while (true); } finally { continue }",
    "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "async function f() { for (;;) await null } await f()",
    "(function next() { process.nextTick(next) })(); await new Promise(() => {})",
    "while (true) console.log('x'.repeat(1000))",
];

async fn an_endless_cell_is_interrupted_and_the_variables_stay() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let kept = 0").await;
    for code in ENDLESS {
        let ran = bench.endless(&format!("kept += 1; {code}")).await;
        assert_eq!((ran.reply.end, ran.cell.state), (End::TimedOut, CellState::Kept), "{code}");
    }
    assert_eq!(bench.result("kept").await, ENDLESS.len().to_string());
}

async fn a_blocked_cell_is_lost_with_its_variables(on: On) {
    let bench = Bench::javascript(on).await;
    bench.result("let kept = 1").await;
    let ran = bench.endless("require('child_process').execSync('sleep 1000')").await;
    assert_eq!((ran.reply.end, ran.cell.state), (End::TimedOut, CellState::Lost));
    let ran = bench.cell("typeof kept").await;
    assert_eq!((ran.result().as_str(), ran.cell.fresh, ran.cell.count), ("'undefined'", true, 1));
}

async fn a_cell_may_exit_and_the_variables_stay() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let kept = 1").await;
    for code in [
        "console.log('before'); process.exit(3); console.log('after')",
        "await new Promise(() => { setTimeout(() => process.exit(3)) })",
    ] {
        let ran = bench.cell(code).await;
        assert_eq!((ran.reply.end, ran.cell.state), (End::Exited { code: 3 }, CellState::Kept));
        assert!(!ran.stdout().contains("after"));
        assert_eq!(bench.result("kept").await, "1");
    }
    assert_eq!(bench.cell("process.exit()").await.reply.end, End::Exited { code: 0 });
    let ran = bench.endless("while (true);").await;
    assert_eq!((ran.reply.end, ran.cell.state), (End::TimedOut, CellState::Kept));
    assert_eq!(bench.result("kept").await, "1");
}

async fn a_killed_interpreter_is_lost(on: On) {
    let bench = Bench::javascript(on).await;
    for (code, end) in [
        ("process.kill(process.pid, 'SIGKILL')", End::Signaled { signal: 9 }),
        ("process.abort()", End::Signaled { signal: 6 }),
    ] {
        bench.result("let kept = 1").await;
        let ran = bench.cell(code).await;
        assert_eq!((ran.reply.end, ran.cell.state), (end, CellState::Lost), "{code}");
        assert_eq!(bench.result("typeof kept").await, "'undefined'");
    }
}

async fn a_first_cell_that_dies_has_lost_nothing(on: On) {
    let bench = Bench::javascript(on).await;
    let ran = bench.cell("process.kill(process.pid, 'SIGKILL')").await;
    assert_eq!((ran.cell.state, ran.cell.count), (CellState::RolledBack, 0));
}

async fn a_cell_that_breaks_its_realm_harms_itself_only(on: On) {
    for harm in [
        "console = null",
        "Promise.prototype.then = () => { throw 1 }",
        "JSON.stringify = JSON.parse = null; Object.prototype.toJSON = () => 1",
        "Object.prototype.get = 5; Object.prototype.then = 5",
        "Error.prepareStackTrace = () => { throw 1 }",
        "Array.prototype.map = Array.prototype.some = null; Buffer.from = null",
        "for (const name of Object.getOwnPropertyNames(globalThis)) delete globalThis[name]",
        "process.emit = process.exit = process.cpuUsage = null; Reflect.apply = null",
        "require('fs').closeSync(1)",
        "for (let fd = 3; fd < 40; fd++) try { require('fs').closeSync(fd) } catch {}",
        "for (let fd = 3; fd < 40; fd++) try { require('fs').writeSync(fd, 'D{}') } catch {}",
        "process.chdir('/'); process.umask(0o777)",
    ] {
        let bench = Bench::javascript(on).await;
        bench.cell("let kept = 1").await;
        // The cell ends in some way, and so does the next one: each is answered, and a reset helps.
        bench.ask(bench.request(harm, 2)).await;
        bench.ask(bench.request("kept", 2)).await;
        let anew = Reset { runtime: RuntimeName::JAVASCRIPT, undo: None, files: true };
        bench.link.reset(&anew).await.expect("reset");
        assert_eq!(bench.result("typeof kept").await, "'undefined'", "{harm}");
    }
}

async fn a_signal_to_itself_is_a_signal_and_no_more() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let kept = 7").await;
    for signal in ["SIGCONT", "SIGWINCH", "SIGCHLD"] {
        let told = bench.cell(&format!("process.kill(process.pid, '{signal}')")).await;
        assert_eq!((told.result().as_str(), told.stderr().as_str()), ("true", ""), "{signal}");
        assert_eq!(bench.result("kept").await, "7", "after {signal}");
    }
    let heard = "await new Promise(done => { process.once('SIGUSR2', done); process.kill(process.pid, 'SIGUSR2') })";
    assert_eq!(bench.result(heard).await, "'SIGUSR2'");
    // The cell may end before all of its threads are stopped.
    let ran = bench.endless("process.kill(process.pid, 'SIGSTOP')").await;
    assert!(
        matches!(ran.reply.end, End::TimedOut | End::Exited { code: 0 }),
        "{:?}",
        ran.reply.end
    );
    assert_eq!((ran.cell.state, bench.result("kept").await.as_str()), (CellState::Kept, "7"));
    let ran = bench.endless("process.kill(process.pid, 'SIGSTOP'); while (true);").await;
    assert_eq!((ran.reply.end, ran.cell.state), (End::TimedOut, CellState::Kept));
    assert_eq!(bench.result("kept").await, "7");
    let ran = bench.cell("process.kill(process.pid, 'SIGTERM'); while (true);").await;
    assert_eq!((ran.reply.end, ran.cell.state), (End::Signaled { signal: 15 }, CellState::Lost));
}

async fn what_all_objects_inherit_does_not_stand_in_the_way(on: On) {
    let bench = Bench::javascript(on).await;
    bench.result("let kept = 7").await;
    for harm in [
        "Object.prototype.toJSON = () => 1; 0",
        "Array.prototype.toJSON = String.prototype.toJSON = () => 1; 0",
        "JSON.stringify = JSON.parse = null; 0",
        "for (const name of ['id', 'error', 'result', 'exceptionDetails', 'objectId', 'promise', 'thrown'])\n\
         Object.prototype[name] = {}; 0",
        "Array.prototype.some = Array.prototype.push = Array.prototype[Symbol.iterator] = null; 0",
    ] {
        assert_eq!(bench.result(harm).await, "0", "{harm}");
        assert_eq!(bench.result("kept").await, "7", "after {harm}");
        assert!(bench.failure("throw new Error('its own')").await.contains("its own"), "{harm}");
    }
}

async fn an_interpreter_that_can_run_no_more_cells_is_lost_and_says_so(on: On) {
    let bench = Bench::javascript(on).await;
    // Each takes the inspector away, or an object that the kernel's program needs in its realm.
    for harm in [
        "try { process.kill(-process.pid, 'SIGWINCH') } catch {}",
        "try { process.kill(-process.pid, 'SIGWINCH') } catch {}; throw 1",
        "RegExp.prototype.test = null",
    ] {
        bench.result("var kept = 1").await;
        let mut ran = bench.cell(harm).await;
        if ran.cell.state == CellState::Kept {
            ran = bench.cell("kept").await;
        }
        assert_eq!(
            (ran.reply.end, ran.cell.state),
            (End::Exited { code: 1 }, CellState::Lost),
            "{harm}"
        );
        assert!(ran.stderr().contains("can run no more cells"), "{harm}: {}", ran.stderr());
        let ran = bench.cell("typeof kept").await;
        assert_eq!(
            (ran.result().as_str(), ran.cell.fresh, ran.cell.count),
            ("'undefined'", true, 1)
        );
    }
}

async fn a_kernel_that_a_program_beside_it_has_killed_is_not_the_next_cells_fault(on: On) {
    for preload in [None, Some(vec!["json".to_owned()])] {
        let bench = Bench::with(on, RuntimeName::JAVASCRIPT, preload).await;
        for signal in ["SIGKILL", "SIGTERM", "SIGKILL", "SIGTERM"] {
            let kernel = bench.result("var kept = 1; process.pid").await;
            let program = RunRequest {
                runtime: RuntimeName::PYTHON,
                cell: false,
                ..bench
                    .request(&format!("import os, signal; os.kill({kernel}, signal.{signal})"), 30)
            };
            let reply = bench.link.run(program).await.expect("sent").finish().await;
            assert_eq!(reply.expect("answered").end, End::Exited { code: 0 });
            let ran = bench.cell("typeof kept").await;
            assert_eq!(ran.reply.end, End::Exited { code: 0 }, "{signal}: {}", ran.stderr());
            assert_eq!(
                (ran.result().as_str(), ran.cell.fresh, ran.cell.count),
                ("'undefined'", true, 1)
            );
            assert_eq!(ran.cell.state, CellState::Kept);
        }
    }
}

async fn a_cell_ends_when_it_is_done_and_not_when_another_was(on: On) {
    let bench = Bench::javascript(on).await;
    // Messages like a late one of the cell before, and an invalid one.
    let late = "let kept = 7\nfor (let fd = 3; fd < 40; fd++) for (const text of ['D{\"number\":1,\"code\":9,\"cpu_us\":1}\\n', 'D'])\n\
                try { if (fs.readlinkSync(`/proc/self/fd/${fd}`).startsWith('socket:')) fs.writeSync(fd, text) } catch {}";
    bench.cell("0").await;
    let ran = bench.cell(&format!("{late}\n'to the end'")).await;
    assert_eq!(
        (ran.reply.end, ran.result().as_str()),
        (End::Exited { code: 0 }, "'to the end'"),
        "{}",
        ran.stderr()
    );
    assert_eq!(bench.result("kept").await, "7");
}

async fn what_a_cell_has_left_does_not_fail_a_later_one() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let turns = 0; const sleep = ms => new Promise(r => setTimeout(r, ms))").await;
    let left = [
        "for (;;) { await sleep(5); turns += 1; console.log('left over') }",
        "(async () => { await sleep(3); throw new Error('of before') })(); await sleep(1e9)",
        "setTimeout(() => { throw new Error('of before') }, 3); await sleep(1e9)",
        "setTimeout(() => process.exit(9), 3); await sleep(1e9)",
        "setInterval(() => process.exit(9), 3); await sleep(1e9)",
    ];
    for code in left {
        // On a fast machine, the cell is cancelled before any of its effects occur.
        let running = bench.link.run(bench.request(code, 30)).await.expect("sent");
        bench.link.kill(running.call).await.expect("told");
        let reply = timeout(PATIENCE, running.finish()).await.expect("in time").expect("answered");
        assert_eq!(reply.cell.expect("it was a cell").state, CellState::Kept, "{code}");
        assert_eq!(bench.result("await sleep(60); 'done'").await, "'done'", "after {code}");
    }
    // A cancelled cell may still write while another cell runs, but not otherwise.
    assert_eq!(bench.cell("1").await.result(), "1");
    assert!(bench.failure("await sleep(20); throw new Error('its own')").await.contains("its own"));
    assert_eq!(bench.cell("process.exit(3)").await.reply.end, End::Exited { code: 3 });
}

async fn standard_input_is_the_cells_own(on: On) {
    let bench = Bench::javascript(on).await;
    let with = |code: &str, stdin: &'static str| RunRequest {
        stdin: Some(stdin.into()),
        ..bench.request(code, 30)
    };
    let ran = bench.ask(with("require('fs').readFileSync(0, 'utf8')", "one\ntwo\n")).await;
    assert_eq!(ran.result(), "'one\\ntwo\\n'");
    let lines = "const lines = []\nfor await (const line of require('readline').createInterface({ input: process.stdin })) lines.push(line)\nlines";
    assert_eq!(bench.ask(with(lines, "one\ntwo")).await.result(), "[ 'one', 'two' ]");
    assert_eq!(bench.result("require('fs').readFileSync(0, 'utf8')").await, "''");
}

async fn what_was_begun_with_files_is_done_when_the_cell_ends(on: On) {
    let bench = Bench::javascript(on).await;
    let ran = bench
        .cell(
            "const out = fs.createWriteStream('out.txt')\nout.write('x'.repeat(1e6))\nout.end(); 0",
        )
        .await;
    let file = ran.reply.changed.first().expect("it is told");
    assert_eq!((file.path.as_str(), file.stamp.size), ("out.txt", 1_000_000));
}

async fn an_inspection_names_variables_and_modules(on: On) {
    let bench = Bench::javascript(on).await;
    let (done, contents) = bench.link.inspect(bench.language.clone()).await.expect("told");
    assert_eq!((done.live, done.count, contents), (false, 0, Contents::default()));
    bench
        .cell(
            "let list = [1, 2, 3]; const map = new Map([[1, 2]]); var text = 'hello'; function f() {}\n\
             class C {} let o = { a: 1, b: 2 }; let c = new C(); let n = 1; globalThis.own = 1n\n\
             const fs = require('fs'), p = require('path'); let nothing = null, _hidden = 1",
        )
        .await;
    let contents = bench.inspect().await;
    let found: Vec<_> =
        contents.variables.iter().map(|it| format!("{}: {}", it.name, it.summary)).collect();
    for variable in [
        "list: Array 3",
        "map: Map 1",
        "text: string 5",
        "f: function",
        "C: class",
        "o: Object 2",
        "c: C 0",
        "n: number",
        "own: bigint",
        "nothing: null",
    ] {
        assert!(found.iter().any(|it| it == variable), "{variable} in {found:?}");
    }
    assert_eq!(found.len(), 10, "{found:?}");
    assert_eq!(contents.imports, ["fs", "path"]);
    assert_eq!(bench.result("n").await, "1");
}

async fn a_reset_begins_anew(on: On) {
    let bench = Bench::javascript(on).await;
    bench.cell("let kept = 1; fs.writeFileSync('file', '')").await;
    let reset = |undo, files| Reset { runtime: RuntimeName::JAVASCRIPT, undo, files };
    assert!(bench.link.reset(&reset(Some(1), false)).await.is_err(), "there is no undo");
    assert_eq!(bench.result("kept").await, "1");
    let done = bench.link.reset(&reset(None, false)).await.expect("reset");
    assert_eq!((done.count, done.can_undo), (0, 0));
    let ran = bench.cell("[typeof kept, fs.existsSync('file')]").await;
    assert_eq!((ran.result().as_str(), ran.cell.count), ("[ 'undefined', true ]", 1));
    bench.link.reset(&reset(None, true)).await.expect("reset");
    assert_eq!(bench.result("fs.existsSync('file')").await, "false");
}

async fn a_spare_waits_from_the_first_cell_on_where_there_is_room(on: On) {
    let anew = Reset { runtime: RuntimeName::JAVASCRIPT, undo: None, files: false };
    for (preload, second) in [(Some(vec!["json".to_owned()]), Start::Warm), (None, Start::Cold)] {
        let bench = Bench::with(on, RuntimeName::JAVASCRIPT, preload).await;
        assert_eq!(bench.cell("1").await.reply.start, Start::Cold);
        bench.link.reset(&anew).await.expect("reset");
        assert_eq!(bench.cell("1").await.reply.start, second);
    }
}

async fn a_program_is_a_new_process(on: On) {
    let bench = Bench::javascript(on).await;
    bench.cell("var kept = 1").await;
    let program = "console.log(typeof kept, process.cwd() !== '/'); process.exitCode = 4";
    let request = RunRequest { cell: false, ..bench.request(program, 30) };
    let reply = bench.link.run(request).await.expect("sent").finish().await.expect("answered");
    assert_eq!(
        (reply.end, text(&reply.stdout).as_str()),
        (End::Exited { code: 4 }, "undefined true\n")
    );
    assert_eq!(bench.result("kept").await, "1");
}

async fn cells_may_be_cancelled_at_any_moment() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let kept = 7").await;
    for round in 0..40u64 {
        let code = ENDLESS[usize::try_from(round).expect("few") % ENDLESS.len()];
        let running = bench.link.run(bench.request(code, 30)).await.expect("sent");
        // Any moment will do: this waits for nothing in particular.
        tokio::time::sleep(Duration::from_micros(round * 137)).await;
        bench.link.kill(running.call).await.expect("told");
        let reply = timeout(PATIENCE, running.finish()).await.expect("in time").expect("answered");
        let cell = reply.cell.expect("it was a cell");
        assert_eq!((reply.end, cell.state), (End::Killed, CellState::Kept), "{code}");
        assert_eq!(bench.result("kept").await, "7", "after {code}");
    }
}

async fn the_shells_folder_carries_over(on: On) {
    let bench = Bench::of(on, RuntimeName::BASH).await;
    let pwd = async |code: &str| bench.cell(code).await.stdout();
    let start = pwd("pwd").await;
    let ran = bench.cell("mkdir -p a/b && cd a && echo \"[$#]\" && exit 3").await;
    assert_eq!((ran.reply.end, ran.stdout().as_str()), (End::Exited { code: 3 }, "[0]\n"));
    assert_eq!((ran.cell.state, ran.cell.count), (CellState::Kept, 2));
    assert_eq!(pwd("pwd; cd b").await, format!("{}/a\n", start.trim()));
    let ran = bench.endless("cd /; while true; do :; done").await;
    assert_eq!((ran.reply.end, ran.cell.state), (End::TimedOut, CellState::Kept));
    assert_eq!(pwd("pwd").await, format!("{}/a/b\n", start.trim()));
    let ran = bench.cell("cd ..; rm -r b; mkdir c; cd c; rm -r ../c; no-such-command").await;
    assert_eq!(ran.reply.end, End::Exited { code: 127 });
    assert!(ran.stderr().contains("no-such-command"), "{}", ran.stderr());
    let ran = bench.cell("pwd").await;
    assert_eq!(ran.stdout(), start);
    assert!(ran.stderr().contains("is gone"), "{}", ran.stderr());
}

async fn children_end_with_their_cell() {
    let bench = Bench::javascript(On::Docker).await;
    let children = "const { spawn, execSync } = require('child_process')\n\
                    for (let i = 0; i < 5; i++) spawn('sleep', ['1000'], { detached: true, stdio: 'ignore' }).unref()\n\
                    execSync('(sleep 1000 &) ; true', { stdio: 'ignore' }); var kept = 1";
    let ran = bench.cell(children).await;
    assert_eq!(
        (ran.reply.end, ran.cell.state),
        (End::Exited { code: 0 }, CellState::Kept),
        "{}",
        ran.stderr()
    );
    // Dead processes stay in the list until the interpreter reaps them.
    let left = "fs.readdirSync('/proc').filter(p => /^\\d+$/.test(p)).map(p => fs.readFileSync(`/proc/${p}/stat`, 'utf8')).filter(s => s.includes('(sleep)') && !s.includes(') Z ')).length";
    assert_eq!(bench.result(left).await, "0");
    assert_eq!(bench.result("kept").await, "1");
}

async fn nothing_runs_between_cells() {
    let bench = Bench::javascript(On::Docker).await;
    bench.result("let ticks = 0; setInterval(() => { ticks += 1; fs.writeFileSync('ticks', String(ticks)) }, 1); 0").await;
    let read = || async {
        let request = RunRequest {
            runtime: RuntimeName::PYTHON,
            cell: false,
            ..bench.request("import time; a = open('ticks').read(); time.sleep(0.3); print(a == open('ticks').read())", 30)
        };
        text(&bench.link.run(request).await.expect("sent").finish().await.expect("answered").stdout)
    };
    bench.result("await new Promise(r => setTimeout(r, 50))").await;
    assert_eq!(read().await, "True\n");
    // A program beside it cannot make it run for longer than the program itself runs.
    let waker = RunRequest {
        runtime: RuntimeName::PYTHON,
        cell: false,
        ..bench.request("import os, signal\nfor p in os.listdir('/proc'):\n    if p.isdigit() and int(p) not in (1, os.getpid()):\n        os.kill(int(p), signal.SIGCONT)", 30)
    };
    bench.link.run(waker).await.expect("sent").finish().await.expect("answered");
    assert_eq!(read().await, "True\n");
    assert_eq!(bench.result("ticks > 1").await, "true");
}

async fn a_cell_without_bounds_takes_its_own_interpreter() {
    let bench = Bench::javascript(On::Docker).await;
    for bomb in [
        "const all = []; for (;;) all.push({ a: [1, 2, 3] })",
        "const all = []; for (;;) all.push(Buffer.alloc(10_000_000, 1))",
        "let text = 'x'; const all = []; for (let i = 0; ; i++) all.push((text + i).repeat(100_000).split(''))",
    ] {
        bench.result("var kept = 1").await;
        let ran = bench.cell(bomb).await;
        assert_eq!(
            (ran.reply.end, ran.cell.state),
            (End::OutOfMemory, CellState::Lost),
            "{bomb}: {}",
            ran.stderr()
        );
        assert_eq!(bench.result("typeof kept").await, "'undefined'");
    }
}

async fn the_image_has_node_on_its_path() {
    let bench = Bench::of(On::Docker, RuntimeName::BASH).await;
    let ran = bench
        .cell("echo 'console.log(6 * 7, process.version.slice(0, 4))' > s.js; node s.js")
        .await;
    assert_eq!(ran.stdout(), "42 v24.\n");
}

async fn workspaces_do_not_meet(on: On) {
    let each = async |number: u32| {
        let bench = Bench::javascript(on).await;
        bench.result(&format!("let mine = {number}")).await;
        bench.endless("while (true);").await;
        assert_eq!(bench.result("mine").await, number.to_string());
    };
    tokio::join!(each(1), each(2), each(3));
}
