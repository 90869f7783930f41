//! The list of packages that an operator allows. Pure.

use std::{fmt, str::FromStr};

use super::requirement::{Ecosystem, NPM, Requirement};

/// The packages that may be installed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Allowed {
    /// No packages.
    #[default]
    Nothing,
    /// These packages, in these versions, and the packages that they need.
    These(Vec<Requirement>),
    /// All packages of the index.
    Any,
}

impl Allowed {
    /// Narrows a requirement to the allowed versions; `None` if the package is not allowed. If a package is allowed,
    /// its extras are, too.
    pub fn within(&self, wanted: Requirement) -> Option<Requirement> {
        match self {
            Self::Nothing => None,
            Self::Any => Some(wanted),
            Self::These(_) => {
                let allowed = self.of(&wanted)?;
                Some(wanted.within(allowed))
            }
        }
    }

    /// Whether all packages and versions that this allows are allowed by the other.
    pub fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Any) => true,
            (Self::These(these), Self::These(_)) => {
                these.iter().all(|it| other.within(it.clone()).as_ref() == Some(it))
            }
            _ => false,
        }
    }

    /// The entry of the list that allows a package; `None` without a list.
    pub fn of(&self, wanted: &Requirement) -> Option<&Requirement> {
        let Self::These(these) = self else { return None };
        let is_it = |it: &&Requirement| {
            it.ecosystem() == wanted.ecosystem() && it.plain_name() == wanted.plain_name()
        };
        these.iter().find(is_it)
    }

    /// The list of allowed packages of an ecosystem; `None` without a list.
    pub fn only(&self, ecosystem: Ecosystem) -> Option<String> {
        let Self::These(these) = self else { return None };
        let names: Vec<_> = these
            .iter()
            .filter(|it| it.ecosystem() == ecosystem)
            .map(Requirement::to_string)
            .collect();
        Some(names.join(", "))
    }

    /// An allowed package of an ecosystem; `None` if none is allowed.
    pub fn first_of(&self, ecosystem: Ecosystem) -> Option<Requirement> {
        match self {
            Self::Nothing => None,
            Self::These(these) => these.iter().find(|it| it.ecosystem() == ecosystem).cloned(),
            Self::Any => Requirement::read(ecosystem, ecosystem.small()).ok(),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("off"),
            Self::Any => f.write_str("any"),
            Self::These(these) => {
                let written = |it: &Requirement| match it.ecosystem() {
                    Ecosystem::PyPi => it.to_string(),
                    Ecosystem::Npm => format!("{NPM}{it}"),
                };
                let these: Vec<_> = these.iter().map(written).collect();
                f.write_str(&these.join(", "))
            }
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "off" => return Ok(Self::Nothing),
            "any" => return Ok(Self::Any),
            _ => {}
        }
        // A comma may also separate two versions of one package.
        let mut all: Vec<String> = vec![];
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match all.last_mut() {
                Some(last) if item.starts_with(['<', '>', '=', '!', '~', '^']) => {
                    last.push(',');
                    last.push_str(item);
                }
                _ => all.push(item.to_owned()),
            }
        }
        let read = |one: &String| one.parse().map_err(|why| format!("{one:?} {why}"));
        all.iter().map(read).collect::<Result<_, _>>().map(Self::These)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_allows_its_packages_within_its_versions_and_no_others() {
        let allowed = |list: &str, wanted: &str| {
            let list: Allowed = list.parse().expect("a list");
            list.within(wanted.parse().expect("a package")).map(|it| it.to_string())
        };
        let list = "rapidfuzz, Ruamel.Yaml>=0.18,<0.19, humanize==4.*";
        assert_eq!(allowed(list, "rapidfuzz==3.1"), Some("rapidfuzz==3.1".into()));
        assert_eq!(allowed(list, "ruamel-yaml"), Some("ruamel-yaml>=0.18,<0.19".into()));
        assert_eq!(allowed(list, "humanize>3"), Some("humanize>3,==4.*".into()));
        assert_eq!(allowed(list, "requests"), None);
        let both = "lodash, npm:lodash@^4, npm:@scope/a, npm:other@>=1, <2";
        assert_eq!(allowed(both, "npm:lodash@4.17.x"), Some("lodash@4.17.x ^4".into()));
        assert_eq!(allowed(both, "lodash==1"), Some("lodash==1".into()), "another language's");
        assert_eq!(allowed(both, "npm:other"), Some("other@>=1 <2".into()));
        assert_eq!(allowed(both, "npm:humanize"), None);
        let shown: Allowed = both.parse().expect("a list");
        assert_eq!(shown.to_string(), "lodash, npm:lodash@^4, npm:@scope/a, npm:other@>=1 <2");
        assert_eq!(allowed("any", "requests"), Some("requests".into()));
        for off in ["off", "", " OFF "] {
            assert_eq!(off.parse(), Ok(Allowed::Nothing));
        }
        assert!("rapidfuzz, -r x".parse::<Allowed>().is_err_and(|why| why.starts_with("\"-r x\"")));
    }
}
