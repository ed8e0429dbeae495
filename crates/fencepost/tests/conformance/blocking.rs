//! The blocking interface does the same, on threads.

use fencepost::blocking::Locks;
use fencepost::{Error, State};

use crate::stage::{IN_VAIN, LONG, REDLOCK, Stage, bounded, file_url};

on_every_store!(threads_exclude_each_other_without_a_runtime);

fn url(stage: &Stage) -> String {
    match stage {
        Stage::Memory(_) => "memory:blocking".to_owned(),
        Stage::File(folder) => file_url(folder.path()),
        Stage::Redis(server) => server.url(),
        Stage::Redlock(fleet) => fleet.url_with(REDLOCK),
        Stage::Zookeeper(part) => part.url(),
        Stage::Postgres(database) => database.url(),
        Stage::Etcd { cluster, prefix } => Stage::etcd_url(cluster, prefix),
    }
}

async fn threads_exclude_each_other_without_a_runtime(stage: Stage) {
    let url = url(&stage);
    let thread = std::thread::spawn(move || {
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
        assert!(locks.lock("a").scope(|guard| guard.token()).unwrap() > first);
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
    let joined = bounded("the threads end", tokio::task::spawn_blocking(|| thread.join())).await.unwrap();
    joined.unwrap();
    stage.is_clear().await;
}

#[tokio::test]
async fn a_blocking_call_on_a_runtime_is_refused() {
    let error = Locks::connect("memory:").unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}
