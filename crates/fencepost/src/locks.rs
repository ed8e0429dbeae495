//! The entry: one store, by its URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Capabilities, ForceRelease, Renewal, Revoked};
use crate::backends::{self, Init};
use crate::options::{DEFAULT_TTL, Options, check_text, check_ttl};
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::Clock;
use crate::runtime::fork;
use crate::runtime::keeper::Keeper;
use crate::stats::{Counters, Stats};
use crate::text::printable;
use crate::{ConnectOptions, Error, Guard, Handle, Holder, Listing, Lock, LockSet, Name, Result};

/// How long [`Locks::close`] waits for what is still under way.
const CLOSE: Duration = Duration::from_secs(5);

/// The locks of one store. Cheap to clone; share one per process. A forked child has to connect anew: what it
/// has inherited refuses, and leaves its parent's locks alone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let locks = fencepost::Locks::connect("memory:").await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// assert!(locks.lock("order:42").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks(Arc<Shared>);

struct Shared {
    backend: Arc<dyn Backend>,
    clock: Clock,
    keeper: Arc<Keeper>,
    counters: Arc<Counters>,
    default_ttl: Duration,
    /// Background releases under way.
    releases: BackgroundTasks,
    /// Of the process that connected.
    generation: u32,
}

impl Locks {
    /// Connects to the store that `url` names, such as `file:///var/lock/app` or `redis://127.0.0.1:6379`.
    /// Checks that it is fit for locks.
    ///
    /// [`stores`](crate::stores) lists the stores that are built in, with the forms of their URLs and their
    /// parameters; `docs/stores` has a page for each. Every URL takes the parameter `ttl`, that of locks that
    /// name none. [`ConnectOptions`] have what a URL cannot say.
    ///
    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for a URL that makes no sense,
    /// [`Unavailable`](crate::Error::Unavailable) if the store does not answer,
    /// [`Config`](crate::Error::Config) if it refuses us or is not fit for locks.
    pub async fn connect(url: impl Into<ConnectOptions>) -> Result<Self> {
        let (backend, ttl) = backends::connect(url.into()).await?;
        Self::assemble(backend, ttl)
    }

    /// Declares a new deployment to a store that needs that, and says what was done, node by node; nothing
    /// where a store needs none.
    ///
    /// For `postgres:` it makes the schema, for programs whose user may not.
    ///
    /// For `redlock:`, new nodes vote at once instead of after their quarantine; for `redis+sentinel:` a new
    /// master grants locks at once. Only an operator can know that they are new: do not call this when a
    /// program starts.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Config`](crate::Error::Config) if the deployment exists already, or
    /// is in use.
    pub async fn init(url: impl Into<ConnectOptions>) -> Result<Vec<String>> {
        backends::init(url.into(), Init::New).await
    }

    /// Declares a change of a deployment: other nodes, or other limits. Else as [`init`](Self::init).
    ///
    /// # Errors
    /// As [`init`](Self::init); [`Unsupported`](crate::Error::Unsupported) where a store has no configuration
    /// of its own.
    pub async fn reconfigure(url: impl Into<ConnectOptions>) -> Result<Vec<String>> {
        backends::init(url.into(), Init::Change).await
    }

    /// Locks over a store of your own.
    ///
    /// # Errors
    /// [`Unavailable`](crate::Error::Unavailable) if the keeper's thread cannot be started.
    #[cfg(feature = "unstable-backend")]
    pub fn from_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        Self::assemble(backend, None)
    }

    pub(crate) fn assemble(backend: Arc<dyn Backend>, ttl: Option<Duration>) -> Result<Self> {
        let clock = backend.clock().clone();
        let keeper = Keeper::of(&clock)?;
        let default_ttl = ttl.unwrap_or(DEFAULT_TTL);
        let (counters, releases) = (Arc::default(), BackgroundTasks::default());
        let generation = fork::generation();
        Ok(Self(Arc::new(Shared { backend, clock, keeper, counters, default_ttl, releases, generation })))
    }

    /// A lock by name. Holds nothing yet; a bad name is reported when it is acquired.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into(), Options::new(self.0.default_ttl))
    }

    /// Several locks that are acquired together: in the order of their names, all or none, with a token each.
    pub fn all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> LockSet {
        let names = names.into_iter().map(Into::into).collect();
        LockSet::new(self.clone(), names, Options::new(self.0.default_ttl))
    }

    /// The ttl of locks that name none: the store URL's `ttl`, else 30 s.
    pub fn default_ttl(&self) -> Duration {
        self.0.default_ttl
    }

    /// Goes on with a lock that was detached, maybe by another process. Holds nothing until the store has
    /// answered. The lock has a new identity from then on: of two that attach one handle, one gets the lock
    /// and the other one `Lost`, and this handle is good for nothing any more. For other options than the
    /// defaults use [`Lock::attach`].
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the lock is no longer held under this handle.
    pub async fn attach(&self, handle: &Handle) -> Result<Guard> {
        self.lock(handle.name().as_str()).attach(handle).await
    }

    /// Makes a detached lock end `ttl` from now, unless it ends later already, by one conditional renewal.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the lock is no longer held under this handle.
    /// [`Uncertain`](crate::Error::Uncertain) if the store did not answer: it ends when it would have, or
    /// later.
    pub async fn extend(&self, handle: &Handle, ttl: Duration) -> Result<()> {
        check_ttl(ttl)?;
        let renewed = self.backend()?.renew(handle, ttl).await;
        match renewed.map_err(|error| error.of_change(handle.name()))? {
            Renewal::Renewed { .. } => Ok(()),
            Renewal::Lost(why) => Err(Error::lost(handle.name(), why)),
        }
    }

    /// Gives a detached lock back; if it was force-released, that is the holder's consent.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the lock is no longer held under this handle,
    /// [`Uncertain`](crate::Error::Uncertain) if the store did not answer: the lock ends with its ttl then.
    pub async fn release(&self, handle: &Handle) -> Result<()> {
        match self.backend()?.release(handle).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::lost(handle.name(), crate::Loss::Taken)),
            Err(error) => Err(error.of_change(handle.name())),
        }
    }

    /// All holders whose name starts with `prefix` (empty: all), by name, and what could not be read.
    ///
    /// # Errors
    /// As the store fails.
    pub async fn list(&self, prefix: &str) -> Result<Listing> {
        self.backend()?.list(prefix).await
    }

    /// Who holds a lock; `None` if nobody does.
    ///
    /// # Errors
    /// As the store fails, and [`Invalid`](crate::Error::Invalid) for a bad name.
    pub async fn show(&self, name: &str) -> Result<Option<Holder>> {
        self.backend()?.show(&Name::new(name)?).await
    }

    /// Takes a lock away from its holder, which learns the reason; [`ForceRelease`] says how, and a text
    /// alone asks for it. The lock is free when the holder lets go or its lease ends, or at once. `None` if
    /// nobody holds it.
    ///
    /// The token in the answer is larger than the victim's: only recording it at the protected resource keeps
    /// a victim that does not listen from writing.
    ///
    /// # Errors
    /// [`Changed`](crate::Error::Changed) if another one than was meant holds the lock by now. As the store
    /// fails, and [`Invalid`](crate::Error::Invalid) for a bad name or a reason of more than 1024 bytes.
    pub async fn force_release(&self, name: &str, how: impl Into<ForceRelease>) -> Result<Option<Revoked>> {
        let how = how.into();
        check_text("reason", &how.reason)?;
        let revoked = self.backend()?.force_release(&Name::new(name)?, &how).await?;
        if let Some(revoked) = &revoked {
            let (name, reason, token) = (printable(name), printable(&how.reason), revoked.token.get());
            let (freed, victim) = (revoked.freed, &revoked.holder);
            tracing::warn!(%name, %reason, token, freed, %victim, "lock force-released");
        }
        Ok(revoked)
    }

    /// Whether the store can grant locks now.
    ///
    /// # Errors
    /// What is in the way: the store is out of reach, or its nodes do not vote (any more, or not yet).
    pub async fn check(&self) -> Result<()> {
        self.backend()?.check().await
    }

    /// What this store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.0.backend.capabilities()
    }

    /// What was done through this value and its clones so far.
    pub fn stats(&self) -> Stats {
        self.0.counters.read()
    }

    /// Waits for the releases of dropped guards and the undoing of dropped acquires that are still under way,
    /// a few seconds at most, and ends the connections. Guards that are still held stay held, and are not
    /// renewed any more once their process ends.
    pub async fn close(self) {
        if self.is_inherited() {
            return;
        }
        let deadline = self.0.clock.now().plus(CLOSE);
        let settled = async {
            self.0.releases.done().await;
            self.0.backend.settle().await;
        };
        if self.0.clock.within(Some(deadline), settled).await.is_none() {
            let store = self.capabilities().store;
            tracing::warn!(
                store,
                "no answer in time: locks that were just given back may last until their ttl"
            );
        }
        self.0.backend.close().await;
    }

    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.0.releases.spawn(&self.0.keeper, job);
    }

    /// The store, unless it is that of the process that this one was forked from.
    pub(crate) fn backend(&self) -> Result<&dyn Backend> {
        if self.is_inherited() {
            return Err(fork::refusal());
        }
        Ok(&*self.0.backend)
    }

    fn is_inherited(&self) -> bool {
        self.0.generation != fork::generation()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.0.keeper
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.0.counters
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // Closing what a child has inherited would reach into its parent's sockets and timers.
        if self.is_inherited() {
            std::mem::forget(self.0.clone());
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locks").field(&self.capabilities().store).finish()
    }
}
