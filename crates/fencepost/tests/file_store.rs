//! The file store against real files and real processes. A child is this test binary again: it runs the one test
//! `child`, which does what its environment says.
#![cfg(feature = "file")]
#![allow(unsafe_code, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "common/family.rs"]
mod family;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use fencepost::{Error, Guard, Handle, Locks, Loss, State};
use fencepost_testkit::Folder;

use family::{Family, Stray, say, wait_for_parent};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Directory(Folder);

impl Directory {
    fn new() -> Self {
        Self(Folder::new("file-store"))
    }

    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.lock"))
    }

    async fn locks(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }

    /// Starts a child that does `what` and waits until it says `done: …`; returns what it said.
    fn child(&self, what: &str) -> (Family, String) {
        Family::start("child", what, &self.url(), |_| {})
    }
}

/// Not a test of its own: what children do.
#[test]
fn child() {
    let Some((what, url)) = Family::task() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(act(&what, &url));
}

async fn act(what: &str, url: &str) {
    if what == "connect" {
        return say(&Locks::connect(url)
            .await
            .map_or_else(|error| error.to_string(), |_| "connected".to_owned()));
    }
    let locks = Locks::connect(url).await.unwrap();
    let lock = locks.lock("job").ttl(HOUR).note("from a child");
    match what {
        "hold" => {
            let guard = lock.acquire().await.unwrap();
            say(&guard.token().to_string());
            wait_for_parent();
            guard.release().await.unwrap();
        }
        "detach" => {
            let handle = lock.acquire().await.unwrap().detach().await.unwrap();
            say(&handle.to_string());
        }
        "exec" => {
            let guard = lock.acquire().await.unwrap();
            // Outlives us on purpose; the parent ends it.
            #[allow(clippy::zombie_processes)]
            let stray = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
            say(&stray.id().to_string());
            wait_for_parent();
            drop(guard);
        }
        other => panic!("a child cannot `{other}`"),
    }
}

async fn held(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).ttl(HOUR).acquire().await.unwrap()
}

#[tokio::test]
async fn a_holder_that_is_killed_frees_its_lock_at_once() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (mut child, token) = dir.child("hold");
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    let holder = locks.show("job").await.unwrap().unwrap();
    assert_eq!((holder.pid, holder.note.as_deref()), (Some(child.child.id()), Some("from a child")));
    let lock = locks.lock("job");
    let waiting = lock.acquire();
    tokio::pin!(waiting);
    assert!(futures_poll_once(&mut waiting).await.is_none());
    child.kill();
    let guard = waiting.await.unwrap();
    assert!(guard.token().get() > token.parse().unwrap());
    guard.release().await.unwrap();
}

/// Polls a future once.
async fn futures_poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(out) => Some(out),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn an_executed_program_does_not_keep_the_lock() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (mut child, program) = dir.child("exec");
    let program = Stray::new(&program);
    child.kill();
    held(&locks, "job").await.release().await.unwrap();
    assert!(program.is_alive());
}

#[tokio::test]
async fn a_lifeline_keeps_the_lock_until_it_is_released() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let guard = held(&locks, "job").await;
    let copy = guard.lifeline().unwrap().try_clone_to_owned().unwrap();
    assert!(other.lock("job").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    // An explicit release counts for every copy.
    held(&other, "job").await.release().await.unwrap();
    drop(copy);
}

#[tokio::test]
async fn tokens_grow_across_processes_and_after_the_files_were_lost() {
    let dir = Directory::new();
    let mut last = 0;
    for round in 0..4 {
        let (child, token) = dir.child("hold");
        child.finish();
        let token: u64 = token.parse().unwrap();
        assert!(token > last);
        last = token;
        if round % 2 == 1 {
            std::fs::remove_file(dir.file("job")).unwrap();
        }
    }
    let locks = dir.locks().await;
    for _ in 0..100 {
        let guard = held(&locks, "job").await;
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn durable_tokens_grow_too() {
    let dir = Directory::new();
    let locks = Locks::connect(&format!("{}?durable=yes", dir.url())).await.unwrap();
    let first = held(&locks, "job").await;
    let token = first.token();
    first.release().await.unwrap();
    assert!(held(&locks, "job").await.token() > token);
}

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
            locks.list("").await.unwrap_err(),
            locks.force_release("job", "why").await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Backend { .. }), "{error:?}");
            let message = error.to_string();
            assert!(message.contains("job.lock") && message.contains("force-release job --now"), "{message}");
        }
        assert_eq!(std::fs::read(dir.file("job")).unwrap(), bad);
        let revoked = locks.force_release_now("job", "start over").await.unwrap().unwrap();
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
    // A shorter ttl does not shorten what is there.
    locks.lock("job").ttl(HOUR).attach(&handle).await.unwrap().detach().await.unwrap();
    assert!(locks.show("job").await.unwrap().unwrap().expires_in.unwrap() > HOUR + HOUR / 2);
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap() > handle.token());
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { .. })));
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
async fn a_detached_lock_that_is_force_released_is_free_at_once_and_its_owner_learns_why() {
    let dir = Directory::new();
    let (locks, operator) = (dir.locks().await, dir.locks().await);
    let handle = held(&locks, "job").await.detach().await.unwrap();
    let attached = locks.lock("job").ttl(HOUR).attach(&handle).await.unwrap();
    let revoked = operator.force_release("job", "stuck").await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > handle.token());
    let stuck = || Loss::ForceReleased { reason: "stuck".to_owned() };
    assert_eq!(attached.lost().await, stuck());
    let lost = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { why, .. } if why == stuck()));
    assert!(held(&operator, "job").await.token() > revoked.token);
}

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
    assert_eq!(guard.lost().await, Loss::ForceReleased { reason: "maintenance".to_owned() });
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
    assert!(futures_poll_once(&mut waiting).await.is_none());
    let revoked = locks.force_release_now("job", "it hangs").await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > guard.token());
    let next = waiting.await.unwrap();
    assert!(next.token() > revoked.token);
    assert_eq!(guard.lost().await, Loss::ForceReleased { reason: "it hangs".to_owned() });
    // What the victim does from here on touches nobody.
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(matches!(next.state(), State::Held { left: None }));
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
async fn waiters_of_one_process_are_served_in_order_and_one_that_left_is_passed_over() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = held(&locks, "job").await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let lock = locks.lock("job");
        let mut future = Box::pin(async move { lock.acquire().await });
        assert!(futures_poll_once(&mut future).await.is_none());
        waiting.push(future);
    }
    drop(waiting.remove(2));
    drop(waiting.remove(0));
    guard.release().await.unwrap();
    let mut last = 0;
    for future in waiting {
        let guard = future.await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
    }
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn waiters_that_all_left_leave_nothing_behind() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    for _ in 0..20 {
        let guard = held(&locks, "job").await;
        let lock = other.lock("job");
        let mut waiting = Box::pin(lock.acquire());
        assert!(futures_poll_once(&mut waiting).await.is_none());
        drop(waiting);
        guard.release().await.unwrap();
        // The thread that still waits for nobody must not make this one fail.
        locks.lock("job").try_acquire().await.unwrap().expect("free").release().await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_in_vain_names_the_holder() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let guard = locks.lock("job").note("nightly").acquire().await.unwrap();
    let error = other.lock("job").wait(Duration::from_millis(20)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let holder = error.holder().unwrap();
    assert_eq!((holder.owner, holder.note.as_deref()), (Some(guard.owner()), Some("nightly")));
}

#[tokio::test]
async fn looking_at_a_lock_never_makes_it_look_taken() {
    let dir = Directory::new();
    let (locks, viewer) = (dir.locks().await, dir.locks().await);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let looking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
            runtime.block_on(viewer.list("")).unwrap();
            runtime.block_on(viewer.show("job")).unwrap();
        }
    });
    for _ in 0..2_000 {
        let guard = locks.lock("job").try_acquire().await.unwrap().expect("nobody holds it");
        guard.release().await.unwrap();
    }
    drop(stop);
    looking.join().unwrap();
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
    let listed: Vec<_> = locks.list("").await.unwrap().into_iter().map(|h| h.name.to_string()).collect();
    assert_eq!(listed, names);
    assert_eq!(locks.list("order:").await.unwrap().len(), 2);
    assert_eq!(locks.list("ü/").await.unwrap().len(), 1);
    assert_eq!(locks.list(".").await.unwrap().len(), 3);
    guards.clear();
    locks.close().await;
    assert!(dir.locks().await.list("").await.unwrap().is_empty());
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
    let home = Folder::new("file-store");
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
