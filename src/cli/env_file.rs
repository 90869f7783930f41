//! Chooses the file that a command reads settings from. Pure.
//!
//! A client starts a server over stdio in the folder of the project that is open, and a person runs a script
//! in the script's folder: the `.env` of neither folder may decide what a sandbox can reach. A person who
//! starts a server for others, or checks it, does so in the folder with its settings.

use std::{ffi::OsString, path::PathBuf};

use config::{EnvFile, Transport};

use super::Command;

/// The default file of commands that have one.
const HERE: &str = ".env";

/// The file for this command. `named` is the value of `--env-file` or `SANDBOX_ENV_FILE`, and `transport` the
/// value of `SANDBOX_TRANSPORT` in the environment.
pub(super) fn env_file(
    command: &Command,
    named: Option<OsString>,
    transport: Option<&str>,
) -> EnvFile {
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return EnvFile::Named(path.into());
    }
    let here = match command {
        Command::Serve { http } => {
            let transport = transport.and_then(|text| text.trim().parse().ok());
            *http || transport == Some(Transport::Http)
        }
        Command::Image { .. }
        | Command::Audit { .. }
        | Command::Doctor { .. }
        | Command::Token { .. }
        | Command::Health => true,
        #[cfg(feature = "wasm")]
        Command::Runtime { .. } => true,
        #[cfg(feature = "wasm")]
        Command::EmbeddedAgent(_)
        | Command::ToolAgent(_)
        | Command::CompileTool(_)
        | Command::CheckArguments => false,
        Command::Run(_) | Command::Guard { .. } => false,
    };
    if here { EnvFile::IfPresent(PathBuf::from(HERE)) } else { EnvFile::None }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// The file that these arguments select.
    fn file(arguments: &[&str], transport: Option<&str>) -> EnvFile {
        let arguments = std::iter::once(&"llm-sandbox").chain(arguments);
        let cli = Cli::try_parse_from(arguments).expect("valid");
        let command = cli.command.unwrap_or_default();
        env_file(&command, cli.env_file, transport)
    }

    #[test]
    fn the_working_folder_has_no_say_where_a_client_or_a_script_chose_it() {
        for arguments in [&[][..], &["serve"], &["run", "script.py"], &["guard", "v1/a/b/1/2"]] {
            assert_eq!(file(arguments, None), EnvFile::None, "{arguments:?}");
            assert_eq!(file(arguments, Some("stdio")), EnvFile::None, "{arguments:?}");
        }
    }

    #[test]
    fn who_starts_a_server_for_others_or_asks_about_it_does_so_where_its_settings_are() {
        let here = EnvFile::IfPresent(".env".into());
        for arguments in
            [&["serve", "--http"][..], &["image", "build"], &["doctor"], &["token"], &["health"]]
        {
            assert_eq!(file(arguments, None), here, "{arguments:?}");
        }
        for arguments in [&[][..], &["serve"]] {
            assert_eq!(file(arguments, Some(" HTTP ")), here, "{arguments:?}");
        }
    }

    #[test]
    fn a_file_that_is_named_is_read_by_every_command() {
        let named = EnvFile::Named("/etc/llm-sandbox.env".into());
        for arguments in [&[][..], &["serve", "--http"], &["run", "script.py"], &["doctor"]] {
            let given = [arguments, &["--env-file", "/etc/llm-sandbox.env"]].concat();
            assert_eq!(file(&given, None), named, "{arguments:?}");
        }
        let empty = env_file(&Command::default(), Some("".into()), None);
        assert_eq!(empty, EnvFile::None, "set to nothing is not set");
    }
}
