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

use fencepost::SupervisorExt as _;
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

    fn open_to(&self, mode: u32) {
        std::fs::set_permissions(self.path(), PermissionsExt::from_mode(mode)).unwrap();
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
        "try" => say(if lock.try_acquire().await.unwrap().is_some() { "free" } else { "held" }),
        "detach and give up" => {
            let mut detach = Box::pin(lock.acquire().await.unwrap().detach());
            let polled =
                std::future::poll_fn(|context| std::task::Poll::Ready(detach.as_mut().poll(context))).await;
            drop(detach);
            say(if polled.is_pending() { "given up" } else { "not waited for the disk" });
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        "detach without a disk" => {
            let guard = lock.acquire().await.unwrap();
            lose_the_disk(None);
            detach_and_die(guard).await;
        }
        "detach in a directory without a disk around it" => {
            let guard = lock.acquire().await.unwrap();
            let folder = Path::new(url.strip_prefix("file://").unwrap());
            let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let folders: Vec<_> =
                open.filter(|fd| std::fs::read_link(fd).is_ok_and(|to| to == folder)).collect();
            let [folder] = &folders[..] else { panic!("{folders:?}") };
            lose_the_disk(folder.file_name().unwrap().to_str().unwrap().parse().ok());
            detach_and_die(guard).await;
        }
        extend if extend.starts_with("extend without a disk ") => {
            let handle: Handle = extend.rsplit(' ').next().unwrap().parse().unwrap();
            lose_the_disk(None);
            say(&locks
                .extend(&handle, HOUR)
                .await
                .map_or_else(|error| error.to_string(), |()| "extended".to_owned()));
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
            locks.force_release("job", "why").await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Backend { .. }), "{error:?}");
            let message = error.to_string();
            assert!(message.contains("job.lock") && message.contains("force-release job --now"), "{message}");
        }
        assert_eq!(std::fs::read(dir.file("job")).unwrap(), bad);
        let revoked =
            locks.force_release("job", fencepost::ForceRelease::now("start over")).await.unwrap().unwrap();
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
    let revoked =
        operator.force_release("job", fencepost::ForceRelease::now("stuck")).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > handle.token());
    let stuck = || Loss::force_released("stuck");
    assert_eq!(attached.lost().await, stuck());
    assert!(matches!(attached.release().await, Err(Error::Lost { why, .. }) if why == stuck()));
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { why: Loss::Taken, .. })));
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
    assert!(futures_poll_once(&mut waiting).await.is_none());
    let revoked =
        locks.force_release("job", fencepost::ForceRelease::now("it hangs")).await.unwrap().unwrap();
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
    assert!(locks.list("").await.unwrap().holders.is_empty());
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
    assert!(futures_poll_once(&mut waiting).await.is_none());
    operator.force_release("job", fencepost::ForceRelease::now("it hangs")).await.unwrap().unwrap();
    drop(victim);
    let next = waiting.await.unwrap();
    assert!(operator.lock("job").try_acquire().await.unwrap().is_none(), "it holds what all others see");
    linked("backup-2");
    std::fs::remove_file(dir.file("job")).unwrap();
    let told = tokio::time::timeout(Duration::from_secs(60), next.lost()).await;
    assert_eq!(told.expect("it is told"), Loss::Taken);
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

/// Says how it went, and leaves nothing in the background the time to clean up.
async fn detach_and_die(guard: Guard) -> ! {
    let detached = guard.detach().await;
    say(&detached.map_or_else(|error| error.to_string(), |_| "detached".to_owned()));
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Lets every later request of this thread and its descendants to put something on the disk fail. If a
/// directory is named, its entries and what files hold still get there.
fn lose_the_disk(directory: Option<u32>) {
    let only = |code: u32, value: u32, otherwise: u8| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: otherwise,
        k: value,
    };
    let (load, equal, end) = (libc::BPF_LD | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EIO).unwrap();
    let allow = libc::SECCOMP_RET_ALLOW;
    // The number of the call is at the beginning, the first word of what it is about at 16.
    let mut program = [
        only(load, 0, 0),
        only(equal, u32::try_from(libc::SYS_fdatasync).unwrap(), 1),
        only(end, if directory.is_some() { allow } else { refuse }, 0),
        only(equal, u32::try_from(libc::SYS_fsync).unwrap(), 3),
        only(load, 16, 0),
        only(equal, directory.unwrap_or(u32::MAX), 2),
        only(end, allow, 0),
        only(end, allow, 0),
        only(end, refuse, 0),
    ];
    let filter =
        libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: plain system calls; the program is valid for as long as the call that reads it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
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

#[tokio::test]
async fn a_private_directory_that_others_could_move_away_is_refused() {
    let top = Directory::new();
    let parent = top.path().join("project");
    std::fs::create_dir(&parent).unwrap();
    let url = |below: &str| format!("file://{}/{below}", parent.display());
    let mode = |mode: u32| std::fs::set_permissions(&parent, PermissionsExt::from_mode(mode)).unwrap();
    for (open, ok) in [(0o755, true), (0o700, true), (0o777, false), (0o1777, true), (0o702, false)] {
        mode(open);
        let connected = Locks::connect(&url("locks")).await;
        assert_eq!(connected.is_ok(), ok, "{open:o}");
        if let Err(error) = connected {
            let (said, parent) = (error.to_string(), parent.display().to_string());
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            assert!(said.contains(&format!("`{parent}` can be written by everybody")), "{said}");
            assert!(said.contains("chmod"), "{said}");
            // Nothing is made below it either.
            Locks::connect(&url("new/locks")).await.unwrap_err();
            assert!(!Path::new(&format!("{parent}/new")).exists());
        }
    }
    // A link that others can change is no better than a directory that they can move.
    mode(0o777);
    std::os::unix::fs::symlink(top.path().join("elsewhere"), parent.join("link")).unwrap();
    std::fs::create_dir(top.path().join("elsewhere")).unwrap();
    Locks::connect(&url("link/locks")).await.unwrap_err();
    mode(0o755);
    Locks::connect(&url("link/locks")).await.unwrap();
    if rustix::process::geteuid().is_root() {
        // A group of others, of administrators, and an owner that this system knows and one that it does not.
        top.open_to(0o755);
        let cases = [
            (0o775, 0, 1, false),
            (0o775, 0, 0, true),
            (0o755, 1, 0, false),
            (0o755, 4_000_000, 0, true),
            (0o775, 4_000_000, 0, false),
        ];
        for (open, owner, group, ok) in cases {
            mode(open);
            std::os::unix::fs::chown(&parent, Some(owner), Some(group)).unwrap();
            assert_eq!(Locks::connect(&url("locks")).await.is_ok(), ok, "{owner} {group}");
        }
        std::os::unix::fs::chown(&parent, Some(0), Some(1)).unwrap();
        let said = Locks::connect(&url("locks")).await.unwrap_err().to_string();
        assert!(said.contains(&format!("`chmod g-w {}`", parent.display())), "{said}");
        // Nobody of the group comes through a closed directory.
        top.open_to(0o700);
        Locks::connect(&url("locks")).await.unwrap();
    }
}

/// Who may make something in a sticky directory may make a link there, and lead us elsewhere while we hold.
#[tokio::test]
async fn a_private_directory_behind_a_link_of_another_user_is_refused() {
    use std::os::unix::fs::{chown, lchown, symlink};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    top.open_to(0o755);
    let (sticky, target) = (top.path().join("sticky"), top.path().join("target"));
    std::fs::create_dir(&sticky).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&sticky, None, Some(4711)).unwrap();
    std::fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1775)).unwrap();
    let link = sticky.join("link");
    for leads_to in [target.clone(), "../target".into(), target.join("new")] {
        symlink(&leads_to, &link).unwrap();
        lchown(&link, Some(1), Some(1)).unwrap();
        for below in ["", "/locks", "/a/../locks"] {
            let error = Locks::connect(&format!("file://{}{below}", link.display())).await.unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            assert!(said.contains(&format!("`{}` is a symbolic link of user 1", link.display())), "{said}");
            assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is made there");
        }
        // Our own, and those of root, lead where their owner wants.
        lchown(&link, Some(0), Some(0)).unwrap();
        let locks = Locks::connect(&format!("file://{}/locks", link.display())).await.unwrap();
        held(&locks, "job").await.release().await.unwrap();
        let real = if leads_to.ends_with("new") { target.join("new/locks") } else { target.join("locks") };
        assert!(real.join("job.lock").exists());
        std::fs::remove_dir_all(target.join("locks")).unwrap_or_default();
        std::fs::remove_file(&link).unwrap();
    }
    // A directory of another user on the way is no better, also below a link of ours.
    std::fs::create_dir(sticky.join("theirs")).unwrap();
    chown(sticky.join("theirs"), Some(1), None).unwrap();
    symlink(sticky.join("theirs"), top.path().join("to-theirs")).unwrap();
    let error =
        Locks::connect(&format!("file://{}/to-theirs/locks", top.path().display())).await.unwrap_err();
    assert!(error.to_string().contains("belongs to user 1;"), "{error}");
    // Links in a circle have an end.
    symlink("circle", top.path().join("circle")).unwrap();
    let error = Locks::connect(&format!("file://{}/circle/locks", top.path().display())).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}

/// Between the look and the making, or the opening, others may put a link there.
#[test]
fn a_link_that_another_user_makes_in_between_is_not_followed_either() {
    use std::os::unix::fs::{lchown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    let (sticky, target) = (top.path().join("sticky"), top.path().join("target"));
    std::fs::create_dir(&sticky).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1777)).unwrap();
    let (name, link, end) = (sticky.join("name"), top.path().join("link"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                if symlink(&target, &link).is_ok() {
                    lchown(&link, Some(1), Some(1)).unwrap();
                }
                // Not over a directory, which is the one that we have made.
                if std::fs::rename(&link, &name).is_ok() {
                    let _ = std::fs::remove_file(&name);
                }
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..500 {
            let _ = runtime.block_on(Locks::connect(&format!("file://{}", name.display())));
            let _ = runtime.block_on(Locks::connect(&format!("file://{}/locks", name.display())));
            let _ = std::fs::remove_dir_all(&name);
        }
        end.store(true, Relaxed);
    });
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is made there");
}

#[tokio::test]
async fn a_private_directory_whose_parent_a_list_opens_to_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = Directory::new();
    top.open_to(0o755);
    let parent = top.path().join("project");
    std::fs::create_dir(&parent).unwrap();
    std::fs::set_permissions(&parent, PermissionsExt::from_mode(0o750)).unwrap();
    // Of the owner, user 1, the group, the most of the last two, and of others.
    let entries =
        [(1_u16, 7_u16, u32::MAX), (2, 7, 1), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &user.to_le_bytes()].concat());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&parent, "system.posix_acl_access", &list, flags) {
        // Not every file system has such lists.
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        set => set.unwrap(),
    }
    let url = format!("file://{}/locks", parent.display());
    let error = Locks::connect(&url).await.unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(said.contains(&format!("`{}` can be written by users", parent.display())), "{said}");
    assert!(said.contains(&format!("`chmod g-w {}`", parent.display())), "{said}");
    assert!(!parent.join("locks").exists());
    // What the message says mends it.
    assert!(Command::new("chmod").arg("g-w").arg(&parent).status().unwrap().success());
    Locks::connect(&url).await.unwrap();
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
    locks.force_release("job", fencepost::ForceRelease::now("it hangs")).await.unwrap().unwrap();
    assert_eq!(of(dir.file("job")), (4711, 0o660));
}
