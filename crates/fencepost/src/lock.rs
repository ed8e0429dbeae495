//! A lock before it is held: a name and options. Holds nothing by itself.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::backend::{Grant, Request, TryOutcome, WaitObservation};
use crate::guard::outcome;
use crate::options::{Options, chained_options};
use crate::runtime::clock::Moment;
use crate::runtime::lease_state::LeaseState;
use crate::stats::{add, subtract};
use crate::text::printable;
use crate::wait::jittered;
use crate::{Error, Guard, Handle, Locks, Loss, Name, Result, Wait, format_duration};

/// A name and options; holds nothing until [`acquire`](Self::acquire).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// let locks = fencepost::Locks::connect("memory:").await?;
/// let guard = locks
///     .lock("order:42")
///     .ttl(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .note("charging the card")
///     .acquire()
///     .await?;
/// println!("write with token {}", guard.token());
/// guard.release().await?;
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    locks: Locks,
    name: String,
    pub(crate) options: Options,
}

impl Lock {
    pub(crate) fn new(locks: Locks, name: String, options: Options) -> Self {
        Self { locks, name, options }
    }

    chained_options!(options);

    /// Refuses a bad name and options that cannot work, now instead of at the first acquire: for locks that
    /// are built long before they are used. Options depend on each other, so they are checked together.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid).
    pub fn checked(self) -> Result<Self> {
        self.check().map(|_| self)
    }

    /// Acquires the lock, waiting as long as [`wait`](Self::wait) says.
    ///
    /// # Errors
    /// [`Busy`](Error::Busy) without a wait, [`Timeout`](Error::Timeout) after one, both with the holder;
    /// [`Unavailable`](Error::Unavailable) if the store does not answer.
    ///
    /// # Cancellation
    /// May be dropped at any await: what the store was asked for is undone in the background.
    pub async fn acquire(&self) -> Result<Guard> {
        let name = self.check()?;
        let started = self.locks.clock().now();
        self.acquire_since(&name, started).await
    }

    /// Acquires the lock if it is free now; `None` if somebody else has it. Ignores `wait` and `retry`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but never `Busy` or `Timeout`.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        let name = self.check()?;
        match self.try_once(&name, self.locks.clock().now(), &Arc::default()).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock, runs `work` and releases, whatever the work came to. If the lock is lost meanwhile,
    /// the work is dropped where it stands.
    ///
    /// The work's error is any that an [`Error`] converts into. Where nothing else says which, the work names
    /// it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # async fn write(_: u64) -> std::io::Result<()> { Ok(()) }
    /// let locks = fencepost::Locks::connect("memory:").await?;
    /// let work = async |guard: &fencepost::Guard| {
    ///     write(guard.token().get()).await?;
    ///     Ok::<_, Box<dyn std::error::Error>>("written")
    /// };
    /// assert_eq!(locks.lock("report").scope(work).await?, "written");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), that of the work, and [`Error::Lost`] if the lock was lost before the
    /// work had succeeded.
    pub async fn scope<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire().await?;
        let out = guard.scope(work).await;
        if out.is_err() && guard.state().is_lost() {
            return out; // at once: what there is to give back, the drop does
        }
        outcome(out, guard.release().await)
    }

    /// Takes over a lock that was detached, by one conditional renewal for this lock's ttl, or for the
    /// handle's if this lock names none. See [`Locks::attach`].
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is no longer held under this handle.
    pub async fn attach(&self, handle: &Handle) -> Result<Guard> {
        let mut lock = self.clone();
        if self.options.is_default_ttl {
            lock.options.ttl = handle.ttl().unwrap_or(self.options.ttl);
        }
        let options = &lock.options;
        options.check()?;
        let request = Request::new(handle.name().clone(), options.ttl, options.note.clone(), Arc::default());
        let started = self.locks.clock().now();
        let grant = self.locks.backend()?.attach(handle, &request).await?;
        lock.guard(&request, grant, started)
    }

    fn check(&self) -> Result<Name> {
        self.options.check()?;
        Name::new(&self.name)
    }

    /// Acquires the lock; `started` is when the wait began.
    pub(crate) async fn acquire_since(&self, name: &Name, started: Moment) -> Result<Guard> {
        let seen = Arc::<WaitObservation>::default();
        let deadline = match self.options.wait {
            Wait::No => return self.try_once(name, started, &seen).await,
            Wait::For(duration) => Some(started.plus(duration)),
            Wait::Forever => None,
        };
        let counters = self.locks.counters();
        let _waiting = Waiting::begin(&counters.waiting_now);
        let out = self.locks.clock().within(deadline, async {
            match &self.options.retry {
                Some(_) => self.poll(name, started, &seen).await,
                None => self.queue(name, started, &seen).await,
            }
        });
        let result = out.await.unwrap_or_else(|| Err(self.in_vain(name, started, &seen)));
        if let Err(Error::Timeout { waited, .. }) = &result {
            add(&counters.timed_out, 1);
            let (name, waited) = (printable(name.as_str()), format_duration(*waited));
            tracing::debug!(%name, %waited, "gave up waiting");
        }
        result
    }

    /// What a wait came to that has reached its deadline.
    fn in_vain(&self, name: &Name, started: Moment, seen: &WaitObservation) -> Error {
        let waited = self.locks.clock().now().since(started);
        match (seen.take_obstacle(), seen.holder()) {
            (None, holder @ Some(_)) => Error::Timeout { name: name.clone(), waited, holder },
            // No answer at all, or none that could be built on: nobody said that the lock was taken.
            (obstacle, _) => {
                let no_answer = || format!("no answer within {}", format_duration(waited)).into();
                Error::unavailable(self.locks.capabilities().store, obstacle.unwrap_or_else(no_answer))
            }
        }
    }

    /// Waits the store's own way, through outages shorter than the store's patience once it has answered.
    async fn queue(&self, name: &Name, started: Moment, seen: &Arc<WaitObservation>) -> Result<Guard> {
        let clock = self.locks.clock();
        let (mut failing_since, mut first, mut answers) = (None, true, 0);
        loop {
            let request = self.request(name, seen);
            let asked = clock.now();
            let error = match self.locks.backend()?.acquire(&request).await {
                Ok(grant) => match self.guard(&request, grant, started) {
                    Ok(guard) => return Ok(guard),
                    // Taken away before the caller had it: the wait goes on.
                    Err(Error::Lost { .. }) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if matches!(error, Error::Uncertain { .. }) && std::mem::take(&mut first) {
                continue;
            }
            let (now, patience) = (clock.now(), self.locks.capabilities().patience);
            // A call that had an answer, or waited for a while: the outage begins with its end.
            let answered = seen.answers() != std::mem::replace(&mut answers, seen.answers());
            let goes_on = !answered && now.since(asked) <= patience / 2;
            let since = failing_since.filter(|_| goes_on).unwrap_or(now);
            failing_since = Some(since);
            let outlasted = now.since(since) > patience;
            if !error.is_transient() || !seen.anything() || outlasted {
                add(&self.locks.counters().failed, 1);
                return Err(error);
            }
            let name = printable(name.as_str());
            tracing::debug!(%name, %error, "waiting was interrupted, queueing again");
            clock.sleep_until(now.plus(jittered(Duration::from_millis(200)))).await;
        }
    }

    /// Tries by the caller's own schedule.
    async fn poll(&self, name: &Name, started: Moment, seen: &Arc<WaitObservation>) -> Result<Guard> {
        let clock = self.locks.clock();
        for tried in 1u32.. {
            match self.try_once(name, started, seen).await {
                Err(Error::Busy { .. }) => {}
                other => return other,
            }
            let Some(pause) = self.options.retry.as_ref().and_then(|retry| retry.pause(tried)) else { break };
            clock.sleep_until(clock.now().plus(pause)).await;
        }
        let waited = clock.now().since(started);
        Err(Error::Timeout { name: name.clone(), waited, holder: seen.holder() })
    }

    async fn try_once(&self, name: &Name, started: Moment, seen: &Arc<WaitObservation>) -> Result<Guard> {
        let counters = self.locks.counters();
        let mut request = self.request(name, seen);
        let mut tried = self.locks.backend()?.try_acquire(&request).await;
        // A connection that had ended without our knowing: once more, under a new identity.
        if let Err(Error::Uncertain { .. }) = tried {
            request = self.request(name, seen);
            tried = self.locks.backend()?.try_acquire(&request).await;
        }
        match tried {
            Ok(TryOutcome::Granted(grant)) => self.guard(&request, grant, started),
            Ok(TryOutcome::Busy(holder)) => {
                add(&counters.busy, 1);
                tracing::debug!(name = %printable(name.as_str()), "lock is busy");
                if let Some(holder) = &holder {
                    seen.note(holder.clone());
                }
                Err(Error::Busy { name: name.clone(), holder: holder.map(Box::new) })
            }
            Err(error) => {
                add(&counters.failed, 1);
                Err(error)
            }
        }
    }

    fn request(&self, name: &Name, seen: &Arc<WaitObservation>) -> Request {
        Request::new(name.clone(), self.options.ttl, self.options.note.clone(), seen.clone())
    }

    /// Turns a grant into a guard. No await in here: a grant is either a guard or released by its drop.
    fn guard(&self, request: &Request, grant: Grant, started: Moment) -> Result<Guard> {
        let (clock, counters) = (self.locks.clock(), self.locks.counters());
        let owner = grant.identity.owner();
        let held = LeaseState::new(request, grant, &self.options, clock.clone(), counters.clone());
        let guard = Guard::new(self.locks.clone(), held);
        if let Some(why) = guard.state().loss() {
            return Err(match why {
                Loss::Paused | Loss::Expired | Loss::Unreachable => {
                    let why =
                        format!("its answer took longer than the ttl of {}", format_duration(request.ttl));
                    Error::unavailable(self.locks.capabilities().store, why)
                }
                why => Error::lost(&request.name, why),
            });
        }
        let waited = clock.now().since(started);
        add(&counters.acquired, 1);
        counters.waiting.record(waited);
        tracing::debug!(
            name = %printable(request.name.as_str()), %owner, token = guard.token().get(),
            waited = %format_duration(waited), "lock acquired"
        );
        Ok(guard)
    }
}

/// Counts a waiting caller for as long as it waits.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn begin(counter: &'a AtomicU64) -> Self {
        add(counter, 1);
        Self(counter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        subtract(self.0, 1);
    }
}
