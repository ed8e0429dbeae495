//! A login makes nodes private; who has another one, or none, is told so without a password being shown.

use fencepost::{Error, Locks};
use fencepost_testkit::zookeeper::Mode;

use crate::harness::{LONG, Part, take, use_once};

const PASSWORD: &str = "correct-horse-battery";
/// What ZooKeeper keeps of this login, and of another one of the same name.
const ALICE: &str = "alice:T+8HXx5oeNIygEs8fZeMmogFzPE=";
const OTHER_ALICE: &str = "alice:AAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// Everything, and everything but to change the permissions themselves.
const ALL: i32 = 31;
const USE: i32 = 15;

fn url_of_alice(part: &Part) -> String {
    format!("zookeeper://alice:{PASSWORD}@{}{}", part.server.addr(), part.chroot)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_made_with_a_login_are_private() {
    let part = Part::new();
    let url = |login: &str| format!("zookeeper://{login}{}{}", part.server.addr(), part.chroot);
    let locks = Locks::connect(&url(&format!("alice:{PASSWORD}@"))).await.unwrap();
    let guard = take(&locks).await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    for login in ["", "alice:wrong-horse-battery@", "bob:correct-horse-battery@"] {
        let other = Locks::connect(&url(login)).await.unwrap();
        for error in [other.lock("a").try_acquire().await.unwrap_err(), other.show("a").await.unwrap_err()] {
            assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error:?}");
            let text = format!("{error} {error:?} {other:?}");
            assert!(text.contains("user:password") && !text.contains("horse"), "{text}");
        }
    }
    let shown = format!("{locks:?} {guard:?} {:?}", locks.capabilities());
    assert!(!shown.contains(PASSWORD), "{shown}");
    guard.release().await.unwrap();
    use_once(&Locks::connect(&url(&format!("alice:{PASSWORD}@"))).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_holds_on_the_next_connection_too() {
    let part = Part::new();
    let url = format!("zookeeper://alice:{PASSWORD}@{}{}", part.link.addr(), part.chroot);
    let locks = Locks::connect(&url).await.unwrap();
    let guard = take(&locks).await;
    part.link.reset();
    guard.release().await.unwrap();
    use_once(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_refused_where_others_may_delete_its_nodes() {
    let part = Part::new();
    // Somebody without a login was first: the folders are everybody's.
    use_once(&part.locks().await).await;
    let locks = Locks::connect(&url_of_alice(&part)).await.unwrap();
    for wait in [false, true] {
        let lock = locks.lock("a").ttl(LONG);
        let outcome = if wait { lock.acquire().await.map(Some) } else { lock.try_acquire().await };
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let folder = format!("{}/fencepost/a", part.chroot);
        for part in ["`a`", "world:anyone", &folder, "setAcl", "acl=open"] {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
    }
    part.is_clear().await;
    // Another name has a folder of its own, which nobody but her can delete nodes of.
    locks.lock("b").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let accepts = Locks::connect(&format!("{}?acl=open", url_of_alice(&part))).await.unwrap();
    use_once(&accepts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_else_may_delete_decides_whether_a_folder_is_safe() {
    for (acl, safe) in [
        (&[(ALL, "digest", ALICE)][..], true),
        // Without the right to change permissions she is not told the hashes.
        (&[(USE, "digest", ALICE)], true),
        (&[(ALL, "digest", ALICE), (7, "world", "anyone")], true),
        (&[(ALL, "digest", ALICE), (8, "world", "anyone")], false),
        (&[(ALL, "digest", ALICE), (16, "ip", "127.0.0.1")], false),
        (&[(ALL, "digest", ALICE), (ALL, "digest", OTHER_ALICE)], false),
        (&[(USE, "digest", ALICE), (8, "digest", "bob:AAAAAAAAAAAAAAAAAAAAAAAAAAA=")], false),
    ] {
        let part = Part::new();
        let mut client = part.server.client();
        for folder in [part.chroot.clone(), format!("{}/fencepost", part.chroot)] {
            client.create(&folder, b"", Mode::Persistent).unwrap();
        }
        client.create_for(&format!("{}/fencepost/a", part.chroot), acl).unwrap();
        let locks = Locks::connect(&url_of_alice(&part)).await.unwrap();
        match locks.lock("a").ttl(LONG).try_acquire().await {
            Ok(guard) => {
                assert!(safe, "{acl:?}");
                guard.unwrap().release().await.unwrap();
            }
            Err(error) => {
                assert!(!safe && matches!(error, Error::Config { .. }), "{acl:?}: {error}");
                assert!(!error.to_string().contains("AAAA"), "{error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_not_ours_to_see_hides_no_others_from_a_list() {
    let part = Part::new();
    let anybody = part.locks().await;
    let guard = take(&anybody).await;
    let alice = Locks::connect(&url_of_alice(&part)).await.unwrap();
    let hidden = alice.lock("hidden").ttl(LONG).acquire().await.unwrap();
    let open = Locks::connect(&format!("{}?acl=open", url_of_alice(&part))).await.unwrap();
    anybody.lock("seen").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let within = open.lock("seen").ttl(LONG).acquire().await.unwrap();
    let listing = anybody.list("").await.unwrap();
    assert_eq!(listing.unreadable.len(), 2);
    let listed = listing.holders;
    let names: Vec<_> = listed.iter().map(|holder| holder.name.as_str()).collect();
    assert_eq!(names, ["a", "seen"], "a held lock in an open folder, and none of a private one");
    assert_eq!(listed[0].owner, Some(guard.owner()));
    assert_eq!(listed[1].owner, None);
    assert_eq!(alice.list("").await.unwrap().holders.len(), 3);
    for guard in [guard, hidden, within] {
        guard.release().await.unwrap();
    }
}
