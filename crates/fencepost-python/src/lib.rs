//! The native half of the Python package `fencepost`: calls, locks, guards and the memory store. Context managers,
//! decorators and everything else that Python says better is in `python/fencepost`.
//!
//! No thread of ours ever runs Python. The keeper's thread, which renews all locks, never waits for the interpreter.

mod bridge;
mod call;
mod errors;
mod guard;
mod locks;
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
    use crate::locks::{Lock, LockSet, Locks, connect, init};
    #[pymodule_export]
    use crate::testing::{Clock, Store};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
