//! Reads variables, each by its row, and collects the mistakes.

use std::{collections::BTreeMap, path::Path};

use model::text::nearest;

use super::{
    setting::{Mistaken, PREFIX, Row, Setting},
    table::{self, SANDBOX_KEY_FILE, SANDBOX_PEER_ADDRESS},
};

/// Maximum number of settings that a message about an unknown name suggests.
const MAX_MEANT: usize = 4;

/// Variables with our prefix, and the mistakes in those that have been read.
pub(super) struct Reader {
    vars: BTreeMap<String, String>,
    /// Each under the setting's name.
    mistakes: Vec<(&'static str, String)>,
}

impl Reader {
    pub(super) fn new(vars: BTreeMap<String, String>) -> Self {
        Self { vars, mistakes: vec![] }
    }

    /// Reads a value. If it is wrong, records the mistake and uses the default, so that reading can continue.
    pub(super) fn read<T>(&mut self, setting: &Setting<T>) -> T {
        let row = &setting.row;
        match self.value(row).map(|value| (setting.parse)(row, value)) {
            Some(Ok(value)) => return value,
            Some(Err(mistaken)) => self.note(row, mistaken),
            None => {}
        }
        (setting.parse)(row, row.default)
            .unwrap_or_else(|why| panic!("default of {}: {why:?}", row.name))
    }

    /// The value of a setting, without surrounding blanks, unless it is empty.
    pub(super) fn value(&self, row: &Row) -> Option<&str> {
        self.vars.get(row.name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Whether a setting is set to an empty value.
    pub(super) fn is_blank(&self, row: &Row) -> bool {
        self.vars.contains_key(row.name) && self.value(row).is_none()
    }

    /// Whether a setting that has been read has its default, because it has no value or a wrong one.
    pub(super) fn is_default<T>(&self, setting: &Setting<T>) -> bool {
        let name = setting.row.name;
        self.value(&setting.row).is_none() || self.mistakes.iter().any(|(of, _)| *of == name)
    }

    /// Refuses a missing key file if servers share their callers: they need one key, and each would create another.
    pub(super) fn refuse_new_key(&mut self) {
        let path = self.value(&SANDBOX_PEER_ADDRESS.row).and(self.value(&SANDBOX_KEY_FILE.row));
        if let Some(path) = path.filter(|path| !Path::new(path).exists()) {
            let what = format!(
                "SANDBOX_KEY_FILE: {path} is not there. With SANDBOX_PEER_ADDRESS it is not made: all servers have the \
                 same, for example of `openssl rand -hex 32`"
            );
            self.mistakes.push((SANDBOX_KEY_FILE.row.name, what));
            self.vars.remove(SANDBOX_KEY_FILE.row.name);
        }
    }

    pub(super) fn note(&mut self, row: &Row, mistaken: Mistaken) {
        let name = row.name;
        self.mistakes.extend(mistaken.into_iter().map(|what| (name, format!("{name}: {what}"))));
    }

    /// The mistakes in values, then those in names.
    pub(super) fn into_mistakes(self) -> Vec<String> {
        let known = |name: &String| table::rows().any(|row| row.name == name);
        let unknown =
            self.vars.keys().filter(|name| !known(name)).map(|name| no_such_setting(name));
        let unknown: Vec<_> = unknown.collect();
        self.mistakes.into_iter().map(|(_, mistake)| mistake).chain(unknown).collect()
    }
}

/// The message about a name that no setting has.
fn no_such_setting(name: &str) -> String {
    // The prefix, which all of them have, would make any two names similar.
    let bare = |name: &'static str| name.strip_prefix(PREFIX);
    let all = table::rows().filter_map(|row| bare(row.name));
    let name_alone = name.strip_prefix(PREFIX).unwrap_or(name);
    let mut near: Vec<_> = nearest(name_alone, all.clone(), 1).collect();
    if near.is_empty() {
        // A part of a name, such as TIMEOUT, PORT or TOKENS.
        let has = |name: &str, word| name.split('_').any(|it| it.starts_with(word));
        let has_all = |name: &&str| name_alone.split('_').all(|word| has(name, word));
        near = all.filter(has_all).take(MAX_MEANT).collect();
    }
    let near: Vec<_> = near.iter().map(|near| format!("{PREFIX}{near}")).collect();
    match &*near.join(" or ") {
        "" => format!("{name}: there is no such setting"),
        near => format!("{name}: there is no such setting (did you mean {near}?)"),
    }
}
