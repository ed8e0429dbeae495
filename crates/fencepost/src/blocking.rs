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
//! Every call runs on the calling thread, with the keeper's runtime behind it. Inside an async runtime, where
//! blocking would stall other tasks, every call that waits is refused with [`Error::Invalid`]. So it is on
//! threads of `spawn_blocking`, which cannot be told apart: use `std::thread::spawn` there.

use std::time::Duration;

use crate::backend::{Capabilities, ForceRelease, Revoked};
use crate::options::chained_options;
use crate::runtime::keeper::runtime;
use crate::{Error, FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result, State, Stats, Watch};

/// Runs a future to its end on the calling thread.
pub(crate) fn run<T, E: From<Error>>(future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(E::from(Error::invalid(
            "a blocking call inside an async runtime would stall it; use the async interface, or a thread of \
             its own (`std::thread::spawn`)",
        )));
    }
    runtime()?.block_on(future)
}

/// Writes methods of a blocking twin that only pass on: those that `wait` run a future to its end.
macro_rules! same_as {
    ($twin:path, $field:ident: $($rest:tt)+) => { $crate::blocking::same_as! { @ $twin, $field: $($rest)+ } };
    (@ $twin:path, $field:ident:) => {};
    (@ $twin:path, $field:ident: wait fn $name:ident($($arg:ident: $of:ty),*) -> $out:ty; $($rest:tt)*) => {
        #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// As there.
        pub fn $name(&self $(, $arg: $of)*) -> $out {
            $crate::blocking::run(self.$field.$name($($arg),*))
        }
        $crate::blocking::same_as! { @ $twin, $field: $($rest)* }
    };
    (@ $twin:path, $field:ident: fn $name:ident($($arg:ident: $of:ty),*) -> $out:ty; $($rest:tt)*) => {
        #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`].")]
        pub fn $name(&self $(, $arg: $of)*) -> $out {
            self.$field.$name($($arg),*)
        }
        $crate::blocking::same_as! { @ $twin, $field: $($rest)* }
    };
}
pub(crate) use same_as;

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
        run(crate::Locks::connect(url)).map(Self::from)
    }

    /// See [`crate::Locks::init`].
    ///
    /// # Errors
    /// As there.
    pub fn init(url: &str) -> Result<Vec<String>> {
        run(crate::Locks::init(url))
    }

    /// See [`crate::Locks::reconfigure`].
    ///
    /// # Errors
    /// As there.
    pub fn reconfigure(url: &str) -> Result<Vec<String>> {
        run(crate::Locks::reconfigure(url))
    }

    /// See [`crate::Locks::lock`].
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock { lock: self.locks.lock(name) }
    }

    /// See [`crate::Locks::all`].
    pub fn all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> LockSet {
        LockSet { set: self.locks.all(names) }
    }

    /// See [`crate::Locks::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, handle: &Handle) -> Result<Guard> {
        run(self.locks.attach(handle)).map(Guard::from)
    }

    same_as! { crate::Locks, locks:
        wait fn extend(handle: &Handle, ttl: Duration) -> Result<()>;
        wait fn release(handle: &Handle) -> Result<()>;
        wait fn list(prefix: &str) -> Result<Listing>;
        wait fn show(name: &str) -> Result<Option<Holder>>;
        wait fn force_release(name: &str, how: impl Into<ForceRelease>) -> Result<Option<Revoked>>;
        wait fn check() -> Result<()>;
        fn default_ttl() -> Duration;
        fn capabilities() -> Capabilities;
        fn stats() -> Stats;
    }

    /// See [`crate::Locks::close`].
    ///
    /// # Errors
    /// [`Error::Invalid`] inside an async runtime.
    pub fn close(self) -> Result<()> {
        run(async {
            self.locks.close().await;
            Ok(())
        })
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
}

impl Lock {
    chained_options!(lock.options);

    /// See [`crate::Lock::checked`].
    ///
    /// # Errors
    /// As there.
    pub fn checked(self) -> Result<Self> {
        self.lock.checked().map(|lock| Self { lock })
    }

    /// See [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<Guard> {
        run(self.lock.acquire()).map(Guard::from)
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(run(self.lock.try_acquire())?.map(Guard::from))
    }

    /// See [`crate::Lock::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, handle: &Handle) -> Result<Guard> {
        run(self.lock.attach(handle)).map(Guard::from)
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
    pub(crate) guard: crate::Guard,
}

impl Guard {
    same_as! { crate::Guard, guard:
        fn name() -> &Name;
        fn token() -> FencingToken;
        fn owner() -> Owner;
        fn watch() -> Watch;
        fn valid_for() -> Option<Duration>;
        fn state() -> State;
        fn check() -> Result<()>;
        wait fn extend() -> Result<Option<Duration>>;
        wait fn extend_to(ttl: Duration) -> Result<Option<Duration>>;
    }

    /// Waits until the lock is lost and says why.
    ///
    /// # Errors
    /// [`Error::Invalid`] inside an async runtime.
    pub fn lost(&self) -> Result<Loss> {
        run(async { Ok(self.guard.lost().await) })
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        run(self.guard.release())
    }

    /// See [`crate::Guard::detach`].
    ///
    /// # Errors
    /// As there.
    pub fn detach(self) -> Result<Handle> {
        run(self.guard.detach())
    }
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        Self { guard }
    }
}

/// Several names that are acquired together. See [`crate::LockSet`].
#[derive(Clone, Debug)]
#[must_use = "a lock set holds nothing until it is acquired"]
pub struct LockSet {
    set: crate::LockSet,
}

impl LockSet {
    chained_options!(set.options);

    /// See [`crate::LockSet::checked`].
    ///
    /// # Errors
    /// As there.
    pub fn checked(self) -> Result<Self> {
        self.set.checked().map(|set| Self { set })
    }

    /// See [`crate::LockSet::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<GuardSet> {
        run(self.set.acquire()).map(|guards| GuardSet { guards })
    }

    /// See [`crate::LockSet::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<GuardSet>> {
        Ok(run(self.set.try_acquire())?.map(|guards| GuardSet { guards }))
    }
}

/// Several held locks. See [`crate::GuardSet`].
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: crate::GuardSet,
}

impl GuardSet {
    same_as! { crate::GuardSet, guards:
        fn tokens() -> impl Iterator<Item = (&Name, FencingToken)>;
        fn token(name: &str) -> Option<FencingToken>;
        fn valid_for() -> Option<Duration>;
        fn state() -> State;
        fn check() -> Result<()>;
    }

    /// See [`crate::GuardSet::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        run(self.guards.release())
    }
}
