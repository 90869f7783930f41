//! The list of callers in the settings file: all mistakes in each entry.

use model::{Principal, text::quoted};
use serde_saphyr::Spanned;

use super::{CALLERS, FILE, Found, Node, resolved};
use crate::{
    auth::Token,
    callers::{Caller, Role},
};

/// An entry of the list of callers, as far as it was read.
#[derive(Default)]
struct CallerEntry {
    name: Option<Principal>,
    tokens: Vec<String>,
    role: Role,
    policy: Option<String>,
}

impl Found<'_> {
    /// Reads the callers, after the policies.
    pub(super) fn read_callers(&mut self, key: &Spanned<String>, node: Node) {
        for (line, node) in self.items(CALLERS, key, node) {
            match self.caller(node) {
                Ok(caller) => self.contents.callers.push(caller),
                Err(all) => {
                    for why in all {
                        self.mistake(line, &format!("{CALLERS}: {why}"));
                    }
                }
            }
        }
    }

    /// A caller, or all mistakes in its entry.
    fn caller(&self, node: Node) -> Result<Caller, Vec<String>> {
        let Node::Map(entries) = node else {
            return Err(vec!["an entry is no mapping of name, token, role and policy".into()]);
        };
        let mut mistakes = vec![];
        let has = |name: &str| entries.iter().any(|(key, _)| key.value == name);
        let (has_name, has_token) = (has("name"), has("token"));
        let mut caller = CallerEntry::default();
        for (key, node) in entries {
            mistakes.extend(self.read_of_caller(&mut caller, &key.value, node.value).err());
        }
        let CallerEntry { name, tokens: texts, role, policy } = caller;
        if !has_name {
            mistakes.push("a caller has no name".into());
        }
        let shown = name.as_ref().map_or("a caller", Principal::name);
        if !has_token {
            mistakes.push(format!("{shown} has no token"));
        }
        let tokens = texts.iter().map(|token| Token::parse_or_digest(token));
        let tokens = tokens.collect::<Result<_, _>>().unwrap_or_else(|why| {
            mistakes.push(format!("the token of {shown} {why}"));
            vec![]
        });
        let clear = texts.into_iter().filter(|token| !Token::is_digest(token)).collect();
        match name {
            Some(principal) if mistakes.is_empty() => {
                Ok(Caller { principal, tokens, clear, role, policy })
            }
            _ => Err(mistakes),
        }
    }

    /// Reads one key of a caller's entry.
    fn read_of_caller(
        &self,
        caller: &mut CallerEntry,
        key: &str,
        node: Node,
    ) -> Result<(), String> {
        let is_token = key == "token";
        let texts = match node {
            Node::Text(text) => vec![text],
            Node::List(items) if is_token => {
                let texts = items.into_iter().map(|item| match item.value {
                    Node::Text(text) => Ok(text),
                    _ => Err("a token is no text"),
                });
                texts.collect::<Result<_, _>>()?
            }
            _ => return Err(format!("{key} is no text")),
        };
        for text in texts {
            let is_file = text.starts_with(FILE);
            let text = resolved(is_token, text, self.path)?;
            match key {
                "name" => {
                    let named = Principal::named(&text).filter(|it| *it != Principal::local());
                    let named = named.ok_or_else(|| {
                        format!(
                            "{} is no name of a caller: 1 to 64 letters, digits, . _ and -, and not local",
                            quoted(&text)
                        )
                    })?;
                    if self.contents.callers.iter().any(|other| other.principal == named) {
                        return Err(format!("{named} is listed twice"));
                    }
                    caller.name = Some(named);
                }
                // Each line of a file is a token.
                "token" if is_file => caller.tokens.extend(text.split(',').map(str::to_owned)),
                "token" => caller.tokens.push(text),
                "role" => {
                    let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
                    caller.role = known.ok_or_else(|| {
                        format!("role {} is not user, operator or auditor", quoted(&text))
                    })?;
                }
                "policy" if self.contents.policies.contains_key(&text) => {
                    caller.policy = Some(text);
                }
                "policy" => return Err(format!("there is no policy {}", quoted(&text))),
                other => {
                    return Err(format!(
                        "there is no key {}; the keys are name, token, role and policy",
                        quoted(other)
                    ));
                }
            }
        }
        Ok(())
    }
}
