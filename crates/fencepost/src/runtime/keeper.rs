//! Keeps held locks held. One thread per process with a runtime of its own, so that a busy or dropped runtime
//! of the caller's can neither starve renewals nor swallow the release of a dropped guard.
//!
//! Guards are put into a schedule under a mutex, and whoever does so sets the alarm if one falls due earlier
//! than what it is set to. So an acquire costs no context switch.

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::runtime::alarm::Alarm;
use crate::runtime::clock::{Clock, Due, Moment};
use crate::runtime::fork::{self, PerProcess};
use crate::runtime::lease_state::{Action, LeaseState};
use crate::runtime::loss_signal::LossListener;
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::{Error, Result};

/// Renewals that fall due within this time of each other share a batch.
const BATCH: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Keeper {
    clock: Clock,
    runtime: Handle,
    schedule: Mutex<Schedule>,
    alarm: Arc<Alarm>,
    /// Ticks whenever something was done; tests wait on it.
    progress: watch::Sender<()>,
}

#[derive(Debug)]
struct Schedule {
    due: BTreeMap<(Moment, u64), Arc<LeaseState>>,
    /// Locks that their store has declared lost.
    lost: Vec<Weak<LeaseState>>,
    /// What the alarm is set to.
    armed: Moment,
    /// Rounds and renewals under way.
    busy: usize,
}

impl Keeper {
    /// The keeper for a clock: one for the system's, one for each manual one. All share a thread.
    pub(crate) fn of(clock: &Clock) -> Result<Arc<Self>> {
        static SYSTEM: PerProcess<Mutex<Option<Arc<Keeper>>>> = PerProcess::new();
        if let Some(manual) = clock.manual() {
            let started = manual.due().map(|due| due as Arc<dyn Any + Send + Sync>);
            if let Some(keeper) = started.and_then(|due| due.downcast().ok()) {
                return Ok(keeper);
            }
            let keeper = Self::start(clock.clone())?;
            let due: Arc<dyn Due> = keeper.clone();
            manual.wait_for(Arc::downgrade(&due));
            return Ok(keeper);
        }
        let mut system = lock(SYSTEM.get());
        match &*system {
            Some(keeper) => Ok(keeper.clone()),
            None => {
                let keeper = Self::start(clock.clone())?;
                *system = Some(keeper.clone());
                Ok(keeper)
            }
        }
    }

    fn start(clock: Clock) -> Result<Arc<Self>> {
        let runtime = runtime()?;
        let alarm = {
            let _inside = runtime.enter();
            Arc::new(Alarm::new(clock.clone()))
        };
        let keeper = Arc::new(Self {
            clock,
            runtime: runtime.clone(),
            schedule: Mutex::new(Schedule {
                due: BTreeMap::new(),
                lost: Vec::new(),
                armed: Moment::NEVER,
                busy: 0,
            }),
            alarm: alarm.clone(),
            progress: watch::Sender::new(()),
        });
        runtime.spawn(run(Arc::downgrade(&keeper), alarm));
        Ok(keeper)
    }

    /// Takes a lock into care.
    pub(crate) fn adopt(&self, held: &Arc<LeaseState>) {
        let mut schedule = lock(&self.schedule);
        let (before, due) = held.reschedule();
        if let Some(before) = before {
            schedule.due.remove(&(before, held.id));
        }
        let Some(due) = due else { return };
        schedule.due.insert((due, held.id), held.clone());
        if due < schedule.armed {
            schedule.armed = due;
            self.alarm.set(due);
        }
    }

    /// Hears when the store of a lock says that it is lost. The next round, which begins at once, counts and
    /// logs it.
    pub(crate) fn hear_losses(self: &Arc<Self>, held: &Arc<LeaseState>) {
        let (keeper, lost) = (Arc::downgrade(self), Arc::downgrade(held));
        held.report_losses_to(Box::new(Listener { keeper, held: lost }));
    }

    /// Lets go of a lock: no renewal starts from now on.
    pub(crate) fn forget(&self, held: &LeaseState) {
        if let Some(due) = held.end() {
            lock(&self.schedule).due.remove(&(due, held.id));
        }
    }

    /// Runs something to its end in the background, whatever becomes of the caller.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(job);
    }

    /// Runs something here and waits for it. It goes on to its end if the caller does not.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        job: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.spawn(job).await.ok()
    }

    /// The runtime of the keeper's thread.
    #[allow(dead_code)] // for some stores
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Does everything that is due.
    fn round(self: &Arc<Self>) {
        let now = self.clock.now();
        let soon = if self.clock.manual().is_some() { now } else { now.plus(BATCH) };
        let mut due = Vec::new();
        let lost = {
            let mut schedule = lock(&self.schedule);
            schedule.busy += 1;
            std::mem::take(&mut schedule.lost)
        };
        lost.iter().filter_map(Weak::upgrade).for_each(|held| self.adopt(&held));
        {
            let mut schedule = lock(&self.schedule);
            // Only what is due now wakes the thread, but then it takes along what soon will be.
            if schedule.next() <= now {
                let later = schedule.due.split_off(&(soon, u64::MAX));
                due.extend(std::mem::replace(&mut schedule.due, later).into_values());
            }
        }
        for held in due {
            match held.look(now, soon) {
                Action::Renew => {
                    lock(&self.schedule).busy += 1;
                    let (keeper, held) = (self.clone(), held.clone());
                    self.spawn(async move {
                        held.renew().await;
                        keeper.adopt(&held);
                        keeper.did_something();
                    });
                }
                Action::Release => {
                    let held = held.clone();
                    self.spawn(async move {
                        if let Err(error) = held.hold.release().await {
                            let name = printable(held.name.as_str());
                            tracing::debug!(%name, %error, "release at max_hold failed");
                        }
                    });
                }
                Action::Nothing => {}
            }
            // Also while a renewal is under way: its answer may not come, and somebody has to say so in time.
            self.adopt(&held);
        }
        self.did_something();
    }

    /// One thing less is under way.
    fn did_something(&self) {
        lock(&self.schedule).busy -= 1;
        // Who begins to listen later looks at the schedule first.
        if self.progress.receiver_count() > 0 {
            self.progress.send_replace(());
        }
    }
}

/// Hears of the loss of one lock, on a thread of its store's.
#[derive(Debug)]
struct Listener {
    keeper: Weak<Keeper>,
    held: Weak<LeaseState>,
}

impl LossListener for Listener {
    fn lost(&self) {
        if let Some(keeper) = self.keeper.upgrade() {
            lock(&keeper.schedule).lost.push(self.held.clone());
            keeper.alarm.ring();
        }
    }
}

impl Schedule {
    fn next(&self) -> Moment {
        self.due.first_key_value().map_or(Moment::NEVER, |((due, _), _)| *due)
    }
}

impl Due for Keeper {
    fn settled(&self) -> Pin<Box<dyn Future<Output = Moment> + Send + '_>> {
        Box::pin(async {
            let mut progress = self.progress.subscribe();
            loop {
                progress.borrow_and_update();
                {
                    let schedule = lock(&self.schedule);
                    let next = schedule.next();
                    if schedule.busy == 0 && schedule.lost.is_empty() && next > self.clock.now() {
                        return next;
                    }
                }
                self.alarm.ring();
                if progress.changed().await.is_err() {
                    return Moment::NEVER;
                }
            }
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.alarm.ring();
    }
}

async fn run(keeper: Weak<Keeper>, alarm: Arc<Alarm>) {
    loop {
        alarm.rings().await;
        let Some(keeper) = keeper.upgrade() else { return };
        keeper.round();
        let mut schedule = lock(&keeper.schedule);
        schedule.armed = schedule.next();
        alarm.set(schedule.armed);
    }
}

/// The process's background runtime, on a thread of its own.
pub(crate) fn runtime() -> Result<Handle> {
    static RUNTIME: PerProcess<Mutex<Option<Handle>>> = PerProcess::new();
    fork::watch()?;
    let mut slot = lock(RUNTIME.get());
    if let Some(handle) = &*slot {
        return Ok(handle.clone());
    }
    let failed = |error: std::io::Error| {
        Error::unavailable("(this process)", format!("the keeper thread did not start: {error}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("fencepost-keeper".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    *slot = Some(handle.clone());
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::Loss;
    use crate::memory::{ManualClock, Store};

    #[tokio::test]
    async fn a_loss_that_a_store_tells_is_counted_though_nobody_asks_the_guard() {
        let clock = ManualClock::new();
        let store = Store::with_clock(&clock);
        let locks = store.locks().unwrap();
        let guard = locks.lock("a").without_renewal().ttl(Duration::from_secs(3600)).acquire().await.unwrap();
        let watched = locks.lock("b").acquire().await.unwrap();
        assert!(store.lose("a", Loss::SessionEnded) && store.lose("b", Loss::Taken));
        clock.advance(Duration::ZERO).await;
        let lost = locks.stats().lost;
        assert_eq!((lost.session_ended, lost.taken), (1, 1));
        assert!(guard.state().is_lost() && watched.state().is_lost());
        assert_eq!(locks.stats().lost, lost, "each is counted once");
    }
}
