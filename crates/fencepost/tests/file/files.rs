//! Lock files that cannot be read, and those that nobody uses.

use std::time::{Duration, SystemTime};

use fencepost::{Error, ForceRelease};

use crate::harness::{Directory, held};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test]
async fn a_lock_file_that_cannot_be_read_is_reported_and_replaced_only_on_demand() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = held(&locks, "job").await;
    let token = guard.token();
    guard.release().await.unwrap();
    let good = std::fs::read(dir.file("job")).unwrap();
    let mut corrupt = good.clone();
    corrupt[40] ^= 1;
    let mut newer = good.clone();
    newer[8] = 200;
    for bad in [&b"12345\n"[..], &good[..good.len() / 2], &corrupt, &newer] {
        std::fs::write(dir.file("job"), bad).unwrap();
        let errors = [
            locks.lock("job").try_acquire().await.unwrap_err(),
            locks.lock("job").acquire().await.unwrap_err(),
            locks.show("job").await.unwrap_err(),
            locks.force_release("job", "why").await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Backend { .. }), "{error:?}");
            let message = error.to_string();
            assert!(message.contains("job.lock") && message.contains("force-release job --now"), "{message}");
        }
        assert_eq!(std::fs::read(dir.file("job")).unwrap(), bad);
        let revoked = locks.force_release("job", ForceRelease::now("start over")).await.unwrap().unwrap();
        assert!(revoked.freed && revoked.token > token);
        let guard = held(&locks, "job").await;
        assert!(guard.token() > revoked.token);
        guard.release().await.unwrap();
    }
    std::fs::copy(dir.file("job"), dir.file("other")).unwrap();
    assert!(
        locks.lock("other").try_acquire().await.unwrap_err().to_string().contains("belongs to lock `job`")
    );
}

#[tokio::test]
async fn idle_files_are_collected_and_those_in_use_are_not() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    held(&locks, "idle").await.release().await.unwrap();
    held(&locks, "recent").await.release().await.unwrap();
    let in_use = held(&locks, "in use").await;
    let detached = locks.lock("detached").ttl(2 * DAY).acquire().await.unwrap().detach().await.unwrap();
    std::fs::write(dir.file("foreign"), "not ours").unwrap();
    std::fs::write(dir.path().join(".new-1-1"), "left by a crash").unwrap();
    for file in ["idle.lock", "in%20use.lock", "detached.lock", "foreign.lock", ".new-1-1", ".swept"] {
        let file = std::fs::File::options().write(true).open(dir.path().join(file)).unwrap();
        file.set_modified(SystemTime::now() - 2 * DAY).unwrap();
    }
    let again = dir.locks().await;
    let mut left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, [".swept", "detached.lock", "foreign.lock", "in%20use.lock", "recent.lock"]);
    assert!(!in_use.state().is_lost());
    again.attach(&detached).await.unwrap().release().await.unwrap();
    held(&again, "idle").await.release().await.unwrap();
}

#[tokio::test]
async fn tokens_grow_when_all_files_were_removed() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = held(&locks, "job").await;
    let before = guard.token();
    guard.release().await.unwrap();
    locks.close().await;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }
    assert!(held(&dir.locks().await, "job").await.token() > before);
}
