//! Why a backend could not do what it was asked.

use std::{error::Error, fmt, sync::Arc};

/// What kind of failure it is, by which callers decide whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendErrorKind {
    /// Nothing answers where the engine should be, or the connection broke.
    Unreachable,
    /// The engine is there, but this user may not use it.
    Denied,
    /// What sandboxes are made from or with, such as an image or a runtime, does not exist.
    TemplateMissing,
    /// What sandboxes are made from was built for another version of this server.
    TemplateOutdated,
    /// The engine answered, and declined.
    Refused,
    /// No answer in time.
    Timeout,
}

impl BackendErrorKind {
    /// Whether the same request may succeed later without anybody changing a setting or building an image.
    pub fn is_transient(self) -> bool {
        match self {
            Self::Unreachable | Self::Refused | Self::Timeout => true,
            Self::Denied | Self::TemplateMissing | Self::TemplateOutdated => false,
        }
    }
}

/// Why the backend could not do it: the kind, for programs, and one or two sentences, for people, that say
/// how to fix it.
#[derive(Debug, Clone)]
pub struct BackendError {
    /// What kind of failure it is.
    pub kind: BackendErrorKind,
    message: String,
    /// What to do, if the message does not say so itself.
    fix: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BackendError {
    /// An error with this text.
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), fix: None, source: None }
    }

    /// The same, with what to do: a sentence.
    #[must_use]
    pub fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// What is wrong and what to do, apart.
    pub fn parts(&self) -> (&str, Option<&str>) {
        (&self.message, self.fix.as_deref())
    }

    /// The same, with what it was caused by.
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
