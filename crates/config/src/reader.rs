//! Reads the values of settings, each by its row, and collects the mistakes.

use std::{collections::BTreeMap, path::Path};

use model::text::nearest;

use super::{
    given::{Given, Source},
    setting::{Mistaken, PREFIX, Row, Setting},
    table::{self, SANDBOX_KEY_FILE, SANDBOX_PEER_ADDRESS},
};

/// The text that is shown for a secret.
const HIDDEN: &str = "(secret)";

/// Maximum number of settings that a message about an unknown name suggests.
const MAX_MEANT: usize = 4;

/// Values by the names of variables with our prefix, and the mistakes in those that have been read.
pub(super) struct Reader {
    given: BTreeMap<String, Given>,
    /// Each under the setting's name.
    mistakes: Vec<(&'static str, String)>,
}

impl Reader {
    pub(super) fn new(given: BTreeMap<String, Given>) -> Self {
        Self { given, mistakes: vec![] }
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
        self.given.get(row.name).map(|given| given.text.trim()).filter(|text| !text.is_empty())
    }

    /// The place where a setting was given.
    pub(super) fn source(&self, row: &Row) -> Option<&Source> {
        self.given.get(row.name).map(|given| &given.source)
    }

    /// Whether a setting is set to an empty value.
    pub(super) fn is_blank(&self, row: &Row) -> bool {
        self.given.contains_key(row.name) && self.value(row).is_none()
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
            self.given.remove(SANDBOX_KEY_FILE.row.name);
        }
    }

    pub(super) fn note(&mut self, row: &Row, mistaken: Mistaken) {
        let name = row.name;
        self.mistakes.extend(mistaken.into_iter().map(|what| (name, format!("{name}: {what}"))));
    }

    /// The mistakes in values, these others, and those in names; and the values, without secrets.
    pub(super) fn end(self, others: Vec<String>) -> (Vec<String>, BTreeMap<&'static str, Given>) {
        let row = |name: &str| table::rows().find(|row| row.name == name);
        let unknown = self.given.keys().filter(|name| row(name).is_none());
        let unknown: Vec<_> = unknown.map(|name| no_such_setting(name)).collect();
        let values = self.mistakes.iter().map(|(_, mistake)| mistake).chain(&others);
        let mistakes = values.map(|mistake| self.worded(mistake)).chain(unknown).collect();
        let given = self.given.into_iter().filter_map(|(name, mut given)| {
            let row = row(&name)?;
            if row.form.is_secret() && !given.text.is_empty() {
                HIDDEN.clone_into(&mut given.text);
            }
            Some((row.name, given))
        });
        (mistakes, given.collect())
    }

    /// The mistake with the keys of settings that the settings file has, and with the place of the first of them.
    fn worded(&self, mistake: &str) -> String {
        let mut place = String::new();
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let mut text = String::new();
        for part in mistake.split_inclusive(|c| !is_name(c)) {
            let name = part.trim_end_matches(|c| !is_name(c));
            let row = table::rows().find(|row| row.name == name);
            match row.and_then(|row| Some((row, self.source(row)?))) {
                Some((row, source @ Source::File { .. })) => {
                    if place.is_empty() {
                        place = format!("{source}: ");
                    }
                    text.push_str(row.key);
                    text.push_str(&part[name.len()..]);
                }
                _ => text.push_str(part),
            }
        }
        place + &text
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
