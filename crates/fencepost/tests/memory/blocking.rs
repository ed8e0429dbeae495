//! The blocking interface works wherever a thread may block, and refuses where it would stall a runtime.

use fencepost::blocking::Locks;
use fencepost::{Error, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{block_in_place, spawn, spawn_blocking};

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.enable_all().build().unwrap())
}

/// Some calls that wait.
fn calls() -> Result<()> {
    let locks = Locks::connect("memory:")?;
    let guard = locks.lock("a").acquire()?;
    assert!(locks.lock("a").try_acquire()?.is_none());
    guard.extend()?;
    guard.release()?;
    locks.close()
}

fn refused(result: Result<()>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("spawn_blocking"), "{error}");
}

#[test]
fn a_blocking_call_works_on_a_thread_that_may_block() {
    calls().unwrap();
    for runtime in runtimes() {
        runtime.block_on(async { spawn_blocking(calls).await.unwrap().unwrap() });
        let _inside = runtime.enter();
        calls().unwrap();
    }
    let [_, many] = runtimes();
    many.block_on(async {
        block_in_place(calls).unwrap();
        spawn(async { block_in_place(calls) }).await.unwrap().unwrap();
        // Where a library hides the one in the other.
        spawn_blocking(|| block_in_place(calls)).await.unwrap().unwrap();
    });
}

#[test]
fn a_blocking_call_in_an_async_task_is_refused() {
    for runtime in runtimes() {
        runtime.block_on(async {
            refused(calls());
            refused(spawn(async { calls() }).await.unwrap());
        });
    }
}

/// A guard that is taken on a runtime can be given back where that one does not run.
#[test]
fn what_was_taken_in_a_blocking_thread_may_be_released_anywhere() {
    let [one, many] = runtimes();
    let take = || Locks::connect("memory:").unwrap().lock("a").acquire().unwrap();
    let guard = one.block_on(async { spawn_blocking(take).await.unwrap() });
    drop(one);
    let release = many.block_on(async { spawn_blocking(|| guard.release()).await.unwrap() });
    release.unwrap();
}
