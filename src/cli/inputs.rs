//! The places that a command reads settings from, besides the environment. Pure.
//!
//! A client starts a server over stdio in the folder of the project that is open, and a person runs a script
//! in the script's folder: the `.env` of neither folder may decide what a sandbox can reach. A person who
//! starts a server for others, or checks it, does so in the folder with its settings.

use std::{ffi::OsString, path::PathBuf};

use config::{EnvFile, Inputs, Transport};

use super::{Command, ServeArgs};

/// The default file of variables of commands that have one.
const HERE: &str = ".env";

/// The places for this command. `config` and `env_file` are the values of these options or of their variables, and
/// `transport` is the value of `SANDBOX_TRANSPORT` in the environment.
pub(super) fn of(
    command: &Command,
    (config, env_file): (Option<OsString>, Option<OsString>),
    transport: Option<&str>,
) -> Inputs {
    let named = |path: Option<OsString>| path.filter(|path| !path.is_empty()).map(PathBuf::from);
    let flags = match command {
        Command::Serve(args) => args.flags(),
        _ => vec![],
    };
    let env_file = match named(env_file) {
        Some(path) => EnvFile::Named(path),
        None if reads_here(command, transport) => EnvFile::IfPresent(HERE.into()),
        None => EnvFile::None,
    };
    Inputs { env_file, file: named(config), flags }
}

impl ServeArgs {
    /// The settings that the options set: each with its option and its variable.
    fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        let token = self.auth_token.as_ref().map(|token| format!("me:{token}"));
        let transport = self.transport.clone().or_else(|| self.http.then(|| "http".to_owned()));
        let all = [
            ("--transport", "SANDBOX_TRANSPORT", transport),
            ("--host", "SANDBOX_HTTP_HOST", self.host.clone()),
            ("--port", "SANDBOX_HTTP_PORT", self.port.clone()),
            ("--auth-token", "SANDBOX_AUTH_TOKENS", token),
        ];
        let given =
            all.into_iter().filter_map(|(option, name, value)| Some((option, name, value?)));
        given.collect()
    }
}

/// Whether the command reads the file of variables in the working folder.
fn reads_here(command: &Command, transport: Option<&str>) -> bool {
    match command {
        Command::Serve(args) => {
            let transport = args.transport.as_deref().or(transport);
            let transport = transport.and_then(|text| text.trim().parse().ok());
            args.http || transport == Some(Transport::Http)
        }
        Command::Image { .. }
        | Command::Audit { .. }
        | Command::Config { .. }
        | Command::Doctor { .. }
        | Command::Setup(_)
        | Command::Sessions(_)
        | Command::Token { .. }
        | Command::Health => true,
        #[cfg(feature = "wasm")]
        Command::Runtime { .. } => true,
        #[cfg(feature = "wasm")]
        Command::EmbeddedAgent(_)
        | Command::ToolAgent(_)
        | Command::CompileTool(_)
        | Command::CheckArguments => false,
        Command::Run(_) | Command::Guard { .. } | Command::Completion { .. } | Command::Man => {
            false
        }
    }
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
        of(&command, (cli.config, cli.env_file), transport).env_file
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
        let empty = of(&Command::default(), (Some("".into()), Some("".into())), None);
        assert_eq!(
            (empty.env_file, empty.file),
            (EnvFile::None, None),
            "set to nothing is not set"
        );
    }
}
