//! Locks inside this process: the double for tests of code that uses locks.
//!
//! Behaves like a store with leases, on a clock and with faults of the test's choosing: see [`Store`].

mod backend;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};

use self::backend::{MemoryHold, Undo};
use crate::backend::{Backend, Grant, Request};
use crate::backends::StoreKind;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::url::StoreUrl;
use crate::{Error, FencingToken, Holder, Locks, Loss, Name, Owner, Result};

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
pub struct Store(Arc<Shared>);

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
struct Shared {
    clock: Clock,
    names: Mutex<BTreeMap<Name, Entry>>,
    faults: Mutex<[Faults; 3]>,
    frozen: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Entry {
    last_token: u64,
    holder: Option<Held>,
    queue: VecDeque<Arc<Notify>>,
}

#[derive(Debug)]
struct Held {
    owner: Owner,
    token: FencingToken,
    until: Moment,
    since: SystemTime,
    note: Arc<str>,
    signal: Arc<LossSignal>,
    revoked: Option<String>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Faults {
    fail: usize,
    lose: usize,
    delay: Duration,
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
        Self(Arc::new(Shared {
            clock,
            names: Mutex::default(),
            faults: Mutex::default(),
            frozen: watch::Sender::new(false),
        }))
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
        self.with_holder(name, |entry| {
            entry.holder = None;
            entry.wake();
        })
    }

    /// Takes a lock away and tells the holder at once, as a push would. `false` if nobody holds it.
    pub fn lose(&self, name: &str, why: Loss) -> bool {
        self.with_holder(name, |entry| {
            if let Some(held) = entry.holder.take() {
                held.signal.raise(why);
            }
            entry.wake();
        })
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

    fn with_holder(&self, name: &str, change: impl FnOnce(&mut Entry)) -> bool {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let Some(entry) = Name::new(name).ok().and_then(|name| names.get_mut(&name)) else { return false };
        let held = entry.current(now).is_some();
        if held {
            change(entry);
        }
        held
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

    /// Takes the lock if it is free and, for waiters, their turn.
    fn take(
        &self,
        request: &Request,
        turn: Option<&Arc<Notify>>,
    ) -> Result<Grant, Box<(Option<Holder>, Moment)>> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let entry = names.entry(request.name.clone()).or_default();
        if let Some(held) = entry.current(now) {
            return Err(Box::new((Some(held.holder(&request.name, now)), held.until)));
        }
        if let (Some(turn), Some(first)) = (turn, entry.queue.front())
            && !Arc::ptr_eq(turn, first)
        {
            first.notify_one();
            return Err(Box::new((None, Moment::NEVER)));
        }
        entry.last_token += 1;
        let Some(token) = FencingToken::new(entry.last_token) else {
            return Err(Box::new((None, Moment::NEVER)));
        };
        entry.holder = Some(Held {
            owner: request.owner(),
            token,
            until: now.plus(request.ttl),
            since: SystemTime::now(),
            note: request.note.clone(),
            signal: request.signal.clone(),
            revoked: None,
        });
        let (store, name, owner) = (self.clone(), request.name.clone(), request.owner());
        let hold = MemoryHold { store, name, owner, token };
        Ok(Grant {
            identity: request.identity,
            token,
            sent: now,
            term: Some(request.ttl),
            pushed: false,
            hold: Arc::new(hold),
        })
    }

    /// Passes a grant on, or undoes it if the answer is lost or nobody waits for it any more.
    async fn deliver(&self, grant: Grant, request: &Request) -> Result<Grant> {
        let (owner, token) = (request.owner(), grant.token);
        let mut undo = Undo { store: self, name: &request.name, owner, token, armed: true };
        self.after(Call::Acquire).await?;
        undo.armed = false;
        Ok(grant)
    }

    fn release(&self, name: &Name, owner: Owner, token: FencingToken) -> bool {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let Some(entry) = names.get_mut(name) else { return false };
        let ours = entry.current(now).is_some_and(|held| (held.owner, held.token) == (owner, token));
        if ours {
            entry.holder = None;
            entry.wake();
        }
        ours
    }

    fn renew(
        &self,
        name: &Name,
        owner: Owner,
        token: FencingToken,
        term: Duration,
        successor: Option<&Request>,
    ) -> Result<(), Loss> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let Some(held) = names.get_mut(name).and_then(|entry| entry.current(now)) else {
            return Err(Loss::Taken);
        };
        match &held.revoked {
            _ if (held.owner, held.token) != (owner, token) => Err(Loss::Taken),
            Some(reason) => Err(Loss::ForceReleased { reason: reason.clone() }),
            None => {
                held.until = held.until.max(now.plus(term));
                if let Some(request) = successor {
                    held.owner = request.owner();
                    let signal = std::mem::replace(&mut held.signal, request.signal.clone());
                    signal.raise(Loss::Taken);
                }
                Ok(())
            }
        }
    }
}

impl Entry {
    /// The holder, unless its lease has ended.
    fn current(&mut self, now: Moment) -> Option<&mut Held> {
        if self.holder.as_ref().is_some_and(|held| held.until <= now) {
            self.holder = None;
        }
        self.holder.as_mut()
    }

    fn wake(&self) {
        if let Some(first) = self.queue.front() {
            first.notify_one();
        }
    }
}

impl Held {
    fn holder(&self, name: &Name, now: Moment) -> Holder {
        Holder {
            owner: Some(self.owner),
            token: Some(self.token),
            host: Some(crate::identity::host().to_owned()),
            pid: Some(std::process::id()),
            note: Some(self.note.to_string()).filter(|note| !note.is_empty()),
            since: Some(self.since),
            expires_in: Some(self.until.since(now)),
            revoked: self.revoked.clone(),
            ..Holder::unknown(name.clone())
        }
    }
}

fn unavailable(what: &str) -> Error {
    Error::Unavailable { store: "memory:".to_owned(), source: what.into() }
}

/// `memory:` is a new store each time; `memory:WORD` is the same one for the same word, in this process.
/// The store's row in the registry.
pub(super) const STORE: StoreKind =
    StoreKind::new("this process, for tests", &["memory:"], |url| Box::pin(connect(url)));

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    static NAMED: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());
    let word = url.path.clone();
    url.finish()?;
    if word.is_empty() {
        return Ok(Arc::new(Store::new()));
    }
    let mut named = lock(&NAMED);
    if let Some(shared) = named.get(&word).and_then(Weak::upgrade) {
        return Ok(Arc::new(Store(shared)));
    }
    let store = Store::new();
    named.insert(word, Arc::downgrade(&store.0));
    Ok(Arc::new(store))
}
