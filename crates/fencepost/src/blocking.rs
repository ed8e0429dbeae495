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
//! Every call runs on the calling thread, with the keeper's runtime behind it. From async code call it in
//! `tokio::task::spawn_blocking` or `block_in_place`. In a task of tokio's, and directly in its `block_on`,
//! blocking would stall others: there every call that waits is refused with [`Error::Invalid`].

use std::time::Duration;

use crate::backend::{Capabilities, ForceRelease, Revoked};
use crate::guard::outcome;
use crate::options::chained_options;
use crate::runtime::block_on::{block_on, is_polling_a_task};
use crate::runtime::keeper::runtime;
use crate::{
    ConnectOptions, Error, FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result, State, Stats,
    Watch,
};

/// Runs a future to its end on the calling thread.
pub(crate) fn run<T, E: From<Error>>(future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    if is_polling_a_task() {
        return Err(E::from(Error::invalid(
            "a blocking call in an async task would stall its runtime; use the async interface, or \
             `tokio::task::spawn_blocking`",
        )));
    }
    block_on(&runtime()?, future)
}

/// Writes the methods of a blocking twin, which are called as those of the twin. `wait fn` runs a future to
/// its end; what comes out of it becomes the blocking type.
macro_rules! same_as {
    ($twin:path, $inner:ident:) => {};
    ($twin:path, $inner:ident:
        wait fn $name:ident(&$this:ident $(, $arg:ident: $of:ty)*) -> $out:ty; $($rest:tt)*
    ) => {
        #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// As there.
        pub fn $name(&$this $(, $arg: $of)*) -> $out {
            $crate::blocking::run($this.$inner.$name($($arg),*)).map(From::from)
        }
        $crate::blocking::same_as! { $twin, $inner: $($rest)* }
    };
    ($twin:path, $inner:ident:
        wait fn $name:ident($this:ident) -> $out:ty; $($rest:tt)*
    ) => {
        #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// As there.
        pub fn $name($this) -> $out {
            $crate::blocking::run($this.$inner.$name()).map(From::from)
        }
        $crate::blocking::same_as! { $twin, $inner: $($rest)* }
    };
    ($twin:path, $inner:ident:
        fn $name:ident(&$this:ident $(, $arg:ident: $of:ty)*) -> $out:ty; $($rest:tt)*
    ) => {
        #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`].")]
        pub fn $name(&$this $(, $arg: $of)*) -> $out {
            $this.$inner.$name($($arg),*)
        }
        $crate::blocking::same_as! { $twin, $inner: $($rest)* }
    };
}
pub(crate) use same_as;

/// Wraps what the async interface returns.
macro_rules! from_twin {
    ($($blocking:ident { $inner:ident }),+) => {
        $(impl From<crate::$blocking> for $blocking {
            fn from($inner: crate::$blocking) -> Self {
                Self { $inner }
            }
        })+
    };
}
from_twin!(Locks { locks }, Guard { guard }, GuardSet { guards });

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
    pub fn connect(url: impl Into<ConnectOptions>) -> Result<Self> {
        run(crate::Locks::connect(url)).map(Self::from)
    }

    /// See [`crate::Locks::init`].
    ///
    /// # Errors
    /// As there.
    pub fn init(url: impl Into<ConnectOptions>) -> Result<Vec<String>> {
        run(crate::Locks::init(url))
    }

    /// See [`crate::Locks::reconfigure`].
    ///
    /// # Errors
    /// As there.
    pub fn reconfigure(url: impl Into<ConnectOptions>) -> Result<Vec<String>> {
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

    same_as! { crate::Locks, locks:
        wait fn attach(&self, handle: &Handle) -> Result<Guard>;
        wait fn extend(&self, handle: &Handle, ttl: Duration) -> Result<()>;
        wait fn release(&self, handle: &Handle) -> Result<()>;
        wait fn list(&self, prefix: &str) -> Result<Listing>;
        wait fn show(&self, name: &str) -> Result<Option<Holder>>;
        wait fn force_release(&self, name: &str, how: impl Into<ForceRelease>) -> Result<Option<Revoked>>;
        wait fn check(&self) -> Result<()>;
        fn default_ttl(&self) -> Duration;
        fn capabilities(&self) -> Capabilities;
        fn stats(&self) -> Stats;
    }

    /// See [`crate::Locks::close`].
    ///
    /// # Errors
    /// [`Error::Invalid`] in an async task.
    pub fn close(self) -> Result<()> {
        run(async {
            self.locks.close().await;
            Ok(())
        })
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

    same_as! { crate::Lock, lock:
        wait fn acquire(&self) -> Result<Guard>;
        wait fn attach(&self, handle: &Handle) -> Result<Guard>;
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(run(self.lock.try_acquire())?.map(Guard::from))
    }

    /// Acquires, runs `work`, releases, as [`crate::Lock::scope`]. A closure cannot be stopped from outside:
    /// let long work ask [`Guard::check`] now and then.
    ///
    /// # Errors
    /// As there.
    pub fn scope<T, E: From<Error>>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E> {
        let guard = self.acquire()?;
        let out = work(&guard).and_then(|out| {
            guard.check()?;
            Ok(out)
        });
        if out.is_err() && guard.state().is_lost() {
            return out;
        }
        outcome(out, guard.release())
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
        fn name(&self) -> &Name;
        fn token(&self) -> FencingToken;
        fn owner(&self) -> Owner;
        fn watch(&self) -> Watch;
        fn valid_for(&self) -> Option<Duration>;
        fn state(&self) -> State;
        fn check(&self) -> Result<()>;
        wait fn extend(&self) -> Result<Option<Duration>>;
        wait fn extend_to(&self, ttl: Duration) -> Result<Option<Duration>>;
        wait fn release(self) -> Result<()>;
        wait fn detach(self) -> Result<Handle>;
    }

    /// Waits until the lock is lost and says why.
    ///
    /// # Errors
    /// [`Error::Invalid`] in an async task.
    pub fn lost(&self) -> Result<Loss> {
        run(async { Ok(self.guard.lost().await) })
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

    same_as! { crate::LockSet, set:
        wait fn acquire(&self) -> Result<GuardSet>;
    }

    /// See [`crate::LockSet::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<GuardSet>> {
        Ok(run(self.set.try_acquire())?.map(|guards| GuardSet { guards }))
    }

    /// Acquires all of them, runs `work`, releases. See [`Lock::scope`].
    ///
    /// # Errors
    /// As [`crate::LockSet::scope`].
    pub fn scope<T, E: From<Error>>(&self, work: impl FnOnce(&GuardSet) -> Result<T, E>) -> Result<T, E> {
        let guards = self.acquire()?;
        let out = work(&guards).and_then(|out| {
            guards.check()?;
            Ok(out)
        });
        if out.is_err() && guards.state().is_lost() {
            return out;
        }
        outcome(out, guards.release())
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
        fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)>;
        fn token(&self, name: &str) -> Option<FencingToken>;
        fn valid_for(&self) -> Option<Duration>;
        fn state(&self) -> State;
        fn check(&self) -> Result<()>;
        wait fn release(self) -> Result<()>;
    }
}
