//! What a container's options depend on besides the settings: the engine's host.

/// The host of an engine, as far as its containers differ by it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Processors.
    pub cpus: f64,
    /// The buffers of TCP and UDP sockets count as memory of their container. Under cgroup v1 they
    /// would only with a limit of their own (`memory.kmem.tcp`), which runc does not set.
    pub counts_internet_sockets: bool,
}

impl Host {
    /// A host with so many processors and this version of cgroups, both as the engine tells them.
    /// What it does not tell is taken for the less.
    pub fn new(cpus: Option<f64>, cgroup: Option<&str>) -> Self {
        Self { cpus: cpus.unwrap_or(1.0), counts_internet_sockets: cgroup == Some("2") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_version_of_cgroups_counts_sockets() {
        let counts = |cgroup| Host::new(Some(2.0), cgroup).counts_internet_sockets;
        assert!(counts(Some("2")));
        assert!(!counts(Some("1")) && !counts(Some("unknown")) && !counts(None));
    }
}
