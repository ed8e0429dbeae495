//! Why a step on a lock file failed, before it is told of which lock that was.

use std::io;

use rustix::io::Errno;

use super::record::Damage;
use crate::{Error, Loss};

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The owner that acts has lost the lock.
    #[error("the lock is lost")]
    Lost(Loss),
    /// Complete as it is.
    #[error(transparent)]
    Told(#[from] Error),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}
