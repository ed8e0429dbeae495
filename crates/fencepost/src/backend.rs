//! What a store has to do. Mechanism lives behind this interface; policy (deadlines, retries, renewal
//! cadence, the loss deadline, drop, counters) is written once, in front of it.
//!
//! No method has a default body: a wrapper that forgets one must not compile. A store tells the core about a
//! loss it was pushed by raising the request's [`LossSignal`], so no task has to watch each held lock.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

pub use crate::owner::Identity;
pub use crate::runtime::clock::{Clock, Moment};
pub use crate::runtime::fork::{PerProcess, generation};
pub use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::wait::PATIENCE;
use crate::{FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result, Source};

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
    /// How long a caller that is waiting sits out an outage. Ten seconds unless told otherwise.
    pub patience: Duration,
}

impl Capabilities {
    pub(crate) fn new(store: String, leases: bool, detach: bool, fair: bool) -> Self {
        Self { store, leases, detach, fair, patience: PATIENCE }
    }

    /// Describes a store whose locks end with their process, cannot be detached, and are served in no order.
    pub fn of(store: impl Into<String>) -> Self {
        Self::new(store.into(), false, false, false)
    }

    /// Held locks are leases that end by themselves.
    #[must_use]
    pub fn leases(self) -> Self {
        Self { leases: true, ..self }
    }

    /// How long a caller that is waiting sits out an outage.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Locks can be detached and attached again.
    #[must_use]
    pub fn detach(self) -> Self {
        Self { detach: true, ..self }
    }

    /// Waiters are served in order.
    #[must_use]
    pub fn fair(self) -> Self {
        Self { fair: true, ..self }
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

/// One attempt to acquire a lock. Its identity is fresh and is never used again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to lock.
    pub name: Name,
    /// Who asks.
    pub identity: Identity,
    /// Exclusive, for now: here so that shared locks and permits need no new interface.
    #[cfg_attr(not(feature = "unstable-backend"), allow(dead_code))]
    pub mode: Mode,
    /// How long the lease must last.
    pub ttl: Duration,
    /// Free text shown to others.
    pub note: Arc<str>,
    /// Where the store says that it took the lock away.
    pub signal: Arc<LossSignal>,
    /// Where the store says whom it saw holding the lock, for the error if the wait ends in vain.
    pub seen: Arc<WaitObservation>,
}

impl Request {
    pub(crate) fn new(name: Name, ttl: Duration, note: Arc<str>, seen: Arc<WaitObservation>) -> Self {
        let (identity, signal) = (Identity::fresh(&name), Arc::default());
        Self { name, identity, mode: Mode::Exclusive, ttl, note, signal, seen }
    }

    /// Who asks, as the store keeps it.
    pub fn owner(&self) -> Owner {
        self.identity.owner()
    }
}

/// What a waiting request last saw in its way.
#[derive(Debug, Default)]
pub struct WaitObservation {
    holder: Mutex<Option<Holder>>,
    obstacle: Mutex<Option<Source>>,
    answers: AtomicU64,
}

impl WaitObservation {
    /// Notes who holds the lock: an answer, too.
    pub fn note(&self, holder: Holder) {
        *lock(&self.holder) = Some(holder);
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes why the store cannot grant the lock to anybody for now; `None` when it can again.
    pub fn obstacle(&self, why: Option<Source>) {
        *lock(&self.obstacle) = why;
    }

    /// Notes that the store has done something for this request just now, where no holder was seen: whatever
    /// fails next is an outage that begins now. Takes the obstacle away.
    pub fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.obstacle(None);
    }

    /// How often it has.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(crate) fn holder(&self) -> Option<Box<Holder>> {
        lock(&self.holder).clone().map(Box::new)
    }

    /// Whether the store has said anything yet.
    pub(crate) fn anything(&self) -> bool {
        self.answers() > 0 || lock(&self.holder).is_some() || lock(&self.obstacle).is_some()
    }

    pub(crate) fn take_obstacle(&self) -> Option<Source> {
        lock(&self.obstacle).take()
    }
}

/// The answer to a try.
#[derive(Debug)]
#[non_exhaustive]
pub enum TryOutcome {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it.
    Busy(Option<Holder>),
}

/// A granted lock.
#[derive(Debug)]
#[non_exhaustive]
pub struct Grant {
    /// Who holds the lock: the request's identity, unless the store needed several attempts, each with one of
    /// its own.
    pub identity: Identity,
    /// The token of this grant.
    pub token: FencingToken,
    /// When the request that this grant answers was sent: validity counts from here.
    pub sent: Moment,
    /// How long the store keeps it without renewal; `None` where it ends with the process.
    pub term: Option<Duration>,
    /// Granted by a push, some time after the request was answered: says nothing about the store's round
    /// trips.
    pub pushed: bool,
    /// The hold itself.
    pub hold: Arc<dyn Hold>,
}

impl Grant {
    /// Grants what `request` asked for, by an answer to a message that was sent at `sent`.
    pub fn new(request: &Request, token: FencingToken, sent: Moment, hold: Arc<dyn Hold>) -> Self {
        Self { identity: request.identity, token, sent, term: Some(request.ttl), pushed: false, hold }
    }
}

/// What a renewal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// Renewed by a request sent at `sent`, for `term` (`None`: has no end).
    #[non_exhaustive]
    Renewed {
        /// When the request was sent.
        sent: Moment,
        /// For how long it asked.
        term: Option<Duration>,
    },
    /// The lock is gone.
    Lost(Loss),
}

impl Renewal {
    /// Renewed by a request sent at `sent`, for `term` (`None`: has no end).
    pub fn renewed(sent: Moment, term: Option<Duration>) -> Self {
        Self::Renewed { sent, term }
    }
}

/// How to take a lock away from its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceRelease {
    /// Why, for the holder and its logs. At most 1024 bytes.
    pub reason: String,
    /// Frees the lock at once, while the holder may still work, instead of asking for it back.
    pub now: bool,
    /// Only from the holder that has this token.
    pub token: Option<FencingToken>,
}

impl ForceRelease {
    /// Tells the holder the reason and refuses its renewals. The lock is free when it lets go or its lease
    /// ends.
    pub fn ask(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), now: false, token: None }
    }

    /// Frees the lock at once, while the holder may still work.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { now: true, ..Self::ask(reason) }
    }

    /// Only from the holder that has this token: whoever has come after it keeps the lock.
    #[must_use]
    pub fn if_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Whether this is the holder that is meant.
    pub fn means(&self, holder: &Holder) -> bool {
        self.token.is_none_or(|token| holder.token == Some(token))
    }
}

impl From<&str> for ForceRelease {
    fn from(reason: &str) -> Self {
        Self::ask(reason)
    }
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
    pub(crate) fn new(holder: Holder, token: FencingToken, freed: bool) -> Self {
        Self { holder, token, freed }
    }

    /// A lock that was asked back: it is free when its holder lets go or its lease ends.
    pub fn asked(holder: Holder, token: FencingToken) -> Self {
        Self::new(holder, token, false)
    }

    /// A lock that is free already.
    pub fn freed(holder: Holder, token: FencingToken) -> Self {
        Self::new(holder, token, true)
    }
}

/// A store of locks.
///
/// Every method may be called from any tokio runtime, also from several at once, and every future may be
/// dropped at any await: a request that was not answered must then be undone by the store itself, in the
/// background. What undoes it must reach the server after it. A dropped [`attach`](Self::attach) leaves the
/// handle as good as it was.
///
/// # Tokens
/// A token is larger than each one that the name had before: one more than the last, or the wall clock of
/// the server in microseconds if that is larger, and below 2^53. The record of the last token outlives the
/// lock and has an end itself: it may go when the clock is safely past it (an hour on Redis). A number that
/// the server counts up by itself needs no record (etcd's revision).
///
/// # Forks
/// The core refuses calls in a forked child, and drops no guard there. A store's own drops (a future under
/// way, a hold) compare [`generation`] with that of their making and do nothing in another one. They take no
/// mutex first: a thread that is not in the child may have it. What is static belongs in [`PerProcess`].
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The clock its moments are of.
    fn clock(&self) -> &Clock;

    /// Takes the lock if it is free now.
    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome>;

    /// Waits for the lock, however long that takes: the caller drops the future at its deadline. Returns an
    /// error only if waiting makes no sense any more or the store failed; the core decides whether to try
    /// again. [`Uncertain`](crate::Error::Uncertain) if a request may have been granted and is being undone:
    /// the core then asks once more at once.
    ///
    /// While it waits it tells `request.seen` each holder that it sees, and what keeps the store from
    /// granting locks. A store that has answered without naming a holder calls
    /// [`answered`](WaitObservation::answered). A wait that has heard nothing ends with its first outage.
    /// One that has sits out ten seconds, counted from the last answer. A timeout that saw no holder is an
    /// outage.
    async fn acquire(&self, request: &Request) -> Result<Grant>;

    /// Takes over a detached lock, for `request.ttl` and under the request's identity: from then on the
    /// handle is good for nothing. The token stays what the store has. [`Error::Lost`](crate::Error::Lost) if
    /// the lock is no longer held under the handle's owner and token: as `Expired` if nothing is there any
    /// more, `Taken` if somebody else holds it, `ForceReleased` if it was asked back.
    ///
    /// If the future is dropped, the lock is the handle's as before, and can be attached again: a request
    /// that may have taken it over is taken back.
    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant>;

    /// Makes a detached lock end `term` from now, unless it ends later already, by requests that are
    /// conditional on it and leave the identity as it is. Writes nothing that the handle says; a handle with
    /// another token than the store's is refused as lost, with the causes of [`attach`](Self::attach).
    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal>;

    /// Gives a detached lock back, revoked or not: `true` if it was still the handle's. Does not renew it
    /// first.
    async fn release(&self, handle: &Handle) -> Result<bool>;

    /// All holders whose name starts with `prefix`, by name. An entry that cannot be read hides no other.
    async fn list(&self, prefix: &str) -> Result<Listing>;

    /// The holder of one name.
    async fn show(&self, name: &Name) -> Result<Option<Holder>>;

    /// Takes the lock away from the holder that is found first: politely, by refusing renewals and telling
    /// it, or at once with `now`. `None` if nobody holds it. [`Error::Changed`](crate::Error::Changed) if
    /// another one than was meant, or than was found first, holds it by now: that one keeps it.
    ///
    /// It draws a token. The victim's entry keeps its own, and the next grant gets a larger one than
    /// [`Revoked::token`].
    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>>;

    /// Whether the store can grant locks now; the error says what is in the way.
    async fn check(&self) -> Result<()>;

    /// Waits until all that dropped futures have left behind is undone. So what undoes something counts from
    /// before it is posted.
    async fn settle(&self);

    /// Ends the connections and what runs in the background for this store. Held locks stay held: their
    /// renewals and releases still work, and connect anew if they have to.
    async fn close(&self);
}

/// One held lock, as its store sees it. Conditional on its owner in everything it does.
///
/// The core gives back each grant that it was given: a guard's drop calls [`release`](Self::release) in the
/// background, until the store answers or the lease has ended. The store gives back a grant that nobody takes
/// from it: where one goes through a channel of its own, the hold's drop does that. In a forked child a drop
/// does nothing.
#[async_trait]
pub trait Hold: Any + Debug + Send + Sync + 'static {
    /// Sets the lease to end `term` from now, if the lock is still ours. Never re-creates it. The core asks
    /// for no term that shortens the lease.
    ///
    /// A lock that was asked back is lost as `ForceReleased`, and is still freed by
    /// [`release`](Self::release). One whose session has ended at the server is lost as `SessionEnded`. An
    /// entry that is gone, or somebody else's, is `Taken`: for a lease that ended by itself the guard's clock
    /// has said so before.
    async fn renew(&self, term: Duration) -> Result<Renewal>;

    /// Gives the lock back: `true` if it was still ours. May be called again after an error.
    async fn release(&self) -> Result<bool>;

    /// Turns the lock into a lease of `term` that outlives this process and that nobody renews. Where locks
    /// are leases anyway, a renewal.
    async fn detach(&self, term: Duration) -> Result<Renewal>;

    /// A descriptor that keeps the lock held for as long as any process has it open, where the store works
    /// that way.
    fn lifeline(&self) -> Option<BorrowedFd<'_>>;
}

/// The runtime on the keeper's thread, for stores and for bindings to other languages. Whatever runs there
/// must never block: the renewals of all locks of this process wait for it.
///
/// # Errors
/// [`Unavailable`](crate::Error::Unavailable) if the thread cannot be started.
pub fn runtime() -> Result<tokio::runtime::Handle> {
    crate::runtime::keeper::runtime()
}
