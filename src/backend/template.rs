//! What a sandbox holds, as an image says it of itself in a label:
//!
//! ```json
//! { "runtimes": [ { "name": "python", "version": "3.13.5",
//!                   "libraries": [ { "name": "pandas", "version": "3.0.1" } ] } ] }
//! ```
//!
//! An image FROM ours inherits the label, and one that adds libraries writes its own. Versions may be left out.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::Backend;
use crate::image;

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
    /// What this program would build, for where an image does not say what it holds.
    pub fn built_in(id: impl Into<String>) -> Self {
        Self { id: id.into(), runtimes: vec![image::python(None)] }
    }

    /// The names of a runtime's libraries; none if there is no such runtime.
    pub fn libraries(&self, runtime: &str) -> Vec<&str> {
        let named = self.runtimes.iter().filter(|known| known.name == runtime);
        named.flat_map(|runtime| &runtime.libraries).map(|library| &*library.name).collect()
    }
}

/// How long an answer of the backend holds.
const FRESH: Duration = Duration::from_secs(10);

/// Longest that anybody waits for the backend's answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The template of a backend, which is asked for it every ten seconds at most.
#[derive(Debug)]
pub(crate) struct KnownTemplate {
    backend: Arc<dyn Backend>,
    last: Mutex<Option<(Instant, Template)>>,
}

impl KnownTemplate {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, last: Mutex::default() }
    }

    /// What new sandboxes hold. Where that cannot be told, what they held when it last could, or what this
    /// program would build.
    pub(crate) async fn get(&self) -> Template {
        let mut last = self.last.lock().await;
        if let Some((at, template)) = &*last
            && at.elapsed() < FRESH
        {
            return template.clone();
        }
        let told = timeout(TIMEOUT, self.backend.template()).await.ok().flatten();
        let template = told
            .or_else(|| last.take().map(|(_, template)| template))
            .unwrap_or_else(|| Template::built_in(""));
        *last = Some((Instant::now(), template.clone()));
        template
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_is_written_and_may_leave_versions_out() {
        let runtimes = vec![image::python(Some("3.13.5"))];
        assert_eq!(from_label(&to_label(runtimes.clone())), Some(runtimes));
        let own = r#"{"runtimes":[{"name":"python","libraries":[{"name":"polars"}],"more":1}]}"#;
        let template = Template { id: "x".into(), runtimes: from_label(own).expect("valid") };
        assert_eq!(template.libraries("python"), ["polars"]);
        assert_eq!(template.libraries("javascript"), Vec::<&str>::new());
        for wrong in ["", "python", "{}", r#"{"runtimes":[{"libraries":[]}]}"#] {
            assert_eq!(from_label(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_built_in_are_the_pinned_libraries() {
        let python = image::python(None);
        let pandas = &python.libraries[0];
        assert_eq!(pandas.name, "pandas");
        for library in &python.libraries {
            let version = library.version.as_deref().unwrap_or_default();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{library:?}");
        }
    }
}
