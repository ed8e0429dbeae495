//! A held lock as text, so that another process can go on with it. Carries name, secret and token, never a
//! URL.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::options::check_ttl;
use crate::owner::Identity;
use crate::secret::HandleSecret;
use crate::{Error, FencingToken, Name, Owner, Result};

/// A detached lock: what [`Guard::detach`](crate::Guard::detach) returns and
/// [`Locks::attach`](crate::Locks::attach) takes. Nobody renews a detached lock; it ends when its ttl does.
///
/// Its text form is `TOKEN.SECRET-TTL.NAME`, the ttl in milliseconds, with characters that a shell or a log
/// would trip over percent-encoded. Whoever has it can extend and release the lock: treat it like a key. The
/// store does not have the secret, so whoever can only read the store cannot make a handle.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "without its handle a detached lock stays until its ttl ends"]
pub struct Handle {
    name: Name,
    identity: Identity,
    token: FencingToken,
    /// `None` if an earlier version wrote the handle.
    ttl: Option<Duration>,
}

impl Handle {
    pub(crate) fn new(name: Name, identity: Identity, token: FencingToken, ttl: Duration) -> Self {
        Self { name, identity, token, ttl: Some(ttl) }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The identity of the acquisition, as others see it.
    pub fn owner(&self) -> Owner {
        self.identity.owner()
    }

    /// The fencing token of the acquisition. A store compares it with its own and never writes it.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The ttl that the lock was acquired with, which whoever goes on with it takes unless told otherwise;
    /// `None` in a handle of an earlier version.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.token)?;
        match self.identity.secret() {
            Some(secret) => f.write_str(&secret.digits())?,
            None => write!(f, "{}", self.owner())?,
        }
        if let Some(ttl) = self.ttl {
            write!(f, "-{}", ttl.as_millis())?;
        }
        write!(f, ".{}", crate::text::encode(self.name.as_str(), b":/@+,="))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, owner, token) = (&self.name, self.owner(), self.token);
        let mut out = f.debug_struct("Handle");
        out.field("name", name).field("owner", &owner).field("token", &token).field("ttl", &self.ttl).finish()
    }
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is not quoted: most of it may be right, and then it is a key.
        let wrong = || Error::invalid("this is not a lock handle; expected TOKEN.SECRET-TTL.NAME");
        let mut parts = text.splitn(3, '.');
        let (Some(token), Some(who), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let token = token.parse().map_err(|_| wrong())?;
        let name = Name::new(&crate::text::decode(name).ok_or_else(wrong)?)?;
        let (who, ttl) = match who.split_once('-') {
            // The dashes of an owner do not come after a secret.
            Some((secret, ttl)) if HandleSecret::parse(secret).is_some() => (secret, Some(ttl)),
            _ => (who, None),
        };
        let ttl = ttl.map(|ttl| ttl.parse().map(Duration::from_millis).map_err(|_| wrong())).transpose()?;
        if ttl.is_some_and(|ttl| check_ttl(ttl).is_err()) {
            return Err(wrong());
        }
        let identity = match HandleSecret::parse(who) {
            Some(secret) => Identity::of(secret, &name),
            // Earlier versions wrote the owner. Of later owners that is no proof: anybody can read them.
            None => {
                let owner: Owner = who.parse().map_err(|_| wrong())?;
                if !owner.is_of_an_earlier_version() {
                    return Err(wrong());
                }
                Identity::without_secret(owner)
            }
        };
        Ok(Self { name, identity, token, ttl })
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

    fn handle(name: &str, token: u64) -> Handle {
        let name = Name::new(name).unwrap();
        let identity = Identity::fresh(&name);
        Handle::new(name, identity, FencingToken::new(token).unwrap(), Duration::from_millis(1_500))
    }

    #[test]
    fn a_handle_carries_its_ttl_and_one_of_an_earlier_version_none() {
        let handle = handle("a.b-c", 7);
        assert!(handle.to_string().ends_with("-1500.a.b-c"), "{handle}");
        assert_eq!(handle.to_string().parse::<Handle>().unwrap().ttl(), Some(Duration::from_millis(1_500)));
        let earlier = handle.to_string().replace("-1500", "").parse::<Handle>().unwrap();
        assert_eq!((earlier.owner(), earlier.ttl()), (handle.owner(), None));
        for wrong in ["-", "-x", "-1", "-99999999999999999", "-1500-1500"] {
            let text = handle.to_string().replace("-1500", wrong);
            assert!(text.parse::<Handle>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_owner_makes_no_handle_unless_an_earlier_version_has_made_it() {
        let handle = handle("a", 7);
        assert!(format!("7.{}.a", handle.owner()).parse::<Handle>().is_err());
        let earlier = Owner::fresh();
        assert_eq!(format!("7.{earlier}.a").parse::<Handle>().unwrap().owner(), earlier);
        // The 32 digits of an owner are a secret: of somebody else.
        let digits = handle.owner().to_string().replace('-', "");
        assert_ne!(format!("7.{digits}.a").parse::<Handle>().unwrap().owner(), handle.owner());
    }

    #[test]
    fn neither_debug_output_nor_an_error_has_the_secret() {
        let handle = handle("a", 7);
        let secret = handle.identity.secret().unwrap().digits();
        assert!(!format!("{handle:?}").contains(&secret));
        let error = format!("x{handle}").parse::<Handle>().unwrap_err();
        assert!(!error.to_string().contains(&secret), "{error}");
    }

    proptest! {
        #[test]
        fn a_handle_survives_its_text_form(name in "[^\0]{1,40}", token in 1u64..crate::token::TOKEN_LIMIT) {
            let handle = handle(&name, token);
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
