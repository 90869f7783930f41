//! Summaries of tables in files.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::{FailureCode, Get};

/// Summarizes a table's file, or draws a page of a PDF document. Made beside the user's programs, within limits of time and memory, and given up if
/// anything else is requested of the interpreters. Fails with [`FailureCode::Busy`] during a run or if it is given up,
/// and with [`FailureCode::NotFound`] if there is no such file, or no summary of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summarize {
    /// As in [`Get`].
    pub path: String,
    /// Python's name of the encoding, if the file is a text and not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// The page of a PDF document that is drawn instead, counted from 1; 0 only counts the pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Time limit in milliseconds.
    pub limit_ms: u64,
}

/// Answers [`Summarize`]. Body: [`Summary`] as JSON; of a page its image as PNG, unless there is a problem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummarizeDone {
    /// The document, if a page was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Document>,
}

/// A PDF document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The number of its pages, if it could be opened.
    #[serde(default)]
    pub pages: u32,
    /// The reason why the page was not drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<PageProblem>,
}

/// The reason why a page was not drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageProblem {
    /// The file is no PDF document, or the document or the page is broken.
    Broken,
    /// The document can be opened only with a password.
    Encrypted,
    /// The document has no such page.
    NoSuchPage,
    /// The page needs more memory or time than there is.
    TooLarge,
    /// The library that draws pages is not installed; for an Office document, LibreOffice.
    NoLibrary,
}

/// The contents of a table's file, as far as its start and its footer show them. Its texts are the file's own, and may
/// be anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The kind of file.
    pub kind: SummaryKind,
    /// Python's name of a text's encoding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// The character between the fields of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<char>,
    /// The character before the fraction of a number, if it is not a point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decimal: Option<char>,
    /// The character that groups the digits of numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thousands: Option<char>,
    /// Whether the file is a text that is packed with gzip.
    #[serde(default, skip_serializing_if = "is_no")]
    pub gzip: bool,
    /// The line of the header, or its row in a sheet, counted from 1; of the first row if there is no header.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub header_line: u64,
    /// Whether the columns have names.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub header: bool,
    /// The name under which an object of JSON has the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// The number of rows below the header; of a workbook, in its first sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Whether there are more rows than could be counted.
    #[serde(default)]
    pub at_least: bool,
    /// The number of the first rows that the columns are about, if these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
    /// The first columns.
    pub columns: Vec<Column>,
    /// The number of further columns.
    #[serde(default)]
    pub more_columns: u64,
    /// The first sheets of a workbook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sheets: Vec<Sheet>,
    /// The number of further sheets.
    #[serde(default)]
    pub more_sheets: u64,
}

/// The kinds of files that have a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryKind {
    /// A text of rows, whose fields a character separates.
    Csv,
    /// The same, with tabs by its name.
    Tsv,
    /// A workbook of Excel.
    Xlsx,
    /// A workbook of Excel before 2007.
    Xls,
    /// Parquet.
    Parquet,
    /// One value of JSON.
    Json,
    /// A value of JSON in each line.
    JsonLines,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name; empty if it has none.
    pub name: String,
    /// The type of its values.
    pub kind: ColumnKind,
    /// The number of missing values, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    /// Whether its values can be read in two ways: numbers as thousands, days as months.
    #[serde(default, skip_serializing_if = "is_no")]
    pub unsure: bool,
    /// Some of its values, all different.
    pub examples: Vec<String>,
}

/// The types of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnKind {
    /// Whole numbers.
    Integer,
    /// Numbers with fractions.
    Number,
    /// Truth values.
    Boolean,
    /// Days.
    Date,
    /// Days that are written with the day first.
    DateDayFirst,
    /// Days that are written with the month first.
    DateMonthFirst,
    /// Days with a time.
    Datetime,
    /// Times.
    Time,
    /// Any text.
    Text,
    /// Bytes.
    Binary,
    /// Arrays.
    List,
    /// Objects.
    Object,
    /// Values of several types.
    Mixed,
    /// No values.
    Empty,
}

/// A sheet of a workbook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sheet {
    /// Its name.
    pub name: String,
    /// The number of rows below the first, if the sheet states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_one(number: &u64) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_yes(is: &bool) -> bool {
    *is
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_no(is: &bool) -> bool {
    !*is
}
