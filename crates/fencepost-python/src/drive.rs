//! Runs a call on the calling thread, without the interpreter lock. The main thread wakes up now and then to
//! see whether Ctrl-C was pressed; Python handles signals on no other.
//!
//! There are two ways. By the keeper's runtime, the thread of the keeper does the I/O and wakes the caller.
//! With a runtime of its own the caller does it itself, which saves two of four context switches for each
//! round trip; that is for stores whose connections belong to a runtime and which leave nothing to it when a
//! call is over. Where answers come at once it does not even sleep for them. Such a runtime stands still
//! between calls, with the connection that the store pushes losses to: while locks are held, a thread turns
//! them now and then.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use fencepost::backend::{PerProcess, runtime};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::call::{Job, Outcome};
use crate::errors::raise;

/// How often a call that blocks the main thread looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// The most runtimes, and with them connections to each server; further calls at the same time go by the
/// keeper.
const MOST: usize = 16;

/// How long a call looks for its answer before it sleeps, if the server is nearby: on an idle machine, waking
/// up takes longer than such a server takes to answer.
const NEARBY: Duration = Duration::from_micros(100);

/// How long a pushed loss may lie unread.
const TURN: Duration = Duration::from_millis(100);

/// Who does the I/O of a call that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The keeper's thread.
    Keeper,
    /// The calling thread.
    Direct,
}

/// Runs a job to its end.
pub(crate) fn drive(job: Job, way: Way) -> PyResult<Outcome> {
    match way {
        Way::Direct => {
            let spares = SPARES.get();
            let Some(mut driver) = spares.take() else { return by_the_keeper(job) };
            let outcome = driver.run(job, spares);
            spares.idle().push(driver);
            outcome
        }
        Way::Keeper => by_the_keeper(job),
    }
}

/// A runtime that a calling thread turns.
struct Driver {
    runtime: Runtime,
    /// How many calls in a row had their answers soon. One that waited for a lock is none of them, nor is its
    /// release enough.
    soon: u32,
}

impl Driver {
    fn run(&mut self, mut job: Job, spares: &Spares) -> PyResult<Outcome> {
        let runtime = &self.runtime;
        // Also where the job is dropped half-way: what it leaves behind is spawned here.
        let _inside = runtime.enter();
        let started = Instant::now();
        if self.soon > 1
            && let Some(_alone) = spares.look()
            && let Some(outcome) = runtime.block_on(within(started + NEARBY, &mut job))
        {
            return Ok(outcome);
        }
        let outcome = if is_main_thread() {
            loop {
                match runtime.block_on(async { tokio::time::timeout(SIGNALS, &mut job).await }) {
                    Ok(outcome) => break outcome,
                    // Not inside the runtime: a handler may make calls of its own.
                    Err(_) => Python::attach(|py| py.check_signals())?,
                }
            }
        } else {
            runtime.block_on(job)
        };
        // Of a call that has slept, half is waking up.
        self.soon = if started.elapsed() < 2 * NEARBY { self.soon.saturating_add(1) } else { 0 };
        Ok(outcome)
    }
}

/// Turns the runtime without sleeping until the job is done or its time is up.
async fn within(end: Instant, job: &mut Job) -> Option<Outcome> {
    loop {
        let polled = poll_fn(|context| Poll::Ready(job.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(outcome) => return Some(outcome),
            Poll::Pending if Instant::now() >= end => return None,
            Poll::Pending => {
                // Others may need the processor, and the runtime has to see what has come.
                std::thread::yield_now();
                tokio::task::yield_now().await;
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn by_the_keeper(job: Job) -> PyResult<Outcome> {
    let runtime = runtime().map_err(|error| Python::attach(|py| raise(py, &error)))?;
    let _inside = runtime.enter();
    let mut job = pin!(job);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut main = None;
    // Counted across wake-ups: a call that is woken all the time looks for signals as well.
    let mut looked = Instant::now();
    loop {
        if let Poll::Ready(outcome) = job.as_mut().poll(&mut context) {
            return Ok(outcome);
        }
        if *main.get_or_insert_with(is_main_thread) {
            std::thread::park_timeout(SIGNALS.saturating_sub(looked.elapsed()));
            if looked.elapsed() >= SIGNALS {
                Python::attach(|py| py.check_signals())?;
                looked = Instant::now();
            }
        } else {
            std::thread::park();
        }
    }
}

fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Lets idle runtimes end the connections that were closed meanwhile.
pub(crate) fn tidy() {
    SPARES.get().turn_once();
}

/// The runtimes of this process that nobody uses now; the last one was used last.
#[derive(Default)]
struct Spares {
    idle: Mutex<Vec<Driver>>,
    made: AtomicUsize,
    /// One that looks for its answer without sleeping.
    looking: AtomicBool,
    /// Guards whose losses are pushed to one of them.
    held: AtomicUsize,
    turner: OnceLock<Option<Thread>>,
}

/// Somebody holds a lock whose loss is pushed to one of the runtimes.
pub(crate) struct Listening(&'static Spares);

impl Listening {
    pub(crate) fn begin() -> Self {
        let spares = SPARES.get();
        if spares.held.fetch_add(1, SeqCst) == 0 {
            let start = || {
                let name = "fencepost-listen".to_owned();
                // Without it, a loss is noticed at the next renewal.
                let turner = std::thread::Builder::new().name(name).spawn(|| spares.turn()).ok()?;
                Some(turner.thread().clone())
            };
            if let Some(turner) = spares.turner.get_or_init(start) {
                turner.unpark();
            }
        }
        Self(spares)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, SeqCst);
    }
}

/// The only thread that looks for its answer without sleeping.
struct Looking<'a>(&'a AtomicBool);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

static SPARES: PerProcess<Spares> = PerProcess::new();

impl Spares {
    fn idle(&self) -> MutexGuard<'_, Vec<Driver>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Driver> {
        let idle = self.idle().pop();
        if idle.is_some() {
            return idle;
        }
        if self.made.fetch_add(1, SeqCst) < MOST
            && let Ok(runtime) = Builder::new_current_thread().enable_all().build()
        {
            return Some(Driver { runtime, soon: 0 });
        }
        self.made.fetch_sub(1, SeqCst);
        None
    }

    /// Lets one thread at a time look for its answer, and none where the server would need the same
    /// processor.
    fn look(&self) -> Option<Looking<'_>> {
        static SEVERAL: LazyLock<bool> =
            LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1));
        (*SEVERAL && !self.looking.swap(true, SeqCst)).then(|| Looking(&self.looking))
    }

    fn take_at(&self, place: usize) -> Option<Driver> {
        let mut idle = self.idle();
        (place < idle.len()).then(|| idle.remove(place))
    }

    fn turn_once(&self) {
        // One at a time, and back to its place: callers take them from the other end.
        let mut place = 0;
        while let Some(driver) = self.take_at(place) {
            driver.runtime.block_on(async {
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
            });
            let mut idle = self.idle();
            let back = place.min(idle.len());
            idle.insert(back, driver);
            place += 1;
        }
    }

    /// Lets idle runtimes read what has come for them, for as long as locks are held.
    fn turn(&self) {
        loop {
            if self.held.load(SeqCst) == 0 {
                std::thread::park();
                continue;
            }
            std::thread::sleep(TURN);
            self.turn_once();
        }
    }
}
