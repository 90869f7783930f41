//! What a sandbox holds, as an image says it of itself in a label:
//!
//! ```json
//! { "runtimes": [ { "name": "python", "version": "3.13.5",
//!                   "libraries": [ { "name": "pandas", "version": "3.0.1" } ] } ] }
//! ```
//!
//! An image FROM ours inherits the label, and one that adds libraries sets its own. Versions may be omitted.

use serde::{Deserialize, Serialize};

/// What new sandboxes are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Another one than before means that what was made before is out of date.
    pub id: String,
    /// What can run in them.
    pub runtimes: Vec<Runtime>,
}

/// What interprets programs, and what these can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// Such as `python`.
    pub name: String,
    /// Such as `3.13.5`, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Those that are there on purpose, not all that they need in turn.
    #[serde(default)]
    pub libraries: Vec<Library>,
}

/// A library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// As it is installed.
    pub name: String,
    /// If it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The label's content.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    runtimes: Vec<Runtime>,
}

/// The text of a label.
pub(crate) fn to_label(runtimes: Vec<Runtime>) -> String {
    serde_json::to_string(&Label { runtimes }).expect("texts and lists serialize")
}

/// What a label says; `None` if it is not of this form.
pub(crate) fn from_label(text: &str) -> Option<Vec<Runtime>> {
    serde_json::from_str::<Label>(text).ok().map(|label| label.runtimes)
}

impl Template {
    /// The names of a runtime's libraries; none if there is no such runtime.
    pub fn libraries(&self, runtime: &str) -> Vec<&str> {
        let named = self.runtimes.iter().filter(|known| known.name == runtime);
        named.flat_map(|runtime| &runtime.libraries).map(|library| &*library.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_may_leave_versions_out() {
        let own = r#"{"runtimes":[{"name":"python","libraries":[{"name":"polars"}],"more":1}]}"#;
        let template = Template { id: "x".into(), runtimes: from_label(own).expect("valid") };
        assert_eq!(template.libraries("python"), ["polars"]);
        assert_eq!(template.libraries("javascript"), Vec::<&str>::new());
        for wrong in ["", "python", "{}", r#"{"runtimes":[{"libraries":[]}]}"#] {
            assert_eq!(from_label(wrong), None, "{wrong}");
        }
    }
}
