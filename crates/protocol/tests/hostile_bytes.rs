//! A bounded run of the fuzz target: the same check, on its corpus and on frames of it that are cut, joined and
//! changed. The inputs are the same in every run.

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};

/// Generates bytes that are almost frames.
pub mod changes;

/// The checks of the fuzz target, which hold for any bytes.
#[path = "../fuzz/src/lib.rs"]
pub mod check;

/// The number of inputs for each of the two properties below.
const INPUTS: u32 = 20_000;

/// The files of the corpus, by name.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/stream");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("readable").path())
        // Files that a run of the fuzzer has added have no extension.
        .filter(|path| path.extension().is_some_and(|ending| ending == "frame"))
        .map(|path| {
            let bytes = fs::read(&path).expect("readable");
            (path.file_stem().expect("a name").to_string_lossy().into_owned(), bytes)
        })
        .collect();
    files.sort();
    files
}

fn almost_frames() -> impl Strategy<Value = Vec<u8>> {
    changes::changed(corpus().into_iter().map(|(_, bytes)| bytes).collect())
}

#[test]
fn the_corpus_is_read_as_what_its_names_say() {
    let files = corpus();
    assert!(files.len() > 30, "files are missing");
    for (name, bytes) in files {
        let found = check::stream(&bytes);
        match &name[..] {
            "conversation" => assert_eq!(found.frames, 6),
            // A whole frame that no message can be read from.
            "bad_nested" => assert_eq!((found.frames, found.messages), (1, 0)),
            // The fault is in the message, which the server checks.
            "bad_head_not_utf8" | "bad_lying_lengths" | "bad_hostile_paths" => {
                assert!(found.frames == 1 && found.messages > 0, "{name}");
            }
            _ if name.starts_with("bad_") => assert_eq!(found.frames, 0, "{name}"),
            _ => assert!(found.frames == 1 && found.messages > 0, "{name}: {found:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: INPUTS,
        rng_seed: RngSeed::Fixed(0),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_almost_a_frame_is_read_or_refused(bytes in almost_frames()) {
        check::stream(&bytes);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..100)) {
        check::stream(&bytes);
    }
}
