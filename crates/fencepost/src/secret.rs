//! What only the one that it is meant for gets to see.

use std::fmt;

use uuid::Uuid;

use crate::text::printable;

/// A secret. Its `Debug` says nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret<T>(T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A password for a server.
pub(crate) type Password = Secret<String>;

#[allow(dead_code)] // for some stores
impl Password {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// A server's words without the password: some servers repeat what they were sent.
    pub(crate) fn hide_in(&self, text: &str) -> String {
        match self.0.as_str() {
            "" => text.to_owned(),
            // As it was sent, and as errors are shown.
            password => text.replace(password, "(hidden)").replace(&*printable(password), "(hidden)"),
        }
    }
}

/// What a handle proves its right by: 122 random bits of the operating system's. Never stored, never logged.
pub(crate) type HandleSecret = Secret<[u8; 16]>;

impl HandleSecret {
    pub(crate) fn fresh() -> Self {
        Self(Uuid::new_v4().into_bytes())
    }

    /// Reads 32 hexadecimal digits, without the dashes that an owner has.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Uuid::parse_str(text).ok().filter(|_| plain).map(|uuid| Self(uuid.into_bytes()))
    }

    /// For the text of a handle, and for nothing else.
    pub(crate) fn digits(self) -> String {
        Uuid::from_bytes(self.0).simple().to_string()
    }

    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hidden_wherever_it_is_repeated() {
        let hidden = |password: &str, text| Password::new(password.to_owned()).hide_in(text);
        assert_eq!(hidden("hush", "ERR no `hush`: u hush"), "ERR no `(hidden)`: u (hidden)");
        assert_eq!(hidden("a\u{7}b", "ERR a\\u{7}b"), "ERR (hidden)");
        assert_eq!(hidden("", "ERR"), "ERR");
    }

    #[test]
    fn no_debug_output_has_a_secret() {
        let (password, secret) = (Password::new("hush".to_owned()), HandleSecret::fresh());
        assert_eq!(format!("{password:?} {secret:?}"), "(hidden) (hidden)");
        assert!(HandleSecret::parse(&secret.digits()) == Some(secret));
    }
}
