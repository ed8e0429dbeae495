//! The memory store with faults on demand, and the clock that tests move.

use fencepost::Loss;
use fencepost::memory::{self, Call as Kind, ManualClock};
use pyo3::prelude::*;

use crate::call::Call;
use crate::errors::{invalid, raise};
use crate::locks::Locks;
use crate::options::seconds;

/// A clock that moves only when told to.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Clock(ManualClock);

#[pymethods]
impl Clock {
    #[new]
    fn new() -> Self {
        Self(ManualClock::new())
    }

    fn advance(&self, by: f64) -> PyResult<Call> {
        let (clock, by) = (self.0.clone(), seconds("a step", by)?);
        let job = async move {
            clock.advance(by).await;
            Ok(())
        };
        Ok(Call::new(job, |py, ()| Ok(py.None())))
    }

    fn leap(&self, by: f64) -> PyResult<()> {
        self.0.leap(seconds("a leap", by)?);
        Ok(())
    }
}

/// A store in memory.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Store(memory::Store);

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (clock=None))]
    fn new(clock: Option<&Clock>) -> Self {
        Self(clock.map_or_else(memory::Store::new, |clock| memory::Store::with_clock(&clock.0)))
    }

    fn locks(&self, py: Python<'_>) -> PyResult<Locks> {
        self.0.locks().map(Locks::new).map_err(|error| raise(py, &error))
    }

    fn expire(&self, name: &str) -> bool {
        self.0.expire(name)
    }

    fn lose(&self, name: &str, why: &str, reason: String) -> PyResult<bool> {
        let why = match why {
            "expired" => Loss::Expired,
            "taken" => Loss::Taken,
            "force_released" => Loss::force_released(reason),
            "session_ended" => Loss::SessionEnded,
            "unreachable" => Loss::Unreachable,
            "paused" => Loss::Paused,
            "max_hold" => Loss::MaxHold,
            other => return Err(invalid(&format!("a lock cannot be lost because it is `{other}`"))),
        };
        Ok(self.0.lose(name, why))
    }

    fn fail(&self, call: &str, times: usize) -> PyResult<()> {
        self.0.fail(kind(call)?, times);
        Ok(())
    }

    fn lose_answers(&self, call: &str, times: usize) -> PyResult<()> {
        self.0.lose_answers(kind(call)?, times);
        Ok(())
    }

    fn delay(&self, call: &str, by: f64) -> PyResult<()> {
        self.0.delay(kind(call)?, seconds("a delay", by)?);
        Ok(())
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }

    fn held(&self) -> usize {
        self.0.held()
    }
}

fn kind(call: &str) -> PyResult<Kind> {
    match call {
        "acquire" => Ok(Kind::Acquire),
        "renew" => Ok(Kind::Renew),
        "release" => Ok(Kind::Release),
        other => Err(invalid(&format!("a call is `acquire`, `renew` or `release`, not `{other}`"))),
    }
}
