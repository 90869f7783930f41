//! Advice that has no parameters: one sentence for each cause.

use serde::{Deserialize, Serialize};

/// The advice after a call out of the sandbox that was not allowed.
pub(super) const REFUSED: &str = "Do not repeat the call: ask the user, or go on without it.";

/// Advice on an error or another event of a run, in the same words for every program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Advice {
    /// A file is of another kind than the program expected.
    OtherKind,
    /// A text is not in UTF-8, or no text.
    OtherEncoding,
    /// A column's name begins with a byte order mark.
    ByteOrderMark,
    /// A program named the file of a font.
    FontFile,
    /// A file has a JSON value on each line.
    JsonLines,
    /// A file is protected by a password.
    Encrypted,
    /// A program tried to reach a network.
    NoNetwork,
    /// A program asked for a picture of a chart, for which a browser is needed.
    NoBrowser,
    /// There is no room for a program's files.
    DiskFull,
    /// A program tried to write where nothing can be written.
    ReadOnly,
    /// A program tried to write into a folder that does not exist.
    MissingFolder,
    /// A program contains a line for a shell or a notebook.
    ShellLine,
    /// A program reached its timeout.
    TooSlow,
    /// A program's call out of the sandbox was not allowed.
    Refused,
    /// A program asked for input.
    NoInput,
    /// A cell asked for input, which its call can provide.
    NoStdin,
    /// A program tried to open windows.
    NoScreen,
    /// A program used all memory.
    OutOfMemory,
    /// A program used all memory, in a sandbox where files take no part of it.
    OutOfMemoryOfGuest,
    /// A program was stopped, and its files were rolled back.
    FilesRolledBack,
    /// A program tried to start another program or a thread, in a sandbox that has neither.
    NoProcesses,
    /// A program asked for a locale that does not exist.
    NoLocale,
    /// A program asked for a locale, in a sandbox that has only C.
    NoLocaleInGuest,
    /// Variables of earlier cells take memory that a cell needs.
    VariablesTakeMemory,
    /// A cell used a feature of Node, in a sandbox without Node.
    NoNode,
    /// A program tried to read or write Parquet, in a sandbox without a library for that.
    NoParquet,
    /// A program has used all its instructions.
    OutOfFuel,
    /// A file that was to be uploaded is in a dataset.
    InDataset,
}

impl Advice {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::OtherKind => {
                "The file is of another kind than its name says: look at its first bytes."
            }
            Self::OtherEncoding => {
                "The file is not UTF-8: look at its first bytes. A text may need encoding=\"cp1252\" or \"utf-16\"."
            }
            Self::ByteOrderMark => {
                "The file begins with a byte order mark: read it with encoding=\"utf-8-sig\", or with \"utf-16\" if it is \
                 UTF-16."
            }
            Self::FontFile => {
                "That font file is not here, and none has to be named: matplotlib finds a font for every script by \
                 itself."
            }
            Self::JsonLines => {
                "The file seems to have a JSON value on each line: pd.read_json(path, lines=True) reads it, or json.loads \
                 line by line."
            }
            Self::Encrypted => {
                "The file is encrypted with a password: ask for a copy without one, or for the password."
            }
            Self::NoNetwork => {
                "The sandbox has no network, and trying again will not help: data has to be uploaded."
            }
            Self::NoBrowser => {
                "Charts of Plotly cannot become pictures here: write_html saves one for the person, and \
                 matplotlib draws pictures."
            }
            Self::DiskFull => {
                "There is no room left: delete files that are not needed (os.remove), or write less."
            }
            Self::ReadOnly => {
                "Only /mnt/data and /tmp can be written, and /mnt/data is what is kept."
            }
            Self::ShellLine => {
                "This is Python, not a notebook or a shell: for commands use subprocess.run."
            }
            Self::MissingFolder => "Make the folder first: os.makedirs(folder, exist_ok=True).",
            Self::TooSlow => {
                "Do less in one call, or save what is done to /mnt/data and go on in the next."
            }
            Self::Refused => REFUSED,
            Self::NoInput => "Nobody can answer input(): put the values into the code.",
            Self::NoStdin => {
                "Nobody can answer input(): pass what it reads as stdin, a line for each call of it, or put \
                 the values into the code."
            }
            Self::NoScreen => {
                "There is no screen: leave matplotlib.use() out, and plt.show() saves charts."
            }
            Self::OutOfMemoryOfGuest => {
                "Work on less at a time: fewer columns (usecols), or parts of the file (chunksize)."
            }
            Self::FilesRolledBack => {
                "The program was stopped, and its changes to files were undone: do less in one call."
            }
            Self::NoProcesses => {
                "Here are no processes, shells or threads, and trying again will not help: do it in one \
                 thread of this program."
            }
            Self::NoLocale => {
                "These locales are there, each as UTF-8: cs_CZ da_DK de_AT de_CH de_DE el_GR en_GB en_IN en_US es_ES \
                 es_MX fi_FI fr_CA fr_FR hu_HU it_IT ja_JP ko_KR nb_NO nl_NL pl_PL pt_BR pt_PT ro_RO ru_RU sv_SE tr_TR \
                 uk_UA zh_CN zh_TW."
            }
            Self::NoLocaleInGuest => {
                "Here is no locale but C: write numbers and dates in code, such as 1.234,50 by \
                 f\"{x:,.2f}\".translate(str.maketrans(\",.\", \".,\"))."
            }
            Self::VariablesTakeMemory => {
                "What variables of earlier cells hold takes part of the memory: del what is not needed any more, or \
                 begin anew with reset_workspace."
            }
            Self::NoNode => {
                "This is QuickJS and not Node: there is no fetch, URL, Buffer, Intl or import, and require has fs, path \
                 and util. Use plain JavaScript, or Python."
            }
            Self::NoParquet => {
                "Parquet needs PyArrow, which is not here: write and read CSV, Excel or SQLite instead."
            }
            Self::InDataset => {
                "A dataset has this file, so that nothing was copied: read it there. It cannot be changed."
            }
            Self::OutOfFuel => {
                "It had used all the instructions that one call may use: do the work in smaller steps, or use NumPy \
                 and pandas instead of loops."
            }
            Self::OutOfMemory => {
                "Work on less at a time: fewer columns (usecols), parts of the file (chunksize), DuckDB on a CSV \
                 or Parquet file, or openpyxl with read_only=True on a workbook. Files in /tmp take memory too, \
                 and those in /mnt/data unless they are on disk."
            }
        }
    }
}
