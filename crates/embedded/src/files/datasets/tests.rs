use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path, sync::Arc, thread};

use protocol::message::Get;

use super::*;
use crate::files::{Base, DATA, FileSystem, Library, Located, ROOT};

/// Files with these datasets.
fn files(folders: &[(&str, &Path)]) -> FileSystem {
    let library = Library::new([("/usr/lib/one.py".to_owned(), crate::files::Content::default())]);
    let folders = folders.iter().map(|(name, path)| ((*name).to_owned(), path.to_path_buf()));
    let datasets = Datasets::open(&folders.collect::<Vec<_>>()).expect("opened");
    FileSystem::new(Arc::new(library), 1 << 20, 1 << 20).with_datasets(datasets)
}

/// The dataset and the path in it to which a path leads.
fn located(files: &FileSystem, path: &str) -> Option<(usize, String)> {
    match files.locate(Base::Node(DATA), path, true).expect("located") {
        Located::Dataset(DatasetPath { dataset, path }) => Some((dataset, path)),
        Located::Tree(..) => None,
    }
}

#[test]
fn paths_lead_into_datasets_and_out_of_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut files = files(&[("b", dir.path()), ("a", dir.path())]);
    files.make_link("/data/b", DATA, "in").expect("made");
    files.make_link("../../data", DATA, "all").expect("made");
    files.make_link("in/sub", DATA, "deep").expect("made");
    files.make_link("around", DATA, "around").expect("made");
    for (path, expected) in [
        ("/data/a", Some((0, ""))),
        ("/data/b/", Some((1, ""))),
        ("/data//b//x/y/", Some((1, "x/y/"))),
        ("../../data/a/./x", Some((0, "./x"))),
        ("in/x", Some((1, "x"))),
        ("in", Some((1, ""))),
        ("deep/x", Some((1, "sub/x"))),
        ("all/a/x", Some((0, "x"))),
        ("/data/a/x/../y", Some((0, "x/../y"))),
        ("/data/a/x/../../b/y", Some((1, "y"))),
        ("/data/a/../../mnt/data/in/y", Some((1, "y"))),
        ("/data", None),
        ("/data/", None),
        ("/data/c/x", None),
        ("/data/a/..", None),
        ("/data/a/../..", None),
        ("/usr/lib/one.py", None),
        ("/usr/lib/one.py/../../../data/a", None),
        ("new", None),
    ] {
        let expected = expected.map(|(dataset, path)| (dataset, path.to_owned()));
        assert_eq!(located(&files, path), expected, "{path}");
    }
    for (path, expected) in [
        ("/data/a/x/../..", FOLDER),
        ("/data/a/../../mnt/data", DATA),
        ("in/../../mnt/data/.", DATA),
        ("/data/a/../..", ROOT),
    ] {
        let Located::Tree(from, rest) = files.locate(Base::Node(DATA), path, true).expect("there")
        else {
            panic!("{path} is in a dataset");
        };
        assert_eq!(files.find(from, &rest, true), Ok(expected), "{path}");
    }
    assert_eq!(files.locate(Base::Node(DATA), "around/x", true), Err(Errno::Loop));
    assert_eq!(files.locate(Base::Node(DATA), "", true), Err(Errno::Noent));
    let link = files.locate(Base::Node(DATA), "in", false).expect("located");
    assert_eq!(link, Located::Tree(DATA, "in".into()), "the link itself");
    // The tree itself has only empty folders there.
    assert_eq!(files.find(ROOT, "/data/a/x", true), Err(Errno::Noent));
    assert_eq!(files.make_folder(ROOT, "/data/a/x").map(drop), Err(Errno::Rofs));
    assert_eq!(files.make_folder(ROOT, "/data/c").map(drop), Err(Errno::Rofs));
    assert_eq!(files.remove_folder(ROOT, "/data/a"), Err(Errno::Rofs));
    assert_eq!(files.remove_folder(ROOT, "/data"), Err(Errno::Notempty));
}

#[test]
fn paths_from_an_open_folder_stay_or_leave_as_they_say() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(dir.path().join("x/y")).expect("made");
    let files = files(&[("a", dir.path())]);
    let datasets = files.datasets();
    let at = datasets.mounted(FOLDER + 1, "x").expect("mounted");
    let open = datasets.open_at(&at, true).expect("opened");
    let from = |path: &str| files.locate(Base::Dataset(&open), path, true).expect("located");
    let within = |path: &str| Located::Dataset(DatasetPath { dataset: 0, path: path.to_owned() });
    assert_eq!(from("y"), within("x/y"));
    assert_eq!(from("../z"), within("x/../z"));
    assert_eq!(from("../../a/z"), within("z"));
    assert_eq!(from("../.."), Located::Tree(FOLDER, ".".into()));
    assert_eq!(from("../../../mnt/data"), Located::Tree(DATA, ".".into()));
    assert_eq!(from("/mnt/data/new"), Located::Tree(DATA, "new".into()));
}

#[test]
fn a_file_that_was_replaced_is_not_read_as_the_old_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("file");
    fs::write(&path, "old").expect("written");
    let files = files(&[("a", dir.path())]);
    let datasets = files.datasets();
    let at = datasets.mounted(FOLDER + 1, "file").expect("mounted");
    let open = datasets.open_at(&at, true).expect("opened");
    fs::write(dir.path().join("new"), "new").expect("written");
    fs::rename(dir.path().join("new"), &path).expect("moved");
    let mut bytes = [0; 9];
    assert_eq!(datasets.read(&open, 1, &mut bytes), Ok(2), "it is still open");
    assert_eq!(datasets.read(&open, 1 << 40, &mut bytes), Ok(0));
    datasets.close_all();
    assert_eq!(datasets.read(&open, 0, &mut bytes), Err(Errno::Io));
    let again = datasets.open_at(&at, true).expect("opened");
    assert_eq!((datasets.read(&again, 0, &mut bytes), &bytes[..3]), (Ok(3), &b"new"[..]));
    let elsewhere = Open { dataset: "b".into(), ..again };
    datasets.close_all();
    assert_eq!(datasets.read(&elsewhere, 0, &mut bytes), Err(Errno::Io));
}

#[test]
fn no_more_files_are_open_than_descriptors_are_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let count = MAX_OPEN + 20;
    for number in 0..count {
        fs::write(dir.path().join(number.to_string()), number.to_string()).expect("written");
    }
    let files = files(&[("a", dir.path())]);
    let datasets = files.datasets();
    let open = |number: usize| {
        let at = datasets.mounted(FOLDER + 1, &number.to_string()).expect("mounted");
        datasets.open_at(&at, true).expect("opened")
    };
    let all: Vec<_> = (0..count).map(open).collect();
    assert_eq!(datasets.cache().len(), MAX_OPEN);
    for (number, open) in all.iter().enumerate() {
        let mut bytes = [0; 9];
        let read = datasets.read(open, 0, &mut bytes).expect("read");
        assert_eq!(bytes[..read], *number.to_string().as_bytes());
    }
    assert_eq!(datasets.cache().len(), MAX_OPEN);
    for open in &all {
        datasets.close(open);
    }
    assert!(datasets.cache().is_empty());
}

#[test]
fn nothing_can_be_opened_but_by_the_gate_and_beneath_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).expect("made");
    fs::write(folder.join("file"), "content").expect("written");
    fs::write(dir.path().join("secret"), "secret").expect("written");
    symlink("../secret", folder.join("out")).expect("linked");
    let datasets = Datasets::open(&[("a".to_owned(), folder.clone())]).expect("opened");
    let dir = dir.path().to_owned();
    // Restrictions apply to the thread that installs them.
    let locked = thread::spawn(move || {
        crate::lockdown::restrict(&datasets).expect("locked down");
        let gate = datasets.gate().expect("a gate");
        let root = datasets.roots().next().expect("a folder");
        let open = |path: &str, how| gate.open(root, &c_path(path).expect("a path"), how).map(drop);
        assert_eq!(open("file", How::Read), Ok(()));
        assert_eq!(open("out", How::Look), Ok(()));
        let absolute = dir.join("secret");
        for path in ["out", "../secret", "/etc/passwd", absolute.to_str().expect("UTF-8")] {
            for how in [How::Look, How::Find, How::Read, How::ReadQuietly] {
                if (path, how) != ("out", How::Look) {
                    assert_eq!(open(path, how), Err(nix::errno::Errno::EXDEV), "{path} {how:?}");
                }
            }
        }
        let read = datasets.stat(&datasets.mounted(FOLDER + 1, "file").expect("there"), true);
        assert_eq!(read.expect("read").size, 7);
        let link = datasets.target(&datasets.mounted(FOLDER + 1, "out").expect("there"));
        assert_eq!(link.expect("read"), b"../secret");
        // With other flags, another call, or a path of a link, nothing is opened.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let beneath = rustix::fs::ResolveFlags::BENEATH;
        let own = rustix::fs::openat2(root, "file", flags, Mode::empty(), beneath);
        let openat = rustix::fs::openat(root, "file", flags, Mode::empty());
        let link = rustix::fs::readlinkat(root, "out", vec![]);
        let refused = Some(rustix::io::Errno::PERM);
        assert_eq!((own.err(), openat.err(), link.err()), (refused, refused, refused));
        let written = rustix::fs::openat2(
            root,
            "new",
            OFlags::WRONLY | OFlags::CREATE,
            Mode::empty(),
            beneath,
        );
        assert_eq!(written.err(), refused);
        gate.is_sealed()
    });
    // Kernels before 6.10 cannot seal memory.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    assert_eq!(locked.join().expect("it ends"), version >= (6, 10), "{release}");
}

#[test]
fn a_request_reads_a_file_in_pieces() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("file"), "0123456789").expect("written");
    let files = files(&[("a", dir.path())]);
    let get = |offset, len| {
        let get = Get { path: "/data/a/file".into(), offset, len, of: None };
        files.datasets().get(&get).map(|(done, bytes)| (done.stamp.size, bytes))
    };
    assert_eq!(get(0, 4).expect("read"), (10, b"0123".to_vec()));
    assert_eq!(get(8, 4).expect("read"), (10, b"89".to_vec()));
    assert_eq!(get(99, 4).expect("read"), (10, vec![]));
    let none = BTreeMap::from([
        ("/data", true),
        ("/data/a", true),
        ("/database", false),
        ("data/a", false),
    ]);
    for (path, expected) in none {
        assert_eq!(is_of_dataset(path), expected, "{path}");
    }
}
