//! The identity of one acquisition: made anew for every attempt and never reused, so that a late renewal or
//! release of one attempt can never touch the lock of another.
//!
//! Behind each identity is a secret that stays in the process. The store has only the owner, a hash of it:
//! whoever reads the store cannot make a handle of what is there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::secret::HandleSecret;
use crate::{Error, Name};

/// Who holds a lock, as stores keep it and as others see it: a UUID made of the hash of a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(Uuid);

impl Owner {
    /// An owner that nobody has the secret of, for entries that are never detached.
    #[allow(dead_code)] // for some stores
    pub(crate) fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The owner of a secret. Bound to the name: a handle of one lock says nothing about another.
    fn of(secret: HandleSecret, name: &Name) -> Self {
        let mut hash = Sha256::new();
        for part in [b"fencepost handle 2", name.as_str().as_bytes(), secret.bytes()] {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Whether a handle's text may name this owner instead of a secret: those of earlier versions did.
    pub(crate) fn is_of_an_earlier_version(self) -> bool {
        self.0.get_version_num() == 7
    }

    /// The identity as a store keeps it in a binary record.
    #[cfg(feature = "file")]
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    #[cfg(feature = "file")]
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Uuid::parse_str(text).map(Self).map_err(|_| Error::invalid(format!("`{text}` is not an owner id")))
    }
}

/// An owner and the secret behind it. `None` is the secret of an owner that an earlier version has made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    owner: Owner,
    secret: Option<HandleSecret>,
}

impl Identity {
    /// A fresh identity for an attempt to acquire `name`.
    pub(crate) fn fresh(name: &Name) -> Self {
        Self::of(HandleSecret::fresh(), name)
    }

    pub(crate) fn of(secret: HandleSecret, name: &Name) -> Self {
        Self { owner: Owner::of(secret, name), secret: Some(secret) }
    }

    pub(crate) fn without_secret(owner: Owner) -> Self {
        Self { owner, secret: None }
    }

    /// What stores keep and compare.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn secret(&self) -> Option<HandleSecret> {
        self.secret
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.owner, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn an_owner_follows_from_its_secret_and_its_name_alone() {
        let secret = HandleSecret::fresh();
        assert_eq!(Owner::of(secret, &name("a")), Owner::of(secret, &name("a")));
        assert_ne!(Owner::of(secret, &name("a")), Owner::of(secret, &name("b")));
        assert_ne!(Owner::of(secret, &name("a")), Owner::of(HandleSecret::fresh(), &name("a")));
        assert!(!Owner::of(secret, &name("a")).is_of_an_earlier_version());
        assert!(Owner::fresh().is_of_an_earlier_version());
    }

    #[test]
    fn an_identity_shows_its_owner_alone() {
        let identity = Identity::fresh(&name("a"));
        assert_eq!(format!("{identity:?}"), identity.owner().to_string());
        assert!(HandleSecret::parse(&identity.owner().to_string()).is_none());
    }
}
