//! Values that cross over whole. They go as JSON, which the library and the command line speak already, and
//! become dataclasses in `fencepost._values`.

use fencepost::{Holder, Revoked, State};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::errors::{cause, module};

/// Who holds a lock, as a `Holder`, or `None`.
pub(crate) fn holder(py: Python<'_>, holder: Option<&Holder>) -> PyResult<Py<PyAny>> {
    static VALUES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let Some(holder) = holder else { return Ok(py.None()) };
    let values = module(py, &VALUES, "fencepost._values")?;
    Ok(values.getattr("holder")?.call1((json(holder)?,))?.unbind())
}

/// A force-release as a tuple of the holder, the fresh token, and whether the lock is free already.
pub(crate) fn revoked(py: Python<'_>, revoked: Option<Revoked>) -> PyResult<Py<PyAny>> {
    let Some(revoked) = revoked else { return Ok(py.None()) };
    let victim = holder(py, Some(&revoked.holder))?;
    Ok((victim, revoked.token.get(), revoked.freed).into_pyobject(py)?.into_any().unbind())
}

/// A state as its kind, the time left, the name of what is wrong and a phrase for it.
pub(crate) type Kind = (&'static str, Option<f64>, Option<&'static str>, Option<String>);

pub(crate) fn state(state: Option<State>) -> Kind {
    match state {
        Some(State::Held { left, .. }) => ("held", left.map(|left| left.as_secs_f64()), None, None),
        Some(State::AtRisk { left, why, .. }) => {
            let name = match why {
                fencepost::Risk::RenewalLate => "renewal_late",
                fencepost::Risk::Unreachable => "unreachable",
                fencepost::Risk::Ending => "ending",
                fencepost::Risk::MaxHold => "max_hold",
                _ => "unknown",
            };
            ("at_risk", Some(left.as_secs_f64()), Some(name), Some(why.to_string()))
        }
        Some(State::Lost(why)) => ("lost", Some(0.0), Some(cause(&why).0), Some(why.to_string())),
        _ => ("released", Some(0.0), None, None),
    }
}

/// Anything that can be said in JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}
