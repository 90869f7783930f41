//! Metrics of the process, with the names that all programs use for them.

use std::fmt;

use metrics_process::collector::{Metrics, collect};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// Reads the state of the process at each request.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Metrics {
            cpu_seconds_total,
            open_fds,
            max_fds,
            virtual_memory_bytes,
            resident_memory_bytes,
            start_time_seconds,
            threads,
            ..
        } = collect();
        if let Some(seconds) = cpu_seconds_total {
            let (cpu, help) = (ConstCounter::new(seconds), "CPU time of the server.");
            let unit = Some(&Unit::Seconds);
            cpu.encode(encoder.encode_descriptor("process_cpu", help, unit, cpu.metric_type())?)?;
        }
        let gauges = [
            ("process_open_fds", "Open file descriptors.", None, open_fds),
            ("process_max_fds", "Maximum open file descriptors.", None, max_fds),
            ("process_threads", "Threads.", None, threads),
            (
                "process_resident_memory",
                "Resident memory.",
                Some(Unit::Bytes),
                resident_memory_bytes,
            ),
            ("process_virtual_memory", "Virtual memory.", Some(Unit::Bytes), virtual_memory_bytes),
            (
                "process_start_time",
                "Start time of the server, since the epoch.",
                Some(Unit::Seconds),
                start_time_seconds,
            ),
        ];
        for (name, help, unit, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let described =
                encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?;
            gauge.encode(described)?;
        }
        Ok(())
    }
}
