//! The text that every collector of metrics reads, Prometheus' format 0.0.4.
//!
//! The library writes its successor, OpenMetrics, of which many readers know only some. The two differ
//! in what stands above the samples: there counters are described without the `_total` of their
//! samples, and units have a line. Nothing here is gained by the newer one.

/// Makes the older format of the newer.
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
