//! The store of files: processes that die at any moment, fork, or find the disk full.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use fencepost::{Error, Guard, Locks};
use fencepost_testkit::Folder;

use crate::children::CHILD;
use crate::family::{Family, Stray, say, wait_for_parent};
use crate::redis_nodes::bounded;

const HOUR: Duration = Duration::from_secs(3600);

struct Directory(Folder);

impl Directory {
    fn new() -> Self {
        Self(Folder::new("embedded"))
    }

    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn locks(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }

    /// Starts a child that does `what` and waits until it says something; returns that.
    fn child(&self, what: &str) -> (Family, String) {
        Family::start(CHILD, what, &self.url(), |_| {})
    }
}

async fn held(locks: &Locks, name: &str) -> Guard {
    bounded("the lock comes", locks.lock(name).ttl(HOUR).acquire()).await.unwrap()
}

/// What children do.
pub(crate) async fn act(what: &str, locks: &Locks) {
    match what {
        "fork" => fork(held(locks, "job").await),
        "release after fork" => release_after_fork(held(locks, "job").await).await,
        "hurry" => hurry(locks).await,
        "full" => full(locks).await,
        "count" => count(locks).await,
        other => panic!("a child cannot `{other}`"),
    }
}

#[allow(unsafe_code)]
fn fork(guard: Guard) {
    // SAFETY: the child only sleeps and exits.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        // SAFETY: async-signal-safe calls only.
        unsafe {
            libc::close(1);
            libc::sleep(600);
            libc::_exit(0);
        }
    }
    say(&grandchild.to_string());
    wait_for_parent();
    drop(guard);
}

#[allow(unsafe_code)]
async fn release_after_fork(guard: Guard) {
    // SAFETY: the only other threads are the library's, and the child uses what it may use by its contract.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        let refused = guard.release().await.is_err();
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(grandchild, &raw mut status, 0) }, grandchild);
    say(&status.to_string());
    wait_for_parent();
    guard.release().await.unwrap();
}

async fn hurry(locks: &Locks) {
    let ledger = std::env::var("FENCEPOST_LEDGER").unwrap();
    let mut ledger = std::fs::File::options().append(true).open(ledger).unwrap();
    let pid = std::process::id();
    for round in 0.. {
        let guard = held(locks, "job").await;
        ledger.write_all(format!("{pid} {} in\n", guard.token()).as_bytes()).unwrap();
        // Not for ever: nobody may be reading, and a full pipe would stop us with the lock in our hands.
        if round < 100 {
            say("held");
        }
        ledger.write_all(format!("{pid} {} out\n", guard.token()).as_bytes()).unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn s49_a_forked_child_does_not_keep_the_lock() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (mut child, grandchild) = dir.child("fork");
    let grandchild = Stray::new(&grandchild);
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    child.kill();
    held(&locks, "job").await.release().await.unwrap();
    assert!(grandchild.is_alive());
}

#[tokio::test]
async fn s49_a_forked_child_cannot_release_its_parents_lock() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (child, status) = dir.child("release after fork");
    assert_eq!(status, "0");
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    child.finish();
}

#[tokio::test]
async fn s49_a_full_disk_is_a_clear_error_and_loses_nothing() {
    let dir = Directory::new();
    let (child, said) = dir.child("full");
    assert_eq!(said, "as good as before");
    child.finish();
}

/// A limit on the size of files makes every write fail, as a full disk does.
#[allow(unsafe_code)]
async fn full(locks: &Locks) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let before = held(locks, "job").await;
    let token = before.token();
    before.release().await.unwrap();
    let limit = getrlimit(Resource::Fsize);
    for bytes in [0, 20, 100] {
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..limit }).unwrap();
        for name in ["job", "new"] {
            let error = locks.lock(name).try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains(&format!("{name}.lock")), "{error}");
        }
        setrlimit(Resource::Fsize, limit).unwrap();
        assert!(locks.list("").await.unwrap().holders.is_empty());
    }
    let after = held(locks, "job").await;
    assert!(after.token() > token);
    after.release().await.unwrap();
    held(locks, "new").await.release().await.unwrap();
    say("as good as before");
    wait_for_parent();
}

#[tokio::test]
async fn s49_processes_exclude_each_other_and_see_growing_tokens() {
    const PROCESSES: u64 = 6;
    const ROUNDS: u64 = 50;
    let dir = Directory::new();
    std::fs::write(dir.path().join("ledger"), "0 0").unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Family::start(CHILD, "count", &dir.url(), |command| {
                command.env("FENCEPOST_LEDGER", dir.path().join("ledger"));
            })
        })
        .collect();
    children.into_iter().for_each(|(child, _)| child.finish());
    let ledger = std::fs::read_to_string(dir.path().join("ledger")).unwrap();
    assert_eq!(ledger.split(' ').next().unwrap(), (PROCESSES * ROUNDS).to_string());
}

/// Adds to a number in a file, which only works alone.
async fn count(locks: &Locks) {
    let ledger = std::env::var("FENCEPOST_LEDGER").unwrap();
    say("started");
    for _ in 0..50 {
        let guard = held(locks, "job").await;
        let read = std::fs::read_to_string(&ledger).unwrap();
        let (number, last) = read.split_once(' ').unwrap();
        let (number, last): (u64, u64) = (number.parse().unwrap(), last.parse().unwrap());
        assert!(guard.token().get() > last);
        std::fs::write(&ledger, format!("{} {}", number + 1, guard.token())).unwrap();
        guard.release().await.unwrap();
    }
}

/// Holders die at any point of an acquire, a hold or a release; the others go on.
#[test]
fn s49_killing_holders_at_any_moment_breaks_neither_exclusion_nor_the_order_of_tokens() {
    let dir = Directory::new();
    let ledger = dir.path().join("ledger");
    std::fs::write(&ledger, "").unwrap();
    let start = || {
        Family::start(CHILD, "hurry", &dir.url(), |command| {
            command.env("FENCEPOST_LEDGER", &ledger);
        })
        .0
    };
    let mut family: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..30 {
        let victim = &mut family[round % 3];
        for _ in 0..round % 7 {
            victim.answer();
        }
        victim.kill();
        family[round % 3] = start();
    }
    family.iter_mut().for_each(Family::kill);
    let (mut last, mut inside) = (0, None);
    let ledger = std::fs::read_to_string(&ledger).unwrap();
    for line in ledger.lines() {
        let [pid, token, what] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let token: u64 = token.parse().unwrap();
        if what == "out" {
            assert_eq!(inside.take(), Some(pid), "{ledger}");
            continue;
        }
        assert!(token > last, "{ledger}");
        last = token;
        // Whoever was inside must have died there: it is not heard of again.
        if let Some(dead) = inside.replace(pid) {
            let rest = ledger.rsplit_once(line).unwrap().1;
            assert!(!rest.lines().any(|line| line.starts_with(&format!("{dead} "))), "{ledger}");
        }
    }
}
