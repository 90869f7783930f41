//! Errors of backends.

use std::{error::Error, fmt, sync::Arc};

/// The kind of a failure, from which callers decide whether to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendErrorKind {
    /// The engine does not answer at its address, or the connection broke.
    Unreachable,
    /// The engine answers, but this user may not use it.
    Denied,
    /// Something that sandboxes are made from, such as an image or a runtime, does not exist.
    TemplateMissing,
    /// Something that sandboxes are made from was built for another version of this server.
    TemplateOutdated,
    /// A description of sandboxes, such as the label of an image, is invalid.
    TemplateInvalid,
    /// The engine answered, and refused.
    Refused,
    /// The engine did not answer in time.
    Timeout,
}

impl BackendErrorKind {
    /// Whether the same request may succeed later without a change of settings and without a new image.
    pub fn is_transient(self) -> bool {
        match self {
            Self::Unreachable | Self::Refused | Self::Timeout => true,
            Self::Denied
            | Self::TemplateMissing
            | Self::TemplateOutdated
            | Self::TemplateInvalid => false,
        }
    }
}

/// An error of a backend: the kind, for programs, and one or two sentences, for people, that say how to fix it.
#[derive(Debug, Clone)]
pub struct BackendError {
    /// The kind of the failure.
    pub kind: BackendErrorKind,
    message: String,
    /// The fix, if the message does not name it.
    fix: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BackendError {
    /// An error with this text.
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), fix: None, source: None }
    }

    /// Adds the fix, a sentence.
    #[must_use]
    pub fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// Returns the fault and its fix, separately.
    pub fn parts(&self) -> (&str, Option<&str>) {
        (&self.message, self.fix.as_deref())
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.fix.as_ref().map_or(Ok(()), |fix| write!(f, " {fix}"))
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
