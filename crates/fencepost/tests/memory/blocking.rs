//! The blocking interface does the same, on threads.

use fencepost::Error;
use fencepost::blocking::Locks;

#[tokio::test]
async fn a_blocking_call_on_a_runtime_is_refused() {
    let error = Locks::connect("memory:").unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}
