//! The locks of a store, and locks before they are held.

use fencepost::{FencingToken, ForceRelease, Handle, Name};
use pyo3::prelude::*;

use crate::call::Call;
use crate::drive::{Way, tidy};
use crate::errors::{invalid, raise};
use crate::guard::{Guard, in_background, releases_done};
use crate::options::{Options, put_on, seconds};
use crate::values::{holder, json, revoked};

fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn some_guard(py: Python<'_>, guard: fencepost::Guard, store: Connected) -> PyResult<Py<PyAny>> {
    Ok(Guard::new(guard, store).into_pyobject(py)?.into_any().unbind())
}

fn guards(py: Python<'_>, set: fencepost::GuardSet, store: &Connected) -> PyResult<Py<PyAny>> {
    let guards: Vec<_> =
        set.into_guards().into_iter().map(|guard| Guard::new(guard, store.clone())).collect();
    Ok(guards.into_pyobject(py)?.into_any().unbind())
}

fn handle(py: Python<'_>, text: &str) -> PyResult<Handle> {
    text.parse().map_err(|error| raise(py, &error))
}

fn check(py: Python<'_>, name: &str) -> PyResult<()> {
    Name::new(name).map(drop).map_err(|error| raise(py, &error))
}

/// What a handle says that is no secret: the name, the owner as others see it, and the token.
#[pyfunction]
pub(crate) fn parse_handle(py: Python<'_>, text: &str) -> PyResult<(String, String, u64)> {
    let handle = handle(py, text)?;
    Ok((handle.name().to_string(), handle.owner().to_string(), handle.token().get()))
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
    let job = async move {
        if reconfigure {
            fencepost::Locks::reconfigure(&url).await
        } else {
            fencepost::Locks::init(&url).await
        }
    };
    Call::new(job, |py, done| Ok(done.into_pyobject(py)?.into_any().unbind()))
}

/// A store, and the way in which its calls are made.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) locks: fencepost::Locks,
    pub(crate) way: Way,
}

/// A detached lock that is released unless somebody takes its handle. If the call that releases it, or was to
/// return the handle, is given up by a cancellation or Ctrl-C, that is done in the background.
pub(crate) struct Unclaimed(Option<(fencepost::Locks, Handle)>);

impl Unclaimed {
    pub(crate) fn new(locks: fencepost::Locks, handle: Handle) -> Self {
        Self(Some((locks, handle)))
    }

    /// Releases it.
    async fn release(mut self) -> fencepost::Result<()> {
        let Some((locks, handle)) = &self.0 else { return Ok(()) };
        let result = locks.release(handle).await;
        self.0 = None;
        result
    }

    /// The text of the handle, whose reader is in charge from now on.
    pub(crate) fn claim(mut self) -> String {
        self.0.take().map_or_else(String::new, |(_, handle)| handle.to_string())
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some((locks, handle)) = self.0.take() {
            in_background(async move {
                let _ = locks.release(&handle).await;
            });
        }
    }
}

/// The locks of one store.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Locks(Connected);

impl Locks {
    pub(crate) fn new(locks: fencepost::Locks) -> Self {
        // One Redis: its connections belong to the runtime of the call, and what a call leaves behind goes by
        // the keeper.
        let way = if locks.capabilities().store.starts_with("redis") { Way::Direct } else { Way::Keeper };
        Self(Connected { locks, way })
    }
}

#[pymethods]
impl Locks {
    fn lock(&self, py: Python<'_>, name: String, options: Options) -> PyResult<Lock> {
        check(py, &name)?;
        Ok(Lock(put_on!(self.0.locks.lock(name), options), self.0.clone()))
    }

    fn all(&self, py: Python<'_>, names: Vec<String>, options: Options) -> PyResult<LockSet> {
        names.iter().try_for_each(|name| check(py, name))?;
        Ok(LockSet(put_on!(self.0.locks.all(names), options), self.0.clone()))
    }

    fn extend(&self, py: Python<'_>, text: &str, ttl: f64) -> PyResult<Call> {
        let (locks, handle, ttl) = (self.0.locks.clone(), handle(py, text)?, seconds("ttl", ttl)?);
        Ok(Call::by(self.0.way, async move { locks.extend(&handle, ttl).await }, nothing))
    }

    fn release(&self, py: Python<'_>, text: &str) -> PyResult<Call> {
        let unclaimed = Unclaimed::new(self.0.locks.clone(), handle(py, text)?);
        Ok(Call::by(self.0.way, unclaimed.release(), nothing))
    }

    fn list(&self, prefix: String) -> Call {
        let locks = self.0.locks.clone();
        let job = async move { locks.list(&prefix).await };
        Call::new(job, |py, listing| {
            let holders: PyResult<Vec<_>> = listing.holders.iter().map(|one| holder(py, Some(one))).collect();
            let unreadable: Vec<_> = listing.unreadable.iter().map(ToString::to_string).collect();
            Ok((holders?, unreadable).into_pyobject(py)?.into_any().unbind())
        })
    }

    fn show(&self, name: String) -> Call {
        let locks = self.0.locks.clone();
        Call::new(async move { locks.show(&name).await }, |py, shown| holder(py, shown.as_ref()))
    }

    #[pyo3(signature = (name, reason, now, token=None))]
    fn force_release(&self, name: String, reason: String, now: bool, token: Option<u64>) -> PyResult<Call> {
        let locks = self.0.locks.clone();
        let mut how = if now { ForceRelease::now(reason) } else { ForceRelease::ask(reason) };
        if let Some(token) = token {
            how = how.if_token(FencingToken::new(token).ok_or_else(|| invalid("this is no fencing token"))?);
        }
        Ok(Call::new(async move { locks.force_release(&name, how).await }, revoked))
    }

    fn check(&self) -> Call {
        let locks = self.0.locks.clone();
        Call::new(async move { locks.check().await }, nothing)
    }

    fn close(&self) -> Call {
        let locks = self.0.locks.clone();
        let job = async move {
            releases_done().await;
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
        let can = self.0.locks.capabilities();
        (can.store, can.leases, can.detach, can.fair)
    }

    /// What was done so far, as JSON.
    fn stats(&self) -> PyResult<String> {
        json(&self.0.locks.stats())
    }

    fn default_ttl(&self) -> f64 {
        self.0.locks.default_ttl().as_secs_f64()
    }
}

/// A name and options.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Lock(fencepost::Lock, Connected);

#[pymethods]
impl Lock {
    fn acquire(&self) -> Call {
        let (lock, store) = (self.0.clone(), self.1.clone());
        Call::by(store.way, async move { lock.acquire().await }, move |py, guard| {
            some_guard(py, guard, store)
        })
    }

    fn try_acquire(&self) -> Call {
        let (lock, store) = (self.0.clone(), self.1.clone());
        Call::by(store.way, async move { lock.try_acquire().await }, move |py, guard| {
            guard.map_or_else(|| Ok(py.None()), |guard| some_guard(py, guard, store))
        })
    }

    fn attach(&self, py: Python<'_>, text: &str) -> PyResult<Call> {
        let (lock, handle, store) = (self.0.clone(), handle(py, text)?, self.1.clone());
        let job = async move { lock.attach(&handle).await };
        Ok(Call::by(store.way, job, move |py, guard| some_guard(py, guard, store)))
    }
}

/// Several names and options.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct LockSet(fencepost::LockSet, Connected);

#[pymethods]
impl LockSet {
    fn acquire(&self) -> Call {
        let (set, store) = (self.0.clone(), self.1.clone());
        Call::by(store.way, async move { set.acquire().await }, move |py, set| guards(py, set, &store))
    }

    fn try_acquire(&self) -> Call {
        let (set, store) = (self.0.clone(), self.1.clone());
        Call::by(store.way, async move { set.try_acquire().await }, move |py, set| {
            set.map_or_else(|| Ok(py.None()), |set| guards(py, set, &store))
        })
    }
}
