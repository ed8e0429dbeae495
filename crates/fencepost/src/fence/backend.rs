//! What a kind of resource has to be able to do.

use std::fmt;

use async_trait::async_trait;

use super::Result;
use crate::{FencingToken, Name};

/// Where resources are kept: for each name the largest token that was seen, and a value.
///
/// Three operations, each one atomic step with respect to all others on the same resource, by whichever
/// process. There is deliberately no check alone, and no read alone: what was true at a check need not be
/// true at the write after it.
///
/// The largest token seen must live as long as the resource does. Where it can be lost while holders live on,
/// a stale one gets in.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// Records the token, and returns the value that was written last; `None` if none was.
    ///
    /// # Errors
    /// [`Stale`](super::Error::Stale) if a larger token was seen.
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>>;

    /// Records the token and writes the value.
    ///
    /// # Errors
    /// [`Stale`](super::Error::Stale) if a larger token was seen: nothing was written.
    /// [`Uncertain`](super::Error::Uncertain) if that is not known.
    async fn write(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()>;

    /// The same if this token or a larger one was never seen.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()>;
}
