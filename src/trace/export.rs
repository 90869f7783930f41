//! Sends spans to a collector of OpenTelemetry, by OTLP over HTTP.
//!
//! ```text
//! span ends --> queue (bounded; full: dropped) --> a thread of its own: batches --> POST <endpoint>/v1/traces
//! ```
//!
//! No call waits for the collector: without one, spans are dropped. The exporter reads the usual variables `OTEL_*`.

use std::io;

use config::Config;

#[cfg(feature = "otlp")]
pub(crate) use self::otlp::Exporter;

/// The exporter of a program that cannot export spans.
#[cfg(not(feature = "otlp"))]
#[derive(Debug)]
pub(crate) struct Exporter;

#[cfg(not(feature = "otlp"))]
impl Exporter {
    /// `None` if no spans are to be exported.
    ///
    /// # Errors
    /// If they are: this program cannot do that.
    pub(crate) fn start(config: &Config) -> io::Result<Option<Self>> {
        if config.otlp_endpoint.is_none() {
            return Ok(None);
        }
        Err(io::Error::other(
            "SANDBOX_OTLP_ENDPOINT is set, but this program was built without traces: build it with `cargo build \
             --release --features otlp`, or use the server's image",
        ))
    }

    /// Does nothing.
    #[expect(clippy::unused_async, reason = "as of the other one")]
    pub(crate) async fn end(self) {}
}

#[cfg(feature = "otlp")]
mod otlp {
    use std::{
        env,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use opentelemetry::KeyValue;
    use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig};
    use opentelemetry_sdk::{
        Resource,
        error::OTelSdkResult,
        trace::{SdkTracerProvider, SpanData, SpanExporter},
    };

    use super::{super::SCOPE, Config, io};

    /// The path below the endpoint, by the specification of OTLP.
    const PATH: &str = "/v1/traces";

    /// Longest time that the end of the server waits for the collector.
    const END_TIMEOUT: Duration = Duration::from_secs(3);

    /// Exports spans until it is ended.
    #[derive(Debug)]
    pub(crate) struct Exporter(SdkTracerProvider);

    impl Exporter {
        /// Starts exporting the spans of this process; `None` if the settings name no collector.
        ///
        /// # Errors
        /// If a setting or a variable `OTEL_*` is not valid.
        pub(crate) fn start(config: &Config) -> io::Result<Option<Self>> {
            let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
            // The client comes without a provider of cryptography. An error means that one is installed already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let exporter = Otlp::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(format!("{endpoint}{PATH}"))
                .build()
                .map_err(io::Error::other)?;
            let provider = SdkTracerProvider::builder()
                .with_resource(resource())
                .with_batch_exporter(Reporting { exporter, fails: AtomicBool::default() })
                .build();
            opentelemetry::global::set_tracer_provider(provider.clone());
            Ok(Some(Self(provider)))
        }

        /// Exports the remaining spans, for at most [`END_TIMEOUT`].
        pub(crate) async fn end(self) {
            let ended =
                tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(END_TIMEOUT));
            if let Ok(Err(error)) = ended.await {
                tracing::debug!(%error, "the last spans were not exported");
            }
        }
    }

    /// The description of this process, which `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` override.
    fn resource() -> Resource {
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let own =
            Resource::builder_empty().with_attribute(version).with_service_name(SCOPE).build();
        let given = Resource::builder().build();
        let is_named = env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
            || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
        let all = [own, given].map(|it| {
            let pairs = it.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
            pairs.collect::<Vec<_>>()
        });
        let [own, given] = all;
        // The SDK invents a name if there is none.
        let given = given.into_iter().filter(|it| is_named || it.key.as_str() != "service.name");
        Resource::builder_empty().with_attributes(own.into_iter().chain(given)).build()
    }

    /// Logs when exporting begins to fail, and when it works again: not each failed batch, one of which comes every
    /// few seconds.
    #[derive(Debug)]
    struct Reporting<E> {
        exporter: E,
        fails: AtomicBool,
    }

    impl<E: SpanExporter> SpanExporter for Reporting<E> {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let exported = self.exporter.export(batch).await;
            match &exported {
                Err(error) if !self.fails.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(%error, "spans cannot be exported and are dropped");
                }
                Ok(()) if self.fails.swap(false, Ordering::Relaxed) => {
                    tracing::info!("spans are exported again");
                }
                _ => {}
            }
            exported
        }

        fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
            self.exporter.shutdown_with_timeout(timeout)
        }

        fn force_flush(&self) -> OTelSdkResult {
            self.exporter.force_flush()
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.exporter.set_resource(resource);
        }
    }
}
