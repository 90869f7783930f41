//! The `llm-sandbox` program; see the library for everything.

use std::process::ExitCode;

fn main() -> ExitCode {
    llm_sandbox::cli::main()
}
