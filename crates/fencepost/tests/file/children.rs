//! What children do: this test binary again, which runs the one test `child`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::{Guard, Handle, Locks};
use fencepost_testkit::eventually;

use crate::family::{say, wait_for_parent};
use crate::harness::{HOUR, poll_once};

pub(crate) async fn act(what: &str, url: &str) {
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
            // A disk that is quicker than the first look leaves nothing to give up: once more, then.
            loop {
                let mut detach = Box::pin(lock.acquire().await.unwrap().detach());
                match poll_once(&mut detach).await {
                    None => break drop(detach),
                    Some(done) => locks.release(&done.unwrap()).await.unwrap(),
                }
            }
            say("given up");
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
        "wait and close" => {
            let guard = lock.acquire().await.unwrap();
            let other = Locks::connect(url).await.unwrap();
            let waits = other.lock("job");
            let mut waiting = Box::pin(waits.acquire());
            assert!(poll_once(&mut waiting).await.is_none());
            eventually("a thread waits, and another one listens", || threads() == ["wait", "watch"]);
            drop(waiting);
            guard.release().await.unwrap();
            other.close().await;
            locks.close().await;
            eventually("they have ended", || threads().is_empty());
            say("nothing is left");
        }
        "wait and fork" => {
            let waiting = tokio::spawn(async move { lock.acquire().await });
            let listed = async {
                while locks.show("job").await.unwrap().is_some_and(|holder| holder.queue.is_empty()) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), listed).await.expect("it is listed");
            // SAFETY: the child only sleeps, and the parent ends it.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: as above.
                    unsafe { libc::sleep(600) };
                },
                forked => say(&forked.to_string()),
            }
            drop(waiting.await);
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

/// The threads of the file store in this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.unwrap()));
    let ours = names.filter_map(|name| Some(name.trim().strip_prefix("fencepost-")?.to_owned()));
    let mut ours: Vec<_> = ours.filter(|name| name == "wait" || name == "watch").collect();
    ours.sort();
    ours.dedup();
    ours
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
