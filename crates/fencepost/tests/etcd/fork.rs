//! A forked child has a session of its own, and cannot touch its parent's locks.

use std::process::{Command, Stdio};

use fencepost::{Error, Locks};
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, connect, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forked_child_uses_nothing_of_its_parents() {
    let cluster = Cluster::start(1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fork::child", "--nocapture"])
        .env("FENCEPOST_FORK", cluster.url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let locks = connect(&cluster.url()).await;
    take(&locks, "job").await.release().await.unwrap();
}

/// Not a test of its own: what the process does that forks.
#[test]
fn child() {
    let Ok(url) = std::env::var("FENCEPOST_FORK") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, guard) = runtime.block_on(async {
        let locks = Locks::connect(&url).await.unwrap();
        let guard = locks.lock("job").ttl(LONG).acquire().await.unwrap();
        (locks, guard)
    });
    // SAFETY: the only other threads are the library's and the test's, and the child uses what it may use by
    // its contract.
    #[allow(unsafe_code)]
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        // On a runtime of its own: the inherited one shares its descriptors with the parent's.
        let fine = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let refused = guard.release().await.is_err();
                let inherited = locks.lock("own").try_acquire().await;
                let refused = refused && matches!(inherited, Err(Error::Unsupported { .. }));
                drop((inherited, locks));
                let locks = Locks::connect(&url).await.unwrap();
                let busy = locks.lock("job").try_acquire().await.unwrap().is_none();
                let own = locks.lock("own").ttl(LONG).try_acquire().await.unwrap().unwrap();
                own.release().await.unwrap();
                refused && busy
            })
        });
        let fine = fine.join().unwrap_or(false);
        // SAFETY: ends the process without running anything else.
        #[allow(unsafe_code)]
        unsafe {
            libc::_exit(i32::from(!fine))
        };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    #[allow(unsafe_code)]
    let waited = unsafe { libc::waitpid(grandchild, &raw mut status, 0) };
    assert_eq!((waited, status), (grandchild, 0));
    runtime.block_on(async {
        guard.check().unwrap();
        guard.release().await.unwrap();
    });
}
