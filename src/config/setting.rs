//! What a setting is: its name and default, what a value looks like, and how one is read.

use std::fmt;

use bytesize::ByteSize;

/// What all our variables start with.
pub(super) const PREFIX: &str = "SANDBOX_";

/// What is wrong with a value: sentences that follow the setting's name.
pub(super) type Mistaken = Vec<String>;

/// A setting, and how its value is read.
pub(super) struct Setting<T: 'static> {
    pub(super) row: Row,
    /// Given the value without blanks around it, or the default.
    pub(super) parse: fn(&Row, &str) -> Result<T, Mistaken>,
}

/// What there is to say of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name of the variable.
    pub name: &'static str,
    /// As it would be written; empty if the setting is not set by default. Where it depends on other
    /// settings, what it is by their defaults.
    pub default: &'static str,
    /// What a value looks like.
    pub form: Form,
    /// For whoever sets it: sentences in plain text.
    pub description: &'static str,
}

/// What a value looks like, with its bounds. Shown, it fits after "is" or "is not".
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// Bytes, plain or with a unit.
    Size(u64, u64),
    /// A number of things.
    Whole(u64, u64),
    /// A number of things, fractions allowed.
    Number(f64, f64),
    /// Whole seconds.
    Seconds(u64, u64),
    /// Minutes, fractions allowed.
    Minutes(f64, f64),
    /// Anything else, in words.
    Words(&'static str),
}

impl Form {
    /// A whole number of this form.
    pub(super) fn whole(&self, text: &str) -> Option<u64> {
        let (number, (min, max)) = match *self {
            Self::Size(min, max) => (text.parse::<ByteSize>().ok()?.as_u64(), (min, max)),
            Self::Whole(min, max) | Self::Seconds(min, max) => (text.parse().ok()?, (min, max)),
            _ => return None,
        };
        (min..=max).contains(&number).then_some(number)
    }

    /// A number of this form that may have a fraction.
    pub(super) fn number(&self, text: &str) -> Option<f64> {
        let (Self::Number(min, max) | Self::Minutes(min, max)) = *self else { return None };
        text.parse().ok().filter(|number| (min..=max).contains(number))
    }

    /// The unit of its numbers, where they have one that is not written with them.
    pub fn unit(&self) -> Option<&'static str> {
        match self {
            Self::Seconds(..) => Some("seconds"),
            Self::Minutes(..) => Some("minutes"),
            _ => None,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Exactly, so that nobody is told the value that was refused.
        let shown = |size: u64| match ByteSize(size).display() {
            size_in if size.is_multiple_of(1 << 20) => size_in.iec().to_string(),
            size_in => size_in.si().to_string(),
        };
        match *self {
            Self::Size(min, max) => write!(
                f,
                "a size from {} to {}, written like 300MB or 512MiB",
                shown(min),
                shown(max)
            ),
            Self::Whole(min, max) | Self::Seconds(min, max) => {
                write!(f, "a whole number from {min} to {max}")
            }
            Self::Number(min, max) | Self::Minutes(min, max) => {
                write!(f, "a number from {min} to {max}")
            }
            Self::Words(words) => f.write_str(words),
        }
    }
}
