//! The `llm-sandbox` program. The library has all of its parts.

use std::process::ExitCode;

fn main() -> ExitCode {
    llm_sandbox::cli::main()
}
