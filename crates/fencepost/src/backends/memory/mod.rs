//! Locks inside this process: the double for tests of code that uses locks.
//!
//! Behaves like a store with leases, on a clock and with faults of the test's choosing: see [`Store`].
//!
//! Tokio's paused clock moves no lease: they follow the system's clock, which counts suspend, or a
//! [`ManualClock`]. Leave `start_paused` out: under it a timeout around a call, which another thread may
//! answer, fires at once.

mod config;
mod held;
mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;

use self::config::Config;
use self::held::{Held, MemoryLock};
use crate::backend::Backend;
use crate::backends::StoreKind;
use crate::runtime::clock::Clock;
use crate::runtime::sync::lock;
use crate::url::StoreUrl;
use crate::{Error, Locks, Loss, Name, Result};

pub use crate::runtime::clock::ManualClock;

/// A store in memory, with faults on demand.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use fencepost::memory::{ManualClock, Store};
/// use fencepost::{Loss, State};
///
/// let clock = ManualClock::new();
/// let store = Store::with_clock(&clock);
/// let locks = store.locks()?;
/// let guard = locks.lock("job").ttl(Duration::from_secs(30)).acquire().await?;
///
/// clock.advance(Duration::from_secs(600)).await;              // time passes, renewals are made
/// assert!(matches!(guard.state(), State::Held { .. }));
///
/// clock.leap(Duration::from_secs(60));                        // the process was frozen for a minute
/// assert_eq!(guard.state(), State::Lost(Loss::Paused));
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Store(Arc<Memory>);

/// A kind of call to the store, for [`Store::fail`], [`Store::lose_answers`] and [`Store::delay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Acquire, try, and attach.
    Acquire,
    /// Renewals by the keeper, extensions by the caller, and detach.
    Renew,
    /// Releases.
    Release,
}

#[derive(Debug)]
struct Memory {
    clock: Clock,
    names: Mutex<BTreeMap<Name, MemoryLock>>,
    /// By the kind of call.
    faults: Mutex<[Faults; 3]>,
    frozen: watch::Sender<bool>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Faults {
    fail: usize,
    lose: usize,
    delay: Duration,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    parameters: config::PARAMETERS,
    ..StoreKind::new("memory", "this process, for tests", &["memory:"], |url| Box::pin(connect(url)))
};

/// `memory:` is a new store each time; `memory:WORD` is the same one for the same word, in this process.
pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    static NAMED: Mutex<BTreeMap<String, Weak<Memory>>> = Mutex::new(BTreeMap::new());
    let Config { word } = Config::from_url(url)?;
    if word.is_empty() {
        return Ok(Arc::new(Store::new()));
    }
    let mut named = lock(&NAMED);
    let known = named.get(&word).and_then(Weak::upgrade);
    let store = known.map_or_else(Store::new, Store);
    named.insert(word, Arc::downgrade(&store.0));
    Ok(Arc::new(store))
}

impl Default for Store {
    fn default() -> Self {
        Self::on(Clock::system())
    }
}

impl Store {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store on a clock that the test moves.
    pub fn with_clock(clock: &ManualClock) -> Self {
        Self::on(clock.clock())
    }

    fn on(clock: Clock) -> Self {
        let (names, faults) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Memory { clock, names, faults, frozen: watch::Sender::new(false) }))
    }

    /// The locks of this store. Each call counts its own statistics; all see the same locks.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the keeper's thread cannot be started.
    pub fn locks(&self) -> Result<Locks> {
        Locks::assemble(Arc::new(self.clone()), None)
    }

    /// Ends the lease of a name now, without telling the holder, as if the store's timer had run out early.
    /// `false` if nobody holds it.
    pub fn expire(&self, name: &str) -> bool {
        self.end(name, |_| {})
    }

    /// Takes a lock away and tells the holder at once, as a push would. `false` if nobody holds it.
    pub fn lose(&self, name: &str, why: Loss) -> bool {
        self.end(name, |held| held.signal.raise(why))
    }

    /// Lets the next `times` calls of a kind fail without having any effect.
    pub fn fail(&self, call: Call, times: usize) {
        lock(&self.0.faults)[call as usize].fail = times;
    }

    /// Lets the next `times` calls of a kind take effect, and loses their answers.
    pub fn lose_answers(&self, call: Call, times: usize) {
        lock(&self.0.faults)[call as usize].lose = times;
    }

    /// Delays the answers to a kind of call, after they have taken effect. Zero ends it.
    pub fn delay(&self, call: Call, by: Duration) {
        lock(&self.0.faults)[call as usize].delay = by;
    }

    /// Stops answering. Calls hang, without effect, until [`thaw`](Self::thaw).
    pub fn freeze(&self) {
        self.0.frozen.send_replace(true);
    }

    /// Answers again.
    pub fn thaw(&self) {
        self.0.frozen.send_replace(false);
    }

    /// How many locks are held now.
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        names.values_mut().filter_map(|entry| entry.current(now)).count()
    }

    /// Frees a lock; `false` if nobody holds it.
    fn end(&self, name: &str, tell: impl FnOnce(&Held)) -> bool {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let entry = Name::new(name).ok().and_then(|name| names.get_mut(&name));
        let Some(entry) = entry else { return false };
        let Some(held) = entry.current(now) else { return false };
        tell(held);
        entry.free();
        true
    }

    /// What happens to a call before it takes effect.
    async fn before(&self, call: Call) -> Result<()> {
        let mut frozen = self.0.frozen.subscribe();
        // The sender lives in `self`.
        let _ = frozen.wait_for(|frozen| !frozen).await;
        let faults = &mut lock(&self.0.faults)[call as usize];
        if faults.fail > 0 {
            faults.fail -= 1;
            return Err(unavailable("a scripted fault"));
        }
        Ok(())
    }

    /// What happens to its answer.
    async fn after(&self, call: Call) -> Result<()> {
        let Faults { delay, lose, .. } = {
            let faults = &mut lock(&self.0.faults)[call as usize];
            let now = *faults;
            faults.lose = faults.lose.saturating_sub(1);
            now
        };
        if !delay.is_zero() {
            self.0.clock.sleep_until(self.0.clock.now().plus(delay)).await;
        }
        if lose > 0 {
            return Err(unavailable("a scripted fault: the answer was lost"));
        }
        Ok(())
    }
}

fn unavailable(what: &str) -> Error {
    Error::Unavailable { store: "memory:".to_owned(), source: what.into() }
}
