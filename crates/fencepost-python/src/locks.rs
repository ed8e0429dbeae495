//! The locks of a store, and locks before they are held.

use fencepost::Handle;
use pyo3::prelude::*;

use crate::call::Call;
use crate::drive::{Way, tidy};
use crate::errors::raise;
use crate::guard::Guard;
use crate::options::{Options, put_on, seconds};
use crate::values::{holder, json, revoked};

fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn some_guard(py: Python<'_>, guard: fencepost::Guard, way: Way) -> PyResult<Py<PyAny>> {
    Ok(Guard::new(guard, way).into_pyobject(py)?.into_any().unbind())
}

fn guards(py: Python<'_>, set: fencepost::GuardSet, way: Way) -> PyResult<Py<PyAny>> {
    let guards: Vec<_> = set.into_guards().into_iter().map(|guard| Guard::new(guard, way)).collect();
    Ok(guards.into_pyobject(py)?.into_any().unbind())
}

fn handle(py: Python<'_>, text: &str) -> PyResult<Handle> {
    text.parse().map_err(|error| raise(py, &error))
}

/// Connects to a store.
#[pyfunction]
pub(crate) fn connect(url: String) -> Call {
    let job = async move { fencepost::Locks::connect(&url).await };
    Call::new(job, |py, locks| Ok(Locks::new(locks).into_pyobject(py)?.into_any().unbind()))
}

/// Declares a new deployment; what was done, line by line.
#[pyfunction]
pub(crate) fn init(url: String, reconfigure: bool) -> Call {
    let job = async move { fencepost::Locks::init(&url, reconfigure).await };
    Call::new(job, |py, done| Ok(done.into_pyobject(py)?.into_any().unbind()))
}

/// The locks of one store.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Locks(fencepost::Locks, Way);

impl Locks {
    pub(crate) fn new(locks: fencepost::Locks) -> Self {
        // One Redis: its connections belong to the runtime of the call, and what a call leaves behind goes by the keeper.
        let way = if locks.capabilities().store.starts_with("redis") { Way::Direct } else { Way::Keeper };
        Self(locks, way)
    }
}

#[pymethods]
impl Locks {
    fn lock(&self, name: String, options: Options) -> PyResult<Lock> {
        Ok(Lock(put_on!(self.0.lock(name), options), self.1))
    }

    fn all(&self, names: Vec<String>, options: Options) -> PyResult<LockSet> {
        Ok(LockSet(put_on!(self.0.all(names), options), self.1))
    }

    fn extend(&self, py: Python<'_>, text: &str, ttl: f64) -> PyResult<Call> {
        let (locks, handle, ttl) = (self.0.clone(), handle(py, text)?, seconds("ttl", ttl)?);
        Ok(Call::by(self.1, async move { locks.extend(&handle, ttl).await }, nothing))
    }

    fn release(&self, py: Python<'_>, text: &str) -> PyResult<Call> {
        let (locks, handle) = (self.0.clone(), handle(py, text)?);
        Ok(Call::by(self.1, async move { locks.release(&handle).await }, nothing))
    }

    fn list(&self, prefix: String) -> Call {
        let locks = self.0.clone();
        let job = async move { locks.list(&prefix).await };
        Call::new(job, |py, holders| {
            let holders: PyResult<Vec<_>> = holders.iter().map(|one| holder(py, Some(one))).collect();
            Ok(holders?.into_pyobject(py)?.into_any().unbind())
        })
    }

    fn show(&self, name: String) -> Call {
        let locks = self.0.clone();
        Call::new(async move { locks.show(&name).await }, |py, shown| holder(py, shown.as_ref()))
    }

    fn force_release(&self, name: String, reason: String, now: bool) -> Call {
        let locks = self.0.clone();
        let job = async move {
            match now {
                true => locks.force_release_now(&name, &reason).await,
                false => locks.force_release(&name, &reason).await,
            }
        };
        Call::new(job, revoked)
    }

    fn check(&self) -> Call {
        let locks = self.0.clone();
        Call::new(async move { locks.check().await }, nothing)
    }

    fn close(&self) -> Call {
        let locks = self.0.clone();
        let job = async move {
            locks.close().await;
            Ok(())
        };
        Call::new(job, |py, ()| {
            py.detach(tidy);
            Ok(py.None())
        })
    }

    /// The store's name without password, and whether it has leases, detached locks and an order of waiters.
    fn capabilities(&self) -> (String, bool, bool, bool) {
        let can = self.0.capabilities();
        (can.store, can.leases, can.detach, can.fair)
    }

    /// What was done so far, as JSON.
    fn stats(&self) -> PyResult<String> {
        json(&self.0.stats())
    }

    fn default_ttl(&self) -> f64 {
        self.0.default_ttl().as_secs_f64()
    }
}

/// A name and options.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Lock(fencepost::Lock, Way);

#[pymethods]
impl Lock {
    fn acquire(&self) -> Call {
        let (lock, way) = (self.0.clone(), self.1);
        Call::by(way, async move { lock.acquire().await }, move |py, guard| some_guard(py, guard, way))
    }

    fn try_acquire(&self) -> Call {
        let (lock, way) = (self.0.clone(), self.1);
        Call::by(way, async move { lock.try_acquire().await }, move |py, guard| {
            guard.map_or_else(|| Ok(py.None()), |guard| some_guard(py, guard, way))
        })
    }

    fn attach(&self, py: Python<'_>, text: &str) -> PyResult<Call> {
        let (lock, handle, way) = (self.0.clone(), handle(py, text)?, self.1);
        let job = async move { lock.attach(&handle).await };
        Ok(Call::by(way, job, move |py, guard| some_guard(py, guard, way)))
    }
}

/// Several names and options.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct LockSet(fencepost::LockSet, Way);

#[pymethods]
impl LockSet {
    fn acquire(&self) -> Call {
        let (set, way) = (self.0.clone(), self.1);
        Call::by(way, async move { set.acquire().await }, move |py, set| guards(py, set, way))
    }

    fn try_acquire(&self) -> Call {
        let (set, way) = (self.0.clone(), self.1);
        Call::by(way, async move { set.try_acquire().await }, move |py, set| {
            set.map_or_else(|| Ok(py.None()), |set| guards(py, set, way))
        })
    }
}
