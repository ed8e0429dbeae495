//! A held lock. Python's context managers sit on top; this is the hold itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fencepost::backend::{generation, runtime};
use fencepost::{Error, Handle, Watch};
use pyo3::prelude::*;
use tokio::sync::{Mutex, mpsc};

use crate::call::Call;
use crate::drive::{Listening, Way};
use crate::errors::{cause, raise};
use crate::locks::{Connected, Unclaimed};
use crate::options::seconds;
use crate::values::{Kind, state};

/// Releases that nobody waits for and that still have to reach their store.
static RELEASING: AtomicUsize = AtomicUsize::new(0);

/// How long the end of the interpreter waits for stores to take locks back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A held lock. Letting go of it releases in the background.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Guard {
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    token: u64,
    #[pyo3(get)]
    owner: String,
    handle: Handle,
    watch: Watch,
    held: Arc<Held>,
    store: Connected,
    _listening: Option<Listening>,
}

/// The hold, shared with a call that uses it. Empty once the lock was given back.
struct Held {
    guard: Mutex<Option<fencepost::Guard>>,
    /// Nobody wants the lock any more: whoever uses it last gives it back.
    unwanted: AtomicBool,
    generation: u32,
}

impl Held {
    /// Gives the lock back in the background: now, or when the call that uses it is over.
    fn let_go(&self) {
        self.unwanted.store(true, SeqCst);
        self.tidy();
    }

    /// To be called after every use.
    fn tidy(&self) {
        if self.unwanted.load(SeqCst)
            && let Ok(mut guard) = self.guard.try_lock()
            && let Some(guard) = guard.take()
        {
            // What it says is for nobody to hear; what it could not do goes on in the background.
            in_background(async move {
                let _ = guard.release().await;
            });
        }
    }
}

/// Tidies up behind a call that uses the hold, also one that is dropped half-way.
struct InUse(Arc<Held>);

impl Drop for InUse {
    fn drop(&mut self) {
        if self.0.generation == generation() {
            self.0.tidy();
        }
    }
}

/// Releases without anybody who waits for it.
pub(crate) fn in_background(release: impl Future<Output = ()> + Send + 'static) {
    let Ok(runtime) = runtime() else { return };
    RELEASING.fetch_add(1, SeqCst);
    runtime.spawn(async move {
        release.await;
        RELEASING.fetch_sub(1, SeqCst);
    });
}

impl Guard {
    pub(crate) fn new(guard: fencepost::Guard, store: Connected) -> Self {
        Self {
            _listening: (store.way == Way::Direct).then(Listening::begin),
            store,
            name: guard.name().to_string(),
            token: guard.token().get(),
            owner: guard.owner().to_string(),
            handle: guard.handle(),
            watch: guard.watch(),
            held: Arc::new(Held {
                guard: Mutex::new(Some(guard)),
                unwanted: AtomicBool::new(false),
                generation: generation(),
            }),
        }
    }

    fn gone(&self) -> Error {
        Error::invalid(format!("lock `{}` was released by this guard already; acquire it again", self.name))
    }

    /// A call that takes the hold away for good, right now if nothing else uses it, so that giving the call
    /// up gives the
    /// lock back. In a forked child it touches nothing of the parent's.
    fn ending<T: Send + 'static, F>(
        &self,
        end: impl FnOnce(fencepost::Guard) -> F + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call
    where
        F: Future<Output = fencepost::Result<T>> + Send,
    {
        let (held, gone, inherited) = (self.held.clone(), self.gone(), self.inherited());
        let taken = match inherited {
            Ok(()) => held.guard.try_lock().map(|mut guard| guard.take()).ok(),
            Err(_) => Some(None),
        };
        let job = async move {
            inherited?;
            let taken = match taken {
                Some(taken) => taken,
                None => {
                    let busy = InUse(held.clone());
                    held.unwanted.store(true, SeqCst);
                    let taken = held.guard.lock().await.take();
                    drop(busy);
                    taken
                }
            };
            end(taken.ok_or(gone)?).await
        };
        Call::by(self.store.way, job, convert)
    }

    fn inherited(&self) -> Result<(), Error> {
        match self.watch.state() {
            Some(fencepost::State::Lost(why @ fencepost::Loss::Forked)) => {
                Err(Error::lost(self.watch.name(), why))
            }
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Guard {
    /// The handle of the lock while it is held here, which is a key to it.
    fn handle(&self) -> String {
        self.handle.to_string()
    }

    /// Kind, time left, name of what is wrong, and a phrase for it.
    fn state(&self) -> Kind {
        state(self.watch.state())
    }

    /// Time until the lease would end without renewal, in seconds; `None` if it has no end.
    fn valid_for(&self) -> Option<f64> {
        self.watch.valid_for().map(|left| left.as_secs_f64())
    }

    /// Raises unless the lock is held.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.watch.state() {
            Some(fencepost::State::Lost(why)) => Err(raise(py, &Error::lost(self.watch.name(), why))),
            Some(_) => Ok(()),
            None => Err(raise(py, &self.gone())),
        }
    }

    /// Waits until the lock is lost: its cause and a phrase for it, or `None` if it is let go or the time is
    /// up first.
    #[pyo3(signature = (limit=None))]
    fn lost(&self, limit: Option<f64>) -> PyResult<Call> {
        let limit = limit.map(|limit| seconds("timeout", limit)).transpose()?;
        let watch = self.watch.clone();
        let job = async move {
            Ok(match limit {
                Some(limit) => tokio::time::timeout(limit, watch.lost()).await.unwrap_or(None),
                None => watch.lost().await,
            })
        };
        let call = Call::new(job, |py, why| {
            let why = why.map(|why| (cause(&why).0, why.to_string()));
            Ok(why.into_pyobject(py)?.into_any().unbind())
        });
        Ok(call)
    }

    /// Makes the lease end later; the time left.
    #[pyo3(signature = (ttl=None))]
    fn extend(&self, ttl: Option<f64>) -> PyResult<Call> {
        let ttl = ttl.map(|ttl| seconds("ttl", ttl)).transpose()?;
        let (held, gone, over) = (self.held.clone(), self.gone(), self.gone());
        let inherited = self.inherited();
        let job = async move {
            inherited?;
            // As a task of its own: a signal handler that runs on the waiting thread may release, and waits
            // for this one.
            let mut task = tokio::task::JoinSet::new();
            task.spawn(async move {
                let _busy = InUse(held.clone());
                let guard = held.guard.lock().await;
                let guard = guard.as_ref().ok_or(gone)?;
                match ttl {
                    Some(ttl) => guard.extend_to(ttl).await,
                    None => guard.extend().await,
                }
            });
            task.join_next().await.and_then(Result::ok).unwrap_or(Err(over))
        };
        Ok(Call::new(job, |py, left: Option<Duration>| {
            Ok(left.map(|left| left.as_secs_f64()).into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Gives the lock back.
    fn release(&self) -> Call {
        self.ending(fencepost::Guard::release, |py, ()| Ok(py.None()))
    }

    /// Gives the lock back in the background.
    fn let_go(&self) {
        if self.inherited().is_ok() {
            self.held.let_go();
        }
    }

    /// Turns the lock into a lease that outlives this process; its handle.
    fn detach(&self) -> Call {
        let locks = self.store.locks.clone();
        let detach = async move |guard: fencepost::Guard| Ok(Unclaimed::new(locks, guard.detach().await?));
        self.ending(detach, |py, detached| Ok(detached.claim().into_pyobject(py)?.into_any().unbind()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.generation != generation() {
            // The parent's: shared sockets behind it, and maybe a mutex that nobody will ever unlock.
            std::mem::forget(std::mem::replace(&mut self.guard, Mutex::new(None)));
            return;
        }
        if let Some(guard) = self.guard.get_mut().take() {
            // What it says is for nobody to hear; what it could not do goes on in the background.
            in_background(async move {
                let _ = guard.release().await;
            });
        }
    }
}

/// Waits until what was let go without a word has been given back, for a few seconds at most.
pub(crate) async fn releases_done() {
    let done = async {
        while RELEASING.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(RELEASE_TIMEOUT, done).await;
}

/// Gives back what is still held when the interpreter ends, for a few seconds at most.
#[pyfunction]
pub(crate) fn release_all(guards: Vec<Bound<'_, Guard>>) -> Call {
    let held: Vec<_> = guards.iter().map(|guard| guard.get().held.clone()).collect();
    let job = async move {
        let give_back = async {
            let mut releases = tokio::task::JoinSet::new();
            for held in held {
                releases.spawn(async move {
                    if let Some(guard) = held.guard.lock().await.take() {
                        let _ = guard.release().await;
                    }
                });
            }
            releases.join_all().await;
        };
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, give_back).await;
        releases_done().await;
        Ok(())
    };
    Call::new(job, |py, ()| Ok(py.None()))
}

/// Forgets what the parent had under way. To be called in a forked child.
#[pyfunction]
pub(crate) fn after_fork() {
    RELEASING.store(0, SeqCst);
}

/// The number of a guard, and why its lock was lost; no cause if it was let go instead.
type Told = (u64, Option<&'static str>);

/// The losses of guards that somebody wants to be told of, in the order in which they happen. Keeps no lock
/// held.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Losses {
    sender: mpsc::UnboundedSender<Told>,
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<Told>>>,
}

#[pymethods]
impl Losses {
    #[new]
    fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }

    /// Puts down `number` when the lock of a guard is lost or let go.
    fn watch(&self, py: Python<'_>, guard: &Guard, number: u64) -> PyResult<()> {
        let runtime = runtime().map_err(|error| raise(py, &error))?;
        let (watch, sender) = (guard.watch.clone(), self.sender.clone());
        runtime.spawn(async move {
            let why = watch.lost().await;
            let _ = sender.send((number, why.map(|why| cause(&why).0)));
        });
        Ok(())
    }

    /// Waits for the next one: its number, and why the lock was lost, if it was.
    fn next(&self) -> Call {
        let receiver = self.receiver.clone();
        let job = async move { Ok(receiver.lock().await.recv().await) };
        Call::new(job, |py, next: Option<Told>| Ok(next.into_pyobject(py)?.into_any().unbind()))
    }
}
