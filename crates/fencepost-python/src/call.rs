//! One call into the library: made first, then either waited for on the calling thread or run for an event loop.
//!
//! Waiting happens without the interpreter lock, and wakes up now and then to see whether Ctrl-C was pressed. Giving a call
//! up at any point drops its future or its result, and the library undoes what the store was asked for.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use fencepost::backend::{generation, runtime};
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::bridge::Bridge;
use crate::errors::raise;

/// How often a call that blocks the main thread looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Turns a result into a Python object, on a thread that has the interpreter.
pub(crate) type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Job = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A call that is not made yet, under way, or done.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Call(Arc<Shared>);

struct Shared {
    step: Mutex<Step>,
    generation: u32,
}

enum Step {
    New(Job),
    Running(AbortHandle),
    Done(Outcome),
    /// Given up, or its result was handed out.
    Over,
}

impl Call {
    /// A call of `future`, whose result `convert` makes an object of.
    pub(crate) fn new<T: Send + 'static>(
        future: impl Future<Output = fencepost::Result<T>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let job = async move {
            match future.await {
                Ok(value) => Box::new(move |py: Python<'_>| convert(py, value)) as Outcome,
                Err(error) => Box::new(move |py: Python<'_>| Err(raise(py, &error))),
            }
        };
        Self(Arc::new(Shared { step: Mutex::new(Step::New(Box::pin(job))), generation: generation() }))
    }
}

#[pymethods]
impl Call {
    /// Makes the call and waits for its result on this thread.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Step::New(job) = std::mem::replace(&mut *self.0.step(), Step::Over) else { return Err(used_up()) };
        py.detach(|| drive(job))?(py)
    }

    /// Makes the call in the background, for an event loop: the bridge is told `number` when it is done.
    fn start(&self, py: Python<'_>, bridge: &Bridge, number: u64) -> PyResult<()> {
        let runtime = runtime().map_err(|error| raise(py, &error))?;
        let mut step = self.0.step();
        let Step::New(job) = std::mem::replace(&mut *step, Step::Over) else { return Err(used_up()) };
        let (shared, bell) = (self.0.clone(), bridge.bell());
        let task = runtime.spawn(async move {
            let outcome = job.await;
            // A call that was given up meanwhile: its result is dropped here, which gives back what it holds.
            if let running @ Step::Running(_) = &mut *shared.step() {
                *running = Step::Done(outcome);
            }
            bell.ring(number);
        });
        *step = Step::Running(task.abort_handle());
        Ok(())
    }

    /// The result of a call that was started and is done.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let taken = match &mut *self.0.step() {
            done @ Step::Done(_) => std::mem::replace(done, Step::Over),
            _ => return Err(used_up()),
        };
        match taken {
            Step::Done(outcome) => outcome(py),
            _ => Err(used_up()),
        }
    }

    /// Gives the call up, unless its result was handed out.
    fn close(&self) {
        self.0.give_up();
    }
}

impl Shared {
    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self) {
        let step = std::mem::replace(&mut *self.step(), Step::Over);
        if self.generation != generation() {
            // What a forked child has inherited is never dropped: it shares its sockets with the parent.
            std::mem::forget(step);
        } else if let Step::Running(task) = step {
            task.abort();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn used_up() -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err("a call can be made once")
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

/// Runs a job on this thread, with the keeper's runtime behind it. Python handles signals on the main thread alone, so
/// only that one has to look for them.
fn drive(job: Job) -> PyResult<Outcome> {
    let runtime = runtime().map_err(|error| Python::attach(|py| raise(py, &error)))?;
    let _inside = runtime.enter();
    let mut job = pin!(job);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut main = None;
    loop {
        if let Poll::Ready(outcome) = job.as_mut().poll(&mut context) {
            return Ok(outcome);
        }
        if *main.get_or_insert_with(is_main_thread) {
            let parked = std::time::Instant::now();
            std::thread::park_timeout(SIGNALS);
            if parked.elapsed() >= SIGNALS {
                Python::attach(|py| py.check_signals())?;
            }
        } else {
            std::thread::park();
        }
    }
}

fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
