//! An installed runtime, whose files are opened before the process gives up the right to open files.

use std::{
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use wasmtime::{Engine, InstancePre, Module};

use crate::{
    Error,
    files::{Content, FileSystem, Library, Shared},
    javascript,
    machine::{self, Guest},
    memory, python,
    state::{Image, ImageHead},
    wasi::Process,
};

/// The description of an interpreter of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Name of the language, such as `python`.
    pub name: String,
    /// Version of the interpreter.
    pub version: String,
    /// Name of its WebAssembly module's file in its package.
    pub module: String,
    /// Names and versions of libraries.
    pub libraries: Vec<(String, String)>,
}

/// The manifest of a runtime's folder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// [`key`](crate::key) of the program that made it, and of its processor.
    pub(crate) key: String,
    /// The interpreters, in the order of [`Language::ALL`].
    pub(crate) heads: Vec<Head>,
}

/// An interpreter in a manifest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) image: ImageHead,
    pub(crate) description: Description,
}

impl Manifest {
    /// The file's name.
    pub(crate) const FILE: &str = "runtime.json";

    /// Reads the manifest of a folder, if it has this program's key.
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let manifest: Self = read_json(&folder.join(Self::FILE))?;
        if manifest.key != crate::key() {
            return Err(Error::Outdated);
        }
        Ok(manifest)
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Damaged(error.to_string()))
}

/// The language of an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    JavaScript,
}

impl Language {
    /// All languages, in the order of a manifest.
    pub(crate) const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }

    /// Name of the file with its compiled code.
    pub(crate) fn code(self) -> String {
        format!("{}.cwasm", self.name())
    }

    /// Name of the file with its image.
    pub(crate) fn image(self) -> String {
        format!("{}.image", self.name())
    }

    pub(crate) fn process(self, files: &FileSystem) -> Process {
        match self {
            Self::Python => python::process(files),
            Self::JavaScript => javascript::process(),
        }
    }

    /// Links its module with the functions that it imports.
    pub(crate) fn prelink(
        self,
        engine: &Engine,
        module: &Module,
    ) -> wasmtime::Result<InstancePre<Guest>> {
        match self {
            Self::Python => machine::prelink(engine, module, |linker| {
                // The package imports this to call its host. We offer it no functions.
                linker.func_wrap("host", "call", |_: i32, _: i32, _: i32, _: i32| -> i32 { -1 })?;
                Ok(())
            }),
            Self::JavaScript => machine::prelink(engine, module, javascript::link),
        }
    }
}

/// The positions of the interpreters' files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileTable {
    /// Path, start and length.
    pub(crate) files: Vec<(String, usize, usize)>,
}

impl FileTable {
    /// The file that holds them all.
    pub(crate) const BYTES: &str = "files.bin";

    /// The file that holds this table.
    pub(crate) const INDEX: &str = "files.json";

    pub(crate) fn load(folder: &Path) -> Result<Self, Error> {
        read_json(&folder.join(Self::INDEX))
    }

    /// The files, mapped.
    pub(crate) fn contents(&self, folder: &Path) -> Result<Vec<(String, Content)>, Error> {
        let all: Shared = Arc::new(memory::map(&File::open(folder.join(Self::BYTES))?)?);
        let len = (*all).as_ref().len();
        let content = |(path, start, len_): &(String, usize, usize)| {
            let (start, len) = (*start, (*len_).min(len.saturating_sub(*start)));
            (path.clone(), Content::Fixed { all: all.clone(), start, len })
        };
        Ok(self.files.iter().map(content).collect())
    }
}

/// An interpreter, from which guests are made.
pub(crate) struct Interpreter {
    pub(crate) language: Language,
    pub(crate) pre: InstancePre<Guest>,
    pub(crate) image: Image,
}

/// An opened runtime, from which sandboxes are made.
pub(crate) struct Runtime {
    pub(crate) library: Arc<Library>,
    pub(crate) interpreters: Vec<Interpreter>,
}

impl Runtime {
    /// Opens the runtime in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let manifest = Manifest::read(folder)?;
        let library = Arc::new(Library::new(FileTable::load(folder)?.contents(folder)?));
        let engine = machine::engine()?;
        let interpreter = |(language, head): (Language, Head)| -> Result<_, Error> {
            let module = memory::load(&engine, &folder.join(language.code()))?;
            let pre = language.prelink(&engine, &module)?;
            let image = Image::new(File::open(folder.join(language.image()))?, head.image)?;
            Ok(Interpreter { language, pre, image })
        };
        let interpreters = Language::ALL.into_iter().zip(manifest.heads).map(interpreter);
        Ok(Self { library, interpreters: interpreters.collect::<Result<_, _>>()? })
    }
}

/// The descriptions of the interpreters of the runtime in this folder.
///
/// # Errors
/// If there is no runtime, or it was made by another version of this program, or for another processor.
pub fn describe(folder: &Path) -> Result<Vec<Description>, Error> {
    let manifest = Manifest::read(folder)?;
    for language in Language::ALL {
        for file in [language.code(), language.image()] {
            fs::metadata(folder.join(file))?;
        }
    }
    fs::metadata(folder.join(FileTable::BYTES))?;
    Ok(manifest.heads.into_iter().map(|head| head.description).collect())
}
