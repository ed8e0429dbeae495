//! The blocking interface does the same, on threads.

use fencepost::blocking::Locks;
use fencepost::{Error, Source, State};

use super::{Harness, IN_VAIN, LONG, bounded};

/// On a plain thread, and on one of `spawn_blocking`.
pub async fn threads_exclude_each_other_without_a_runtime(harness: Harness) {
    let url = harness.url();
    let thread = tokio::task::spawn_blocking(move || {
        let locks = Locks::connect(&url).unwrap();
        let guard = locks.lock("a").ttl(LONG).note("mine").acquire().unwrap();
        assert!(locks.lock("a").try_acquire().unwrap().is_none());
        let error = locks.lock("a").wait(IN_VAIN).acquire().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_eq!(locks.show("a").unwrap().unwrap().note.as_deref(), Some("mine"));
        assert_eq!(locks.list("").unwrap().holders.len(), 1);
        assert!(matches!(guard.state(), State::Held { .. }));
        guard.extend().unwrap();
        let first = guard.token();
        let waiter = std::thread::spawn({
            let lock = locks.lock("a").ttl(LONG);
            move || lock.acquire().map(|guard| guard.token()).unwrap()
        });
        guard.release().unwrap();
        assert!(waiter.join().unwrap() > first);
        assert!(locks.lock("a").scope(|guard| Ok::<_, Error>(guard.token())).unwrap() > first);
        let error = locks.lock("a").scope(|_| Err::<(), Source>("no".into())).unwrap_err();
        assert_eq!(error.to_string(), "no");
        let set = locks.all(["b", "a"]).ttl(LONG);
        assert_eq!(set.scope(|guards| Ok::<_, Error>(guards.tokens().count())).unwrap(), 2);
        assert_eq!(set.scope(|_| Err::<(), Source>("no".into())).unwrap_err().to_string(), "no");
        let guards = locks.all(["b", "a"]).ttl(LONG).acquire().unwrap();
        assert_eq!(guards.tokens().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(locks.all(["b", "c"]).try_acquire().unwrap().is_none());
        guards.release().unwrap();
        if locks.capabilities().detach {
            let handle = locks.lock("a").ttl(LONG).acquire().unwrap().detach().unwrap();
            locks.extend(&handle, LONG).unwrap();
            assert!(locks.lock("a").try_acquire().unwrap().is_none());
            locks.release(&handle).unwrap();
            assert!(matches!(locks.release(&handle), Err(Error::Lost { .. })));
        }
        locks.close().unwrap();
    });
    bounded("the threads end", thread).await.unwrap();
    harness.is_clear().await;
}
