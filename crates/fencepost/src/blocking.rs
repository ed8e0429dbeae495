//! The same locks for code without an async runtime: same names, same errors, blocking calls.
//!
//! ```
//! use std::time::Duration;
//! let locks = fencepost::blocking::Locks::connect("memory:")?;
//! let guard = locks.lock("order:42").ttl(Duration::from_secs(10)).acquire()?;
//! println!("write with token {}", guard.token());
//! guard.release()?;
//! # Ok::<(), fencepost::Error>(())
//! ```
//!
//! Every call runs on the calling thread, with the keeper's runtime behind it. Called from inside an async runtime,
//! where blocking would stall other tasks, they refuse; so they do on threads of `spawn_blocking`, which cannot be told
//! apart. Use `std::thread::spawn` there.

use std::time::Duration;

use tokio::runtime::Handle as Runtime;

use crate::backend::{Capabilities, ForceRelease, Revoked};
use crate::options::{Options, chained_options};
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::{Error, FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result, State, Stats};

pub(crate) fn run<T, E: From<Error>>(
    runtime: &Runtime,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if Runtime::try_current().is_ok() {
        return Err(E::from(Error::invalid(
            "a blocking call inside an async runtime would stall it; use the async interface, or a thread of its own \
             (`std::thread::spawn`)",
        )));
    }
    runtime.block_on(future)
}

/// The locks of one store. See [`crate::Locks`].
#[derive(Clone, Debug)]
pub struct Locks {
    locks: crate::Locks,
}

impl Locks {
    /// See [`crate::Locks::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Self> {
        let keeper = Keeper::of(&Clock::system())?;
        run(keeper.runtime(), crate::Locks::connect(url)).map(Self::from)
    }

    /// See [`crate::Locks::init`].
    ///
    /// # Errors
    /// As there.
    pub fn init(url: &str, reconfigure: bool) -> Result<Vec<String>> {
        let keeper = Keeper::of(&Clock::system())?;
        run(keeper.runtime(), crate::Locks::init(url, reconfigure))
    }

    /// See [`crate::Locks::lock`].
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        let lock = self.locks.lock(name);
        Lock { options: lock.options.clone(), lock, runtime: self.runtime() }
    }

    /// See [`crate::Locks::all`].
    pub fn all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> LockSet {
        let set = self.locks.all(names);
        LockSet { options: set.options.clone(), set, runtime: self.runtime() }
    }

    /// See [`crate::Locks::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, handle: &Handle) -> Result<Guard> {
        let runtime = self.runtime();
        run(&runtime, self.locks.attach(handle)).map(|guard| Guard { guard, runtime })
    }

    /// See [`crate::Locks::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, handle: &Handle, ttl: Duration) -> Result<()> {
        run(&self.runtime(), self.locks.extend(handle, ttl))
    }

    /// See [`crate::Locks::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self, handle: &Handle) -> Result<()> {
        run(&self.runtime(), self.locks.release(handle))
    }

    /// See [`crate::Locks::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: &str) -> Result<Listing> {
        run(&self.runtime(), self.locks.list(prefix))
    }

    /// See [`crate::Locks::show`].
    ///
    /// # Errors
    /// As there.
    pub fn show(&self, name: &str) -> Result<Option<Holder>> {
        run(&self.runtime(), self.locks.show(name))
    }

    /// See [`crate::Locks::force_release`].
    ///
    /// # Errors
    /// As there.
    pub fn force_release(&self, name: &str, how: impl Into<ForceRelease>) -> Result<Option<Revoked>> {
        run(&self.runtime(), self.locks.force_release(name, how))
    }

    /// See [`crate::Locks::capabilities`].
    pub fn capabilities(&self) -> Capabilities {
        self.locks.capabilities()
    }

    /// See [`crate::Locks::stats`].
    pub fn stats(&self) -> Stats {
        self.locks.stats()
    }

    /// See [`crate::Locks::close`].
    ///
    /// # Errors
    /// [`Error::Invalid`] inside an async runtime.
    pub fn close(self) -> Result<()> {
        run(&self.runtime(), async {
            self.locks.clone().close().await;
            Ok(())
        })
    }

    fn runtime(&self) -> Runtime {
        self.locks.keeper().runtime().clone()
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self { locks }
    }
}

/// A name and options. See [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    lock: crate::Lock,
    options: Options,
    runtime: Runtime,
}

impl Lock {
    chained_options!();

    fn chosen(&self) -> crate::Lock {
        let mut lock = self.lock.clone();
        lock.options = self.options.clone();
        lock
    }

    /// See [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<Guard> {
        let runtime = self.runtime.clone();
        run(&self.runtime, self.chosen().acquire()).map(|guard| Guard { guard, runtime })
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        let runtime = self.runtime.clone();
        let guard = run(&self.runtime, self.chosen().try_acquire())?;
        Ok(guard.map(|guard| Guard { guard, runtime }))
    }

    /// See [`crate::Lock::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, handle: &Handle) -> Result<Guard> {
        let runtime = self.runtime.clone();
        run(&self.runtime, self.chosen().attach(handle)).map(|guard| Guard { guard, runtime })
    }

    /// Acquires, runs `work`, releases. A closure cannot be stopped from outside: let long work ask
    /// [`Guard::check`] now and then.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] if the lock was lost before the work ended.
    pub fn scope<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let out = work(&guard);
        guard.check()?;
        match guard.release() {
            Ok(()) | Err(Error::Uncertain { .. }) => Ok(out),
            Err(error) => Err(error),
        }
    }
}

/// A held lock. See [`crate::Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    guard: crate::Guard,
    runtime: Runtime,
}

impl Guard {
    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.guard.name()
    }

    /// The fencing token.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// The identity of this acquisition.
    pub fn owner(&self) -> Owner {
        self.guard.owner()
    }

    /// See [`crate::Guard::etcd_compare`].
    #[cfg(feature = "etcd")]
    pub fn etcd_compare(&self) -> Option<crate::EtcdCompare> {
        self.guard.etcd_compare()
    }

    /// See [`crate::Guard::valid_for`].
    pub fn valid_for(&self) -> Option<Duration> {
        self.guard.valid_for()
    }

    /// See [`crate::Guard::state`].
    pub fn state(&self) -> State {
        self.guard.state()
    }

    /// See [`crate::Guard::check`].
    ///
    /// # Errors
    /// [`Error::Lost`] once the lock is not held any more.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Waits until the lock is lost and says why.
    ///
    /// # Errors
    /// [`Error::Invalid`] inside an async runtime.
    pub fn lost(&self) -> Result<Loss> {
        run(&self.runtime, async { Ok(self.guard.lost().await) })
    }

    /// See [`crate::Guard::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self) -> Result<Option<Duration>> {
        run(&self.runtime, self.guard.extend())
    }

    /// See [`crate::Guard::extend_to`].
    ///
    /// # Errors
    /// As there.
    pub fn extend_to(&self, ttl: Duration) -> Result<Option<Duration>> {
        run(&self.runtime, self.guard.extend_to(ttl))
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        run(&self.runtime, self.guard.release())
    }

    /// See [`crate::Guard::detach`].
    ///
    /// # Errors
    /// As there.
    pub fn detach(self) -> Result<Handle> {
        run(&self.runtime, self.guard.detach())
    }
}

/// Several names that are acquired together. See [`crate::LockSet`].
#[derive(Clone, Debug)]
#[must_use = "a lock set holds nothing until it is acquired"]
pub struct LockSet {
    set: crate::LockSet,
    options: Options,
    runtime: Runtime,
}

impl LockSet {
    chained_options!();

    fn chosen(&self) -> crate::LockSet {
        let mut set = self.set.clone();
        set.options = self.options.clone();
        set
    }

    /// See [`crate::LockSet::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<GuardSet> {
        let runtime = self.runtime.clone();
        run(&self.runtime, self.chosen().acquire()).map(|guards| GuardSet { guards, runtime })
    }

    /// See [`crate::LockSet::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<GuardSet>> {
        let runtime = self.runtime.clone();
        let guards = run(&self.runtime, self.chosen().try_acquire())?;
        Ok(guards.map(|guards| GuardSet { guards, runtime }))
    }
}

/// Several held locks. See [`crate::GuardSet`].
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: crate::GuardSet,
    runtime: Runtime,
}

impl GuardSet {
    /// The fencing token of each name, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)> {
        self.guards.tokens()
    }

    /// The fencing token of one name; `None` if it is not in the set.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.guards.token(name)
    }

    /// See [`crate::GuardSet::valid_for`].
    pub fn valid_for(&self) -> Option<Duration> {
        self.guards.valid_for()
    }

    /// See [`crate::GuardSet::state`].
    pub fn state(&self) -> State {
        self.guards.state()
    }

    /// See [`crate::GuardSet::check`].
    ///
    /// # Errors
    /// [`Error::Lost`] for the first lock that is not held any more.
    pub fn check(&self) -> Result<()> {
        self.guards.check()
    }

    /// See [`crate::GuardSet::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        run(&self.runtime, self.guards.release())
    }
}
