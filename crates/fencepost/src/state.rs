//! Held, at risk or lost.

use std::time::Duration;

use crate::{Loss, Risk};

/// What a guard knows about its lock at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Held; `left` is the time until the lease would end without renewal, `None` if it has no end.
    #[non_exhaustive]
    Held {
        /// Time left.
        left: Option<Duration>,
    },
    /// Still held, but it will be lost when `left` has passed unless a renewal gets through.
    #[non_exhaustive]
    AtRisk {
        /// Time left.
        left: Duration,
        /// What is wrong.
        why: Risk,
    },
    /// Not held any more. Final.
    Lost(Loss),
}

impl State {
    /// Whether the lock is gone.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Time left until the lease would end without renewal; zero when lost, `None` if it has no end.
    pub fn left(&self) -> Option<Duration> {
        match self {
            Self::Held { left } => *left,
            Self::AtRisk { left, .. } => Some(*left),
            Self::Lost(_) => Some(Duration::ZERO),
        }
    }

    pub(crate) fn loss(self) -> Option<Loss> {
        match self {
            Self::Lost(why) => Some(why),
            _ => None,
        }
    }
}
