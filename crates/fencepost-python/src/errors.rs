//! Errors of the library as the exceptions of `fencepost._errors`.

use fencepost::{Error, Loss};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict as _, PyDict, PyModule};

use crate::values::holder;

/// A module of the package, imported once.
pub(crate) fn module<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyModule>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyModule>> {
    Ok(cell.get_or_try_init(py, || py.import(name).map(Bound::unbind))?.bind(py))
}

/// The exception that says what an error says.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|trouble| trouble)
}

/// The exception for a wrong argument.
pub(crate) fn invalid(message: &str) -> PyErr {
    Python::attach(|py| raise(py, &Error::invalid(message)))
}

/// The name of a cause, as `fencepost.Loss` spells it, and the reason that an operator gave.
pub(crate) fn cause(why: &Loss) -> (&'static str, Option<&str>) {
    let reason = match why {
        Loss::ForceReleased { reason, .. } => Some(reason.as_str()),
        _ => None,
    };
    (why.as_str(), reason)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = module(py, &ERRORS, "fencepost._errors")?;
    let fields = PyDict::new(py);
    let kind = match error {
        Error::Busy { name, holder: who, .. } => {
            fields.set_item("name", name.as_str())?;
            fields.set_item("holder", holder(py, who.as_deref())?)?;
            "Busy"
        }
        Error::Timeout { name, waited, holder: who, .. } => {
            fields.set_item("name", name.as_str())?;
            fields.set_item("waited", waited.as_secs_f64())?;
            fields.set_item("holder", holder(py, who.as_deref())?)?;
            "LockTimeout"
        }
        Error::Lost { name, why, .. } => {
            let (why, reason) = cause(why);
            fields.set_item("name", name.as_str())?;
            fields.set_item("why", why)?;
            fields.set_item("reason", reason)?;
            "LockLost"
        }
        Error::Changed { name, holder: who, .. } => {
            fields.set_item("name", name.as_str())?;
            fields.set_item("holder", holder(py, who.as_deref())?)?;
            "Changed"
        }
        Error::Unavailable { store, .. } => {
            fields.set_item("store", store)?;
            let said = error.nodes().iter().map(|report| (&report.node, report.verdict.to_string()));
            fields.set_item("nodes", said.into_py_dict(py)?)?;
            "Unavailable"
        }
        Error::Uncertain { name, .. } => {
            fields.set_item("name", name.as_str())?;
            "Uncertain"
        }
        Error::Unsupported { .. } => "Unsupported",
        Error::Invalid { .. } => "Invalid",
        Error::Config { .. } => "ConfigError",
        Error::Backend { store, .. } => {
            fields.set_item("store", store)?;
            "BackendError"
        }
        _ => "Error",
    };
    let raised = errors.getattr(kind)?.call((error.to_string(),), Some(&fields))?;
    Ok(PyErr::from_value(raised))
}
