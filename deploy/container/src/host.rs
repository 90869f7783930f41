//! The engine's host, on which a container's options depend besides the settings.

/// The properties of an engine's host on which its containers depend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Processors.
    pub cpus: f64,
    /// The buffers of TCP and UDP sockets count as memory of their container. Under cgroup v1 they would count only
    /// with a limit of their own (`memory.kmem.tcp`), which runc does not set.
    pub counts_internet_sockets: bool,
}

impl Host {
    /// A host with these processors and this version of cgroups, as the engine reports them. For a value that is not
    /// reported, the lesser one is assumed.
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
