//! Sizes as people write them.

/// A size for a sentence: `15MB`, `3.9MB`, `512MiB`, `900B`. Exact if that is short.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
    const BINARY: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((name, unit)) = UNITS.iter().find(|(_, unit)| bytes >= *unit) else {
        return format!("{bytes}B");
    };
    // A hostile sandbox may report a size of which ten times does not fit in a u64.
    let tenfold = u128::from(bytes) * 10;
    let exact = tenfold.is_multiple_of(u128::from(*unit));
    if !exact
        && let Some((name, unit)) = BINARY.iter().find(|(_, unit)| bytes.is_multiple_of(*unit))
    {
        return format!("{}{name}", bytes / unit);
    }
    // Rounded up: a size just over a limit must not read as the limit.
    let tenths = tenfold.div_ceil(u128::from(*unit));
    match tenths % 10 {
        0 => format!("{}{name}", tenths / 10),
        tenth => format!("{}.{tenth}{name}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let sizes = [
            (0, "0B"),
            (999, "999B"),
            (1_000, "1KB"),
            (1_024, "1KiB"),
            (1_500, "1.5KB"),
            (3_900_000, "3.9MB"),
            (10_000_000, "10MB"),
            (10_000_001, "10.1MB"),
            (15_000_000, "15MB"),
            (512 << 20, "512MiB"),
            (u64::MAX, "18446744073.8GB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(human_size(bytes), text);
        }
    }
}
