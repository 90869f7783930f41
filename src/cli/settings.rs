//! `llm-sandbox config`: checks and shows the settings.

use std::process::ExitCode;

use config::{Config, Given, table};

use super::{ConfigCommand, EXIT_USAGE};
use crate::http::Tls;

/// Runs the command. Settings with mistakes have been reported before.
pub(super) fn run(config: &Config, command: ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Check => return check(config),
        ConfigCommand::Show => show(config),
        ConfigCommand::Schema => return schema(),
    }
    ExitCode::SUCCESS
}

/// Prints the schema of the settings file, which needs no settings.
pub(super) fn schema() -> ExitCode {
    print_line!("{:#}", config::schema());
    ExitCode::SUCCESS
}

fn check(config: &Config) -> ExitCode {
    if let Err(why) = Tls::of(config) {
        eprintln!("llm-sandbox: the certificate cannot be used:\n  {why}");
        return EXIT_USAGE.into();
    }
    let files = [&config.file, &config.env_file].into_iter().flatten();
    let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
    let from = match &*files {
        [] => "there is no settings file".to_owned(),
        files => format!("from {}", files.join(" and ")),
    };
    print_line!("The settings are valid: {} are not defaults; {from}.", config.given.len());
    for remark in &config.remarks {
        print_line!("{remark}");
    }
    ExitCode::SUCCESS
}

fn show(config: &Config) {
    let width = table::rows().map(|row| row.key.len()).max().unwrap_or_default();
    for row in table::rows() {
        // An empty value is none, if the setting has a default.
        let is_value = |given: &&Given| !given.text.is_empty() || row.default.is_empty();
        let given = config.given.get(row.name).filter(is_value);
        let text = given.map_or(row.default, |given| &given.text);
        let source = given.map_or("default".to_owned(), |given| given.source.to_string());
        print_line!("{:width$}  {:?}  # {source}", row.key, text);
    }
}
