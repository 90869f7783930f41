//! `llm-sandbox runtime install`, and the agent of the embedded engine.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;

use super::EXIT_UNAVAILABLE;
use crate::{backend::wasm, config::Config, text::human_size};

#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// File or folder to take the packages from, for a machine without a network; may be repeated. What
    /// is missing is named.
    #[arg(long = "from", value_name = "PATH")]
    from: Vec<PathBuf>,

    /// Do nothing if the runtime is there and can be used.
    #[arg(long)]
    if_needed: bool,
}

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    #[arg(long)]
    runtime: PathBuf,
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    data: u64,
    #[arg(long)]
    scratch: u64,
    #[arg(long)]
    fuel: Option<u64>,
    #[arg(long)]
    state: Option<PathBuf>,
}

impl AgentArgs {
    /// Is that agent until its server is gone.
    pub(super) fn run(self) -> ExitCode {
        let Self { runtime, memory, data, scratch, fuel, state } = self;
        embedded::agent(&runtime, embedded::Settings { memory, data, scratch, fuel, state })
    }
}

pub(super) async fn install(config: &Config, args: InstallArgs) -> ExitCode {
    let started = Instant::now();
    let config = config.clone();
    let installing = tokio::task::spawn_blocking(move || {
        let mut step: Option<(String, Instant)> = None;
        let mut done = |next: Option<&str>| {
            let next = next.map(|text| (text.to_owned(), Instant::now()));
            if let Some((text, begun)) = std::mem::replace(&mut step, next) {
                print_step(&text, begun.elapsed());
            }
        };
        let installed =
            wasm::install(&config, &args.from, args.if_needed, &mut |text| done(Some(text)));
        if installed.is_ok() {
            done(None);
        }
        installed
    });
    match installing.await.expect("it does not panic") {
        Ok(installed) => {
            let wasm::Installed { folder, size, is_new } = installed;
            let size = human_size(size / 1_000_000 * 1_000_000);
            if is_new {
                let seconds = started.elapsed().as_secs();
                print_line!("Installed in {} ({size}), in {seconds} s.", folder.display());
            } else {
                print_line!("The runtime in {} ({size}) is up to date.", folder.display());
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("llm-sandbox: {why}");
            EXIT_UNAVAILABLE.into()
        }
    }
}

fn print_step(text: &str, took: Duration) {
    print_line!("  {:6.1} s  {text}", took.as_secs_f64());
}
