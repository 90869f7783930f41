//! Tarballs from an npm registry. They are not trusted: a tarball is checked before any of its files goes into a
//! session.
//!
//! Files go into a session without the first folder of their paths, whatever its name. Files that are in no folder are
//! left out, as npm does.

use std::{
    borrow::Cow,
    fs::File,
    io::{BufReader, Read},
};

use flate2::read::GzDecoder;
use model::DataPath;
use tar::{Archive, Entry, EntryType, PaxExtensions};
use tokio::sync::mpsc;

use super::archive::{
    Fault, MAX_ENTRIES, NODE_MODULES, PIECE_BYTES, Piece, are_apart, handed_over, next_piece,
    reopened, unreadable,
};

/// The maximum size of an extended header, which describes the next file, in bytes.
const MAX_ABOUT: u64 = 64 << 10;

/// Bytes that a file takes in an archive besides its contents: its headers, and the padding of its last block.
const PER_ENTRY: u64 = 4096;

/// Reads all files of a tarball, a piece at a time, with their paths below `place` in the folder of packages. They may
/// have `most` bytes in all. A fault comes last.
///
/// # Errors
/// If the server's own file cannot be read.
pub(super) fn pieces(
    file: &File,
    place: &str,
    most: u64,
) -> Result<mpsc::Receiver<Result<Piece, Fault>>, Fault> {
    let (file, place) = (reopened(file)?, place.to_owned());
    Ok(handed_over(move |send| unpack(file, &place, most, send)))
}

/// Sends all files, until `send` returns false.
fn unpack(
    file: impl Read,
    place: &str,
    most: u64,
    mut send: impl FnMut(Piece) -> bool,
) -> Result<(), Fault> {
    // The unpacked contents may be endless.
    let unpacked = GzDecoder::new(BufReader::with_capacity(PIECE_BYTES, file));
    let most_with_heads = most.saturating_add(MAX_ENTRIES as u64 * PER_ENTRY);
    let mut archive = Archive::new(unpacked.take(most_with_heads));
    let (mut left, mut files, mut number) = (most, vec![], 0_usize);
    let mut long_name: Option<Vec<u8>> = None;
    // Raw: extended headers are read here, with a limit on their size.
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let mut entry = entry.map_err(unreadable)?;
        number += 1;
        if number > 2 * MAX_ENTRIES {
            return Err(Fault::TooMany);
        }
        match entry.header().entry_type() {
            EntryType::XHeader => long_name = pax_path(&about(&mut entry)?)?.or(long_name),
            EntryType::GNULongName => long_name = Some(about(&mut entry)?),
            EntryType::XGlobalHeader | EntryType::GNULongLink => drop(about(&mut entry)?),
            EntryType::Directory => long_name = None,
            EntryType::Regular | EntryType::Continuous => {
                let name = match long_name.take() {
                    Some(long) => Cow::Owned(long),
                    None => entry.path_bytes(),
                };
                let Some(path) = goes_to(&name, place)? else { continue };
                files.push(path.clone());
                if files.len() > MAX_ENTRIES {
                    return Err(Fault::TooMany);
                }
                if !hand_over(&mut entry, path, &mut left, &mut send)? {
                    return Ok(());
                }
            }
            _ => return Err(Fault::Special),
        }
    }
    if are_apart(files.iter().map(String::as_str)) { Ok(()) } else { Err(Fault::Twice) }
}

/// Sends one file. Returns false if `send` does.
fn hand_over(
    entry: &mut impl Read,
    path: String,
    left: &mut u64,
    send: &mut impl FnMut(Piece) -> bool,
) -> Result<bool, Fault> {
    let mut offset = 0;
    loop {
        let bytes = next_piece(entry, left)?;
        let len = bytes.len() as u64;
        let last = bytes.len() < PIECE_BYTES;
        if !send(Piece { path: path.clone(), offset, bytes, last }) {
            return Ok(false);
        }
        if last {
            return Ok(true);
        }
        offset += len;
    }
}

/// Reads an extended header, which describes the next file.
fn about(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, Fault> {
    if entry.size() > MAX_ABOUT {
        return Err(unreadable("it says too much of a file"));
    }
    let mut bytes = vec![];
    entry.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The path of the next file, if an extended header has it.
fn pax_path(about: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut path = None;
    for one in PaxExtensions::new(about) {
        let one = one.map_err(unreadable)?;
        match one.key_bytes() {
            b"path" => path = Some(one.value_bytes().to_owned()),
            // The next file would end at another place than its own header says.
            b"size" => return Err(unreadable("it says of a file how large it is in two places")),
            _ => {}
        }
    }
    Ok(path)
}

/// The path of a file below the folder of packages; `None` if it is in no folder of the archive.
fn goes_to(name: &[u8], place: &str) -> Result<Option<String>, Fault> {
    let name = std::str::from_utf8(name).map_err(|_| Fault::Outside)?;
    let name = name.trim_end_matches('\0');
    // The rules of `DataPath`: relative, no dots, no backslash, no control characters.
    DataPath::relative(name).map_err(|_| Fault::Outside)?;
    let Some((_, rest)) = name.split_once('/') else { return Ok(None) };
    // The folder of other packages.
    if rest.split('/').next() == Some(NODE_MODULES) {
        return Err(Fault::Outside);
    }
    Ok(Some(format!("{place}/{rest}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    /// The archive that `make` builds.
    fn tarball(make: impl FnOnce(&mut Builder<GzEncoder<Vec<u8>>>)) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(vec![], Compression::fast()));
        make(&mut builder);
        builder.into_inner().expect("written").finish().expect("written")
    }

    fn add(
        builder: &mut Builder<impl std::io::Write>,
        kind: EntryType,
        name: &str,
        content: &[u8],
    ) {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        // Written directly, because the library would refuse some of the names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, content).expect("written");
    }

    fn file(builder: &mut Builder<impl std::io::Write>, name: &str, content: &[u8]) {
        add(builder, EntryType::Regular, name, content);
    }

    fn read(bytes: &[u8], most: u64) -> Result<Vec<(String, Vec<u8>)>, Fault> {
        let mut files: Vec<(String, Vec<u8>)> = vec![];
        unpack(bytes, "node_modules/a", most, |piece| {
            match files.last_mut().filter(|_| piece.offset > 0) {
                Some((_, content)) => content.extend_from_slice(&piece.bytes),
                None => files.push((piece.path, piece.bytes.to_vec())),
            }
            true
        })?;
        Ok(files)
    }

    #[test]
    fn files_of_its_folder_go_to_the_place_of_the_package() {
        let long = format!("package/{}", "long/".repeat(30) + "x.js");
        let content = vec![7; PIECE_BYTES * 2];
        let bytes = tarball(|all| {
            add(all, EntryType::XGlobalHeader, "pax_global_header", b"16 comment=abcd\n");
            add(all, EntryType::Directory, "package/", b"");
            file(all, "package/package.json", b"{}");
            file(all, "other/lib/a.js", &content);
            file(all, "package/empty", b"");
            file(all, "beside", b"left out");
            let length = long.len() + 10;
            let record = format!("{length} path={long}\n");
            add(all, EntryType::XHeader, "PaxHeader/x", record.as_bytes());
            file(all, "package/cut", b"long");
            add(all, EntryType::GNULongName, "././@LongLink", format!("{long}2\0").as_bytes());
            file(all, "package/cut", b"longer");
        });
        let files = read(&bytes, 1 << 20).expect("right");
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let there = format!("node_modules/a/{}", &long["package/".len()..]);
        let two = format!("{there}2");
        let [one, two] = [&*there, &*two];
        assert_eq!(
            names,
            [
                "node_modules/a/package.json",
                "node_modules/a/lib/a.js",
                "node_modules/a/empty",
                one,
                two
            ]
        );
        assert_eq!(files[1].1, content);
        assert_eq!(
            (&*files[2].1, &*files[3].1, &*files[4].1),
            (&b""[..], &b"long"[..], &b"longer"[..])
        );
    }

    #[test]
    fn nothing_of_it_goes_anywhere_else() {
        for name in [
            "package/../../x",
            "/package/x",
            "package/./x",
            "../x",
            "package/a\\b",
            "package/node_modules/b/x",
            "package/node_modules",
            "package/\u{7}",
        ] {
            let bytes = tarball(|all| file(all, name, b"x"));
            assert_eq!(read(&bytes, 1000), Err(Fault::Outside), "{name}");
        }
        for kind in [
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Char,
            EntryType::Fifo,
            EntryType::GNUSparse,
        ] {
            let bytes = tarball(|all| add(all, kind, "package/x", b""));
            assert_eq!(read(&bytes, 1000), Err(Fault::Special), "{kind:?}");
        }
        let bytes = tarball(|all| {
            let record = b"21 path=package/../x\n";
            add(all, EntryType::XHeader, "x", record);
            file(all, "package/x", b"x");
        });
        assert_eq!(read(&bytes, 1000), Err(Fault::Outside), "a name that is said elsewhere");
        for names in
            [["package/a", "package/a"], ["package/a", "other/a"], ["package/a/b", "package/a"]]
        {
            let bytes = tarball(|all| names.iter().for_each(|name| file(all, name, b"x")));
            assert_eq!(read(&bytes, 1000), Err(Fault::Twice), "{names:?}");
        }
    }

    #[test]
    fn what_is_larger_than_it_may_be_is_not_read_to_its_end() {
        let bytes = tarball(|all| file(all, "package/a", &[0; 5000]));
        assert_eq!(read(&bytes, 4999), Err(Fault::TooLarge));
        assert!(read(&bytes, 5000).is_ok());
        let bytes = tarball(|all| add(all, EntryType::XHeader, "x", &vec![0; 1 << 20]));
        assert!(
            matches!(read(&bytes, 1 << 30), Err(Fault::Unreadable(_))),
            "of a file's description"
        );
        let bytes = tarball(|all| {
            for number in 0..=MAX_ENTRIES {
                file(all, &format!("package/{number}"), b"");
            }
        });
        assert_eq!(read(&bytes, 1 << 30), Err(Fault::TooMany));
        // The archive is cut off, or is not an archive.
        let bytes = tarball(|all| file(all, "package/a", b"x"));
        assert!(matches!(read(&bytes[..bytes.len() / 2], 1000), Err(Fault::Unreadable(_))));
        let mut other = GzEncoder::new(vec![], Compression::fast());
        other.write_all(&[1; 2000]).expect("written");
        assert!(read(&other.finish().expect("written"), 1000).is_err());
    }
}
