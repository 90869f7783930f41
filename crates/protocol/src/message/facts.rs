//! Facts about a run, for the notes that a model gets with its result.

use serde::{Deserialize, Serialize};

use super::is_zero;

/// Facts about a run that its outputs do not contain. They are hints: a fact may be missing, and a program can forge
/// all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Type of the last statement's value, if the program did not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_value: Option<String>,
    /// The number of charts that were neither shown nor saved.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsaved_figures: usize,
    /// Columns of the table in which the program did not find a column.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub columns: Names,
    /// Row of that table, counted from 0, that has the name of the missing column: the header may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    /// The places of the tables in a file that a library could not read as one table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Sheets of the workbook in which the program did not find a sheet.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub sheets: Names,
    /// The file that the program did not find.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_file: Option<MissingFile>,
    /// Absolute paths of files that were created or changed outside the data area.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub elsewhere: Names,
    /// The line that the program had reached at its deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Lines for a notebook that were left out, so that the rest could run.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub left_out: Names,
    /// The user's file, below the data area, that may hide a library's module in which the program
    /// did not find a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_module: Option<String>,
    /// Instructions that were used, if the engine counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}

impl Facts {
    /// Whether there are no facts.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Some names, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    /// The names that are listed.
    pub names: Vec<String>,
    /// The number of further names.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
}

impl Names {
    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.more == 0
    }
}

/// The probable places of the tables in a text file. Lines are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// First line of the longest table: its header.
    pub line: u32,
    /// The separator of the table's fields.
    pub separator: char,
    /// First line of the next table; 0 if there is none.
    #[serde(default)]
    pub next: u32,
}

/// A file that does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissingFile {
    /// The name that the program used.
    pub name: String,
    /// Files of the data area, those with the most similar names first.
    pub there: Names,
    /// Files of datasets with such a name, by their absolute paths, the most similar first.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub in_datasets: Names,
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file: the program's own or a module of its user's.
    pub file: String,
    /// The line's number, counted from 1.
    pub line: u32,
    /// The function, or `<module>`.
    pub function: String,
    /// The line's text, if it is the program's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}
