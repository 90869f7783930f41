//! A reader of `/metrics`, which checks that the text conforms to the format.

use std::collections::{BTreeMap, BTreeSet};

use super::web::{Caller, Web};

/// One series and its value.
#[derive(Debug, Clone)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All samples, in the order of the text.
#[derive(Debug, Clone)]
pub struct Metrics(pub Vec<Sample>);

impl Metrics {
    /// The metrics as a client without a token reads them.
    pub async fn of(web: &Web) -> Self {
        Self::read_by(&web.caller(None)).await
    }

    pub async fn read_by(caller: &Caller) -> Self {
        let response = caller.send("GET", "/metrics", &[], &[]).await;
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        Self::parse(std::str::from_utf8(&response.body).expect("UTF-8"))
    }

    /// Reads a whole text. Panics if a linter of the format would complain.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let (mut samples, mut seen, mut families) = (vec![], BTreeSet::new(), BTreeSet::new());
        let mut family = Family::default();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# HELP ") {
                family.finish();
                let (name, help) = line.split_once(' ').expect("a name and a text");
                assert!(families.insert(name.to_owned()), "{name} is there twice");
                assert!(help.len() > 5 && help.ends_with('.'), "{line}");
                family = Family { name: name.to_owned(), ..Family::default() };
            } else if let Some(line) = line.strip_prefix("# TYPE ") {
                let (name, kind) = line.split_once(' ').expect("a name and a type");
                assert_eq!((name, &*family.kind), (&*family.name, ""), "{line}");
                kind.clone_into(&mut family.kind);
            } else {
                let sample = Sample::parse(line);
                let series = format!("{} {:?}", sample.name, sample.labels);
                assert!(seen.insert(series), "twice: {line}");
                family.add(&sample);
                samples.push(sample);
            }
        }
        family.finish();
        Self(samples)
    }

    /// The sum of all series of this name that have these labels; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| {
                    sample.labels.get(*label).is_some_and(|given| given == value)
                })
        };
        // `sum` of an empty iterator of floats is -0.
        self.0.iter().filter(has).map(|sample| sample.value).fold(0.0, |sum, value| sum + value)
    }

    /// The same sum as a whole number. Panics if it is none.
    #[track_caller]
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let sum = self.sum(name, labels);
        format!("{sum}").parse().unwrap_or_else(|_| panic!("{name} {labels:?}: {sum}"))
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|sample| sample.name == name)
    }

    /// Names and labels of all samples, without the values.
    pub fn series(&self) -> BTreeSet<String> {
        self.0.iter().map(|sample| format!("{} {:?}", sample.name, sample.labels)).collect()
    }
}

/// The samples below one HELP that were read so far.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    samples: Vec<Sample>,
}

impl Family {
    #[track_caller]
    fn add(&mut self, sample: &Sample) {
        let Sample { name, value, .. } = sample;
        let suffix = name.strip_prefix(&self.name).unwrap_or_else(|| panic!("{name}: no HELP"));
        let allowed: &[&str] = match &*self.kind {
            "counter" | "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            kind => panic!("{name}: no TYPE that we know: {kind:?}"),
        };
        assert!(allowed.contains(&suffix), "{name} is a {}", self.kind);
        assert_eq!(self.kind == "counter", self.name.ends_with("_total"), "{name}");
        for unit in ["milliseconds", "ms", "minutes", "kilobytes", "megabytes", "mb", "percent"] {
            assert!(!name.trim_end_matches("_total").ends_with(unit), "{name}: no base unit");
        }
        assert!(value.is_finite() && *value >= 0.0, "{name} is {value}");
        self.samples.push(sample.clone());
    }

    #[track_caller]
    fn finish(&self) {
        assert!(self.name.is_empty() || !self.samples.is_empty(), "{}: no sample", self.name);
        if self.kind != "histogram" {
            return;
        }
        let part = |suffix: &str| {
            let name = format!("{}{suffix}", self.name);
            self.samples.iter().filter(move |sample| sample.name == name)
        };
        for count in part("_count") {
            let buckets: Vec<(f64, f64)> = part("_bucket")
                .filter(|bucket| {
                    let mut labels = bucket.labels.clone();
                    labels.remove("le").is_some() && labels == count.labels
                })
                .map(|bucket| (bucket.labels["le"].parse().expect("a number"), bucket.value))
                .collect();
            assert!(
                buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
                "{}: {buckets:?}",
                self.name
            );
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count.value)), "{}", self.name);
            assert!(part("_sum").any(|sum| sum.labels == count.labels), "{}", self.name);
        }
    }
}

impl Sample {
    #[track_caller]
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect("closed")),
            None => (series, ""),
        };
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        assert!(is_name(name), "{line}");
        // No label value of this server contains a quote or a comma.
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
            let (label, value) = label.split_once('=').expect("a value");
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            assert!(is_name(label), "{line}");
            (label.to_owned(), value.expect("quoted").to_owned())
        });
        let labels = labels.collect();
        Self { name: name.to_owned(), labels, value: value.parse().expect("a number") }
    }
}
