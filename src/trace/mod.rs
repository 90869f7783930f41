//! Spans: what belongs to a call, across tasks and programs, as OpenTelemetry has it. The only place that names its
//! crates.
//!
//! ```text
//! the caller's traceparent --> a call over MCP, or a request of files over HTTP --> start of a sandbox, run
//!                                 |                                                      |
//!                                 '--> trace_id and span_id of its log line              '--> export --> collector
//! ```
//!
//! The current span is that of the future which is being polled ([`Span::around`]). A command takes it along to the
//! session's task ([`Parent`]). If no traces are exported, spans record nothing and cost almost nothing; the current
//! one is then the caller's own, so that the log has its ids.
//!
//! - [`parent`]: reads a caller's span. [`export`]: sends spans to a collector.

mod export;
mod parent;

use std::{borrow::Cow, time::SystemTime};

use hyper::HeaderMap;
pub(crate) use opentelemetry::Value;
use opentelemetry::{
    Context, KeyValue,
    global::tracer,
    trace::{FutureExt, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer},
};

pub(crate) use self::export::Exporter;
use self::parent::TraceParent;

/// The name of the program among the sources of spans.
const SCOPE: &str = "llm-sandbox";

/// The span that something belongs to, if any. Clones are cheap, and do not keep the span from ending.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parent(Context);

impl Parent {
    /// The current span.
    pub(crate) fn current() -> Self {
        Context::map_current(|current| {
            if !current.has_active_span() {
                return Self::default();
            }
            Self::of_context(current.span().span_context().clone())
        })
    }

    /// The span in a request's headers.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        let Some(parent) = TraceParent::of(headers) else { return Self::default() };
        let states = headers.get_all("tracestate").iter();
        let states: Vec<_> = states.filter_map(|state| state.to_str().ok()).collect();
        Self::of(&parent, &states.join(","))
    }

    /// The span in the metadata of a message; `None` if there is none, or it is not valid.
    pub(crate) fn of_message(parent: Option<&str>, state: Option<&str>) -> Option<Self> {
        Some(Self::of(&TraceParent::parse(parent?)?, state.unwrap_or_default()))
    }

    fn of(parent: &TraceParent, state: &str) -> Self {
        parent.context(state).map(Self::of_context).unwrap_or_default()
    }

    fn of_context(context: SpanContext) -> Self {
        Self(Context::new().with_remote_span_context(context))
    }

    /// This one if there is a span, otherwise the other one.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.0.has_active_span() { self } else { other }
    }

    /// Makes this the current span of a function.
    pub(crate) fn within<T>(self, work: impl FnOnce() -> T) -> T {
        let _current = self.0.attach();
        work()
    }

    /// Makes this the current span of a future.
    pub(crate) fn around<T>(self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        work.with_context(self.0)
    }
}

/// The part that this program has in what a span is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// The answer to a request of another program.
    Server,
    /// A step of this program's own.
    Internal,
}

/// Something that takes time. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Span(Context);

impl Span {
    /// Begins a span. Its name has no part that callers choose.
    pub(crate) fn begin(parent: &Parent, kind: Kind, name: impl Into<Cow<'static, str>>) -> Self {
        Self::since(SystemTime::now(), parent, kind, name)
    }

    /// A span that began earlier.
    pub(crate) fn since(
        begun: SystemTime,
        parent: &Parent,
        kind: Kind,
        name: impl Into<Cow<'static, str>>,
    ) -> Self {
        let kind = match kind {
            Kind::Server => SpanKind::Server,
            Kind::Internal => SpanKind::Internal,
        };
        let new = SpanBuilder::from_name(name).with_kind(kind).with_start_time(begun);
        Self(parent.0.with_span(tracer(SCOPE).build_with_context(new, &parent.0)))
    }

    /// Whether the span is exported. If it is not, its attributes need not be computed.
    pub(crate) fn is_exported(&self) -> bool {
        self.0.span().is_recording()
    }

    /// Sets an attribute: never code, output, a file's name or a token.
    pub(crate) fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.0.span().set_attribute(KeyValue::new(name, value));
    }

    /// Renames the span.
    pub(crate) fn rename(&self, name: impl Into<Cow<'static, str>>) {
        self.0.span().update_name(name);
    }

    /// Marks the span as failed. `kind` is a word of this program, or a number.
    pub(crate) fn fail(&self, kind: impl Into<Cow<'static, str>>) {
        fail(&self.0, kind.into());
    }

    /// Makes this the current span of a future.
    pub(crate) fn around<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        work.with_context(self.0.clone())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // The context may have clones.
        self.0.span().end();
    }
}

/// Sets attributes of the current span, those that have a value.
pub(crate) fn note<const N: usize>(attributes: [(&'static str, Option<Value>); N]) {
    Context::map_current(|current| {
        let known = attributes.into_iter().filter_map(|(name, value)| Some((name, value?)));
        current.span().set_attributes(known.map(|(name, value)| KeyValue::new(name, value)));
    });
}

fn fail(context: &Context, kind: Cow<'static, str>) {
    let span = context.span();
    span.set_status(Status::Error { description: "".into() });
    span.set_attribute(KeyValue::new("error.type", kind));
}

/// The current span, as log lines have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    /// 32 hexadecimal digits.
    pub(crate) trace_id: String,
    /// 16 hexadecimal digits.
    pub(crate) span_id: String,
    /// Two hexadecimal digits.
    pub(crate) flags: String,
}

/// The ids of the current span, if there is one.
pub(crate) fn ids() -> Option<Ids> {
    Context::map_current(|current| {
        let span = current.span();
        let context = span.span_context();
        context.is_valid().then(|| Ids {
            trace_id: context.trace_id().to_string(),
            span_id: context.span_id().to_string(),
            flags: format!("{:02x}", context.trace_flags()),
        })
    })
}
