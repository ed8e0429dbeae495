//! What operators see and take away, and what holders hear of it.

use std::time::Duration;

use fencepost::{Error, ForceRelease, Loss, State};

use crate::harness::{Directory, held, poll_once};

#[tokio::test]
async fn a_holder_is_told_that_it_shall_let_go_and_why() {
    let dir = Directory::new();
    let (locks, operator) = (dir.locks().await, dir.locks().await);
    assert!(operator.force_release("job", "nobody").await.unwrap().is_none());
    // The next renewal is twenty minutes away: only a push can tell.
    let guard = held(&locks, "job").await;
    let revoked = operator.force_release("job", "maintenance").await.unwrap().unwrap();
    assert_eq!(revoked.holder.owner, Some(guard.owner()));
    assert!(!revoked.freed && revoked.token > guard.token());
    assert_eq!(operator.show("job").await.unwrap().unwrap().revoked.as_deref(), Some("maintenance"));
    assert_eq!(guard.lost().await, Loss::force_released("maintenance"));
    assert!(operator.lock("job").try_acquire().await.unwrap().is_none(), "held until it lets go");
    drop(guard);
    assert!(held(&operator, "job").await.token() > revoked.token);
}

#[tokio::test]
async fn a_lock_that_is_taken_by_force_is_free_at_once_for_those_who_wait_too() {
    let dir = Directory::new();
    let (locks, operator) = (dir.locks().await, dir.locks().await);
    let guard = held(&locks, "job").await;
    let waiting = operator.lock("job");
    let waiting = waiting.acquire();
    tokio::pin!(waiting);
    assert!(poll_once(&mut waiting).await.is_none());
    let revoked = locks.force_release("job", ForceRelease::now("it hangs")).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > guard.token());
    let next = waiting.await.unwrap();
    assert!(next.token() > revoked.token);
    assert_eq!(guard.lost().await, Loss::force_released("it hangs"));
    // What the victim does from here on touches nobody.
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(matches!(next.state(), State::Held { left: None, .. }));
    assert_eq!(next.extend().await.unwrap(), None);
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_holder_whose_file_was_removed_by_hand_is_told() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = held(&locks, "job").await;
    std::fs::remove_file(dir.file("job")).unwrap();
    assert_eq!(guard.lost().await, Loss::Taken);
}

#[tokio::test]
async fn list_shows_every_kind_of_name_by_its_prefix() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let long = "ü/".repeat(170);
    let names = [".", "..", "../../x", "a b", "order:1", "order:2", &long];
    let mut guards = Vec::new();
    for name in names {
        guards.push(held(&locks, name).await);
    }
    let listed: Vec<_> =
        locks.list("").await.unwrap().holders.into_iter().map(|h| h.name.to_string()).collect();
    assert_eq!(listed, names);
    assert_eq!(locks.list("order:").await.unwrap().holders.len(), 2);
    assert_eq!(locks.list("ü/").await.unwrap().holders.len(), 1);
    assert_eq!(locks.list(".").await.unwrap().holders.len(), 3);
    guards.clear();
    locks.close().await;
    assert!(dir.locks().await.list("").await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn a_file_of_another_version_is_left_alone_and_the_error_says_what_to_do() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    held(&locks, "job").await.release().await.unwrap();
    let mut newer = std::fs::read(dir.file("job")).unwrap();
    newer[8] = 9;
    std::fs::write(dir.file("job"), &newer).unwrap();
    let tries = [
        locks.lock("job").try_acquire().await.map(|_| ()),
        locks.show("job").await.map(|_| ()),
        locks.force_release("job", "stuck").await.map(|_| ()),
    ];
    for result in tries {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("format 9") && error.contains("use that version"), "{error}");
    }
    assert_eq!(std::fs::read(dir.file("job")).unwrap(), newer);
}

#[tokio::test]
async fn one_entry_that_is_no_lock_file_does_not_hide_the_others() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let _guard = held(&locks, "job").await;
    held(&locks, "copied").await.release().await.unwrap();
    std::fs::write(dir.file("junk"), "12345\n").unwrap();
    std::fs::write(dir.path().join("\u{1b}[31m%.lock"), "x").unwrap();
    std::fs::copy(dir.file("copied"), dir.file("another")).unwrap();
    std::fs::create_dir(dir.file("folder")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.file("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.file("pipe"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let listing = locks.list("").await.unwrap();
    assert_eq!(listing.holders.iter().map(|holder| holder.name.as_str()).collect::<Vec<_>>(), ["job"]);
    assert_eq!(listing.unreadable.len(), 6, "{:?}", listing.unreadable);
    for name in ["junk", "another", "folder", "link", "pipe"] {
        let error = locks.show(name).await.unwrap_err();
        assert!(error.to_string().contains(&format!("{name}.lock")), "{error}");
        locks.lock(name).try_acquire().await.unwrap_err();
    }
    assert!(locks.lock("other").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_file_that_was_replaced_or_removed_is_not_current_though_a_backup_has_linked_it() {
    let dir = Directory::new();
    let (locks, other, operator) = (dir.locks().await, dir.locks().await, dir.locks().await);
    let linked = |backup: &str| std::fs::hard_link(dir.file("job"), dir.path().join(backup)).unwrap();
    let victim = held(&locks, "job").await;
    linked("backup-1");
    // Waits for the flock of the file that the victim has.
    let lock = other.lock("job");
    let mut waiting = Box::pin(lock.acquire());
    assert!(poll_once(&mut waiting).await.is_none());
    operator.force_release("job", ForceRelease::now("it hangs")).await.unwrap().unwrap();
    drop(victim);
    let next = waiting.await.unwrap();
    assert!(operator.lock("job").try_acquire().await.unwrap().is_none(), "it holds what all others see");
    linked("backup-2");
    std::fs::remove_file(dir.file("job")).unwrap();
    let told = tokio::time::timeout(Duration::from_secs(60), next.lost()).await;
    assert_eq!(told.expect("it is told"), Loss::Taken);
}
