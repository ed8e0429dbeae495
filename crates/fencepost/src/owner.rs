//! The identity of one acquisition: made anew for every attempt and never reused, so that a late renewal or
//! release of one attempt can never touch the lock of another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Error;

/// The identity of one acquisition (a UUID, version 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(Uuid);

impl Owner {
    /// A fresh identity.
    pub(crate) fn fresh() -> Self {
        Self(Uuid::now_v7())
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
