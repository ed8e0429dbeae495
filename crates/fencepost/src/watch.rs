//! Watches a held lock without holding it.

use std::sync::Arc;
use std::time::Duration;

use crate::runtime::lease_state::LeaseState;
use crate::{Loss, Name, State};

/// A look at a lock that a [`Guard`](crate::Guard) holds, made by [`Guard::watch`](crate::Guard::watch): for
/// a task that must know of its loss while another one works under the guard. Keeps nothing held. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Watch(Arc<LeaseState>);

impl Watch {
    pub(crate) fn new(held: &Arc<LeaseState>) -> Self {
        Self(held.clone())
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// The state now, as exact as the guard's; `None` once the guard has let go of a lock that was not lost.
    pub fn state(&self) -> Option<State> {
        Some(self.0.state()).filter(|state| state.is_lost() || !self.0.has_ended())
    }

    /// Time until the lease would end without renewal; zero when it is not held, `None` if it has no end.
    pub fn valid_for(&self) -> Option<Duration> {
        self.state().map_or(Some(Duration::ZERO), |state| state.left())
    }

    /// Waits until the lock is lost and says why; `None` if the guard lets go of it first.
    pub async fn lost(&self) -> Option<Loss> {
        if self.0.is_inherited() {
            return Some(Loss::Forked);
        }
        let over = || match self.state() {
            None => Some(None),
            Some(state) => state.loss().map(Some),
        };
        self.0.until(over).await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.leak_in_a_child();
    }
}
