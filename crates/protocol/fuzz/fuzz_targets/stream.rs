//! Passes the fuzzer's inputs to the decoder of frames and messages.
//!
//! ```sh
//! cargo install cargo-fuzz
//! cd crates/protocol && cargo +nightly fuzz run stream -- -max_total_time=600 -max_len=4096
//! ```
//!
//! On stable, without the address sanitizer: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none
//! stream`. A bounded run of the same checks is part of `cargo test` (`tests/hostile_bytes.rs`).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::stream(bytes);
});
