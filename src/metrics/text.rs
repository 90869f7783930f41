//! The text format that all collectors of metrics can read: Prometheus' format 0.0.4.
//!
//! The library writes its successor, OpenMetrics, which many readers support only in part. The two differ in
//! the lines above the samples: OpenMetrics describes counters without the `_total` of their samples, and has
//! a line for units. The newer format has no advantage here.

/// Converts the newer format to the older one.
pub(super) fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    let mut suffix = "";
    while let Some(line) = lines.next() {
        let (kind, rest) = match line.strip_prefix("# ").and_then(|line| line.split_once(' ')) {
            Some(("UNIT", _)) => continue,
            Some(parts) => parts,
            None => {
                text.extend([line, "\n"]);
                continue;
            }
        };
        if kind == "HELP" {
            let is_counter =
                |next: &&str| next.starts_with("# TYPE ") && next.ends_with(" counter");
            suffix = lines.peek().filter(|next| is_counter(next)).map_or("", |_| "_total");
        }
        let (name, what) = rest.split_once(' ').unwrap_or((rest, ""));
        text.extend(["# ", kind, " ", name, suffix, " ", what, "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let newer = "# HELP a_bytes All of it.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                     a_bytes_total{b=\"c d\"} 1\n# HELP e Other.\n# TYPE e gauge\ne 2\n";
        let older = "# HELP a_bytes_total All of it.\n# TYPE a_bytes_total counter\n\
                     a_bytes_total{b=\"c d\"} 1\n# HELP e Other.\n# TYPE e gauge\ne 2\n";
        assert_eq!(classic(newer), older);
    }
}
