//! Random work on the embedded engine, compared with a model of its state: each step compares all variables and files,
//! byte by byte, from inside.
//!
//! ```sh
//! SHADOW_SEEDS=40 cargo test -p llm-sandbox-tests --test drills shadow      # more of it
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    path::PathBuf,
};

use serde_json::{Value, json};

use support::{On, Server, name, text, until};

use crate::embedded::{agents, state_folder, until_gone};

/// Makes values from their descriptions in the model, and compares them.
const PRELUDE: &str = "
import gc, itertools, os, random
def make(kind, seed, size, patches):
    r = random.Random(seed)
    if kind == 'bytes': value = bytearray(r.randbytes(size))
    elif kind == 'list': value = [r.random() for _ in range(size // 32)]
    elif kind == 'dict': value = {n: [n, r.getrandbits(60)] for n in range(size // 256)}
    elif kind == 'array':
        import numpy
        value = numpy.random.default_rng(seed).integers(0, 1 << 30, size // 4, dtype='int32')
    elif kind == 'frame':
        import pandas
        value = pandas.DataFrame({'a': range(size // 64), 'b': [str(seed + n) for n in range(size // 64)]})
    for at, new in patches: patch(kind, value, at, new)
    return value
def patch(kind, value, at, new):
    if kind == 'frame': value.loc[at % len(value), 'a'] = new
    elif kind == 'dict': value[at % max(1, len(value))] = [new]
    else: value[at % len(value)] = new
def is_same(kind, value, wanted):
    if kind == 'array': return len(value) == len(wanted) and bool((value == wanted).all())
    if kind == 'frame': return value.equals(wanted)
    return value == wanted
def verify(variables, files):
    wrong = sorted(set(held) ^ set(variables))
    wrong += [name for name, (kind, *rest) in variables.items() if name in held and not is_same(kind, held[name], make(kind, *rest))]
    there = {}
    for folder, _, names in os.walk('/mnt/data'):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, 'rb') as file: there[os.path.relpath(path, '/mnt/data')] = file.read()
    wrong += sorted(set(there) ^ set(files))
    wrong += [name for name, (seed, size) in files.items() if there.get(name) != random.Random(seed).randbytes(size)]
    return wrong
held, counter = {}, itertools.count()
";

/// The number of cells that can be undone.
const UNDO: usize = 4;

/// A value: its kind, seed and size, and its later changes.
#[derive(Debug, Clone)]
struct Thing {
    kind: &'static str,
    seed: u64,
    size: u64,
    patches: Vec<(u64, u64)>,
}

/// The variables that must exist.
#[derive(Debug, Clone, Default)]
struct Variables {
    held: BTreeMap<String, Thing>,
    /// The next value of the counter.
    counted: u64,
}

/// Names of files, with their seeds and sizes.
type Files = BTreeMap<String, (u64, u64)>;

#[derive(Debug, Default)]
struct Model {
    now: Variables,
    /// The states that can be restored, the oldest first; `None` is the state before the model begins, which is never
    /// restored.
    past: VecDeque<Option<Variables>>,
    files: Files,
    /// The length of a list in JavaScript.
    script: u64,
}

/// A random number generator: as good as needed, and repeatable by its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).expect("small")]
    }

    fn name_of<T>(&mut self, all: &BTreeMap<String, T>) -> Option<String> {
        let at = self.below(all.len().max(1) as u64);
        all.keys().nth(usize::try_from(at).expect("small")).cloned()
    }

    fn size(&mut self) -> u64 {
        let most = self.one_of(&[500, 5_000, 60_000, 800_000, 6_000_000]);
        400 + self.below(most)
    }
}

fn written(variables: &Variables) -> String {
    let mut text = String::from("{");
    for (name, Thing { kind, seed, size, patches }) in &variables.held {
        write!(text, "'{name}': ('{kind}', {seed}, {size}, {patches:?}), ").expect("written");
    }
    text + "}"
}

fn written_files(files: &Files) -> String {
    let files = files.iter().map(|(name, (seed, size))| format!("'{name}': ({seed}, {size})"));
    format!("{{{}}}", files.collect::<Vec<_>>().join(", "))
}

/// Makes a few changes in the model, and returns them as code.
fn change(dice: &mut Dice, variables: &mut Variables, files: &mut Files) -> String {
    let mut code = String::new();
    for _ in 0..=dice.below(3) {
        match dice.below(8) {
            0..=2 => {
                let kind = dice.one_of(&["bytes", "list", "dict", "array", "frame"]);
                let thing =
                    Thing { kind, seed: dice.below(1 << 30), size: dice.size(), patches: vec![] };
                let Thing { seed, size, .. } = thing;
                let name = format!("v{}", dice.below(6));
                writeln!(code, "held['{name}'] = make('{kind}', {seed}, {size}, [])")
                    .expect("written");
                variables.held.insert(name, thing);
            }
            3 | 4 => {
                let Some(name) = dice.name_of(&variables.held) else { continue };
                let thing = variables.held.get_mut(&name).expect("there");
                for _ in 0..=dice.below(4) {
                    let (at, new) = (dice.below(6_000_000), dice.below(200));
                    writeln!(code, "patch('{}', held['{name}'], {at}, {new})", thing.kind)
                        .expect("written");
                    thing.patches.push((at, new));
                }
            }
            5 => {
                let Some(name) = dice.name_of(&variables.held) else { continue };
                writeln!(code, "del held['{name}']; gc.collect()").expect("written");
                variables.held.remove(&name);
            }
            6 => {
                let (seed, size) = (dice.below(1 << 30), dice.below(300_000));
                let name = dice.one_of(&["a.bin", "b.bin", "deep/c.bin", "deep/er/d.bin"]);
                writeln!(
                    code,
                    "os.makedirs(os.path.dirname('/mnt/data/{name}'), exist_ok=True)\nwith open('/mnt/data/{name}', 'wb') as f: f.write(random.Random({seed}).randbytes({size}))"
                )
                .expect("written");
                files.insert(name.into(), (seed, size));
            }
            _ => {
                let Some(name) = dice.name_of(files) else { continue };
                if dice.below(2) == 0 {
                    writeln!(code, "os.remove('/mnt/data/{name}')").expect("written");
                    files.remove(&name);
                } else {
                    writeln!(code, "os.replace('/mnt/data/{name}', '/mnt/data/moved.bin')")
                        .expect("written");
                    let file = files.remove(&name).expect("there");
                    files.insert("moved.bin".into(), file);
                }
            }
        }
    }
    code
}

struct Shadow {
    server: Server,
    folder: PathBuf,
    id: String,
    dice: Dice,
    model: Model,
    /// All steps so far, to investigate a failure.
    log: Vec<String>,
}

impl Shadow {
    async fn serve(folder: &std::path::Path) -> Server {
        let folder = folder.to_str().expect("UTF-8");
        let settings = [
            ("SANDBOX_STATE_DIR", folder),
            ("SANDBOX_HIBERNATE_AFTER_M", "0.02"),
            ("SANDBOX_MEMORY_LIMIT", "256MB"),
            ("SANDBOX_UNDO", &UNDO.to_string()),
        ];
        Server::start_with(On::Wasm, &settings).await
    }

    async fn cell(&mut self, language: &str, code: &str, timeout: u64) -> Value {
        let arguments = json!({ "session_id": self.id, "language": language, "code": code, "timeout": timeout });
        self.server.call("execute_code", arguments).await.json
    }

    /// Runs a cell that compares everything with the model, before and after its own changes.
    async fn work(&mut self) {
        let (mut variables, mut files) = (self.model.now.clone(), self.model.files.clone());
        let before = format!("verify({}, {})", written(&variables), written_files(&files));
        let counted = variables.counted;
        let changes = change(&mut self.dice, &mut variables, &mut files);
        variables.counted += 1;
        let after = format!("verify({}, {})", written(&variables), written_files(&files));
        let end = self.dice.one_of(&["", "", "", "", "1 / 0", "STOP", "EXIT", "MEMORY", "DEEP"]);
        let code = format!(
            "found = ({before}, next(counter))\nassert found == ([], {counted}), ('before', found)\n{changes}after = {after}\nassert after == [], ('after', after)\n"
        );
        let (tail, status, state) = match end {
            "1 / 0" => ("1 / 0", "execution_error", "kept"),
            "DEEP" => ("def f(): f()\nf()", "execution_error", "kept"),
            "STOP" => ("while True: pass", "timeout", "rolled_back"),
            "EXIT" => ("os._exit(3)", "execution_error", "rolled_back"),
            "MEMORY" => (
                "big = []\nwhile True: big.append(bytearray(10**6))",
                "out_of_memory",
                "rolled_back",
            ),
            _ => ("'fine'", "success", "kept"),
        };
        self.log.push(format!("{code}{tail}"));
        let timeout = if end == "STOP" { 2 } else { 60 };
        let done = self.cell("python", &format!("{code}{tail}"), timeout).await;
        assert_eq!(
            (text(&done["status"]), text(&done["state"])),
            (status, state),
            "{done}\n{self}"
        );
        let said = text(&done["stderr"]);
        assert!(!said.contains("AssertionError"), "{said}\n{self}");
        if state == "kept" {
            let before = std::mem::replace(&mut self.model.now, variables);
            self.model.past.push_back(Some(before));
            self.model.files = files;
        }
    }

    async fn program(&mut self) {
        let (seed, is_stopped) = (self.dice.below(1 << 30), self.dice.below(3) == 0);
        let tail = if is_stopped { "while True: pass" } else { "" };
        let code = format!(
            "import random\nx = bytearray(10**6)\nopen('p.bin', 'wb').write(random.Random({seed}).randbytes(999))\n{tail}"
        );
        self.log.push(code.clone());
        let timeout = if is_stopped { 1 } else { 30 };
        let arguments = json!({ "session_id": self.id, "code": code, "timeout_s": timeout });
        let ran = self.server.call("run_python", arguments).await.ok();
        assert_eq!(ran["outcome"], if is_stopped { "timeout" } else { "ok" }, "{ran}\n{self}");
        if !is_stopped {
            self.model.files.insert("p.bin".into(), (seed, 999));
        }
    }

    async fn undo(&mut self) {
        let info =
            self.server.call("get_workspace_info", json!({ "session_id": self.id })).await.ok();
        let can = usize::try_from(info["can_undo"].as_u64().expect("a count")).expect("small");
        let past = &mut self.model.past;
        // The engine saves fewer states if they need much memory.
        let least = past.len().min(1);
        past.drain(..past.len().saturating_sub(can.min(UNDO)));
        assert!((least..=past.len()).contains(&can), "{info}\n{self}");
        let known = self.model.past.iter().flatten().count() as u64;
        if known == 0 {
            return;
        }
        let count = 1 + self.dice.below(known);
        self.log.push(format!("undo {count}"));
        let arguments = json!({ "session_id": self.id, "undo": count });
        self.server.call("reset_workspace", arguments).await.ok();
        for _ in 0..count {
            self.model.now = self.model.past.pop_back().flatten().expect("known");
        }
    }

    async fn script(&mut self) {
        let (length, is_stopped) = (self.model.script, self.dice.below(4) == 0);
        let tail = if is_stopped {
            "while (true);"
        } else {
            "return `${before} ${list.length} ${big[77]}`"
        };
        let code = format!(
            "(() => {{ const before = list.length; list.push({{ before }}); big[77] = list.length; {tail} }})()"
        );
        self.log.push(code.clone());
        let done = self.cell("javascript", &code, if is_stopped { 1 } else { 30 }).await;
        if is_stopped {
            let told = (text(&done["status"]), text(&done["state"]));
            assert_eq!(told, ("timeout", "rolled_back"), "{done}\n{self}");
        } else {
            let wanted = format!("'{length} {0} {0}'", length + 1);
            assert_eq!(done["result"], wanted, "{done}\n{self}");
            self.model.script += 1;
        }
    }

    async fn sleep(&mut self) {
        self.log.push("sleep".into());
        let server = &self.server;
        until("it sleeps", async || agents(server).is_empty()).await;
    }

    async fn restart(&mut self) {
        let signal = self.dice.one_of(&["KILL", "TERM"]);
        self.log.push(signal.into());
        let working = agents(&self.server);
        self.server.signal(signal);
        self.server.exit_code().await;
        until_gone(working).await;
        self.server = Self::serve(&self.folder).await;
    }

    async fn step(&mut self) {
        match self.dice.below(20) {
            0 | 1 => self.program().await,
            2 | 3 => self.undo().await,
            4 | 5 => self.script().await,
            6 => self.sleep().await,
            7 => self.restart().await,
            8 => {
                let arguments = json!({ "session_id": self.id });
                self.server.call("get_workspace_info", arguments).await.ok();
            }
            _ => self.work().await,
        }
    }
}

impl std::fmt::Display for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.log.len().saturating_sub(6);
        write!(
            f,
            "step {}, the last of which were:\n{}",
            self.log.len(),
            self.log[last..].join("\n---\n")
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_done_every_byte_is_where_it_should_be() {
    let seeds = std::env::var("SHADOW_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 1..=seeds.unwrap_or(2) {
        println!("seed {seed}");
        let (_dir, folder) = state_folder();
        let server = Shadow::serve(&folder).await;
        let (dice, model, log) = (Dice(seed * 7919), Model::default(), vec![]);
        let mut shadow = Shadow { server, folder, id: name("shadow"), dice, model, log };
        let first = shadow.cell("python", PRELUDE, 30).await;
        assert_eq!(first["status"], "success", "{first}");
        let first = shadow.cell("javascript", "var list = [], big = new Uint8Array(2e6)", 30).await;
        assert_eq!(first["status"], "success", "{first}");
        shadow.model.past.push_back(None);
        for _ in 0..60 {
            shadow.step().await;
        }
        shadow.work().await;
    }
}
