//! A user id for each sandbox. The kernel counts pending signals, pipe buffers, descriptors in flight and more for each
//! user id over the whole host: with a user id of its own, a sandbox can use up only its own share.
//!
//! The engine ensures that no two sandboxes have the same user id, whichever servers use it: a container's name
//! contains the user id, and an engine allows each name once.

use std::{fmt, ops::RangeInclusive};

/// The user ids of sandboxes. Below 65536, so that a rootless engine or one with a user namespace can map them, and in
/// a range in which hosts have no users.
pub const UIDS: RangeInclusive<u32> = 50_000..=59_999;

/// The group of all sandboxes. Nothing is counted by group.
pub const GID: u32 = 1000;

/// The fewest user ids that an engine must map, so that some hundreds are left for sandboxes.
const FEWEST_IDS: u32 = 2000;

/// The user ids of sandboxes of an engine that maps user ids below `ids`; `None` if it maps too few.
pub fn uids_below(ids: u32) -> Option<RangeInclusive<u32>> {
    match ids {
        ids if ids > *UIDS.end() => Some(UIDS),
        // The lower half is for users of the image, and has the group.
        FEWEST_IDS.. => Some(ids / 2..=ids - 1),
        _ => None,
    }
}

const NAME: &str = "llm-sandbox-u";

/// The user id of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uid(u32);

impl Uid {
    /// Picks a user id at random, so that one that has just become free is not reused soon.
    pub fn random() -> Self {
        Self::random_of(&UIDS)
    }

    /// Picks one of these user ids at random.
    pub fn random_of(uids: &RangeInclusive<u32>) -> Self {
        let random = uuid::Uuid::new_v4().as_u128();
        let count = u128::from(uids.end() - uids.start() + 1);
        let at = u32::try_from(random % count).expect("less than the count, which is a u32");
        Self(uids.start() + at)
    }

    /// The user id as a number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The name of the container with this user id.
    pub fn container_name(self) -> String {
        format!("{NAME}{}", self.0)
    }

    /// The user id of the container of this name; `None` if it is not a sandbox's name.
    pub fn of_container(name: &str) -> Option<Self> {
        Self::of_container_of(name, &UIDS)
    }

    /// The user id of the container of this name, if it is one of these.
    pub fn of_container_of(name: &str, uids: &RangeInclusive<u32>) -> Option<Self> {
        let digits = name.strip_prefix(NAME)?;
        let uid = digits.parse().ok()?;
        let has_one_form = Self(uid).to_string() == digits;
        (has_one_form && uids.contains(&uid)).then_some(Self(uid))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
impl Uid {
    /// This user id, for tests.
    pub(crate) fn fixed(uid: u32) -> Self {
        assert!(UIDS.contains(&uid));
        Self(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_after_its_user_id() {
        for _ in 0..1000 {
            let uid = Uid::random();
            assert!(UIDS.contains(&uid.0), "{uid}");
            assert_eq!(Uid::of_container(&uid.container_name()), Some(uid));
        }
    }

    #[test]
    fn an_engine_that_maps_few_user_ids_has_its_sandboxes_among_them() {
        for ids in [60_000, 65_536, 65_537, u32::MAX] {
            assert_eq!(uids_below(ids), Some(UIDS), "{ids}");
        }
        assert_eq!(uids_below(59_999), Some(29_999..=59_998));
        assert_eq!(uids_below(2000), Some(1000..=1999));
        assert_eq!((uids_below(1999), uids_below(1), uids_below(0)), (None, None, None));
        let few = uids_below(5000).expect("enough");
        for _ in 0..1000 {
            let uid = Uid::random_of(&few);
            assert!(few.contains(&uid.0), "{uid}");
            assert_eq!(Uid::of_container_of(&uid.container_name(), &few), Some(uid));
        }
        assert_eq!(Uid::of_container_of("llm-sandbox-u2499", &few), None);
        assert_eq!(Uid::of_container_of("llm-sandbox-u02500", &few), None);
    }

    #[test]
    fn no_other_name_has_one() {
        for (name, uid) in [
            ("llm-sandbox-u50000", Some(50_000)),
            ("llm-sandbox-u59999", Some(59_999)),
            ("llm-sandbox-u49999", None),
            ("llm-sandbox-u60000", None),
            ("llm-sandbox-u0", None),
            ("llm-sandbox-u1000", None),
            ("llm-sandbox-u050123", None),
            ("llm-sandbox-u+5012", None),
            ("llm-sandbox-u501234", None),
            ("llm-sandbox-u50123 ", None),
            ("llm-sandbox-50123", None),
            ("u50123", None),
            ("", None),
        ] {
            assert_eq!(Uid::of_container(name), uid.map(Uid), "{name:?}");
        }
    }
}
