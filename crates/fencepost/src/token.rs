//! The fencing token: a number that grows with every grant of a name and that the protected resource compares.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fencing token. Strictly larger than every token handed out earlier for the same name.
///
/// Pass it along with every write to the resource the lock protects, and let the resource refuse a token that is
/// smaller than the largest it has seen: that is what stops a holder that was paused past the end of its lease.
/// Always below 2^53, so it survives a trip through JSON and JavaScript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

/// The first number that is no token.
pub(crate) const TOKEN_LIMIT: u64 = 1 << 53;

impl FencingToken {
    /// Makes a token from a number a store has handed out; `None` if it is zero or not below 2^53.
    pub fn new(number: u64) -> Option<Self> {
        (number > 0 && number < TOKEN_LIMIT).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Self::new(number)
            .ok_or_else(|| serde::de::Error::custom("a fencing token lies between 1 and 2^53 - 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_ordered_and_displayed_as_its_number() {
        let (a, b) = (FencingToken::new(7).unwrap(), FencingToken::new(8).unwrap());
        assert!(a < b);
        assert_eq!(b.to_string(), "8");
        assert_eq!(serde_json::to_string(&b).unwrap(), "8");
    }

    #[test]
    fn numbers_that_do_not_survive_a_double_are_refused() {
        assert!(FencingToken::new(0).is_none());
        assert!(FencingToken::new(TOKEN_LIMIT).is_none());
        assert!(serde_json::from_str::<FencingToken>("9007199254740992").is_err());
    }
}
