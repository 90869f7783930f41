//! A bounded run of the fuzz target: the same check, on its corpus and on what comes of cutting,
//! joining and changing it. The same inputs every time.

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};

/// Bytes that are almost frames.
pub mod changes;

/// What holds for any bytes; the fuzz target's own.
#[path = "../fuzz/src/lib.rs"]
pub mod check;

/// Inputs of each of the two properties below.
const INPUTS: u32 = 20_000;

/// The files of the corpus, by name.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/stream");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("readable").path())
        // What a run of the fuzzer has added has no ending.
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
            // Whole, but no message that there is.
            "bad_nested" => assert_eq!((found.frames, found.messages), (1, 0)),
            // What is bad is in the message, and that is for the server to check.
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
