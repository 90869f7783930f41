use std::{collections::BTreeMap, fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use proptest::prelude::*;
use protocol::{
    limits::MAX_FILES,
    message::{FailureCode, Get, List, Put},
};

use super::*;

const QUOTA: u64 = 300_000;

fn files() -> FileSystem {
    let fixed: Shared = Arc::new(b"a library".to_vec());
    let content = Content::Fixed { all: fixed, start: 2, len: 7 };
    let library = Library::new([("/usr/lib/one.py".to_owned(), content)]);
    FileSystem::new(Arc::new(library), QUOTA, 1000)
}

/// The same with contents on disk, if wanted.
fn files_on(on_disk: bool) -> FileSystem {
    let store = on_disk.then(|| store_in(tempfile::tempfile().expect("a file")));
    files().with_store(store)
}

fn store_in(file: fs::File) -> Arc<Store> {
    let store = Store::new(Arc::new(file), 1000);
    store.open(&[].into()).expect("opened");
    store
}

fn write(files: &mut FileSystem, path: &str, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let (file, _) = files.find_or_create(DATA, path, true)?;
    files.write(file, offset, bytes)
}

fn put(path: &str, upload: u32, offset: u64, last: bool, overwrite: bool) -> Put {
    Put { upload, path: path.into(), offset, last, overwrite }
}

#[test]
fn what_the_interpreters_need_is_there_and_cannot_be_changed() {
    let mut files = files();
    let found = files.find(ROOT, "/usr/lib/one.py", true).expect("there");
    let mut bytes = [0; 20];
    let read = files.content(found).expect("a file").read(0, &mut bytes).expect("read");
    assert_eq!(&bytes[..read], b"library");
    assert_eq!(files.write(found, 0, b"x"), Err(Errno::Rofs));
    assert_eq!(files.resize(found, 0), Err(Errno::Rofs));
    assert_eq!(files.remove_file(ROOT, "usr/lib/one.py"), Err(Errno::Rofs));
    assert_eq!(files.make_folder(ROOT, "/usr/new").map(drop), Err(Errno::Rofs));
    assert_eq!(write(&mut files, "/new", 0, b"x"), Err(Errno::Rofs));
    let moved = files.rename((ROOT, "/usr/lib/one.py"), (ROOT, "/mnt/data/one.py"));
    assert_eq!(moved, Err(Errno::Rofs));
}

#[test]
fn no_path_leads_out_of_the_tree() {
    let mut files = files();
    assert_eq!(files.find(DATA, "../../../../..", true), Ok(ROOT));
    assert_eq!(files.find(DATA, "/../../mnt/data", true), Ok(DATA));
    files.make_link("../../../../etc/passwd", DATA, "out").expect("made");
    assert_eq!(files.find(DATA, "out", true), Err(Errno::Noent));
    let links = [("a", "b"), ("b", "a"), ("self", "self/x")];
    for (name, target) in links {
        files.make_link(target, DATA, name).expect("made");
    }
    for (name, _) in links {
        assert_eq!(files.find(DATA, name, true), Err(Errno::Loop), "{name}");
        assert_eq!(files.find_or_create(DATA, name, true).map(drop), Err(Errno::Loop), "{name}");
    }
    files.make_link("new.txt", DATA, "later").expect("made");
    assert_eq!(write(&mut files, "later", 0, b"x"), Ok(1), "it is made where the link leads");
    assert!(contents(&files).contains_key("new.txt"));
    assert_eq!(files.find(DATA, &"x/".repeat(3000), true), Err(Errno::Nametoolong));
    assert_eq!(write(&mut files, &"x".repeat(256), 0, b"x"), Err(Errno::Nametoolong));
}

#[test]
fn a_full_area_takes_what_fits_and_not_a_byte_more() {
    let mut files = files();
    assert_eq!(write(&mut files, "a", 0, &vec![1; 200_000]), Ok(200_000));
    assert_eq!(write(&mut files, "b", 0, &vec![2; 200_000]), Ok(100_000));
    assert_eq!(write(&mut files, "b", 100_000, b"x"), Err(Errno::Nospc));
    assert_eq!(write(&mut files, "a", 0, &[3; 10]), Ok(10), "what is there can be changed");
    let b = files.find(DATA, "b", true).expect("there");
    assert_eq!(files.resize(b, 1 << 40), Err(Errno::Nospc), "zeros count as well");
    assert_eq!(files.write(b, 1 << 50, b"x"), Err(Errno::Nospc));
    files.remove_file(DATA, "a").expect("removed");
    files.collect(|_| false);
    assert_eq!(write(&mut files, "c", 0, &vec![4; 300_000]), Ok(200_000));
}

#[test]
fn an_area_holds_so_many_files() {
    let mut files = files();
    for number in 0..MAX_FILES {
        write(&mut files, &format!("{number}"), 0, b"").expect("room");
    }
    assert_eq!(write(&mut files, "more", 0, b""), Err(Errno::Nospc));
    files.remove_file(DATA, "7").expect("removed");
    files.collect(|_| false);
    write(&mut files, "more", 0, b"").expect("room again");
}

#[test]
fn a_file_that_is_open_lives_on_when_its_name_is_gone() {
    let mut files = files();
    write(&mut files, "a", 0, b"here").expect("written");
    let a = files.find(DATA, "a", true).expect("there");
    files.remove_file(DATA, "a").expect("removed");
    files.collect(|inode| inode == a);
    assert_eq!(files.content(a).expect("open").len(), 4);
    files.pin(|inode| inode == a);
    files.collect(|_| false);
    assert_eq!(files.write(a, 4, b"!"), Ok(1), "open elsewhere");
    files.pin(|_| false);
    files.collect(|_| false);
    assert_eq!(files.content(a).map(drop), Err(Errno::Badf));
}

#[test]
fn uploads_appear_whole_and_in_the_state_before_a_run_as_well() {
    let (mut files, mut uploads) = (files(), Uploads::default());
    let mut before = files.clone();
    uploads.put(&put("sub/a.csv", 1, 0, false, false), b"one,", &mut files, None).expect("begun");
    assert!(contents(&files).is_empty());
    let last = put("sub/a.csv", 1, 4, true, false);
    uploads.put(&last, b"two", &mut files, Some(&mut before)).expect("ended");
    let expected = BTreeMap::from([("sub/a.csv".to_owned(), b"one,two".to_vec())]);
    assert_eq!(contents(&files), expected);
    files.restore(&before);
    assert_eq!(contents(&files), expected);
    let refused = |files: &mut FileSystem, uploads: &mut Uploads, put: &Put, bytes: &[u8]| {
        uploads.put(put, bytes, files, None).expect_err("refused").code
    };
    let again = put("sub/a.csv", 2, 0, true, false);
    assert_eq!(refused(&mut files, &mut uploads, &again, b"x"), FailureCode::Exists);
    let large = put("b", 3, 0, true, false);
    assert_eq!(refused(&mut files, &mut uploads, &large, &vec![0; 300_000]), FailureCode::Full);
    for path in ["../out", "/abs", "sub/a.csv/below", "sub", &"x".repeat(2000)] {
        let bad = put(path, 4, 0, true, true);
        assert_eq!(refused(&mut files, &mut uploads, &bad, b"x"), FailureCode::BadPath, "{path}");
    }
    let gap = put("c", 5, 3, true, false);
    assert_eq!(refused(&mut files, &mut uploads, &gap, b"x"), FailureCode::BadRequest);
    // An upload that was abandoned takes no space.
    uploads.put(&put("d", 6, 0, false, false), &vec![0; 200_000], &mut files, None).expect("begun");
    uploads.abandon(&protocol::message::Abandon { upload: 6 }, &mut files, None);
    assert_eq!(write(&mut files, "e", 0, &vec![0; 299_000]), Ok(299_000));
}

#[test]
fn files_are_listed_by_path_and_read_by_pieces() {
    let mut files = files();
    files.make_folder(DATA, "z").expect("made");
    for path in ["b", "a", "z/c"] {
        write(&mut files, path, 0, b"0123456789").expect("written");
    }
    files.make_link("a", DATA, "link").expect("made");
    assert_eq!(files.snapshot().into_keys().collect::<Vec<_>>(), ["a", "b", "z/c"]);
    let (done, json) = files.list(List { after: Some("a".into()), within: None }).expect("listed");
    assert!(!done.more && !String::from_utf8_lossy(&json).contains("\"a\""));
    let get =
        |path: &str, offset, len| files.get(&Get { path: path.into(), offset, len, of: None });
    assert_eq!(get("a", 8, 5).expect("read").1, b"89");
    assert_eq!(get("a", u64::MAX, 5).expect("read").1, b"");
    assert_eq!(get("z/c", 0, 0).expect("read").0.stamp.size, 10);
    for (path, code) in [
        ("none", FailureCode::NotFound),
        ("z", FailureCode::NotFound),
        ("link", FailureCode::BadPath),
    ] {
        assert_eq!(get(path, 0, 1).expect_err(path).code, code, "{path}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, u64, usize),
    Resize(usize, u64),
    Remove(usize),
    Folder(usize),
    RemoveFolder(usize),
    Rename(usize, usize),
}

const NAMES: [&str; 7] = ["a", "b", "d", "d/a", "d/e", "d/e/f", "c/"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let step = prop_oneof![
        (name.clone(), 0..5000u64, 0..4000usize)
            .prop_map(|(at, offset, len)| Step::Write(at, offset, len)),
        (name.clone(), 0..9000u64).prop_map(|(at, len)| Step::Resize(at, len)),
        name.clone().prop_map(Step::Remove),
        name.clone().prop_map(Step::Folder),
        name.clone().prop_map(Step::RemoveFolder),
        (name.clone(), name).prop_map(|(from, to)| Step::Rename(from, to)),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Does the same to a real folder, and returns whether that succeeded.
fn really(root: &Path, step: &Step) -> bool {
    let path = |at: usize| root.join(NAMES[at]);
    let open = |at| fs::OpenOptions::new().write(true).create(true).truncate(false).open(path(at));
    match *step {
        Step::Write(at, offset, len) => {
            open(at).and_then(|file| file.write_all_at(&vec![7; len], offset)).is_ok()
        }
        Step::Resize(at, len) => open(at).and_then(|file| file.set_len(len)).is_ok(),
        Step::Remove(at) => fs::remove_file(path(at)).is_ok(),
        Step::Folder(at) => fs::create_dir(path(at)).is_ok(),
        Step::RemoveFolder(at) => fs::remove_dir(path(at)).is_ok(),
        Step::Rename(from, to) => fs::rename(path(from), path(to)).is_ok(),
    }
}

fn here(files: &mut FileSystem, step: &Step) -> bool {
    match *step {
        Step::Write(at, offset, len) => write(files, NAMES[at], offset, &vec![7; len]).is_ok(),
        Step::Resize(at, len) => {
            let file = files.find_or_create(DATA, NAMES[at], true);
            file.and_then(|(file, _)| files.resize(file, len)).is_ok()
        }
        Step::Remove(at) => files.remove_file(DATA, NAMES[at]).is_ok(),
        Step::Folder(at) => files.make_folder(DATA, NAMES[at]).is_ok(),
        Step::RemoveFolder(at) => files.remove_folder(DATA, NAMES[at]).is_ok(),
        Step::Rename(from, to) => files.rename((DATA, NAMES[from]), (DATA, NAMES[to])).is_ok(),
    }
}

fn real_contents(root: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(root).expect("a folder").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            real_contents(&entry.path(), &format!("{name}/"), found);
        } else {
            found.insert(name, fs::read(entry.path()).expect("readable"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_real_folder_does(steps in steps(), on_disk: bool) {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = files_on(on_disk);
        for step in &steps {
            prop_assert_eq!(here(&mut files, step), really(dir.path(), step), "{:?}", step);
            files.collect(|_| false);
            let mut expected = BTreeMap::new();
            real_contents(dir.path(), "", &mut expected);
            let held = contents(&files);
            let bytes: usize = held.values().map(Vec::len).sum();
            prop_assert_eq!(held, expected);
            prop_assert_eq!(files.used_bytes(), bytes as u64);
        }
    }

    #[test]
    fn a_copy_is_what_it_was_and_can_be_gone_back_to(
        first in steps(), second in steps(), on_disk: bool
    ) {
        let mut files = files_on(on_disk);
        for step in &first {
            here(&mut files, step);
        }
        let (before, held, stamps) = (files.clone(), contents(&files), files.snapshot());
        for step in &second {
            here(&mut files, step);
        }
        prop_assert_eq!(contents(&before), held.clone());
        files.restore(&before);
        prop_assert_eq!(contents(&files), held);
        prop_assert_eq!(files.snapshot(), stamps);
    }
}

#[test]
fn what_a_file_is_cut_by_is_not_held() {
    let mut content = Content::default();
    content.write(0, &vec![1; 200_000]).expect("written");
    let copy = content.clone();
    content.resize(70_000);
    assert!(content.held() < 140_000, "{}", content.held());
    content.resize(1);
    assert!(content.held() < 100, "{}", content.held());
    assert_eq!((content.to_vec(), copy.len()), (vec![1], 200_000));
}

#[test]
fn names_and_the_texts_of_links_count() {
    let mut files = files();
    let (file, _) = files.find_or_create(DATA, "a", true).expect("made");
    for number in 1..MAX_FILES {
        files.make_name(file, DATA, &number.to_string()).expect("named");
    }
    assert_eq!(files.make_name(file, DATA, "more"), Err(Errno::Nospc));
    assert_eq!(write(&mut files, "b", 0, b"x"), Err(Errno::Nospc));
    files.remove_file(DATA, "1").expect("removed");
    files.make_name(file, DATA, "more").expect("one was given up");
    files.rename((DATA, "2"), (DATA, "a")).expect("two names of one file, so nothing");
    files.rename((DATA, "3"), (DATA, "c")).expect("moved");
    assert_eq!(files.make_name(file, DATA, "again"), Err(Errno::Nospc));
    let mut next = self::files();
    assert!(next.load(files.save()));
    assert_eq!(next.make_name(file, DATA, "again"), Err(Errno::Nospc), "as before it was kept");
    next.remove_file(DATA, "c").expect("removed");
    next.make_name(file, DATA, "again").expect("one was given up");

    let mut files = self::files();
    let target = "x".repeat(900);
    files.make_link(&target, ROOT, "/tmp/a").expect("made");
    assert_eq!(files.make_link(&target, ROOT, "/tmp/b"), Err(Errno::Nospc));
    files.remove_file(ROOT, "/tmp/a").expect("removed");
    files.collect(|_| false);
    files.make_link(&target, ROOT, "/tmp/b").expect("there is room again");
}

#[test]
fn a_file_that_cannot_be_replaced_stays() {
    let mut files = files();
    let mut uploads = Uploads::default();
    write(&mut files, "keep.txt", 0, b"precious").expect("written");
    for number in 1..MAX_FILES {
        write(&mut files, &number.to_string(), 0, b"").expect("made");
    }
    let mut replace = |files: &mut FileSystem| {
        uploads.put(&put("keep.txt", 1, 0, true, true), b"new", files, None)
    };
    assert!(replace(&mut files).expect("it takes no more room").replaced);
    let failed = (0..1000).find_map(|_| replace(&mut files).err()).expect("at some time");
    assert_eq!(failed.code, FailureCode::Full, "what nothing has cleared away adds up");
    assert_eq!(contents(&files)["keep.txt"], b"new");
    files.collect(|_| false);
    assert!(replace(&mut files).is_ok());
}

#[test]
fn an_upload_has_to_fit_into_what_may_be_gone_back_to() {
    let mut files = files();
    let mut uploads = Uploads::default();
    write(&mut files, "big", 0, &vec![1; 200_000]).expect("written");
    let mut before = files.clone();
    files.remove_file(DATA, "big").expect("removed");
    files.collect(|_| false);
    let first = put("up", 1, 0, false, false);
    uploads.put(&first, &vec![2; 60_000], &mut files, Some(&mut before)).expect("begun");
    let refused = uploads
        .put(&put("up", 1, 60_000, true, false), &vec![2; 60_000], &mut files, Some(&mut before))
        .expect_err("refused");
    assert_eq!(refused.code, FailureCode::Full);
    // The refused upload counts in neither state any more.
    let fits = put("fits", 2, 0, true, false);
    uploads.put(&fits, &vec![2; 100_000], &mut files, Some(&mut before)).expect("it fits");
    files.restore(&before);
    assert_eq!((files.used_bytes(), contents(&files).len()), (300_000, 2));
    let mut small = FileSystem::new(Arc::new(Library::new([])), 1000, 1000);
    assert!(small.load(files.save()), "what is there is taken, whatever it may have");
    assert_eq!(contents(&small).len(), 2);
    assert_eq!(write(&mut small, "more", 0, b"x"), Err(Errno::Nospc));
}

#[test]
fn a_write_that_the_disk_refuses_counts_nowhere() {
    // Each write to it fails as on a full disk.
    let full = fs::File::options().write(true).open("/dev/full").expect("Linux");
    let mut files = files().with_store(Some(store_in(full)));
    let (mut before, mut uploads) = (files.clone(), Uploads::default());
    for last in [true, false] {
        let refused =
            uploads.put(&put("up", 1, 0, last, false), b"x", &mut files, Some(&mut before));
        assert_eq!(refused.expect_err("refused").code, FailureCode::Full);
    }
    assert_eq!(write(&mut files, "a", 5, b"x"), Err(Errno::Nospc));
    for files in [&mut files, &mut before] {
        let (file, _) = files.find_or_create(DATA, "hollow", true).expect("made");
        files.resize(file, QUOTA).expect("nothing else counts");
        assert_eq!((files.used_bytes(), files.resize(file, QUOTA + 1)), (QUOTA, Err(Errno::Nospc)));
    }
}

#[test]
fn an_upload_replaces_nothing_that_may_come_back() {
    let mut files = files();
    let mut uploads = Uploads::default();
    write(&mut files, "a.txt", 0, b"old").expect("written");
    let mut before = files.clone();
    files.rename((DATA, "a.txt"), (DATA, "b.txt")).expect("moved");
    let mut upload = |overwrite| {
        let put = put("a.txt", 1, 0, true, overwrite);
        uploads.put(&put, b"new", &mut files, Some(&mut before)).map_err(|failure| failure.code)
    };
    assert_eq!(upload(false), Err(FailureCode::Exists));
    assert!(!upload(true).expect("asked for").replaced, "not in what there is now");
    assert_eq!(contents(&before)["a.txt"], b"new");
    assert_eq!(contents(&files)["b.txt"], b"old");
}

#[test]
fn nothing_is_made_where_nobody_could_find_it() {
    let mut files = files();
    let gone = files.make_folder(DATA, "gone").expect("made");
    let (file, _) = files.find_or_create(DATA, "a", true).expect("made");
    files.remove_folder(DATA, "gone").expect("removed");
    assert_eq!(files.find_or_create(gone, "f", true).map(drop), Err(Errno::Noent));
    assert_eq!(files.make_folder(gone, "f").map(drop), Err(Errno::Noent));
    assert_eq!(files.make_link("a", gone, "f"), Err(Errno::Noent));
    assert_eq!(files.make_name(file, gone, "f"), Err(Errno::Noent));
    assert_eq!(files.rename((DATA, "a"), (gone, "f")), Err(Errno::Noent));
    files.collect(|_| false);
    assert_eq!(files.used_bytes(), 0);
}

#[test]
fn packages_stay_whatever_is_taken_back_and_cannot_be_changed_from_within() {
    const MOST: u64 = 100;
    let mut files = files();
    let before = files.clone();
    let content = |text: &str| {
        let mut content = Content::default();
        content.write(0, text.as_bytes()).expect("written");
        content
    };
    files.install(&["a", "b.py"], content("one"), MOST).expect("installed");
    let changed = files
        .stat(files.find(ROOT, "/usr/local/lib/packages", true).expect("there"))
        .expect("known")
        .modified;
    files.install(&["a", "b.py"], content("three"), MOST).expect("replaced");
    files.install(&["c.py"], content("c"), MOST).expect("installed");
    files.restore(&before);
    let found = files.find(ROOT, "/usr/local/lib/packages/a/b.py", true).expect("there");
    assert_eq!(files.content(found).map(Content::to_vec), Ok(b"three".to_vec()));
    let now = files
        .stat(files.find(ROOT, "/usr/local/lib/packages", true).expect("there"))
        .expect("known")
        .modified;
    assert!(now > changed, "whoever looks again sees that there is more");
    for path in ["/usr/local/lib/packages/d.py", "/usr/local/lib/packages/a/d.py"] {
        assert_eq!(files.find_or_create(ROOT, path, true).map(drop), Err(Errno::Rofs));
    }
    assert_eq!(files.write(found, 0, b"x"), Err(Errno::Rofs));
    assert_eq!(files.remove_file(ROOT, "/usr/local/lib/packages/c.py"), Err(Errno::Rofs));
    assert_eq!(files.make_folder(ROOT, "/usr/local/lib/packages/e").map(drop), Err(Errno::Rofs));
    // Packages can neither exceed their limit nor replace a folder by a file, or a file by a folder.
    assert_eq!(files.install(&["f"], content(&"x".repeat(95)), MOST), Err(Errno::Nospc));
    assert_eq!(files.install(&["c.py", "g"], content("x"), MOST), Err(Errno::Notdir));
    assert_eq!(files.install(&["a"], content("x"), MOST), Err(Errno::Isdir));
    let mut next = self::files();
    assert!(next.load(files.save()));
    let kept = next.find(ROOT, "/usr/local/lib/packages/a/b.py", true).expect("kept");
    assert_eq!(next.content(kept).map(Content::to_vec), Ok(b"three".to_vec()));
    assert_eq!(next.install(&["f"], content(&"x".repeat(95)), MOST), Err(Errno::Nospc), "counted");
}

#[test]
fn a_listing_goes_on_behind_its_last_entry_whatever_was_added_or_removed() {
    let mut files = files();
    for number in 0..500 {
        write(&mut files, &format!("{number}"), 0, b"").expect("room");
    }
    let one = files.find(DATA, "7", true).expect("there");
    for number in 0..500 {
        files.make_name(one, DATA, &format!("link-{number}")).expect("room");
    }
    let (mut place, mut seen) = (0, vec![]);
    loop {
        let page = files.entries_after(DATA, place, 7).expect("a folder");
        let page: Vec<_> =
            page.into_iter().map(|entry| (entry.place, entry.name.to_owned())).collect();
        let Some((last, _)) = page.last() else { break };
        place = *last;
        for (_, name) in page {
            if !matches!(name.as_str(), "." | "..") {
                files.remove_file(DATA, &name).expect("it is there");
            }
            seen.push(name);
        }
    }
    assert_eq!(&seen[..2], [".", ".."]);
    assert_eq!(seen.len(), 1002);
    assert!(files.entries(DATA).expect("a folder").is_empty());
}
