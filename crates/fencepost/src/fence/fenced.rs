//! A value in this process that only the newest holder may change.

use std::sync::Mutex;

use super::StaleToken;
use super::record::{Record, Rule};
use crate::FencingToken;
use crate::runtime::sync::lock;

/// A value that remembers the largest token it was shown, and refuses smaller ones. Share it by reference or
/// in an `Arc`.
///
/// ```
/// use fencepost::FencingToken;
/// use fencepost::fence::Fenced;
///
/// let balance = Fenced::new("account:7", 100);
/// let (older, newer) = (FencingToken::new(7).unwrap(), FencingToken::new(8).unwrap());
///
/// let first = balance.activate(older)?;                   // before the first read
/// first.write(|balance| *balance += 10)?;
/// let second = balance.activate(newer)?;                  // the lock has a new holder
/// second.write(|balance| *balance += 100)?;
///
/// let refusal = first.write(|balance| *balance = 0).unwrap_err();
/// assert_eq!((refusal.presented, refusal.highest), (older, newer));
/// assert_eq!(second.read(|balance| *balance)?, 210);
/// # Ok::<(), fencepost::fence::StaleToken>(())
/// ```
///
/// The closures run while the value is locked, so check and write are one step: keep them short. If one
/// panics, the value stays as it left it.
#[derive(Debug)]
pub struct Fenced<T> {
    name: String,
    record: Mutex<Record<T>>,
}

impl<T> Fenced<T> {
    /// Guards a value. The name is for messages.
    pub fn new(name: impl Into<String>, value: T) -> Self {
        Self { name: name.into(), record: Mutex::new(Record { highest: None, value }) }
    }

    /// Records a holder's token. From here on no older holder gets in.
    ///
    /// # Errors
    /// If a larger token was seen.
    pub fn activate(&self, token: FencingToken) -> Result<Entry<'_, T>, StaleToken> {
        lock(&self.record).admit(&self.name, token, Rule::AtLeast)?;
        Ok(Entry { fenced: self, token })
    }

    /// Changes the value once for a token: for an effect that must not be repeated, and that depends on
    /// nothing read before.
    ///
    /// # Errors
    /// If this token, or a larger one, was seen.
    pub fn write_once<R>(
        &self,
        token: FencingToken,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, StaleToken> {
        self.enter(token, Rule::Above, change)
    }

    /// The value itself, when nobody shares it any more.
    pub fn into_inner(self) -> T {
        self.record.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).value
    }

    fn enter<R>(
        &self,
        token: FencingToken,
        rule: Rule,
        with: impl FnOnce(&mut T) -> R,
    ) -> Result<R, StaleToken> {
        let mut record = lock(&self.record);
        record.admit(&self.name, token, rule)?;
        Ok(with(&mut record.value))
    }
}

/// A [`Fenced`] value as one holder sees it, whose token was activated.
#[derive(Debug)]
pub struct Entry<'a, T> {
    fenced: &'a Fenced<T>,
    token: FencingToken,
}

impl<T> Entry<'_, T> {
    /// Looks at the value.
    ///
    /// # Errors
    /// If a larger token was seen since.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> Result<R, StaleToken> {
        self.fenced.enter(self.token, Rule::AtLeast, |value| look(value))
    }

    /// Changes the value.
    ///
    /// # Errors
    /// If a larger token was seen since.
    pub fn write<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, StaleToken> {
        self.fenced.enter(self.token, Rule::AtLeast, change)
    }

    /// The token.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}
