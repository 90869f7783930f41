//! Wheels from an index. They are not trusted: a wheel is checked before any of its files goes into a session.
//!
//! Only the files for Python's folder of packages go into a session. Scripts, headers and files for other places are
//! left out.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use flate2::bufread::DeflateDecoder;
use model::{DataPath, package::PlainName};
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::archive::{
    Fault, MAX_ENTRIES, NODE_MODULES, Named, PIECE_BYTES, Piece, are_apart, handed_over,
    next_piece, reopened, unreadable,
};

/// The maximum size of a wheel's list of files, in bytes.
const MAX_RECORD: u64 = 8 << 20;

/// Modules that Python imports at its start, from whatever folder has them.
const AT_START: [&str; 2] = ["sitecustomize", "usercustomize"];

/// The maximum size of the directory of an archive, in bytes.
const MAX_DIRECTORY: usize = 16 << 20;

/// The bits of a mode that are the file's kind, and the kind of an ordinary file.
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// A file that a wheel installs: the first 8 bytes of the hashes of its path and of its contents.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstalledFile {
    pub(super) path: u64,
    pub(super) content: u64,
}

/// An open wheel.
pub(super) struct Wheel {
    file: File,
    entries: Vec<Entry>,
    /// Bytes that its files may still have.
    left: u64,
}

/// A file of a wheel.
#[derive(Debug)]
struct Entry {
    /// The name in the archive.
    name: String,
    /// The file's offset, size and compression in the archive.
    packed: Packed,
    /// The path below the folder of packages; `None` if the file is left out.
    goes_to: Option<String>,
    /// The hash from the wheel's list of files.
    sha256: Option<[u8; 32]>,
}

impl Wheel {
    /// Opens a wheel, whose files may have `most` bytes in all. Their contents are checked when they are read.
    ///
    /// # Errors
    /// If its directory or its list of files shows a fault.
    pub(super) async fn open(file: &File, named: &Named, most: u64) -> Result<Self, Fault> {
        let (file, named) = (reopened(file)?, named.clone());
        let opening = spawn_blocking(move || Self::look_through(file, &named, most));
        opening.await.unwrap_or_else(|error| Err(unreadable(error)))
    }

    fn look_through(mut file: File, named: &Named, most: u64) -> Result<Self, Fault> {
        let info = info_folder(named)?;
        let (mut entries, mut seen, mut total) = (vec![], HashSet::new(), 0_u64);
        for listed in directory(&file)? {
            if listed.name.ends_with('/') {
                continue;
            }
            // The rules of `DataPath`: relative, no dots, no backslash, no control characters.
            let path = DataPath::relative(&listed.name).map_err(|_| Fault::Outside)?;
            if ![0, REGULAR].contains(&(listed.mode & KIND)) {
                return Err(Fault::Special);
            }
            total = total.saturating_add(listed.size);
            let name = path.as_str().to_owned();
            if !seen.insert(name.clone()) {
                return Err(Fault::Twice);
            }
            let goes_to = goes_to(&name, &info);
            entries.push(Entry { name, packed: listed.packed, goes_to, sha256: None });
        }
        if total > most {
            return Err(Fault::TooLarge);
        }
        if !are_apart(entries.iter().filter_map(|it: &Entry| it.goes_to.as_deref())) {
            return Err(Fault::Twice);
        }
        let record = format!("{info}.dist-info/RECORD");
        let own = entries.iter().find(|entry| entry.name == record).ok_or(Fault::OtherFile)?;
        let mut record_text = vec![];
        let unpacked = own.packed.open(&mut file)?;
        unpacked.take(MAX_RECORD + 1).read_to_end(&mut record_text).map_err(unreadable)?;
        if record_text.len() as u64 > MAX_RECORD {
            return Err(Fault::TooLarge);
        }
        let mut hashes = hashes(&record_text)?;
        for entry in &mut entries {
            entry.sha256 = hashes.remove(&entry.name);
            let signs =
                ["", ".jws", ".p7s"].iter().any(|end| entry.name == format!("{record}{end}"));
            if entry.sha256.is_none() && !signs {
                return Err(Fault::Differs);
            }
        }
        // The folder that marks the package as installed comes last.
        entries.sort_by_key(|entry| entry.name.starts_with(&format!("{info}.dist-info/")));
        Ok(Self { file, entries, left: most })
    }

    /// The files that the wheel installs. Files without a hash (the list of files, or a signature of it) are left out:
    /// no other package has them.
    pub(super) fn installs(&self) -> Vec<InstalledFile> {
        let beginning = |hash: &[u8]| {
            hash.first_chunk().map_or(0, |first: &[u8; 8]| u64::from_le_bytes(*first))
        };
        let file = |entry: &Entry| {
            let path = beginning(&Sha256::digest(entry.goes_to.as_ref()?));
            Some(InstalledFile { path, content: beginning(entry.sha256.as_ref()?) })
        };
        self.entries.iter().filter_map(file).collect()
    }

    /// Checks that no module of the wheel would hide one of Python's own, and that the wheel has no JavaScript
    /// packages.
    pub(super) fn check_modules(&self, stdlib: &HashSet<String>) -> Result<(), Fault> {
        let goals = self.entries.iter().filter_map(|entry| entry.goes_to.as_deref());
        for goal in goals {
            let first = goal.split('/').next().unwrap_or(goal);
            // The folder of the packages of another language.
            if first == NODE_MODULES {
                return Err(Fault::Outside);
            }
            let module = first.split('.').next().unwrap_or(first);
            let is_module = goal.contains('/') && !first.contains('.')
                || [".py", ".pyc", ".so"].iter().any(|end| first.ends_with(end));
            if is_module && (stdlib.contains(module) || AT_START.contains(&module)) {
                return Err(Fault::Shadows(module.to_owned()));
            }
        }
        Ok(())
    }

    /// Reads the files to be installed, or all files, a piece at a time. A fault comes last: a file that differs from
    /// the list of files, or is larger than allowed.
    pub(super) fn pieces(self, all: bool) -> mpsc::Receiver<Result<Piece, Fault>> {
        handed_over(move |send| self.read(all, send))
    }

    fn read(mut self, all: bool, mut send: impl FnMut(Piece) -> bool) -> Result<(), Fault> {
        for entry in std::mem::take(&mut self.entries) {
            if entry.goes_to.is_none() && !all {
                continue;
            }
            let mut reader = entry.packed.open(&mut self.file)?;
            let (mut hash, mut offset) = (Sha256::new(), 0_u64);
            let path = entry.goes_to.unwrap_or_default();
            let mut next = next_piece(&mut reader, &mut self.left)?;
            loop {
                let bytes = next;
                hash.update(&bytes);
                next = if bytes.len() < PIECE_BYTES {
                    Bytes::new()
                } else {
                    next_piece(&mut reader, &mut self.left)?
                };
                let last = next.is_empty();
                // If the hash differs, the last piece is not sent, so that the file never appears.
                if last && entry.sha256.is_some_and(|sha256| *hash.clone().finalize() != sha256) {
                    return Err(Fault::Differs);
                }
                let len = bytes.len() as u64;
                if !send(Piece { path: path.clone(), offset, bytes, last }) {
                    return Ok(());
                }
                offset += len;
                if last {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The place of a file in an archive, and its compression.
#[derive(Debug, Clone, Copy)]
struct Packed {
    /// Offset of the file's own header.
    at: u64,
    /// Bytes in the archive.
    len: u64,
    is_deflated: bool,
}

impl Packed {
    /// Opens the file. The reader yields its unpacked contents.
    fn open<'a>(&self, archive: &'a mut File) -> Result<Box<dyn Read + 'a>, Fault> {
        let mut header = [0; 30];
        archive.read_exact_at(&mut header, self.at).map_err(unreadable)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(unreadable("a file is not where the directory has it"));
        }
        let names = u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
        let start = self.at + header.len() as u64 + names;
        archive.seek(SeekFrom::Start(start)).map_err(unreadable)?;
        let packed = BufReader::new(archive.take(self.len));
        Ok(if self.is_deflated { Box::new(DeflateDecoder::new(packed)) } else { Box::new(packed) })
    }
}

/// A file as the directory of an archive describes it.
struct Listed {
    name: String,
    packed: Packed,
    size: u64,
    /// Kind and permissions, or 0.
    mode: u32,
}

/// Reads the directory of an archive. It must have the plain form, as in all wheels: it is at the end, has no comment,
/// and gives no number in a second form. Libraries search for other directories if this one is broken, and those may
/// list any number of files.
fn directory(file: &File) -> Result<Vec<Listed>, Fault> {
    const END: usize = 22;
    let len = file.metadata().map_err(unreadable)?.len();
    let mut end = [0; END];
    let at = len.checked_sub(END as u64).ok_or_else(|| unreadable("it is too short"))?;
    file.read_exact_at(&mut end, at).map_err(unreadable)?;
    let files = usize::from(u16_at(&end, 10));
    if !end.starts_with(b"PK\x05\x06") || files == usize::from(u16::MAX) {
        return Err(unreadable("it does not end as a wheel does"));
    }
    let (size, start) = (u32_at(&end, 12) as usize, u64::from(u32_at(&end, 16)));
    if files > MAX_ENTRIES || size > MAX_DIRECTORY {
        return Err(Fault::TooMany);
    }
    if start + size as u64 != at {
        return Err(broken());
    }
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, start).map_err(unreadable)?;
    let mut rest = &bytes[..];
    let mut listed = Vec::with_capacity(files);
    while !rest.is_empty() {
        listed.push(next_listed(&mut rest)?);
    }
    if listed.len() == files { Ok(listed) } else { Err(broken()) }
}

/// Takes the next file from a directory.
fn next_listed(rest: &mut &[u8]) -> Result<Listed, Fault> {
    let header = rest.split_off(..46).ok_or_else(broken)?;
    let name = rest.split_off(..usize::from(u16_at(header, 28))).ok_or_else(broken)?;
    let more = usize::from(u16_at(header, 30)) + usize::from(u16_at(header, 32));
    rest.split_off(..more).ok_or_else(broken)?;
    let (method, is_encrypted) = (u16_at(header, 10), u16_at(header, 8) & 1 == 1);
    let numbers = [20, 24, 42].map(|at| u32_at(header, at));
    if !header.starts_with(b"PK\x01\x02") || numbers.contains(&u32::MAX) {
        return Err(broken());
    }
    if ![0, 8].contains(&method) || is_encrypted {
        return Err(unreadable("it is compressed in an unusual way"));
    }
    let name = std::str::from_utf8(name).map_err(|_| Fault::Outside)?.to_owned();
    let [len, size, at] = numbers.map(u64::from);
    let packed = Packed { at, len, is_deflated: method == 8 };
    Ok(Listed { name, packed, size, mode: u32_at(header, 38) >> 16 })
}

fn broken() -> Fault {
    unreadable("its directory is broken")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// The prefix of the folders that describe a wheel: its project and version, as in its file name.
fn info_folder(named: &Named) -> Result<String, Fault> {
    let stem = named.file.strip_suffix(".whl").ok_or(Fault::OtherFile)?;
    let parts: Vec<_> = stem.split('-').collect();
    let [project, version, ..] = *parts else { return Err(Fault::OtherFile) };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+!".contains(c);
    let is_this = PlainName::of(project) == PlainName::of(&named.name)
        && (5..=6).contains(&parts.len())
        && [project, version].iter().all(|part| part.chars().all(is_plain));
    if is_this { Ok(format!("{project}-{version}")) } else { Err(Fault::OtherFile) }
}

/// The path of a file below the folder of packages; `None` if it is left out.
fn goes_to(name: &str, info: &str) -> Option<String> {
    let data = format!("{info}.data/");
    match name.strip_prefix(&data) {
        None => Some(name.to_owned()),
        Some(rest) => {
            let rest = ["purelib/", "platlib/"].iter().find_map(|it| rest.strip_prefix(it))?;
            (!rest.is_empty()).then(|| rest.to_owned())
        }
    }
}

/// The files of a list of files, with their hashes.
fn hashes(record: &[u8]) -> Result<HashMap<String, [u8; 32]>, Fault> {
    let text = std::str::from_utf8(record).map_err(unreadable)?;
    let mut all = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        // A quoted path may contain commas; a hash contains none.
        let mut fields = line.rsplitn(3, ',');
        let (_size, hash, path) = (fields.next(), fields.next(), fields.next());
        let (Some(hash), Some(path)) = (hash, path) else { return Err(Fault::Differs) };
        let path = match path.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\""),
            None => path.to_owned(),
        };
        if let Some(sha256) = hash.strip_prefix("sha256=") {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(sha256).map_err(|_| Fault::Differs)?;
            all.insert(path, bytes.try_into().map_err(|_| Fault::Differs)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, io::Write as _};

    use proptest::prelude::*;
    use sha2::Sha512;
    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn named(file: &str) -> Named {
        Named { name: "Ruamel.Yaml".into(), version: "0.18".into(), file: file.into() }
    }

    #[test]
    fn a_file_is_a_wheel_of_the_project_that_it_is_said_to_be() {
        let info = |file| info_folder(&named(file));
        assert_eq!(info("ruamel_yaml-0.18-py3-none-any.whl"), Ok("ruamel_yaml-0.18".into()));
        assert_eq!(
            info("ruamel.yaml-0.18-1-cp313-cp313-linux_x86_64.whl"),
            Ok("ruamel.yaml-0.18".into())
        );
        for other in [
            "other-0.18-py3-none-any.whl",
            "ruamel_yaml-0.18.tar.gz",
            "ruamel_yaml.whl",
            "",
            ".whl",
            "ruamel_yaml-0/18-py3-none-any.whl",
            "ruamel_yaml-0.18-a-b-c-d-e.whl",
        ] {
            assert_eq!(info(other), Err(Fault::OtherFile), "{other}");
        }
    }

    /// Makes a wheel of these files.
    fn wheel(files: &[(&str, &[u8])]) -> File {
        let mut record = String::new();
        for (name, content) in files {
            let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(content));
            writeln!(record, "{name},sha256={hash},{}", content.len()).expect("a text");
        }
        let record = ("ruamel_yaml-0.18.dist-info/RECORD", record.as_bytes());
        let mut writer = ZipWriter::new(tempfile::tempfile().expect("a file"));
        for (name, content) in files.iter().chain([&record]) {
            writer.start_file(*name, SimpleFileOptions::default()).expect("begun");
            writer.write_all(content).expect("written");
        }
        writer.finish().expect("written")
    }

    async fn opened(file: &File) -> Result<Wheel, Fault> {
        Wheel::open(file, &named("ruamel_yaml-0.18-py3-none-any.whl"), 100_000_000).await
    }

    #[tokio::test]
    async fn many_sessions_read_one_wheel_at_the_same_time() {
        let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = wheel(&[("a.bin", &content), ("b.bin", &content[1..])]);
        let mut readers = vec![];
        for _ in 0..4 {
            readers.push((opened(&file).await.expect("right").pieces(false), vec![]));
        }
        // Read a piece of each wheel in turn.
        loop {
            let mut is_over = true;
            for (pieces, read) in &mut readers {
                if let Some(piece) = pieces.recv().await {
                    read.extend_from_slice(&piece.expect("as it was").bytes);
                    is_over = false;
                }
            }
            if is_over {
                break;
            }
        }
        for (_, read) in readers {
            assert!(read.starts_with(&content) && read[content.len()..].starts_with(&content[1..]));
        }
    }

    #[tokio::test]
    async fn a_file_is_not_where_another_has_a_folder() {
        let file = wheel(&[("a/b/c.py", b"1"), ("a/b", b"2")]);
        assert_eq!(opened(&file).await.err(), Some(Fault::Twice));
        opened(&wheel(&[("a/b/c.py", b"1"), ("a/bc", b"2"), ("a.py", b"")])).await.expect("right");
    }

    #[test]
    fn how_many_files_there_are_is_known_before_they_are_listed() {
        let file = wheel(&[("a.py", b"1")]);
        let len = file.metadata().expect("known").len();
        assert_eq!(directory(&file).map(|all| all.len()), Ok(2));
        let end_with =
            |at: u64, bytes: &[u8]| file.write_all_at(bytes, len - 22 + at).expect("written");
        let is_unreadable = || matches!(directory(&file), Err(Fault::Unreadable(_)));
        end_with(10, &20_001_u16.to_le_bytes());
        assert_eq!(directory(&file).err(), Some(Fault::TooMany));
        end_with(10, &u16::MAX.to_le_bytes());
        assert!(is_unreadable(), "the number is in a second form");
        for files in [1_u16, 3] {
            end_with(10, &files.to_le_bytes());
            assert!(is_unreadable(), "there are two");
        }
        end_with(10, &2_u16.to_le_bytes());
        assert!(!is_unreadable());
        end_with(16, &0_u32.to_le_bytes());
        assert!(is_unreadable(), "it is elsewhere");
        let file = wheel(&[("a.py", b"1")]);
        file.write_all_at(b"x", len).expect("written");
        assert!(matches!(directory(&file), Err(Fault::Unreadable(_))), "more behind it");
    }

    /// Installs a wheel. Returns the files that arrived whole, and whether all did.
    async fn installed(file: &File) -> (HashMap<String, Vec<u8>>, bool) {
        let (mut files, mut open) = (HashMap::new(), HashMap::<_, Vec<u8>>::new());
        let Ok(wheel) = opened(file).await else { return (files, false) };
        let mut pieces = wheel.pieces(false);
        while let Some(piece) = pieces.recv().await {
            let Ok(Piece { path, bytes, last, .. }) = piece else { return (files, false) };
            open.entry(path.clone()).or_default().extend_from_slice(&bytes);
            if last {
                let content = open.remove(&path).expect("begun");
                files.insert(path, content);
            }
        }
        (files, true)
    }

    proptest! {
        #[test]
        fn nothing_else_than_what_a_wheel_lists_is_installed_from_a_damaged_one(
            at in 0..10_000_usize,
            bytes in proptest::collection::vec(any::<u8>(), 1..8),
        ) {
            // Bytes that cannot be compressed: every changed byte of the archive changes the contents.
            let noise = Sha512::digest(b"noise").to_vec();
            let made: [(&str, &[u8]); 2] = [("a.py", b"1"), ("b.py", &noise)];
            let file = wheel(&made);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let (whole, is_whole) = runtime.block_on(installed(&file));
            prop_assert!(is_whole && made.iter().all(|(path, content)| whole[*path] == *content));
            let len = usize::try_from(file.metadata().expect("known").len()).expect("short");
            file.write_all_at(&bytes, (at % len) as u64).expect("written");
            let (mut files, _) = runtime.block_on(installed(&file));
            // The list itself has no hash.
            files.retain(|path, _| !path.ends_with("/RECORD"));
            for (path, content) in files {
                prop_assert_eq!(Some(&content), whole.get(&path), "{}", path);
            }
        }
    }

    #[test]
    fn files_for_elsewhere_are_left_out() {
        let goes = |name| goes_to(name, "a-1");
        assert_eq!(goes("a/b.py").as_deref(), Some("a/b.py"));
        assert_eq!(goes("a-1.data/purelib/a/c.py").as_deref(), Some("a/c.py"));
        assert_eq!(goes("a-1.data/platlib/a/c.so").as_deref(), Some("a/c.so"));
        for elsewhere in [
            "a-1.data/scripts/a",
            "a-1.data/data/etc/a",
            "a-1.data/headers/a.h",
            "a-1.data/purelib/",
        ] {
            assert_eq!(goes(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn a_list_of_files_is_read_as_it_is_written() {
        let hash = "A".repeat(43);
        let text = format!(
            "a/b.py,sha256={hash},3\n\"a/c,\"\"d.py\",sha256={hash},3\r\na-1.dist-info/RECORD,,\n"
        );
        let all = hashes(text.as_bytes()).expect("a list");
        let mut names: Vec<_> = all.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["a/b.py", "a/c,\"d.py"]);
        for wrong in ["a", "a,sha256=x,1", "a,sha256=AAAA,1"] {
            assert_eq!(hashes(wrong.as_bytes()), Err(Fault::Differs), "{wrong}");
        }
        assert!(hashes(b"a,md5=AAAA,1").expect("a list").is_empty(), "another hash is none");
    }
}
