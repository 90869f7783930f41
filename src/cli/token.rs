//! `llm-sandbox token`: prints the tokens that a person pastes into a client.

use std::process::ExitCode;

use config::{Inputs, TokensFrom, tokens_in_clear};

use super::EXIT_USAGE;

pub(super) fn token(inputs: &Inputs, name: Option<&str>) -> ExitCode {
    let tokens = match tokens_in_clear(inputs) {
        Ok(tokens) => tokens,
        Err(mistakes) => {
            eprintln!("llm-sandbox: {mistakes}");
            return EXIT_USAGE.into();
        }
    };
    let mut wanted = tokens.iter().filter(|(owner, _)| name.is_none_or(|name| name == owner));
    let Some(first) = wanted.next() else {
        eprintln!("llm-sandbox: {}", none_found(&tokens));
        return ExitCode::FAILURE;
    };
    for (_, token) in std::iter::once(first).chain(wanted) {
        print_line!("{token}");
    }
    ExitCode::SUCCESS
}

/// The advice if no token matches.
fn none_found(tokens: &[(String, String)]) -> String {
    if tokens.is_empty() {
        return "no tokens are set here in clear. Give the settings of the server: SANDBOX_AUTH_TOKENS_FILE or \
                SANDBOX_AUTH_TOKENS in the environment, in .env in this folder or in the file named by \
                --env-file, or the settings file by --config. A token given as sha256: cannot be printed. A server \
                without tokens is open to everybody on its machine."
            .into();
    }
    let mut names: Vec<_> = tokens.iter().map(|(name, _)| &**name).collect();
    names.dedup();
    format!("there is no token of that name; there are tokens for: {}", names.join(", "))
}

/// How a person prints a server's tokens in another shell.
pub(super) fn how_to_print(from: &TokensFrom) -> String {
    match from {
        TokensFrom::Environment => {
            "`llm-sandbox token` prints the tokens that clients need, if SANDBOX_AUTH_TOKENS is \
             set as for this server"
                .into()
        }
        TokensFrom::EnvFile(path) => format!(
            "`llm-sandbox --env-file {} token` prints the tokens that clients need",
            quoted(&path.to_string_lossy())
        ),
        TokensFrom::File(path) => format!(
            "`llm-sandbox --config {} token` prints the tokens that clients need",
            quoted(&path.to_string_lossy())
        ),
        TokensFrom::TokensFile(path) => format!(
            "`SANDBOX_AUTH_TOKENS_FILE={} llm-sandbox token` prints the tokens that clients need",
            quoted(&path.to_string_lossy())
        ),
    }
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_prints_the_tokens_can_be_pasted_anywhere() {
        let plain = how_to_print(&TokensFrom::TokensFile("/srv/my/tokens".into()));
        assert!(plain.starts_with("`SANDBOX_AUTH_TOKENS_FILE=/srv/my/tokens llm-sandbox token`"));
        let odd = how_to_print(&TokensFrom::EnvFile("/home/an o'neill/.env".into()));
        let command = odd.split('`').nth(1).expect("a command");
        let script = format!("set -- {command}; printf %s \"$3\"");
        let words = std::process::Command::new("sh").args(["-c", &script]).output();
        assert_eq!(words.expect("sh runs").stdout, b"/home/an o'neill/.env");
    }
}
