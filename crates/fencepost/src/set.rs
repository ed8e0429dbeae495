//! Several locks at once: sorted, so that two callers can never wait for each other, and all or nothing.

use std::task::{Context, Poll};
use std::time::Duration;

use crate::guard::outcome;
use crate::options::{Options, chained_options};
use crate::{Error, FencingToken, Guard, Lock, Locks, Loss, Name, Result, State, Wait};

/// How long a set that could not be had waits for its parts to be given back.
const GRACE: Duration = Duration::from_millis(200);

/// Several names that are acquired together. Made by [`Locks::all`].
#[derive(Clone, Debug)]
#[must_use = "a lock set holds nothing until it is acquired"]
pub struct LockSet {
    locks: Locks,
    names: Vec<String>,
    pub(crate) options: Options,
}

impl LockSet {
    pub(crate) fn new(locks: Locks, mut names: Vec<String>, options: Options) -> Self {
        names.sort_unstable();
        names.dedup();
        Self { locks, names, options }
    }

    chained_options!(options);

    /// Refuses bad names and options that cannot work. See [`Lock::checked`].
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn checked(self) -> Result<Self> {
        self.check().map(|_| self)
    }

    /// Acquires all of them, in the order of their names, within one `wait`; on failure none is kept.
    ///
    /// # Errors
    /// As [`Lock::acquire`], for the first name that could not be had. [`Error::Invalid`] without any name.
    pub async fn acquire(&self) -> Result<GuardSet> {
        let names = self.check()?;
        let started = self.locks.clock().now();
        let mut set = GuardSet { guards: Vec::with_capacity(names.len()) };
        let acquired = async {
            for name in names {
                let lock = Lock::new(self.locks.clone(), name.to_string(), self.options.clone());
                set.guards.push(lock.acquire_since(&name, started).await?);
            }
            // The first ones were renewed while we waited for the last; make sure.
            set.check()
        };
        match acquired.await {
            Ok(()) => Ok(set),
            Err(error) => {
                self.give_back(set).await;
                Err(error)
            }
        }
    }

    /// Acquires all of them if all are free now; `None` if one is not.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_acquire(&self) -> Result<Option<GuardSet>> {
        let mut now = self.clone();
        (now.options.wait, now.options.retry) = (Wait::No, None);
        match now.acquire().await {
            Ok(guards) => Ok(Some(guards)),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires all of them, runs `work` and releases, as [`Lock::scope`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), that of the work, and [`Error::Lost`] for the lock that was lost first,
    /// if one was before the work had succeeded.
    pub async fn scope<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&GuardSet) -> Result<T, E>,
    ) -> Result<T, E> {
        let guards = self.acquire().await?;
        let out = guards.scope(work).await;
        if out.is_err() && guards.state().is_lost() {
            return out; // at once: what there is to give back, the drop does
        }
        outcome(out, guards.release().await)
    }

    fn check(&self) -> Result<Vec<Name>> {
        self.options.check()?;
        if self.names.is_empty() {
            return Err(Error::invalid("a lock set needs at least one name"));
        }
        self.names.iter().map(|name| Name::new(name)).collect()
    }

    /// Gives back what was acquired in vain. The deadline bounds cleaning up, too: what is not answered soon
    /// goes on in the background.
    async fn give_back(&self, set: GuardSet) {
        let clock = self.locks.clock();
        let soon = clock.now().plus(GRACE);
        if let Some(Err(error)) = clock.within(Some(soon), set.release()).await {
            tracing::debug!(%error, "giving back a part of a lock set failed");
        }
    }
}

/// Several held locks. Dropping it releases them all in the background.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// The guards, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The guards, each on its own from now on, in the order of their names.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The fencing token of each name, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The fencing token of one name; `None` if it is not in the set.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.guards.iter().find(|guard| guard.name().as_str() == name).map(Guard::token)
    }

    /// The worst state of all: one lost lock makes the set lost.
    pub fn state(&self) -> State {
        let severity = |state: &State| match state {
            State::Lost(_) => (0, None),
            State::AtRisk { left, .. } => (1, Some(*left)),
            State::Held { left: Some(left) } => (2, Some(*left)),
            State::Held { left: None } => (3, None),
        };
        self.guards.iter().map(Guard::state).min_by_key(severity).unwrap_or(State::Held { left: None })
    }

    /// Time until the first of the leases would end without renewal; `None` if none has an end.
    pub fn valid_for(&self) -> Option<Duration> {
        self.guards.iter().filter_map(Guard::valid_for).min()
    }

    /// `Ok` while all are held.
    ///
    /// # Errors
    /// [`Error::Lost`] for the first that is not.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Waits until one of the locks is lost; says which and why.
    pub async fn lost(&self) -> (Name, Loss) {
        let lost = async |guard: &Guard| (guard.name().clone(), guard.lost().await);
        let mut waits: Vec<_> = self.guards.iter().map(|guard| Box::pin(lost(guard))).collect();
        let first = |context: &mut Context<'_>| {
            let mut polled = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        };
        std::future::poll_fn(first).await
    }

    /// Runs `work` and drops it where it stands if one of the locks is lost.
    ///
    /// # Errors
    /// That of the work, and [`Error::Lost`] for the lock that was lost first, if one was before the work had
    /// succeeded.
    pub async fn scope<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&GuardSet) -> Result<T, E>,
    ) -> Result<T, E> {
        let out = tokio::select! {
            biased;
            (name, why) = self.lost() => return Err(Error::Lost { name, why }.into()),
            out = work(self) => out?,
        };
        self.check()?;
        Ok(out)
    }

    /// Gives all of them back, the last one first.
    ///
    /// # Errors
    /// The first error of a release; the others are released all the same.
    pub async fn release(self) -> Result<()> {
        let mut result = Ok(());
        for guard in self.guards.into_iter().rev() {
            result = result.and(guard.release().await);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Call, Store};

    #[tokio::test]
    async fn a_set_that_lost_a_lock_while_it_waited_does_not_wait_for_a_store_that_is_silent() {
        let store = Store::new();
        let (locks, other) = (store.locks().unwrap(), store.locks().unwrap());
        let in_the_way = other.lock("b").acquire().await.unwrap();
        let waiting = tokio::spawn(async move { locks.all(["a", "b"]).acquire().await });
        while other.show("a").await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(store.lose("a", Loss::SessionEnded));
        // From here on releases take effect, and nobody says so.
        store.delay(Call::Release, Duration::from_secs(3600));
        drop(in_the_way);
        let answer = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        let error = answer.expect("it comes to an end").unwrap().unwrap_err();
        assert!(matches!(error, Error::Lost { why: Loss::SessionEnded, .. }), "{error}");
    }
}
