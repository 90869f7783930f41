//! `llm-sandbox completion` and `llm-sandbox man`: the arguments of this program, for shells and for `man`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// Prints the script that completes arguments in this shell.
pub(super) fn completion(shell: Shell) -> ExitCode {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = vec![];
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(&script)
}

/// Prints the manual page in roff.
pub(super) fn man() -> ExitCode {
    let mut page = vec![];
    match clap_mangen::Man::new(Cli::command()).render(&mut page) {
        Ok(()) => print(&page),
        Err(error) => {
            eprintln!("llm-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

/// If the reader has closed the pipe, such as `head`, that is not an error.
fn print(text: &[u8]) -> ExitCode {
    let _ = io::stdout().write_all(text);
    ExitCode::SUCCESS
}
