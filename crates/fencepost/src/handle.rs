//! A held lock as text, so that another process can go on with it. Carries name, owner and token, never a URL.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, FencingToken, Name, Owner, Result};

/// A detached lock: what [`Guard::detach`](crate::Guard::detach) returns and
/// [`Locks::attach`](crate::Locks::attach) takes. Nobody renews a detached lock; it ends when its ttl does.
///
/// Its text form is `TOKEN.OWNER.NAME`, with characters that a shell or a log would trip over
/// percent-encoded. Whoever has it can extend and release the lock: treat it like a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    name: Name,
    owner: Owner,
    token: FencingToken,
}

impl Handle {
    pub(crate) fn new(name: Name, owner: Owner, token: FencingToken) -> Self {
        Self { name, owner, token }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The identity of the acquisition.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The fencing token of the acquisition.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.token, self.owner, crate::text::encode(self.name.as_str(), b":/@+,="))
    }
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("`{text}` is not a lock handle; expected TOKEN.OWNER.NAME"));
        let mut parts = text.splitn(3, '.');
        let (Some(token), Some(owner), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let token = token.parse().ok().and_then(FencingToken::new).ok_or_else(wrong)?;
        let owner = owner.parse().map_err(|_| wrong())?;
        let name = Name::new(&crate::text::decode(name).ok_or_else(wrong)?)?;
        Ok(Self { name, owner, token })
    }
}

impl Serialize for Handle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_handle_survives_its_text_form(name in "[^\0]{1,40}", token in 1u64..crate::token::TOKEN_LIMIT) {
            let handle = Handle::new(Name::new(&name).unwrap(), Owner::fresh(), FencingToken::new(token).unwrap());
            let text = handle.to_string();
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<Handle>().unwrap(), handle);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,80}") {
            let _ = text.parse::<Handle>();
        }
    }
}
