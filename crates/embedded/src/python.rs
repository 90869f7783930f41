//! Python in a guest: calls the package's functions, and ours in it (guest/python.py).
//!
//! A turn is a text that the interpreter runs. Each call of our functions is a turn of one line.

use std::sync::OnceLock;

use protocol::{
    limits::MAX_RESULT,
    message::{Captured, Contents, Facts, Summary},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    files::{FileSystem, ROOT},
    machine::{Halt, Machine},
    wasi::Process,
};

/// Path of the archive in which the interpreter finds its files. It is one file of the guest's tree.
pub(crate) const ARCHIVE: &str = "/usr/local/lib/python315.zip";

/// Folder within the archive in which matplotlib looks for its data.
const CHARTS: &str = "/usr/local/lib/python315.zip/matplotlib/mpl-data";

/// Folder that holds matplotlib's data.
pub(crate) const CHART_DATA: &str = "/usr/local/share/matplotlib";

/// Folder of the libraries that are added to those of the package.
pub(crate) const LIBRARIES: &str = "/usr/local/lib/site-packages";

/// Folder of added fonts.
pub(crate) const FONTS: &str = "/usr/local/share/fonts";

/// Name of our module in the guest.
const OURS: &str = "_llm_sandbox";

const SOURCE: &str = include_str!("../guest/python.py");
const NUMPY: &str = include_str!("../guest/numpy_integers.py");
const FACTS: &str = include_str!("../../../sandbox-image/runtimes/python/facts.py");
const SHELL: &str = include_str!("../../../sandbox-image/runtimes/python/shell.py");
const FIGURES: &str = include_str!("../../../sandbox-image/runtimes/python/sandbox_figures.py");
const FONTS_SOURCE: &str = include_str!("../../../sandbox-image/runtimes/python/sandbox_fonts.py");
const TQDM: &str = include_str!("../../../sandbox-image/runtimes/python/sandbox_tqdm.py");

const SUMMARY: &str = include_str!("../../../sandbox-image/runtimes/python/summary.py");

const TOOLS: &str = include_str!("../../../sandbox-image/runtimes/python/modules/tools.py");

/// Our sources in a runtime's image, in addition to the package.
pub(crate) const SOURCES: [&str; 9] =
    [SOURCE, NUMPY, FACTS, SHELL, FIGURES, FONTS_SOURCE, TQDM, SUMMARY, TOOLS];

/// The report of our function on a program or cell.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    /// The exit code of the program or cell.
    pub(crate) code: i32,
    /// Further facts.
    pub(crate) facts: Facts,
    /// Start and end of its value's text, with one character for each byte, and the number of bytes of the whole text.
    result: Option<(String, String, u64)>,
}

impl Told {
    /// A report with an exit code and the text of a value.
    pub(crate) fn new(code: i32, text: Option<&str>) -> Self {
        let latin = |bytes: Vec<u8>| bytes.into_iter().map(char::from).collect();
        let result = text.map(|text| {
            let (head, tail) = crate::javascript::cut(text);
            (latin(head), latin(tail), text.len() as u64)
        });
        Self { code, facts: Facts::default(), result }
    }

    /// The report that replaces one that cannot be read.
    pub(crate) fn failed() -> Self {
        Self { code: 1, ..Self::default() }
    }

    /// The text of the cell's value, in the form of a reply.
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

/// The process of a new guest.
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

/// Turns a new instance into the one that becomes the image: loads modules and our functions. Returns what could not
/// be loaded.
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
        ("numpy", NUMPY),
        ("facts", FACTS),
        ("shell", SHELL),
        ("figures", FIGURES),
        ("fonts", FONTS_SOURCE),
        ("tqdm", TQDM),
        ("summary", SUMMARY),
        ("tools", TOOLS),
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

/// The time zone of programs, if the server has set one.
static TIMEZONE: OnceLock<String> = OnceLock::new();

/// Sets the time zone of programs. Only the first call has an effect.
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

/// Reports the variables of the interpreter.
pub(crate) fn look(machine: &mut Machine) -> Result<Option<Contents>, Halt> {
    told(machine, "look", &[])
}

/// Summarizes the file at a path of a request.
pub(crate) fn summarize(
    machine: &mut Machine,
    path: &str,
    encoding: Option<&str>,
) -> Result<Option<Summary>, Halt> {
    told(machine, "summarize", &[Some(path), encoding])
}

/// Calls one of our functions and reads its report; `None` if that cannot be read, because user code may have changed
/// it.
fn told<T: DeserializeOwned>(
    machine: &mut Machine,
    function: &str,
    texts: &[Option<&str>],
) -> Result<Option<T>, Halt> {
    let report = machine.guest().process.report_descriptor();
    // A JSON string is also a Python string.
    let quoted = |text| serde_json::to_string(text).expect("texts serialize");
    let texts = texts.iter().map(|text| text.map_or_else(|| "None".into(), quoted) + ", ");
    let texts: String = texts.collect();
    turn(machine, &format!("__import__('sys').modules['{OURS}'].{function}({texts}{report})"))?;
    let told = machine.guest().process.end();
    Ok(serde_json::from_slice(&told).ok())
}

/// Runs a text in the interpreter. Returns 0, or 1 after an exception, or more after an exit.
fn turn(machine: &mut Machine, text: &str) -> Result<i32, Halt> {
    let len =
        i32::try_from(text.len()).map_err(|_| Halt::Trap("a text that is too long".into()))?;
    let at = machine.call("host_alloc", &[len])?;
    let start = at.cast_unsigned() as usize;
    let place = machine.bytes_mut().get_mut(start..start + text.len());
    place.ok_or_else(|| Halt::Trap("no memory".into()))?.copy_from_slice(text.as_bytes());
    machine.call("turn", &[at, len])
}
