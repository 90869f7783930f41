//! Python in a guest: the package's functions, and ours in it (guest/python.py).
//!
//! A turn is a text that the interpreter runs between two calls; ours are one line each.

use std::sync::OnceLock;

use protocol::{
    limits::MAX_RESULT,
    message::{Captured, Contents, Facts},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    files::{FileSystem, ROOT},
    machine::{Halt, Machine},
    wasi::Process,
};

/// Where the interpreter looks for its files: an archive, which in the guest's tree is a file.
pub(crate) const ARCHIVE: &str = "/usr/local/lib/python315.zip";

/// Where matplotlib looks for its own, beneath the archive.
const CHARTS: &str = "/usr/local/lib/python315.zip/matplotlib/mpl-data";

/// Where these are.
pub(crate) const CHART_DATA: &str = "/usr/local/share/matplotlib";

/// Where libraries are that were added to the package's.
pub(crate) const LIBRARIES: &str = "/usr/local/lib/site-packages";

/// Where fonts are that were added.
pub(crate) const FONTS: &str = "/usr/local/share/fonts";

/// Name under which our functions are known in the guest.
const OURS: &str = "_llm_sandbox";

const SOURCE: &str = include_str!("../guest/python.py");
const FACTS: &str = include_str!("../../runtimes/python/facts.py");
const SHELL: &str = include_str!("../../runtimes/python/shell.py");
const FIGURES: &str = include_str!("../../runtimes/python/sandbox_figures.py");
const FONTS_SOURCE: &str = include_str!("../../runtimes/python/sandbox_fonts.py");
const TQDM: &str = include_str!("../../runtimes/python/sandbox_tqdm.py");

/// What a runtime's image depends on, besides the package.
pub(crate) const SOURCES: [&str; 6] = [SOURCE, FACTS, SHELL, FIGURES, FONTS_SOURCE, TQDM];

/// What our function says of a program or cell.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    /// Its exit code.
    pub(crate) code: i32,
    /// What is known besides.
    pub(crate) facts: Facts,
    /// Start and end of the text of its value, a character for each byte, and how many bytes there were.
    result: Option<(String, String, u64)>,
}

impl Told {
    /// An exit code, and the text of a value.
    pub(crate) fn new(code: i32, text: Option<&str>) -> Self {
        let latin = |bytes: Vec<u8>| bytes.into_iter().map(char::from).collect();
        let result = text.map(|text| {
            let (head, tail) = crate::javascript::cut(text);
            (latin(head), latin(tail), text.len() as u64)
        });
        Self { code, facts: Facts::default(), result }
    }

    /// Where nothing was told that can be read.
    pub(crate) fn failed() -> Self {
        Self { code: 1, ..Self::default() }
    }

    /// The text of its value, as a reply has it.
    pub(crate) fn result(&self) -> Option<(Captured, Vec<u8>)> {
        let (head, tail, total) = self.result.as_ref()?;
        let bytes = |text: &str| -> Option<Vec<u8>> {
            text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
        };
        let (head, tail) = (bytes(head)?, bytes(tail)?);
        if head.len() + tail.len() > MAX_RESULT {
            return None;
        }
        let captured = Captured { head: head.len(), tail: tail.len(), total: *total };
        Some((captured, [head, tail].concat()))
    }
}

/// A guest's side of the world before it has begun.
pub(crate) fn process(files: &FileSystem) -> Process {
    let args = vec!["/usr/local/bin/python3".to_owned()];
    let env = [
        "HOME=/tmp",
        "TMPDIR=/tmp",
        "PYTHONTZPATH=",
        "LANG=C.UTF-8",
        "MPLBACKEND=agg",
        "PWD=/mnt/data",
        "USER=sandbox",
        "LOGNAME=sandbox",
    ];
    let charts = files.find(ROOT, CHART_DATA, true).unwrap_or(ROOT);
    let folders = vec![("/".to_owned(), ROOT), (CHARTS.to_owned(), charts)];
    Process::new(args, env.map(str::to_owned).to_vec(), folders)
}

/// Makes of an instance that nothing has run in what the image holds: modules loaded, functions of ours there.
pub(crate) fn boot(machine: &mut Machine) -> Result<Vec<String>, Halt> {
    if machine.has("_initialize") {
        machine.call("_initialize", &[])?;
    }
    let quoted = |text: &str| serde_json::to_string(text).expect("texts serialize");
    let ours = format!(
        "import sys, types\nm = types.ModuleType('{OURS}')\nm.__name__ = '<{OURS}>'\nsys.modules['{OURS}'] = m\n\
         exec(compile({}, '<{OURS}>', 'exec'), vars(m))\ndel sys.modules['__main__'].m",
        quoted(SOURCE)
    );
    turn(machine, &ours)?;
    for (name, source) in [
        ("facts", FACTS),
        ("shell", SHELL),
        ("figures", FIGURES),
        ("fonts", FONTS_SOURCE),
        ("tqdm", TQDM),
    ] {
        turn(
            machine,
            &format!("import sys\nsys.modules['{OURS}'].sources['{name}'] = {}", quoted(source)),
        )?;
    }
    let report = machine.guest().process.report_descriptor();
    turn(machine, &format!("import sys\nm = sys.modules['{OURS}']\nm.tell({report}, m.boot())"))?;
    let told = machine.guest().process.end();
    serde_json::from_slice(&told).map_err(|_| Halt::Trap("the interpreter has not started".into()))
}

/// The time zone of programs, once the server has named one.
static TIMEZONE: OnceLock<String> = OnceLock::new();

/// Has programs live in this time zone. The first one stays.
pub(crate) fn set_timezone(name: String) {
    let _ = TIMEZONE.set(name);
}

/// Runs a program.
pub(crate) fn program(machine: &mut Machine, text: &str) -> Result<Option<Told>, Halt> {
    told(machine, "program", &[Some(text), TIMEZONE.get().map(String::as_str)])
}

/// Runs a cell.
pub(crate) fn cell(machine: &mut Machine, text: &str) -> Result<Option<Told>, Halt> {
    told(machine, "cell", &[Some(text), TIMEZONE.get().map(String::as_str)])
}

/// Tells what the interpreter holds.
pub(crate) fn look(machine: &mut Machine) -> Result<Option<Contents>, Halt> {
    told(machine, "look", &[])
}

/// Has a function of ours do something, and reads what it tells; `None` if that cannot be read, as user code may
/// have had a hand in it.
fn told<T: DeserializeOwned>(
    machine: &mut Machine,
    function: &str,
    texts: &[Option<&str>],
) -> Result<Option<T>, Halt> {
    let report = machine.guest().process.report_descriptor();
    // A text in JSON is one in Python.
    let quoted = |text| serde_json::to_string(text).expect("texts serialize");
    let texts = texts.iter().map(|text| text.map_or_else(|| "None".into(), quoted) + ", ");
    let texts: String = texts.collect();
    turn(machine, &format!("__import__('sys').modules['{OURS}'].{function}({texts}{report})"))?;
    let told = machine.guest().process.end();
    Ok(serde_json::from_slice(&told).ok())
}

/// Has the interpreter run a text. What it returns is 0, 1 after an exception, and more for an exit.
fn turn(machine: &mut Machine, text: &str) -> Result<i32, Halt> {
    let len =
        i32::try_from(text.len()).map_err(|_| Halt::Trap("a text that is too long".into()))?;
    let at = machine.call("host_alloc", &[len])?;
    let start = at.cast_unsigned() as usize;
    let place = machine.bytes_mut().get_mut(start..start + text.len());
    place.ok_or_else(|| Halt::Trap("no memory".into()))?.copy_from_slice(text.as_bytes());
    machine.call("turn", &[at, len])
}
