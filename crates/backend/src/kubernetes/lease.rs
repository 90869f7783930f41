//! The Leases of servers: a pod belongs to one run of one server, which renews its Lease for as long as it lives.
//!
//! ```text
//!   alive --not renewed for 45 s--> unknown --not renewed for 60 s, and seen unchanged for 12 s--> dead
//! ```
//!
//! If the Lease owns the pods of its server, deleting it suffices: the cluster removes them.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use parking_lot::Mutex;
use sandbox_container::{APP, LABEL_APP, LABEL_OWNER};
use tokio::time::Instant;

use crate::Life;

/// How long a renewal is valid.
pub(super) const DURATION: Duration = Duration::from_secs(45);

/// How often a Lease is renewed: three renewals may fail in a row.
pub(super) const RENEWAL: Duration = Duration::from_secs(10);

/// How much the clocks of two servers may differ.
const CLOCKS: Duration = Duration::from_secs(15);

/// How long this server must have seen a Lease unchanged before the Lease's server counts as dead. After an outage of
/// the API server of a minute no Lease has been renewed; servers that are alive renew theirs within this time.
const UNCHANGED: Duration = Duration::from_secs(12);

/// The name of the Lease of a new run of a server.
pub(super) fn new_name() -> String {
    format!("{APP}-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

/// Annotation: the fingerprint of the server's secret, if the server shares its callers.
const KEY: &str = "llm-sandbox/key";

/// A new Lease, owned by `ends_with`, if any.
pub(super) fn new_lease(
    name: &str,
    ends_with: Option<OwnerReference>,
    key: Option<&str>,
    now: Timestamp,
) -> Lease {
    let key = key.map(|key| [(KEY.to_owned(), key.to_owned())].into());
    let labels = [(LABEL_APP, APP), (LABEL_OWNER, name)];
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: key,
            owner_references: ends_with.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

/// A time in the form of a Lease's fields.
pub(super) fn micro(at: Timestamp) -> MicroTime {
    MicroTime(at)
}

/// The owner reference for objects that end with this Lease.
pub(super) fn reference(lease: &Lease) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        name: lease.metadata.name.clone()?,
        uid: lease.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}

/// When this server first saw each Lease in its present state.
#[derive(Debug, Default)]
pub(super) struct Sightings(Mutex<HashMap<String, Sighting>>);

/// The present state of a Lease and when it was first seen.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    renewed: Option<Timestamp>,
    since: Instant,
    /// Whether this server has seen the Lease change.
    has_changed: bool,
}

/// A Lease, and whether its server is alive.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    pub(super) name: String,
    /// The version that was judged.
    pub(super) version: Option<String>,
    pub(super) life: Life,
    /// Whether this server has seen the Lease renewed less than 12 seconds ago ([`UNCHANGED`]).
    pub(super) renews: bool,
    /// The fingerprint of the server's secret, if it shares its callers.
    pub(super) key: Option<String>,
}

impl Sightings {
    /// Judges the servers of all existing Leases.
    pub(super) fn judge(&self, leases: &[Lease], now: Timestamp) -> Vec<Judged> {
        let mut sightings = self.0.lock();
        let seen_at = Instant::now();
        let judged: Vec<_> = leases
            .iter()
            .filter_map(|lease| {
                let name = lease.metadata.name.clone()?;
                let spec = lease.spec.clone().unwrap_or_default();
                let renewed = spec.renew_time.map(|MicroTime(at)| at);
                let first = Sighting { renewed, since: seen_at, has_changed: false };
                let seen = sightings.entry(name.clone()).or_insert(first);
                if seen.renewed != renewed {
                    *seen = Sighting { has_changed: true, ..first };
                }
                let holds =
                    spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
                let holds = holds.map_or(DURATION, Duration::from_secs);
                // A Lease that was never renewed counts as infinitely old.
                let age = renewed.map_or(Duration::MAX, |at| {
                    Duration::try_from(now.duration_since(at)).unwrap_or_default()
                });
                let unchanged = seen_at.duration_since(seen.since);
                let life = life(age, holds, unchanged);
                let renews = seen.has_changed && unchanged < UNCHANGED;
                Some(Judged {
                    name,
                    version: lease.metadata.resource_version.clone(),
                    life,
                    renews,
                    key: lease.metadata.annotations.as_ref().and_then(|it| it.get(KEY)).cloned(),
                })
            })
            .collect();
        sightings.retain(|name, _| judged.iter().any(|it| it.name == *name));
        judged
    }
}

/// Whether a server is alive whose Lease was renewed `age` ago by this machine's clock, and was seen unchanged for
/// `unchanged`.
fn life(age: Duration, holds: Duration, unchanged: Duration) -> Life {
    if age <= holds {
        Life::Alive
    } else if age > holds + CLOCKS && unchanged >= UNCHANGED {
        Life::Dead
    } else {
        Life::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_server_is_dead_when_its_lease_is_overdue_by_all_clocks() {
        let cases = [
            (0, 0, Life::Alive),
            (45, 600, Life::Alive),
            (46, 600, Life::Unknown),
            (61, 600, Life::Dead),
            // The first look after an outage in which no server could renew its Lease.
            (600, 0, Life::Unknown),
            (600, 11, Life::Unknown),
            (600, 12, Life::Dead),
        ];
        for (age, unchanged, expected) in cases {
            assert_eq!(life(s(age), s(45), s(unchanged)), expected, "{age} {unchanged}");
        }
        assert!(UNCHANGED > RENEWAL, "whoever lives has had a turn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_changes_is_looked_at_anew() {
        let sightings = Sightings::default();
        let begun: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let at = |seconds: u64| begun + s(seconds);
        let lease = |renewed| new_lease("a", None, None, renewed);
        let life = |judged: Vec<Judged>| judged[0].life;
        assert_eq!(life(sightings.judge(&[lease(begun)], at(0))), Life::Alive);
        assert_eq!(life(sightings.judge(&[lease(begun)], at(100))), Life::Unknown);
        tokio::time::advance(s(20)).await;
        assert_eq!(life(sightings.judge(&[lease(begun)], at(120))), Life::Dead);
        assert_eq!(life(sightings.judge(&[lease(at(30))], at(120))), Life::Unknown, "renewed late");
        assert!(sightings.judge(&[], at(130)).is_empty());
        assert!(sightings.0.lock().is_empty(), "nothing is kept of what is gone");
    }

    #[test]
    fn a_lease_that_was_never_renewed_has_no_server() {
        let sightings = Sightings::default();
        let mut lease = new_lease("a", None, None, Timestamp::UNIX_EPOCH);
        lease.spec = None;
        assert_eq!(sightings.judge(&[lease], Timestamp::UNIX_EPOCH)[0].life, Life::Unknown);
    }
}
