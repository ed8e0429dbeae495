//! Where locks are, and what becomes of the folders.

use fencepost::Locks;
use fencepost_testkit::zookeeper::Mode;

use crate::harness::{Part, take, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chroot_and_prefix_make_one_path() {
    let part = Part::new();
    let at = async |path: &str| Locks::connect(&format!("{}{path}", part.server.url())).await.unwrap();
    let chroot = &part.chroot;
    let _held = take(&at(&format!("{chroot}/x?prefix=y/z")).await).await;
    let same = at(&format!("{chroot}/x/y?prefix=z")).await;
    assert!(same.lock("a").try_acquire().await.unwrap().is_none());
    let other = at(&format!("{chroot}/x/y?prefix=other")).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
    let nodes = part.server.client().children(&format!("{chroot}/x/y/z/a")).unwrap();
    assert!(nodes.len() == 1 && nodes[0].starts_with("_c_") && nodes[0].ends_with("-lock-0000000000"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_contender_is_in_nobodys_way() {
    let part = Part::new();
    let locks = part.locks().await;
    use_once(&locks).await;
    let folder = format!("{}/fencepost/a", part.chroot);
    let mut client = part.server.client();
    client.create(&format!("{folder}/config"), b"", Mode::Persistent).unwrap();
    client.create(&format!("{folder}/lease-"), b"", Mode::EphemeralSequential).unwrap();
    assert_eq!(locks.show("a").await.unwrap(), None);
    use_once(&locks).await;
    assert_eq!(client.children(&folder).unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_curators_make_excludes_us() {
    let part = Part::new();
    let locks = part.locks().await;
    use_once(&locks).await;
    let mut curator = part.server.client();
    let stem = format!("{}/fencepost/a/_c_0c0f0d0e-0000-4000-8000-000000000001-lock-", part.chroot);
    let node = curator.create(&stem, b"10.0.0.1", Mode::EphemeralSequential).unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.token.is_some() && holder.pid.is_none(), "{holder:?}");
    let waiter = crate::harness::start_waiting(&locks);
    crate::harness::until("it stands in line", async || part.contenders().len() == 2).await;
    assert!(curator.delete(&node).unwrap());
    let guard = crate::harness::bounded("it gets the lock", waiter).await.unwrap().unwrap();
    assert!(Some(guard.token()) > holder.token);
    guard.release().await.unwrap();
}
