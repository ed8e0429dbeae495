//! Holding a guard is holding the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Renewal;
use crate::options::check_ttl;
use crate::runtime::lease_state::LeaseState;
use crate::{Error, FencingToken, Handle, Locks, Loss, Name, Owner, Result, State, Watch};

/// A held lock. Dropping it releases in the background; [`release`](Self::release) does so and says how it
/// went.
///
/// What programs that supervise a holder need is in [`SupervisorExt`](crate::SupervisorExt).
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    locks: Locks,
    pub(crate) held: Arc<LeaseState>,
    /// The lock was given back, handed on or found gone: nothing is left to release.
    done: bool,
}

impl Guard {
    pub(crate) fn new(locks: Locks, held: Arc<LeaseState>) -> Self {
        locks.keeper().hear_losses(&held);
        locks.keeper().adopt(&held);
        Self { locks, held, done: false }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.held.name
    }

    /// The fencing token: pass it with every write to what the lock protects.
    pub fn token(&self) -> FencingToken {
        self.held.token
    }

    /// The identity of this acquisition.
    pub fn owner(&self) -> Owner {
        self.held.identity.owner()
    }

    /// The handle of the lock while it is held here: whoever has it can renew and release the lock beside
    /// this guard, and take it away by attaching.
    #[cfg(feature = "unstable-backend")]
    pub fn handle(&self) -> Handle {
        Handle::new(self.name().clone(), self.held.identity, self.token(), self.held.ttl)
    }

    /// Time until the lease would end without renewal; zero when lost, `None` if it has no end.
    pub fn valid_for(&self) -> Option<Duration> {
        self.state().left()
    }

    /// The state now. Exact whenever asked: it is computed from the local suspend-aware clock, and a process
    /// that was stopped past the end of its lease learns so here, first thing.
    pub fn state(&self) -> State {
        self.held.state()
    }

    /// A look at this lock for another task, which keeps nothing held.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.held)
    }

    /// `Ok` while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] with the cause once it is not.
    pub fn check(&self) -> Result<()> {
        match self.state().loss() {
            Some(why) => Err(Error::lost(self.name(), why)),
            None => Ok(()),
        }
    }

    /// Waits until the state is of another kind than now (held, at risk, lost) and returns it. Returns at
    /// once if the lock is lost.
    pub async fn changed(&self) -> State {
        let before = self.state();
        if before.is_lost() {
            return before;
        }
        let kind = std::mem::discriminant(&before);
        self.held.until(|| Some(self.state()).filter(|now| std::mem::discriminant(now) != kind)).await
    }

    /// Waits until the lock is lost and says why. Prompt as your executor allows; for an exact answer at a
    /// given moment ask [`state`](Self::state).
    pub async fn lost(&self) -> Loss {
        if self.held.is_inherited() {
            return Loss::Forked;
        }
        self.held.until(|| self.state().loss()).await
    }

    /// Makes the lease end one ttl from now; returns the time left (`None`: it has no end).
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is gone, [`Error::Uncertain`] if the store did not answer: the old lease
    /// still counts, and renewal goes on.
    ///
    /// # Cancellation
    /// May be dropped at any await; the extension goes on without the caller.
    pub async fn extend(&self) -> Result<Option<Duration>> {
        self.extend_to(self.held.ttl).await
    }

    /// Makes the lease end `ttl` from now, unless it ends later already; returns the time left.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub async fn extend_to(&self, ttl: Duration) -> Result<Option<Duration>> {
        check_ttl(ttl)?;
        self.own()?;
        // On the keeper's runtime: on the caller's it could stand still, and keep this lock's renewals
        // waiting.
        let (held, locks) = (self.held.clone(), self.locks.clone());
        let extended = self.locks.keeper().carry_out(async move {
            let left = held.extend(ttl).await;
            // A lock lost at `max_hold` stays where it is in the schedule: the keeper has to give it back.
            if !held.state().is_lost() {
                locks.keeper().adopt(&held);
            }
            left
        });
        extended.await.unwrap_or_else(|| Err(Error::uncertain(self.name(), "the keeper has ended")))
    }

    /// Runs `work` under this guard and drops it where it stands if the lock is lost.
    ///
    /// # Errors
    /// That of the work, and [`Error::Lost`] if the lock was lost before the work had succeeded.
    pub async fn scope<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        let out = tokio::select! {
            biased;
            why = self.lost() => return Err(Error::lost(self.name(), why).into()),
            out = work(self) => out?,
        };
        self.check()?;
        Ok(out)
    }

    /// Gives the lock back. Renewal has ended when this returns.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was not ours any more, [`Error::Uncertain`] if the store did not answer (the
    /// release goes on in the background).
    pub async fn release(mut self) -> Result<()> {
        self.own()?;
        // Asked first: ending a lock that is lost must still say so.
        let state_before = self.state();
        self.locks.keeper().forget(&self.held);
        self.held.quiet().await;
        if let State::Lost(why) = state_before {
            return Err(Error::lost(self.name(), why));
        }
        let was_ours = self.held.hold.release().await.map_err(|error| error.of_change(self.name()))?;
        self.done = true;
        if was_ours {
            self.held.note_release();
            return Ok(());
        }
        Err(Error::lost(self.name(), self.state().loss().unwrap_or(Loss::Taken)))
    }

    /// Turns the lock into a lease of one ttl that nobody renews and that survives this process. Another
    /// process can go on with it by [`Locks::attach`].
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is gone, [`Error::Unsupported`] where a store has no such leases. The lock
    /// is released then.
    pub async fn detach(mut self) -> Result<Handle> {
        self.check()?;
        self.locks.keeper().forget(&self.held);
        self.held.quiet().await;
        match self.held.hold.detach(self.held.ttl).await? {
            Renewal::Lost(why) => Err(Error::lost(self.name(), self.state().loss().unwrap_or(why))),
            Renewal::Renewed { .. } => {
                self.done = true;
                Ok(Handle::new(self.name().clone(), self.held.identity, self.token(), self.held.ttl))
            }
        }
    }

    /// Refuses in a forked child, before anything of its parent's is touched.
    fn own(&self) -> Result<()> {
        if self.held.is_inherited() {
            return Err(Error::lost(self.name(), Loss::Forked));
        }
        Ok(())
    }
}

/// What work under a lock comes to when the lock was given back after it.
pub(crate) fn outcome<T, E: From<Error>>(worked: Result<T, E>, released: Result<()>) -> Result<T, E> {
    match (worked, released) {
        // The work ended while the lock was valid; an unanswered release does not change that.
        (Ok(_), Err(error)) if !matches!(error, Error::Uncertain { .. }) => Err(error.into()),
        (worked, _) => worked,
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.held.is_inherited() {
            return self.held.leak_in_a_child();
        }
        self.locks.keeper().forget(&self.held);
        if !self.done {
            let held = self.held.clone();
            self.locks.spawn(async move { held.release_in_background().await });
        }
    }
}
