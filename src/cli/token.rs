//! `llm-sandbox token`: what a person pastes into a client.

use std::process::ExitCode;

use super::EXIT_USAGE;
use crate::config::tokens_in_clear;

pub(super) fn token(name: Option<&str>) -> ExitCode {
    let tokens = match tokens_in_clear() {
        Ok(tokens) => tokens,
        Err(mistakes) => {
            eprintln!("llm-sandbox: {mistakes}");
            return EXIT_USAGE.into();
        }
    };
    let mut wanted = tokens.iter().filter(|(owner, _)| name.is_none_or(|name| name == owner));
    let Some(first) = wanted.next() else {
        eprintln!(
            "llm-sandbox: there is no such token; .env.example describes SANDBOX_AUTH_TOKENS"
        );
        return ExitCode::FAILURE;
    };
    for (_, token) in std::iter::once(first).chain(wanted) {
        say!("{token}");
    }
    ExitCode::SUCCESS
}
