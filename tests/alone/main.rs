//! Drills that need the machine to themselves, one after another: meanwhile no other test may start a server on the
//! engine or use the processors.

mod end_of_run;
mod leash;

use tokio::sync::{Mutex, MutexGuard};

/// Makes the tests of this program take turns under `cargo test`. Under nextest, `threads-required` does.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}
