//! The processes that servers start for tools of the operator's own: a tool's agent, and the compiler.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use crate::own_tools::compile;

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    #[arg(long)]
    code: PathBuf,
    #[arg(long)]
    folder: String,
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    data: u64,
    #[arg(long)]
    scratch: u64,
    #[arg(long)]
    calls: u64,
    /// Two at a time: the path that the program finds, and the folder.
    #[arg(long, num_args = 2)]
    show: Vec<PathBuf>,
}

impl AgentArgs {
    /// Runs the agent until its server ends.
    pub(super) fn run(self) -> ExitCode {
        let Self { code, folder, memory, data, scratch, calls, show } = self;
        let pairs = show.chunks_exact(2);
        let shown =
            pairs.map(|pair| (pair[0].to_string_lossy().into_owned(), pair[1].clone())).collect();
        let settings = embedded::ToolSettings { folder, shown, memory, data, scratch, calls };
        embedded::tool_agent(&code, &settings)
    }
}

#[derive(Debug, Args)]
pub(super) struct CompileArgs {
    module: PathBuf,
    code: PathBuf,
}

impl CompileArgs {
    /// Compiles the module. An error goes to standard error.
    pub(super) fn run(self) -> ExitCode {
        match compile(&self.module, &self.code) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Checks the arguments of a call.
pub(super) fn check_arguments() -> ExitCode {
    match crate::own_tools::check_arguments() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
