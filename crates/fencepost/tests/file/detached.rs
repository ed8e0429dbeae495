//! Detached locks: leases that outlive their process.

use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::{Error, ForceRelease, Handle, Locks, Loss};

use crate::family::Family;
use crate::harness::{Directory, HOUR, held};

#[tokio::test]
async fn a_detached_lock_outlives_its_process_and_another_goes_on_with_it() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (child, handle) = dir.child("detach");
    child.finish();
    let handle: Handle = handle.parse().unwrap();
    let holder = locks.show("job").await.unwrap().unwrap();
    assert!(holder.expires_in.unwrap() > HOUR / 2);
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());

    let other = dir.locks().await;
    let waiting = tokio::spawn(async move { other.lock("job").acquire().await.unwrap().token() });
    let guard = locks.lock("job").ttl(2 * HOUR).attach(&handle).await.unwrap();
    assert_eq!(guard.token(), handle.token());
    let left = locks.show("job").await.unwrap().unwrap().expires_in.unwrap();
    assert!(left > HOUR + HOUR / 2);
    assert_eq!(locks.show("job").await.unwrap().unwrap().pid, Some(std::process::id()));
    let again = guard.detach().await.unwrap();
    // A shorter ttl does not shorten what is there.
    let guard = locks.lock("job").ttl(HOUR).attach(&again).await.unwrap();
    assert!(locks.show("job").await.unwrap().unwrap().expires_in.unwrap() > HOUR + HOUR / 2);
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { why: Loss::Taken, .. })));
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap() > handle.token());
}

#[tokio::test]
async fn a_detached_lock_ends_with_its_lease() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = locks.lock("job").ttl(Duration::from_millis(50)).acquire().await.unwrap();
    let handle = guard.detach().await.unwrap();
    let next = held(&locks, "job").await;
    assert!(next.token() > handle.token());
    let lost = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { why: Loss::Taken, .. }), "{lost}");
}

#[tokio::test]
async fn a_detached_lock_that_is_force_released_now_is_free_and_its_owner_learns_why() {
    let dir = Directory::new();
    let (locks, operator) = (dir.locks().await, dir.locks().await);
    let handle = held(&locks, "job").await.detach().await.unwrap();
    let attached = locks.lock("job").ttl(HOUR).attach(&handle).await.unwrap();
    let revoked = operator.force_release("job", ForceRelease::now("stuck")).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > handle.token());
    let stuck = || Loss::force_released("stuck");
    assert_eq!(attached.lost().await, stuck());
    assert!(matches!(attached.release().await, Err(Error::Lost { why, .. }) if why == stuck()));
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { why: Loss::Taken, .. })));
    assert!(held(&operator, "job").await.token() > revoked.token);
}

#[tokio::test]
async fn a_detached_lock_is_on_the_disk_before_its_handle_is_given_out() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    // Many times: whether it would be left behind is a race with what a dropped guard does in the background.
    for _ in 0..20 {
        let (_child, said) = dir.child("detach without a disk");
        assert!(said.contains("job.lock") && said.contains("Input/output error"), "{said}");
        // And is not left behind by one that did not get there.
        let free = locks.lock("job").wait(Duration::from_secs(30)).acquire().await;
        free.unwrap().release().await.unwrap();
        // Nor by one that did not wait for the disk.
        let (_child, said) = dir.child("detach and give up");
        assert_eq!(said, "given up");
        let free = locks.lock("job").wait(Duration::from_secs(30)).acquire().await;
        free.unwrap().release().await.unwrap();
    }
    let handle = held(&locks, "job").await.detach().await.unwrap();
    let (_child, said) = dir.child(&format!("extend without a disk {handle}"));
    assert!(said.contains("job.lock") && said.contains("Input/output error"), "{said}");
    locks.release(&handle).await.unwrap();
}

#[tokio::test]
async fn the_directory_of_a_detached_lock_is_on_the_disk_before_its_handle_is_given_out() {
    let outer = Directory::new();
    let url = format!("{}/made/now", outer.url());
    let (_child, said) =
        Family::start("child", "detach in a directory without a disk around it", &url, |_| {});
    assert!(said.contains("job.lock") && said.contains("Input/output error"), "{said}");
    let locks = Locks::connect(&url).await.unwrap();
    let handle = held(&locks, "job").await.detach().await.unwrap();
    locks.release(&handle).await.unwrap();
}

#[tokio::test]
async fn a_detached_lock_is_held_in_every_time_namespace() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = Directory::new();
    let locks = dir.locks().await;
    // A clock that is a day ahead, as a container may have.
    let inside = |what: &str| {
        let me = std::env::current_exe().unwrap();
        let child = Command::new("unshare")
            .args(["--time", "--boottime", "86400", "--fork", "--kill-child"])
            .arg(me)
            .args(["--exact", "child", "--nocapture"])
            .env("FENCEPOST_CHILD", what)
            .env("FENCEPOST_URL", dir.url())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(child.stdout).unwrap();
        said.split_once("done: ").expect(&said).1.lines().next().unwrap().to_owned()
    };
    let ours = held(&locks, "job").await.detach().await.unwrap();
    assert_eq!(inside("try"), "held");
    locks.extend(&ours, HOUR).await.unwrap();
    locks.release(&ours).await.unwrap();
    let theirs: Handle = inside("detach").parse().unwrap();
    let left = locks.show("job").await.unwrap().unwrap().expires_in.unwrap();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    locks.release(&theirs).await.unwrap();
    assert_eq!(inside("try"), "free");
}
