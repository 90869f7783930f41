//! Tools come in sets, so that a model does not read about tools that its work does not need.

use std::{fmt, str::FromStr};

/// Tools that are offered together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toolset {
    /// Programs, uploads and downloads.
    Run,
    /// Cells, in a workspace whose variables persist.
    Code,
    /// Sessions with limits of their own, and their runtimes.
    Sessions,
    /// Tools of the operator's own.
    Own,
}

impl Toolset {
    /// All toolsets, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Run, Self::Code, Self::Sessions, Self::Own];

    /// The name in the settings and in a URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Code => "code",
            Self::Sessions => "sessions",
            Self::Own => "own",
        }
    }
}

/// Some toolsets, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toolsets([bool; Toolset::ALL.len()]);

impl Toolsets {
    /// All toolsets.
    pub const ALL: Self = Self([true; Toolset::ALL.len()]);

    /// Whether this toolset is included.
    pub fn has(self, toolset: Toolset) -> bool {
        self.0[toolset as usize]
    }

    /// Whether this is the only toolset.
    pub fn is_only(self, toolset: Toolset) -> bool {
        self.iter().eq([toolset])
    }

    /// Whether all of these are among those.
    pub(super) fn are_within(self, those: Self) -> bool {
        self.iter().all(|toolset| those.has(toolset))
    }

    /// Chooses the toolsets with these names, separated by commas.
    ///
    /// # Errors
    ///
    /// If one is not among these, or none is named: a sentence that lists these.
    pub fn choose(self, names: &str) -> Result<Self, String> {
        let mut chosen = [false; Toolset::ALL.len()];
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = self.iter().find(|toolset| toolset.as_str().eq_ignore_ascii_case(name));
            let Some(known) = known else {
                let name = model::text::quoted(name);
                return Err(format!("there is no toolset {name}; the toolsets are {self}"));
            };
            chosen[known as usize] = true;
        }
        if chosen.contains(&true) {
            Ok(Self(chosen))
        } else {
            Err(format!("no toolset is named; the toolsets are {self}"))
        }
    }

    fn iter(self) -> impl Iterator<Item = Toolset> {
        Toolset::ALL.into_iter().filter(move |toolset| self.has(*toolset))
    }
}

impl FromStr for Toolsets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.choose(text)
    }
}

impl fmt::Display for Toolsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Toolset::as_str).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolsets_are_named_in_any_order_and_case() {
        let chosen: Toolsets = " Code,run ,".parse().expect("two toolsets");
        assert_eq!(chosen.to_string(), "run, code");
        assert!(chosen.has(Toolset::Code) && !chosen.has(Toolset::Sessions));
        assert_eq!("run,code,sessions,own".parse(), Ok(Toolsets::ALL));
    }

    #[test]
    fn one_that_is_not_there_is_told_with_those_that_are() {
        let refused = |names: &str| names.parse::<Toolsets>().expect_err("refused");
        assert_eq!(
            refused("run,files"),
            "there is no toolset \"files\"; the toolsets are run, code, sessions, own"
        );
        assert_eq!(
            refused(" , "),
            "no toolset is named; the toolsets are run, code, sessions, own"
        );
        let run: Toolsets = "run".parse().expect("one");
        assert_eq!(
            run.choose("code"),
            Err("there is no toolset \"code\"; the toolsets are run".into())
        );
    }
}
