//! The kind of a file that is neither text nor a picture, in plain words, and what to do with it. Pure.

use memchr::memmem;
use model::{World, text::encoding::is_text};
use serde_json::Value;

/// The kind of such a file, for a model.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mcp) struct Kind {
    /// A few plain words.
    pub(in crate::mcp) name: String,
    /// One sentence.
    pub(in crate::mcp) advice: String,
}

/// A kind of file: its name, the extensions of such files, the offset and bytes of their signature, and the call that
/// opens one, with `{}` for its path.
struct Known(&'static str, &'static [&'static str], Magic, Option<&'static str>);

/// An offset, and the bytes that all files of the kind have there; `None` if they have none in common.
type Magic = Option<(usize, &'static [u8])>;

/// Length of a file's end that contains its last part, in bytes: that of a ZIP archive may have a comment.
pub(in crate::mcp) const END: u64 = 22 + 0xFFFF;

const ZIP: Magic = Some((0, b"PK"));
/// The start of a PDF document.
pub(in crate::mcp) const PDF: &[u8] = b"%PDF-";
const OLE: Magic = Some((0, b"\xD0\xCF\x11\xE0"));

/// Bytes at the start of a file by which [`may_be_office`] decides.
pub(in crate::mcp) const START: u64 = 4;

/// Whether this is the [name](Kind::name) of Office documents that have pages.
pub(in crate::mcp) fn is_office(name: &Value) -> bool {
    let name = name.as_str().unwrap_or_default();
    let starts =
        ["Excel workbook", "old Excel", "Word ", "PowerPoint ", "OpenDocument ", "old Office"];
    starts.iter().any(|start| name.starts_with(start))
}

/// Whether a file may be an Office document, by its first bytes.
pub(in crate::mcp) fn may_be_office(start: &[u8]) -> bool {
    [ZIP, OLE].into_iter().flatten().any(|(_, magic)| start.starts_with(magic))
}

impl Known {
    fn starts(&self, start: &[u8]) -> bool {
        self.2.is_some_and(|(at, magic)| start.get(at..).is_some_and(|it| it.starts_with(magic)))
    }
}

/// All known kinds. The first kind that matches wins: by its extension and its signature, or by its signature alone. So
/// the most general kind with a signature is the last.
const KNOWN: &[Known] = &[
    Known("PDF document", &["pdf"], Some((0, PDF)), Some("pypdf.PdfReader({})")),
    Known(
        "Excel workbook",
        &["xlsx", "xlsm", "xltx"],
        ZIP,
        Some("pandas.read_excel({}, sheet_name=None)"),
    ),
    Known(
        "old Excel workbook (XLS)",
        &["xls"],
        OLE,
        Some("pandas.read_excel({}, sheet_name=None)"),
    ),
    Known("Word document", &["docx"], ZIP, Some("docx.Document({})")),
    Known("PowerPoint presentation", &["pptx"], ZIP, Some("pptx.Presentation({})")),
    Known("OpenDocument spreadsheet", &["ods"], ZIP, Some("zipfile.ZipFile({})")),
    Known("OpenDocument text", &["odt"], ZIP, Some("zipfile.ZipFile({})")),
    Known("OpenDocument presentation", &["odp"], ZIP, Some("zipfile.ZipFile({})")),
    Known("NumPy archive", &["npz"], ZIP, Some("numpy.load({})")),
    Known("Python wheel", &["whl"], ZIP, Some("zipfile.ZipFile({})")),
    Known("ZIP archive", &["zip"], ZIP, Some("zipfile.ZipFile({})")),
    Known("old Office document", &["doc", "ppt", "msg"], OLE, None),
    Known("Parquet file", &["parquet", "pq"], Some((0, b"PAR1")), Some("pandas.read_parquet({})")),
    Known(
        "Arrow file",
        &["feather", "arrow"],
        Some((0, b"ARROW1")),
        Some("pandas.read_feather({})"),
    ),
    Known(
        "SQLite database",
        &["sqlite", "sqlite3", "db", "db3"],
        Some((0, b"SQLite format 3\0")),
        Some("sqlite3.connect({})"),
    ),
    Known(
        "DuckDB database",
        &["duckdb"],
        Some((8, b"DUCK")),
        Some("duckdb.connect({}, read_only=True)"),
    ),
    Known("pickle", &["pkl", "pickle"], Some((0, b"\x80")), Some("pandas.read_pickle({})")),
    Known("joblib file", &["joblib"], None, Some("joblib.load({})")),
    Known("NumPy array", &["npy"], Some((0, b"\x93NUMPY")), Some("numpy.load({})")),
    Known("HDF5 file", &["h5", "hdf5"], Some((0, b"\x89HDF\r\n")), None),
    Known("Stata data file", &["dta"], None, Some("pandas.read_stata({})")),
    Known("SAS data file", &["sas7bdat", "xpt"], None, Some("pandas.read_sas({})")),
    Known("gzip file", &["gz", "tgz"], Some((0, b"\x1F\x8B")), Some("gzip.open({})")),
    Known("bzip2 file", &["bz2"], Some((0, b"BZh")), Some("bz2.open({})")),
    Known("xz file", &["xz"], Some((0, b"\xFD7zXZ\0")), Some("lzma.open({})")),
    Known("tar archive", &["tar"], Some((257, b"ustar")), Some("tarfile.open({})")),
    Known("7z archive", &["7z"], Some((0, b"7z\xBC\xAF")), None),
    Known("PNG image", &["png"], Some((0, b"\x89PNG\r\n\x1A\n")), None),
    Known("JPEG image", &["jpg", "jpeg"], Some((0, b"\xFF\xD8\xFF")), None),
    Known("GIF image", &["gif"], Some((0, b"GIF8")), None),
    Known("WebP image", &["webp"], Some((8, b"WEBP")), None),
    Known("TIFF image", &["tif", "tiff"], Some((0, b"II*\0")), Some(AS_PNG)),
    Known("TIFF image", &["tif", "tiff"], Some((0, b"MM\0*")), Some(AS_PNG)),
    Known("BMP image", &["bmp"], Some((0, b"BM")), Some(AS_PNG)),
    Known("icon", &["ico"], None, Some(AS_PNG)),
    Known("AVIF image", &["avif"], Some((4, b"ftypavif")), Some(AS_PNG)),
    Known("HEIC image", &["heic", "heif"], None, None),
    Known("PostScript file", &["eps", "ps"], Some((0, b"%!PS")), None),
    Known("WAV audio", &["wav"], Some((8, b"WAVE")), Some("scipy.io.wavfile.read({})")),
    Known("audio", &["mp3", "ogg", "flac", "m4a", "aac", "opus"], None, None),
    Known("video", &["mp4", "mov", "webm", "avi", "mkv", "mpg"], None, None),
    Known("font", &["ttf", "otf", "woff", "woff2"], None, None),
    Known("compiled Python module", &["pyc"], None, None),
    Known("program", &["so"], Some((0, b"\x7FELF")), None),
];

/// Calls that need a library which the embedded engine lacks, and what can be done instead.
const LACKING: [(&str, Option<&str>); 5] = [
    ("docx.", Some("zipfile.ZipFile({})")),
    ("pptx.", Some("zipfile.ZipFile({})")),
    ("pandas.read_parquet", None),
    ("pandas.read_feather", None),
    ("duckdb.", None),
];

const AS_PNG: &str = "PIL.Image.open({}).convert('RGB').save('shown.png')";

/// The kind of a ZIP archive, by the names of its first files.
fn zip_kind(start: &[u8]) -> &'static str {
    let has = |name: &[u8]| memmem::find(start, name).is_some();
    let kinds: [(&[u8], _); 6] = [
        (b"xl/", "Excel workbook"),
        (b"word/", "Word document"),
        (b"ppt/", "PowerPoint presentation"),
        (b"application/vnd.oasis.opendocument.spreadsheet", "OpenDocument spreadsheet"),
        (b"application/vnd.oasis.opendocument.text", "OpenDocument text"),
        (b"application/vnd.oasis.opendocument.presentation", "OpenDocument presentation"),
    ];
    kinds.iter().find(|(name, _)| has(name)).map_or("ZIP archive", |(_, kind)| kind)
}

/// Whether this is a container of Office for an encrypted document, by the names in its directory.
fn starts_as_encrypted(start: &[u8]) -> bool {
    let name: Vec<_> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
    start.starts_with(b"\xD0\xCF\x11\xE0") && memmem::find(start, &name).is_some()
}

/// Kinds of images that can be shown, if they are whole.
const SHOWN: &[&str] = &["PNG image", "JPEG image", "GIF image", "WebP image"];

/// Whether a file starts as an image that can be shown.
pub(in crate::mcp) fn starts_as_picture(start: &[u8]) -> bool {
    KNOWN.iter().any(|known| SHOWN.contains(&known.0) && known.starts(start))
}

/// Whether a file, whatever its name, starts as a PDF, which may have bytes of text alone, or starts as another known
/// kind and has bytes that no text has.
pub(in crate::mcp) fn is_other_file(start: &[u8]) -> bool {
    if start.starts_with(PDF) {
        return true;
    }
    let is_known = KNOWN
        .iter()
        .any(|known| known.2.is_some_and(|(_, magic)| magic.len() > 1) && known.starts(start));
    is_known && !is_text(start)
}

/// Whether a file that starts as a ZIP archive, a PDF or a Parquet file lacks the end of such a file.
fn is_cut_off(start: &[u8], end: &[u8]) -> bool {
    const PARQUET: &[u8] = b"PAR1";
    let lacks = |last: &[u8]| memmem::find(end, last).is_none();
    (start.starts_with(b"PK") && lacks(b"PK\x05\x06"))
        || (start.starts_with(PDF) && lacks(b"%%EOF"))
        || (start.starts_with(PARQUET) && !end.ends_with(PARQUET))
}

/// The kind of a file with this name, start and end, and how to open it in a sandbox of this world. The file must not
/// be text, nor a picture that can be shown. `end` has its last [`END`] bytes.
pub(in crate::mcp) fn of(
    filename: &str,
    size: u64,
    (start, end): (&[u8], &[u8]),
    world: World,
) -> Kind {
    if size == 0 {
        let advice = "The file has no content. Write it again in run_python.";
        return Kind { name: "empty file".into(), advice: advice.into() };
    }
    let ending = filename.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let named = |known: &&Known| ending.as_deref().is_some_and(|ending| known.1.contains(&ending));
    let starts = |known: &&Known| known.starts(start);
    let by_both = KNOWN.iter().find(|known| named(known) && (known.2.is_none() || starts(known)));
    if starts_as_encrypted(start) {
        let advice =
            "It is encrypted with a password: ask for a copy without one, or for the password.";
        return Kind { name: "encrypted Office document".into(), advice: advice.into() };
    }
    // One byte, or a few letters, may be the start of anything.
    let is_telling = |known: &&Known| {
        known.2.is_some_and(|(_, magic)| magic.len() > 3 || (magic.len() > 1 && !is_text(start)))
    };
    let generic = |known: &&Known| known.2 != ZIP || known.0 == zip_kind(start);
    let by_start = || {
        let mut telling = KNOWN.iter().filter(|it| is_telling(it) && generic(it) && starts(it));
        telling.next()
    };
    let opened = |name: String, open| {
        if !is_cut_off(start, end) {
            return Kind { name, advice: advice(filename, open, world) };
        }
        let advice = "Its end is missing, as after an upload or a program that broke off: upload or write it again.";
        Kind { name: format!("cut-off {name}"), advice: advice.into() }
    };
    let claimed = KNOWN.iter().find(named);
    if let Some(Known(name, _, _, open)) = by_both {
        if SHOWN.contains(name) {
            return broken(name);
        }
        return opened((*name).to_owned(), *open);
    }
    let Some(Known(name, _, _, open)) = by_start() else {
        return match claimed {
            Some(Known(name, ..)) if SHOWN.contains(name) => broken(name),
            Some(Known(name, ..)) => Kind {
                name: format!("not a valid {name}"),
                advice: format!(
                    "It does not start as a {name} does, so it is damaged or something else: look \
                     at its first bytes in run_python."
                ),
            },
            None => Kind { name: "binary data".into(), advice: advice(filename, None, world) },
        };
    };
    let name = claimed.map_or_else(
        || (*name).to_owned(),
        |Known(claimed, ..)| format!("{name}, not a {claimed} as its name says"),
    );
    opened(name, *open)
}

/// The kind of an image that cannot be shown.
fn broken(name: &str) -> Kind {
    Kind {
        name: format!("damaged {name}"),
        advice: "It is not a whole PNG, JPEG, GIF or WebP image, so it cannot be shown: save it \
                 again in run_python."
            .into(),
    }
}

/// The end of the advice on a file that a person can download.
const TO_PERSON: &str = "; or give the person its download_url";

impl Kind {
    /// The kind of a file without a URL.
    pub(in crate::mcp) fn without_url(self) -> Self {
        Self { advice: self.advice.replace(TO_PERSON, ""), ..self }
    }
}

fn advice(filename: &str, mut open: Option<&str>, world: World) -> String {
    // A JSON string is a Python literal, too. Longer names are in the result.
    let path = match filename.chars().count() {
        ..=80 => Value::from(filename).to_string(),
        _ => "path".into(),
    };
    if world == World::Interpreter {
        let lacking =
            LACKING.iter().find(|(call, _)| open.is_some_and(|open| open.starts_with(call)));
        open = lacking.map_or(open, |(_, instead)| *instead);
    }
    match open {
        Some(open) => format!("Open it in run_python, {}{TO_PERSON}.", open.replace("{}", &path)),
        None => format!("Read it in run_python, if that can be done{TO_PERSON}."),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_what_its_name_and_its_start_agree_on() {
        let tar = [&[0; 257][..], b"ustar"].concat();
        let encrypted =
            [&b"\xD0\xCF\x11\xE0\0"[..], b"E\0n\0c\0r\0y\0p\0t\0e\0d\0P\0a\0c\0k\0a\0g\0e\0"]
                .concat();
        let cases: [(&str, &[u8], &str, &str); 25] = [
            ("a.csv", b"\x1F\x8B\x08\0", "gzip file", "gzip.open"),
            (
                "a.csv",
                b"PK\x03\x04[Content_Types].xml..xl/workbook.xml",
                "Excel workbook",
                "read_excel",
            ),
            (
                "a.pdf",
                b"PK\x03\x04..word/x",
                "Word document, not a PDF document as its name says",
                "docx",
            ),
            ("book.xlsx", &encrypted, "encrypted Office document", "password"),
            (
                "book.xlsx",
                b"PK\x03\x04",
                "Excel workbook",
                r#"read_excel("book.xlsx", sheet_name=None)"#,
            ),
            ("old.XLS", b"\xD0\xCF\x11\xE0", "old Excel workbook (XLS)", "read_excel"),
            ("a/b.docx", b"PK\x03\x04", "Word document", r#"docx.Document("a/b.docx")"#),
            ("a.pdf", b"%PDF-1.7", "PDF document", r#"pypdf.PdfReader("a.pdf")"#),
            ("a.parquet", b"PAR1\x15", "Parquet file", "read_parquet"),
            ("a.zip", b"PK\x05\x06", "ZIP archive", "zipfile.ZipFile"),
            ("model.pkl", b"\x80\x04\x95", "pickle", "read_pickle"),
            ("a.db", b"SQLite format 3\0", "SQLite database", "sqlite3.connect"),
            ("a.npy", b"\x93NUMPY\x01", "NumPy array", "numpy.load"),
            ("a.tar", &tar, "tar archive", "tarfile.open"),
            ("a.csv.gz", b"\x1F\x8B\x08", "gzip file", "gzip.open"),
            ("scan.tif", b"MM\0*", "TIFF image", "PIL.Image.open"),
            ("song.mp3", b"ID3", "audio", "download_url"),
            ("a.png", b"\x89PNG\r\n\x1A\nhalf", "damaged PNG image", "save it again"),
            ("a.png", b"\0\0\0\0", "damaged PNG image", "save it again"),
            ("book.xlsx", b"\0\x01\x02", "not a valid Excel workbook", "first bytes"),
            ("a.pdf", b"PK\x03\x04", "ZIP archive, not a PDF document as its name says", "zipfile"),
            ("results", b"PAR1\x15", "Parquet file", "read_parquet"),
            ("data.dat", b"PK\x03\x04", "ZIP archive", "zipfile"),
            ("core", b"\x7FELF\x02", "program", "download_url"),
            ("core", b"\0\x01\x02", "binary data", "run_python"),
        ];
        for (name, start, kind, said) in cases {
            let told = of(name, 100, (start, ENDS), World::System);
            assert_eq!(told.name, kind, "{name}");
            assert!(told.advice.contains(said) && told.advice.ends_with('.'), "{}", told.advice);
        }
        assert_eq!(of("a.pdf", 0, (b"", b""), World::System).name, "empty file");
    }

    /// The ends of all kinds that need one.
    const ENDS: &[u8] = b"PK\x05\x06 %%EOF PAR1";

    #[test]
    fn a_file_without_its_end_is_told_to_be_cut_off() {
        for (name, start) in
            [("a.xlsx", &b"PK\x03\x04"[..]), ("a.pdf", b"%PDF-1.7"), ("a.parquet", b"PAR1")]
        {
            let told = of(name, 100, (start, b"...PK\x03\x04"), World::System);
            assert!(told.name.starts_with("cut-off ") && told.advice.contains("again"), "{told:?}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_not_advised() {
        let advice = |name, start| of(name, 100, (start, ENDS), World::Interpreter).advice;
        assert!(advice("a.docx", b"PK\x03\x04").contains(r#"zipfile.ZipFile("a.docx")"#));
        assert!(advice("a.parquet", b"PAR1").contains("if that can be done"));
        assert!(advice("a.xlsx", b"PK\x03\x04").contains("read_excel"));
    }

    #[test]
    fn a_pdf_is_none_of_the_texts_that_its_name_says() {
        assert!(is_other_file(b"%PDF-1.4\n1 0 obj\n") && !is_other_file(b"PAR1,PAR2\n1,2\n"));
    }

    proptest! {
        #[test]
        fn whatever_a_file_is_called_the_advice_is_one_short_line(
            name in "\\PC{1,300}",
            ending in "(\\.(xlsx|png|pdf|tif|zz))?",
            start in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let told = of(&(name + &ending), 40, (&start, &start), World::System);
            prop_assert!(told.advice.chars().count() < 400 && told.name.len() < 80);
            prop_assert!(!told.advice.contains('\n'));
        }
    }
}
