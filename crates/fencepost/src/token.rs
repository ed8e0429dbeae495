//! The fencing token: a number that grows with every grant of a name and that the protected resource
//! compares.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::printable;
use crate::{Error, Result};

#[cfg(feature = "postgres")]
mod sql;

/// A fencing token. Strictly larger than every token handed out earlier for the same name.
///
/// Pass it along with every write to the resource that the lock protects. The resource must refuse a token
/// smaller than the largest it has seen: that stops a holder that was paused past the end of its lease.
///
/// Always below 2^53, so it survives a trip through JSON and JavaScript, and fits a `bigint`: it converts to
/// `i64`, and from one. With the feature `postgres` it is a parameter and a column of `tokio-postgres`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct FencingToken(u64);

/// The first number that is no token.
pub(crate) const TOKEN_LIMIT: u64 = 1 << 53;

impl FencingToken {
    /// Makes a token from a number that a store has handed out; `None` if it is zero or not below 2^53.
    pub fn new(number: u64) -> Option<Self> {
        (number > 0 && number < TOKEN_LIMIT).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

fn wrong(text: &str) -> Error {
    let text = printable(text);
    Error::invalid(format!("`{text}` is no fencing token: those are the numbers between 1 and 2^53 - 1"))
}

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self> {
        Self::new(number).ok_or_else(|| wrong(&number.to_string()))
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = Error;

    fn try_from(number: i64) -> Result<Self> {
        u64::try_from(number).ok().and_then(Self::new).ok_or_else(|| wrong(&number.to_string()))
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        Self::try_from(token.0).unwrap_or(Self::MAX) // below 2^53
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// Reads plain digits. No sign, no blank, no zero in front: two spellings of one number are one too many.
    fn from_str(text: &str) -> Result<Self> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        text.parse().ok().filter(|_| plain).and_then(Self::new).ok_or_else(|| wrong(text))
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_ordered_and_displayed_as_its_number() {
        let (a, b) = (FencingToken::new(7).unwrap(), FencingToken::new(8).unwrap());
        assert!(a < b);
        assert_eq!(b.to_string(), "8");
        assert_eq!(serde_json::to_string(&b).unwrap(), "8");
        assert_eq!(serde_json::from_str::<FencingToken>("8").unwrap(), b);
        assert_eq!((u64::from(b), i64::from(b)), (8, 8));
    }

    #[test]
    fn numbers_that_do_not_survive_a_double_are_refused() {
        for number in [0, TOKEN_LIMIT, u64::MAX] {
            assert!(FencingToken::new(number).is_none() && FencingToken::try_from(number).is_err());
        }
        for number in [i64::MIN, -1, 0, TOKEN_LIMIT.cast_signed(), i64::MAX] {
            let error = FencingToken::try_from(number).unwrap_err().to_string();
            assert!(error.contains(&format!("`{number}`")) && error.contains("2^53"), "{error}");
        }
        let largest = FencingToken::new(TOKEN_LIMIT - 1).unwrap();
        assert_eq!(FencingToken::try_from(i64::from(largest)).unwrap(), largest);
        assert!(serde_json::from_str::<FencingToken>("9007199254740992").is_err());
    }

    #[test]
    fn a_token_has_one_spelling() {
        let largest = TOKEN_LIMIT - 1;
        assert_eq!(largest.to_string().parse::<FencingToken>().unwrap().get(), largest);
        for text in ["", "0", "042", "+42", "-42", " 42", "42 ", "4_2", "42.0", "9007199254740992"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_a_token_in_its_one_spelling_or_nothing(text in ".{0,24}", number: u64) {
            if let Ok(token) = text.parse::<FencingToken>() {
                prop_assert_eq!(token.to_string(), text);
            }
            prop_assert_eq!(number.to_string().parse().ok(), FencingToken::new(number));
        }
    }
}
