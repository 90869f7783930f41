//! `llm-sandbox runtime install`, and the agent of the embedded engine.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use backend::wasm;
use clap::Args;
use config::Config;
use model::text::human_size;

use super::EXIT_UNAVAILABLE;

#[derive(Debug, Default, Args)]
pub(super) struct InstallArgs {
    /// File or folder to take the packages from, for a machine without a network; may be repeated. The
    /// command names packages that are missing.
    #[arg(long = "from", value_name = "PATH")]
    pub(super) from: Vec<PathBuf>,

    /// Do nothing if the runtime is installed and usable.
    #[arg(long)]
    pub(super) if_needed: bool,
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
    packages: Option<u64>,
    #[arg(long)]
    fuel: Option<u64>,
    #[arg(long)]
    state: Option<PathBuf>,
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Name and folder of a dataset; may be repeated.
    #[arg(long = "dataset", value_name = "NAME=PATH")]
    datasets: Vec<OsString>,
}

impl AgentArgs {
    /// Runs the agent until its server ends.
    pub(super) fn run(self) -> ExitCode {
        let Self { runtime, memory, data, scratch, packages, fuel, state, disk, datasets } = self;
        let datasets = datasets.iter().filter_map(|dataset| named_folder(dataset)).collect();
        let settings =
            embedded::Settings { memory, data, scratch, packages, fuel, datasets, state, disk };
        embedded::agent(&runtime, settings)
    }
}

/// The name and the folder of a dataset.
fn named_folder(text: &OsStr) -> Option<(String, PathBuf)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(&bytes[..at]).ok()?;
    Some((name.to_owned(), OsStr::from_bytes(&bytes[at + 1..]).into()))
}

pub(super) async fn install(config: &Config, args: InstallArgs) -> ExitCode {
    let started = Instant::now();
    let config = config.clone();
    let installing = tokio::task::spawn_blocking(move || {
        let mut step = None;
        let installed = wasm::install(&config, &args.from, args.if_needed, &mut |text| {
            end_step(step.replace(Instant::now()));
            begin_step(text);
        });
        end_step(step);
        installed
    });
    match installing.await.expect("installing returns its errors and does not panic") {
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

/// Prints the current step, which may take minutes.
fn begin_step(text: &str) {
    let mut out = io::stdout();
    let _ = write!(out, "  {text} ... ");
    let _ = out.flush();
}

fn end_step(begun: Option<Instant>) {
    if let Some(begun) = begun {
        print_line!("{:.1} s", begun.elapsed().as_secs_f64());
    }
}
