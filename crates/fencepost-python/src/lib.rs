//! The native half of the Python package `fencepost`: calls, locks, guards and the memory store. Context
//! managers, decorators and everything else that Python says better is in `python/fencepost`.
//!
//! No thread of ours ever runs Python. The keeper's thread, which renews all locks, never waits for the
//! interpreter, not even to log.

mod bridge;
mod call;
mod drive;
mod errors;
mod guard;
mod locks;
mod log;
mod options;
mod testing;
mod values;

/// The native half of the package `fencepost`.
#[pyo3::pymodule(gil_used = false)]
mod _fencepost {
    #[pymodule_export]
    use crate::bridge::Bridge;
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::guard::{Guard, Losses, after_fork, release_all};
    #[pymodule_export]
    use crate::locks::{Lock, LockSet, Locks, connect, init, parse_handle};
    #[pymodule_export]
    use crate::log::{log_close, log_debug, log_open, log_take};
    #[pymodule_export]
    use crate::testing::{Clock, Store};
    #[pymodule_export]
    const FENCE_LUA: &str = fencepost::fence::redis::SCRIPT;
    #[pymodule_export]
    const FENCE_SQL: &str = fencepost::fence::postgres::MIGRATION;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn begin(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::refuse_subinterpreters()?;
        crate::log::listen();
        Ok(())
    }
}

/// Python itself refuses where a subinterpreter has a lock of its own; older ones, and those of mod_wsgi, it
/// lets through.
fn refuse_subinterpreters() -> pyo3::PyResult<()> {
    // SAFETY: plain questions, asked by a thread that has the interpreter.
    #[allow(unsafe_code)]
    let number = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(pyo3::exceptions::PyImportError::new_err(
        "fencepost does not support subinterpreters; import it in the main interpreter (with mod_wsgi: set \
         `WSGIApplicationGroup %{GLOBAL}`)",
    ))
}
