//! What a store has to do. Mechanism lives behind this interface; policy (deadlines, retries, renewal cadence,
//! the loss deadline, drop, counters) is written once, in front of it.
//!
//! No method has a default body: a wrapper that forgets one must not compile. A store tells the core about a loss
//! it was pushed by raising the request's [`Signal`], so no task has to watch each held lock.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::{FencingToken, Handle, Holder, Loss, Name, Owner, Result, Source};

/// What a store can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store, for messages; never with a password.
    pub store: String,
    /// Held locks are leases that end by themselves; `false` where they end with their process.
    pub leases: bool,
    /// Locks can be detached and attached again.
    pub detach: bool,
    /// Waiters are served in order.
    pub fair: bool,
}

impl Capabilities {
    /// Describes a store.
    pub fn new(store: String, leases: bool, detach: bool, fair: bool) -> Self {
        Self { store, leases, detach, fair }
    }
}

/// The kind of hold that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    #[default]
    Exclusive,
}

/// One attempt to acquire a lock. Its owner is fresh and is never used again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to lock.
    pub name: Name,
    /// Who asks.
    pub owner: Owner,
    /// Exclusive, for now: here so that shared locks and permits need no new interface.
    #[cfg_attr(not(feature = "unstable-backend"), allow(dead_code))]
    pub mode: Mode,
    /// How long the lease shall last.
    pub ttl: Duration,
    /// Free text shown to others.
    pub note: Arc<str>,
    /// Where the store says that it took the lock away.
    pub signal: Arc<Signal>,
    /// Where the store says whom it saw holding the lock, for the error if the wait ends in vain.
    pub seen: Arc<Seen>,
}

impl Request {
    pub(crate) fn new(name: Name, ttl: Duration, note: Arc<str>, seen: Arc<Seen>) -> Self {
        let (owner, signal) = (Owner::fresh(), Arc::default());
        Self { name, owner, mode: Mode::Exclusive, ttl, note, signal, seen }
    }
}

/// What a waiting request last saw in its way.
#[derive(Debug, Default)]
pub struct Seen {
    holder: Mutex<Option<Holder>>,
    obstacle: Mutex<Option<Source>>,
}

impl Seen {
    /// Notes who holds the lock.
    pub fn note(&self, holder: Holder) {
        *lock(&self.holder) = Some(holder);
    }

    /// Notes why the store cannot grant the lock to anybody for now; `None` when it can again.
    pub fn obstacle(&self, why: Option<Source>) {
        *lock(&self.obstacle) = why;
    }

    pub(crate) fn holder(&self) -> Option<Box<Holder>> {
        lock(&self.holder).clone().map(Box::new)
    }

    /// Whether the store has said anything yet.
    pub(crate) fn anything(&self) -> bool {
        lock(&self.holder).is_some() || lock(&self.obstacle).is_some()
    }

    pub(crate) fn take_obstacle(&self) -> Option<Source> {
        lock(&self.obstacle).take()
    }
}

/// Carries a loss from the store to the guard, and wakes whoever watches it.
#[derive(Debug, Default)]
pub struct Signal {
    loss: OnceLock<Loss>,
    changed: Notify,
}

impl Signal {
    /// Declares the lock lost. Only the first call counts.
    pub fn raise(&self, loss: Loss) {
        if self.loss.set(loss).is_ok() {
            self.wake();
        }
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `look` finds something, looking whenever something may have changed.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listen before the look: a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }
}

/// The answer to a try.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it.
    Busy(Option<Holder>),
}

/// A granted lock.
#[derive(Debug)]
pub struct Grant {
    /// Who holds the lock: the request's owner, unless the store needed several attempts, each with an identity of its
    /// own.
    pub owner: Owner,
    /// The token of this grant.
    pub token: FencingToken,
    /// When the request that this grant answers was sent: validity counts from here.
    pub sent: Moment,
    /// How long the store keeps it without renewal; `None` where it ends with the process.
    pub term: Option<Duration>,
    /// Granted by a push, some time after the request was answered: says nothing about the store's round trips.
    pub pushed: bool,
    /// The hold itself.
    pub hold: Arc<dyn Hold>,
}

/// What a renewal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// Renewed by a request sent at `sent`, for `term` (`None`: has no end).
    Renewed {
        /// When the request was sent.
        sent: Moment,
        /// For how long it asked.
        term: Option<Duration>,
    },
    /// The lock is gone.
    Lost(Loss),
}

/// What a force-release came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revoked {
    /// Who held the lock.
    pub holder: Holder,
    /// A fresh token, larger than the victim's: recording it at the protected resource is what retires the
    /// victim's.
    pub token: FencingToken,
    /// Whether the lock is free already. If not, it is when the victim lets go or its lease ends.
    pub freed: bool,
}

impl Revoked {
    /// Describes a force-release.
    pub fn new(holder: Holder, token: FencingToken, freed: bool) -> Self {
        Self { holder, token, freed }
    }
}

/// A store of locks.
///
/// Every method may be called from any tokio runtime, also from several at once, and every future may be dropped
/// at any await: a request that was not answered must then be undone by the store itself, in the background.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The clock its moments are of.
    fn clock(&self) -> &Clock;

    /// Takes the lock if it is free now.
    async fn try_acquire(&self, request: &Request) -> Result<Attempt>;

    /// Waits for the lock, however long that takes: the caller drops the future at its deadline. Returns an error
    /// only if waiting makes no sense any more or the store failed; the core decides whether to try again.
    async fn acquire(&self, request: &Request) -> Result<Grant>;

    /// Takes over a detached lock by one conditional renewal for `request.ttl`. [`Error::Lost`](crate::Error::Lost)
    /// if it is no longer held under the handle's owner. The request's own owner is not used.
    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant>;

    /// All holders whose name starts with `prefix`, by name.
    async fn list(&self, prefix: &str) -> Result<Vec<Holder>>;

    /// The holder of one name.
    async fn show(&self, name: &Name) -> Result<Option<Holder>>;

    /// Takes the lock away from its holder: politely, by refusing renewals and telling it, or at once with `now`.
    /// `None` if nobody holds it.
    async fn force_release(&self, name: &Name, reason: &str, now: bool) -> Result<Option<Revoked>>;

    /// Whether the store can grant locks now; the error says what is in the way.
    async fn check(&self) -> Result<()>;

    /// Waits until all that dropped futures have left behind is undone.
    async fn settle(&self) {}

    /// Ends what runs in the background for this store. Held locks stay held.
    async fn close(&self);
}

/// One held lock, as its store sees it. Conditional on its owner in everything it does.
#[async_trait]
pub trait Hold: Any + Debug + Send + Sync + 'static {
    /// Sets the lease to end `term` from now, if the lock is still ours. Never re-creates it.
    async fn renew(&self, term: Duration) -> Result<Renewal>;

    /// Gives the lock back: `true` if it was still ours. May be called again after an error.
    async fn release(&self) -> Result<bool>;

    /// Turns the lock into a lease of `term` that outlives this process and that nobody renews. Where locks are leases
    /// anyway, a renewal.
    async fn detach(&self, term: Duration) -> Result<Renewal>;

    /// A descriptor that keeps the lock held for as long as any process has it open, where the store works that
    /// way.
    fn lifeline(&self) -> Option<BorrowedFd<'_>>;
}

/// The runtime on the keeper's thread, for stores and for bindings to other languages. Whatever runs there must never block:
/// the renewals of all locks of this process wait behind it.
///
/// # Errors
/// [`Unavailable`](crate::Error::Unavailable) if the thread cannot be started.
#[cfg(feature = "unstable-backend")]
pub fn runtime() -> Result<tokio::runtime::Handle> {
    Ok(crate::keeper::Keeper::of(&Clock::system())?.runtime().clone())
}

/// How many forks there were above this process since the library was first used. What was made in another generation
/// belongs to the parent, which shares its sockets with us: leave it alone, and do not drop it.
#[cfg(feature = "unstable-backend")]
pub fn generation() -> u32 {
    crate::fork::generation()
}

#[cfg(feature = "unstable-backend")]
pub use crate::fork::PerProcess;

/// Locks a mutex; a panic elsewhere while it was held cannot have left half a change behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
