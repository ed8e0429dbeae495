//! Which directories are used, and with which permissions.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fencepost::{Error, ForceRelease, Locks};
use fencepost_testkit::Folder;

use crate::family::Family;
use crate::harness::{Directory, held};

#[tokio::test]
async fn a_directory_of_others_is_refused_unless_it_is_to_be_shared() {
    let dir = Directory::new();
    let refused = || async {
        let error = Locks::connect(&dir.url()).await.unwrap_err();
        assert!(
            matches!(error, Error::Config { .. }) && error.to_string().contains("mode=shared"),
            "{error}"
        );
    };
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    refused().await;
    let shared = Locks::connect(&format!("{}?mode=shared", dir.url())).await.unwrap();
    held(&shared, "job").await.release().await.unwrap();
    assert_eq!(std::fs::metadata(dir.file("job")).unwrap().permissions().mode() & 0o777, 0o666);
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    dir.locks().await;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        refused().await;
    }
    let fresh = Directory::new();
    let locks = Locks::connect(&format!("{}/made/for/us", fresh.url())).await.unwrap();
    let made = fresh.path().join("made/for/us");
    assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
    held(&locks, "job").await.release().await.unwrap();
    assert_eq!(std::fs::metadata(made.join("job.lock")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn urls_that_make_no_sense_are_refused() {
    for (url, part) in [
        ("file://server/share", "has no host"),
        ("file:/tmp/x?mode=open", "`private` or `shared`"),
        ("file:/tmp/x?durable=maybe", "`yes` or `no`"),
        ("file:/tmp/x?colour=red", "known are `durable`, `mode`, `timeout`, `ttl`"),
    ] {
        let error = Locks::connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(part), "{url}: {error}");
    }
    let error = Locks::connect("file:/dev/null/locks").await.unwrap_err();
    assert!(
        matches!(error, Error::Config { .. }) && error.to_string().contains("/dev/null/locks"),
        "{error}"
    );
}

#[test]
fn the_default_directory_is_in_the_users_home() {
    let home = Folder::new("file");
    let (_, said) = Family::start("child", "connect", "file:", |command| {
        command.env_remove("XDG_STATE_HOME").env("HOME", home.path());
    });
    assert_eq!(said, "connected");
    assert!(home.path().join(".local/state/fencepost/locks").is_dir());
    let (_, said) = Family::start("child", "connect", "file:", |command| {
        command.env_remove("HOME").env("XDG_STATE_HOME", home.path().join("state"));
    });
    assert_eq!(said, "connected");
    assert!(home.path().join("state/fencepost/locks").is_dir());
    let (_, said) = Family::start("child", "connect", "file:", |command| {
        command.env_remove("HOME").env_remove("XDG_STATE_HOME");
    });
    assert!(said.contains("file:///path"), "{said}");
}

#[tokio::test]
async fn lock_files_of_a_shared_directory_belong_to_its_group() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = Directory::new();
    std::os::unix::fs::chown(dir.path(), None, Some(4711)).unwrap();
    // Without the bit that makes new files inherit the group.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o770)).unwrap();
    let locks = Locks::connect(&format!("{}?mode=shared", dir.url())).await.unwrap();
    held(&locks, "job").await.release().await.unwrap();
    let of = |path: PathBuf| {
        let stat = std::fs::metadata(path).unwrap();
        (stat.gid(), stat.mode() & 0o777)
    };
    assert_eq!(of(dir.file("job")), (4711, 0o660));
    // What a force-release puts in its place, too.
    let _hung = held(&locks, "job").await;
    locks.force_release("job", ForceRelease::now("it hangs")).await.unwrap().unwrap();
    assert_eq!(of(dir.file("job")), (4711, 0o660));
}
