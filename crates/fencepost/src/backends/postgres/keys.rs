//! Which advisory lock stands for a name.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A key of `pg_advisory_lock`, for locks that code which calls it directly must respect. It is a name
/// like any other, `pg:12345` or `pg:1,42`, so everything that takes a name takes a key:
///
/// ```no_run
/// use fencepost::{Locks, postgres::Key};
///
/// # async fn example(locks: Locks) -> fencepost::Result<()> {
/// let guard = locks.lock(Key::from(12345)).acquire().await?;          // excludes pg_advisory_lock(12345)
/// let other = locks.lock(Key::from((1, 42))).acquire().await?;        // excludes pg_advisory_lock(1, 42)
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(super) two_part: bool,
    /// Both parts in one number, as PostgreSQL itself keeps them.
    pub(super) number: i64,
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self { two_part: false, number }
    }
}

impl From<(i32, i32)> for Key {
    fn from((first, second): (i32, i32)) -> Self {
        Self { two_part: true, number: i64::from(first) << 32 | i64::from(second) & 0xFFFF_FFFF }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.two_part {
            // The casts cut the number into its halves.
            write!(f, "pg:{},{}", self.number >> 32, self.number as i32)
        } else {
            write!(f, "pg:{}", self.number)
        }
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

impl FromStr for Key {
    type Err = Error;

    /// Reads `12345` or `1,42`, with or without `pg:` in front.
    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.strip_prefix("pg:").unwrap_or(text);
        Self::spelled_out(&format!("pg:{numbers}")).ok_or_else(|| {
            Error::invalid(format!(
                "`{text}` is not a key of an advisory lock; write a 64-bit number, as in `12345`, or two \
                 32-bit numbers, as in `1,42`"
            ))
        })
    }
}

impl Key {
    /// Whether code that calls `pg_advisory_lock` may know the key of this name.
    pub(super) fn is_spelled_out(name: &str) -> bool {
        name.starts_with("pg:")
    }

    /// The key that a name spells out, or a hash of the name and the schema: each schema is a space of names.
    pub(super) fn of(schema: &str, name: &str) -> Self {
        Self::spelled_out(name).unwrap_or_else(|| {
            let mut hash = Sha256::new();
            hash.update(schema);
            hash.update([0]);
            hash.update(name);
            let mut first = [0; 8];
            first.copy_from_slice(&hash.finalize()[..8]);
            Self::from(i64::from_be_bytes(first))
        })
    }

    fn spelled_out(name: &str) -> Option<Self> {
        let numbers = name.strip_prefix("pg:")?;
        // `parse` accepts a plus sign, and the SQL function does not.
        if numbers.contains('+') {
            return None;
        }
        match numbers.split_once(',') {
            None => Some(Self::from(numbers.parse::<i64>().ok()?)),
            Some((first, second)) => {
                Some(Self::from((first.parse::<i32>().ok()?, second.parse::<i32>().ok()?)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_is_spelled_out_in_its_name() {
        assert_eq!(Key::from(12345).to_string(), "pg:12345");
        assert_eq!(Key::from((1, 42)).to_string(), "pg:1,42");
        assert_eq!(Key::from((-1, -1)).number, -1);
        assert_ne!(Key::from((0, 7)), Key::from(7));
        assert_eq!("1,42".parse::<Key>().unwrap(), Key::from((1, 42)));
        assert_eq!("pg:-5".parse::<Key>().unwrap(), Key::from(-5));
        assert!(matches!("five".parse::<Key>(), Err(Error::Invalid { .. })));
    }

    #[test]
    fn what_only_looks_like_a_key_is_a_name() {
        for name in [
            "pg:",
            "pg:x",
            "pg:1,2,3",
            "pg:1,",
            "pg:9223372036854775808",
            "pg:1,2147483648",
            "pg:+1",
            "pg: 1",
            "1",
        ] {
            assert_eq!(Key::spelled_out(name), None, "{name}");
        }
        assert_ne!(Key::of("fencepost", "a"), Key::of("other", "a"));
    }

    proptest! {
        #[test]
        fn every_key_comes_back_from_its_name(number: i64, first: i32, second: i32) {
            for key in [Key::from(number), Key::from((first, second))] {
                prop_assert_eq!(Key::of("fencepost", &key.to_string()), key);
            }
        }
    }
}
