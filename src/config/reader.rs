//! Reads variables, each by its row, and collects the mistakes.

use std::{collections::BTreeMap, path::Path};

use super::{
    choices::TokensFrom,
    setting::{Mistaken, Row, Setting},
    table::{AUTH_TOKENS, AUTH_TOKENS_FILE, KEY_FILE, PEER_ADDRESS},
    tokens,
};
use crate::auth::Tokens;

/// Variables that have not been read yet, and the mistakes in those that have.
pub(super) struct Reader {
    pub(super) vars: BTreeMap<String, String>,
    pub(super) mistakes: Vec<String>,
}

impl Reader {
    /// Reads a value. If it is wrong, records the mistake and uses the default, so that reading can continue.
    pub(super) fn read<T>(&mut self, setting: &Setting<T>) -> T {
        self.read_or(setting, setting.row.default)
    }

    /// The same, with a default other than the one in the table.
    pub(super) fn read_or<T>(&mut self, setting: &Setting<T>, default: &str) -> T {
        let row = &setting.row;
        let value = self.take(row).filter(|value| !value.is_empty());
        (setting.parse)(row, value.as_deref().unwrap_or(default)).unwrap_or_else(|mistaken| {
            self.note(row, mistaken);
            (setting.parse)(row, default)
                .unwrap_or_else(|why| panic!("default of {}: {why:?}", row.name))
        })
    }

    /// Whether a setting has a value.
    pub(super) fn is_set(&self, row: &Row) -> bool {
        self.vars.get(row.name).is_some_and(|value| !value.trim().is_empty())
    }

    /// Reads a setting that may be set to an empty value; `None` if it is not set or is wrong.
    pub(super) fn read_if_set<T>(&mut self, setting: &Setting<T>) -> Option<T> {
        let value = self.take(&setting.row)?;
        let read = (setting.parse)(&setting.row, &value);
        read.map_err(|mistaken| self.note(&setting.row, mistaken)).ok()
    }

    /// Refuses a missing key file if servers share their callers: they need one key, and each would create another.
    pub(super) fn refuse_new_key(&mut self) {
        let set = |row: &Row| {
            let value = self.vars.get(row.name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let path = set(&PEER_ADDRESS.row).and(set(&KEY_FILE.row));
        if let Some(path) = path.filter(|path| !Path::new(path).exists()) {
            self.take(&KEY_FILE.row);
            let what = format!(
                "{path} is not there. With SANDBOX_PEER_ADDRESS it is not made: all servers have the same, for example \
                 of `openssl rand -hex 32`"
            );
            self.note(&KEY_FILE.row, vec![what]);
        }
    }

    /// Reads the tokens, and notes where they are set.
    pub(super) fn tokens(&mut self) -> (Tokens, Option<TokensFrom>) {
        let (from, list) = self.token_list();
        let tokens = Tokens::parse(&list).unwrap_or_else(|mistake| {
            let in_file = matches!(from, Some(TokensFrom::TokensFile(_)));
            let row = if in_file { AUTH_TOKENS_FILE.row } else { AUTH_TOKENS.row };
            self.note(&row, vec![mistake]);
            Tokens::default()
        });
        (tokens, from)
    }

    /// Reads `name:token,...` from the setting or from the file that is named instead; returns which of them it was.
    pub(super) fn token_list(&mut self) -> (Option<TokensFrom>, String) {
        match (self.read(&AUTH_TOKENS), self.read(&AUTH_TOKENS_FILE)) {
            (Some(tokens), _) => (Some(TokensFrom::Environment), tokens),
            (None, None) => (None, String::new()),
            (None, Some(path)) => {
                let tokens = tokens::from_file(path.as_ref()).unwrap_or_else(|error| {
                    self.note(&AUTH_TOKENS_FILE.row, vec![format!("{path}: {error}")]);
                    String::new()
                });
                let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
                (Some(TokensFrom::TokensFile(path)), tokens)
            }
        }
    }

    fn take(&mut self, row: &Row) -> Option<String> {
        self.vars.remove(row.name).map(|value| value.trim().to_owned())
    }

    fn note(&mut self, row: &Row, mistaken: Mistaken) {
        self.mistakes.extend(mistaken.into_iter().map(|what| format!("{}: {what}", row.name)));
    }
}
