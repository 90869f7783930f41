//! A setting: its name and default, the form of its values, and how they are parsed.

use std::fmt;

use bytesize::ByteSize;

/// The prefix of all our variables.
pub(super) const PREFIX: &str = "SANDBOX_";

/// Mistakes in a value: sentences that follow the setting's name.
pub(super) type Mistaken = Vec<String>;

/// A setting and its parser.
pub(super) struct Setting<T: 'static> {
    pub(super) row: Row,
    /// Parses the value without surrounding blanks, or the default.
    pub(super) parse: fn(&Row, &str) -> Result<T, Mistaken>,
}

/// The documentation of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name of the variable.
    pub name: &'static str,
    /// Key in the settings file, with its sections.
    pub key: &'static str,
    /// The default as it would be written; empty if the setting is not set by default. If it depends on other
    /// settings, the value with their defaults.
    pub default: &'static str,
    /// The form of a value.
    pub form: Form,
    /// Sentences in plain text for the operator.
    pub description: &'static str,
}

impl Row {
    /// For a value that similar programs have and this one cannot have: the nearest value, and why it is taken.
    pub(super) fn nearest(&self, text: &str) -> Option<(String, String)> {
        match self.form {
            // An output has to fit into a message, and read_output reads on where it was cut.
            Form::Size(_, max)
                if self.name == "SANDBOX_MAX_OUTPUT_BYTES"
                    && text.parse::<ByteSize>().is_ok_and(|size| size.as_u64() > max) =>
            {
                let shown = ByteSize(max).display().iec();
                Some((
                    max.to_string(),
                    format!("{text} is more than {shown}, which is taken instead"),
                ))
            }
            Form::OneOf(words) if text.contains("%(") => {
                let why = format!(
                    "is a format of Python's logging, which has no effect here; {} is taken",
                    words[0]
                );
                Some((words[0].to_owned(), why))
            }
            _ => None,
        }
    }
}

/// The form of a value, with its bounds. Displayed, it fits after "is" or "is not".
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// Bytes, plain or with a unit.
    Size(u64, u64),
    /// A whole number.
    Whole(u64, u64),
    /// A number, fractions allowed.
    Number(f64, f64),
    /// Whole seconds.
    Seconds(u64, u64),
    /// Minutes, fractions allowed.
    Minutes(f64, f64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Texts separated by this character, in words.
    List(char, &'static str),
    /// A secret, in words.
    Secret(&'static str),
    /// Secrets separated by commas, in words.
    Secrets(&'static str),
    /// Any other form, in words.
    Words(&'static str),
}

impl Form {
    /// Parses a whole number of this form.
    pub(super) fn whole(&self, text: &str) -> Option<u64> {
        let (number, (min, max)) = match *self {
            Self::Size(min, max) => (text.parse::<ByteSize>().ok()?.as_u64(), (min, max)),
            Self::Whole(min, max) | Self::Seconds(min, max) => (text.parse().ok()?, (min, max)),
            _ => return None,
        };
        (min..=max).contains(&number).then_some(number)
    }

    /// Parses a number of this form that may have a fraction.
    pub(super) fn number(&self, text: &str) -> Option<f64> {
        let (Self::Number(min, max) | Self::Minutes(min, max)) = *self else { return None };
        text.parse().ok().filter(|number| (min..=max).contains(number))
    }

    /// The character between the items of a list, if the form is one.
    pub fn separator(&self) -> Option<char> {
        match *self {
            Self::List(separator, _) => Some(separator),
            Self::Secrets(_) => Some(','),
            _ => None,
        }
    }

    /// Whether no message may show the value.
    pub fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_) | Self::Secrets(_))
    }

    /// The unit of the setting's numbers, if it has one and values are written without it.
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
        // Exactly: a rounded bound could be the value that was refused.
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
            Self::OneOf(words) => match words.split_last() {
                Some((last, [])) => f.write_str(last),
                Some((last, others)) => write!(f, "{} or {last}", others.join(", ")),
                None => Ok(()),
            },
            Self::List(':', words) => write!(f, "{words}, separated by colons"),
            Self::List(_, words) | Self::Secrets(words) => {
                write!(f, "{words}, separated by commas")
            }
            Self::Secret(words) | Self::Words(words) => f.write_str(words),
        }
    }
}
