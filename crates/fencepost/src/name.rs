//! The name of a lock: any non-empty UTF-8 string of up to 512 bytes. Stores encode it; users never have to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 512;

/// A valid lock name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, longer than [`MAX_NAME`] bytes or contains a NUL character.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid("a lock name must not be empty"));
        }
        if name.len() > MAX_NAME {
            return Err(Error::invalid(format!(
                "a lock name may have at most {MAX_NAME} bytes, this one has {}",
                name.len()
            )));
        }
        if name.contains('\0') {
            return Err(Error::invalid("a lock name must not contain a NUL character"));
        }
        Ok(Self(name.into()))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_up_to_the_limit_is_a_name() {
        for name in ["a", "order:42", "ä/ö ü", "{x}", "../../etc/passwd", "\n", &"x".repeat(MAX_NAME)] {
            let read: Name = name.parse().unwrap();
            assert_eq!((read.as_str(), String::from(read.clone())), (name, name.to_owned()));
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Name>(&json).unwrap(), read);
        }
    }

    #[test]
    fn empty_overlong_and_nul_names_are_refused() {
        for name in ["", "a\0b", &"x".repeat(MAX_NAME + 1)] {
            assert!(matches!(Name::new(name), Err(Error::Invalid { .. })), "{name:?}");
            assert!(Name::try_from(name.to_owned()).is_err());
            assert!(serde_json::from_str::<Name>(&serde_json::to_string(name).unwrap()).is_err());
        }
    }
}
