//! The places from which settings are read: the command line, the environment and two files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    Mistakes, aliases,
    callers::{Caller, Policy},
    datasets::Entry as DatasetEntry,
    env_file::{EnvFile, VARIABLE as ENV_FILE},
    file::{self, Contents, VARIABLE as CONFIG_FILE},
    given::{Given, Source},
    setting::{PREFIX, Row},
    table, tokens,
    upstreams::Upstream,
};

/// The places from which settings are read, besides the environment.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The file of variables.
    pub env_file: EnvFile,
    /// The settings file, if one is named; otherwise the first that exists of the usual ones is read.
    pub file: Option<PathBuf>,
    /// Options of the command line: each with its variable and value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// Values by the names of their variables, before they are checked. Variables of other programs are among them.
#[derive(Default)]
pub(super) struct Values {
    pub(super) given: BTreeMap<String, Given>,
    /// Errors while reading.
    pub(super) mistakes: Vec<String>,
    /// The file of variables, if there is one.
    pub(super) env_file: Option<PathBuf>,
    /// The settings file, if there is one.
    pub(super) file: Option<PathBuf>,
    /// Remarks about values of the settings file that have no effect.
    pub(super) remarks: Vec<String>,
    pub(super) callers: Vec<Caller>,
    pub(super) policies: BTreeMap<String, Policy>,
    pub(super) datasets: Vec<DatasetEntry>,
    pub(super) upstreams: Vec<Upstream>,
}

impl Values {
    /// Reads all places. A later one wins: the settings file, the file of variables, the environment, the options.
    pub(super) fn read(inputs: &Inputs) -> Self {
        let mut mistakes = vec![];
        let file = file::find(inputs.file.clone());
        let contents = file.as_ref().map(|path| file::read(path, &mut mistakes));
        let Contents { values: mut given, mut remarks, callers, policies, datasets, upstreams } =
            contents.unwrap_or_default();
        let env_file = inputs.env_file.read(&mut mistakes).map(|(path, vars)| {
            for (name, text) in vars {
                let source = Source::EnvFile(path.clone());
                replace(&mut given, name, Given { text, source }, &mut remarks);
            }
            path
        });
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            // These two only name files.
            if name == ENV_FILE || name == CONFIG_FILE {
                continue;
            }
            match value.into_string() {
                Ok(text) => {
                    let source = Source::Environment;
                    replace(&mut given, name, Given { text, source }, &mut remarks);
                }
                Err(_) if name.starts_with(PREFIX) => {
                    mistakes.push(format!("{name}: is not UTF-8"));
                }
                Err(_) => {}
            }
        }
        for (option, variable, text) in &inputs.flags {
            let given_here = Given { text: text.clone(), source: Source::Flag(option) };
            given.insert((*variable).to_owned(), given_here);
        }
        remarks.extend(aliases::apply(&mut given));
        Self { given, mistakes, env_file, file, remarks, callers, policies, datasets, upstreams }
    }

    /// The text of a setting, unless it is blank.
    fn text(&self, row: &Row) -> Option<&str> {
        self.given.get(row.name).map(|given| given.text.trim()).filter(|text| !text.is_empty())
    }
}

/// Sets a variable, unless it is blank and the settings file has a value. A remark says if the file has another value,
/// which has no effect then.
fn replace(
    given: &mut BTreeMap<String, Given>,
    name: String,
    new: Given,
    remarks: &mut Vec<String>,
) {
    let row = table::rows().find(|row| row.name == name);
    if let (Some(row), Some(Given { text, source: source @ Source::File { .. } })) =
        (row, given.get(&name))
        && text.trim() != new.text.trim()
    {
        // A log file that is blank is none.
        if new.text.trim().is_empty() && row.name != table::SANDBOX_LOG_FILE.row.name {
            return;
        }
        remarks.push(format!(
            "{source}: {} has no effect: {name} has another value ({})",
            row.key, new.source
        ));
    }
    given.insert(name, new);
}

/// The tokens of the settings, each with its name, for users who may read the settings.
///
/// # Errors
///
/// If there are mistakes in how they are set, or the file that should contain them does not exist yet.
pub fn tokens_in_clear(inputs: &Inputs) -> Result<Vec<(String, String)>, Mistakes> {
    let values = Values::read(inputs);
    let file = table::SANDBOX_AUTH_TOKENS_FILE.row;
    let list = match (values.text(&table::SANDBOX_AUTH_TOKENS.row), values.text(&file)) {
        (Some(list), _) => list.to_owned(),
        (None, None) => String::new(),
        // A file created here would contain a token that no server knows.
        (None, Some(path)) if !Path::new(path).exists() => {
            return Err(Mistakes(vec![format!(
                "{}: there is no file {path} yet: the server makes it when it starts, and may run in \
                 another folder",
                file.name
            )]));
        }
        (None, Some(path)) => match tokens::from_file(path.as_ref()) {
            Ok(list) => list,
            Err(error) => return Err(Mistakes(vec![format!("{}: {path}: {error}", file.name)])),
        },
    };
    if !values.mistakes.is_empty() {
        return Err(Mistakes(values.mistakes));
    }
    let pairs = list.split(',').filter_map(|pair| pair.trim().split_once(':'));
    let pairs = pairs.map(|(name, token)| (name.to_owned(), token.to_owned()));
    let of_file = values.callers.into_iter().flat_map(|caller| {
        let name = caller.principal.name().to_owned();
        caller.clear.into_iter().map(move |token| (name.clone(), token))
    });
    Ok(pairs.chain(of_file).collect())
}
