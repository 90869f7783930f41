//! The caller of a session, as metrics name it.

use std::sync::{Arc, OnceLock};

/// A caller as a label of metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Label(Arc<String>);

impl Label {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(name.to_owned()))
    }

    /// The caller's name, or a word for several callers.
    pub(crate) fn name(&self) -> &Arc<String> {
        &self.0
    }
}

/// The label of a session's caller, as soon as the session has one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionLabel(Arc<OnceLock<Label>>);

impl SessionLabel {
    /// Sets the label, unless there is one. `None` if callers are not counted.
    pub(crate) fn set(&self, label: Option<Label>) {
        if let Some(label) = label {
            let _ = self.0.set(label);
        }
    }

    pub(crate) fn get(&self) -> Option<&Arc<String>> {
        self.0.get().map(Label::name)
    }
}
