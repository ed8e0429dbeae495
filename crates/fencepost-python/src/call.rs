//! One call into the library: made first, then either waited for on the calling thread or run for an event
//! loop.
//!
//! Giving a call up at any point drops its future or its result, and the library undoes what the store was
//! asked for.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost::backend::{generation, runtime};
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::bridge::Bridge;
use crate::drive::{Way, drive};
use crate::errors::raise;

/// Turns a result into a Python object, on a thread that has the interpreter.
pub(crate) type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

pub(crate) type Job = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A call that is not made yet, under way, or done.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Call(Arc<Shared>);

struct Shared {
    step: Mutex<Step>,
    way: Way,
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
        Self::by(Way::Keeper, future, convert)
    }

    /// The same, by a way of its own if somebody waits for it.
    pub(crate) fn by<T: Send + 'static>(
        way: Way,
        future: impl Future<Output = fencepost::Result<T>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let job = async move {
            match future.await {
                Ok(value) => Box::new(move |py: Python<'_>| convert(py, value)) as Outcome,
                Err(error) => Box::new(move |py: Python<'_>| Err(raise(py, &error))),
            }
        };
        Self(Arc::new(Shared { step: Mutex::new(Step::New(Box::pin(job))), way, generation: generation() }))
    }
}

#[pymethods]
impl Call {
    /// Makes the call and waits for its result on this thread.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Step::New(job) = std::mem::replace(&mut *self.0.step(), Step::Over) else {
            return Err(used_up());
        };
        py.detach(|| drive(job, self.0.way))?(py)
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
        // A thread that the fork has left behind may have had the mutex.
        if self.generation != generation() {
            return;
        }
        if let Step::Running(task) = std::mem::replace(&mut *self.step(), Step::Over) {
            task.abort();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.generation != generation() {
            // What a forked child has inherited is never dropped: it shares its sockets with the parent.
            std::mem::forget(std::mem::replace(&mut self.step, Mutex::new(Step::Over)));
            return;
        }
        self.give_up();
    }
}

fn used_up() -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err("a call can be made once")
}
