//! `etcdctl lock` and Fencepost on the same names.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fencepost::{Error, Locks};
use fencepost_testkit::etcd::Cluster;
use fencepost_testkit::{Folder, LIMIT, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::LONG;

/// An `etcdctl lock`, which ends with this value.
struct Peer {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Peer {
    fn start(cluster: &Cluster, words: &[&str]) -> Self {
        let words = [&["lock"], words].concat();
        let mut process =
            cluster.command(&words).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let out: ChildStdout = process.stdout.take().unwrap();
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Self { process, lines }
    }

    /// Waits until it says that it has the lock: it prints its key.
    fn key(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("etcdctl gets the lock")
    }

    /// What the command said that it ran under the lock, when both have ended.
    fn said(mut self) -> String {
        let said = self.key();
        self.process.wait().unwrap();
        said
    }

    /// Lets it give the lock back and end.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_etcdctl_holds_is_busy_and_shown_as_foreign() {
    let cluster = Cluster::start(1);
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let peer = Peer::start(&cluster, &["job"]);
    assert!(peer.key().starts_with("job/"));
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    let holder = locks.show("job").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.token.is_some() && holder.expires_in.is_some(), "{holder}");
    assert!(holder.to_string().contains("foreign"), "{holder}");
    assert!(matches!(locks.force_release("job", "x").await, Err(Error::Unsupported { .. })));
    let waits = tokio::spawn({
        let lock = locks.lock("job").ttl(LONG).wait(LIMIT);
        async move { lock.acquire().await.unwrap() }
    });
    eventually("we are in the queue", || cluster.keys("job/").len() == 2);
    peer.interrupt();
    let guard = waits.await.unwrap();
    assert!(Some(guard.token()) > holder.token);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_a_lock_that_we_hold() {
    let cluster = Cluster::start(1);
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let guard = locks.lock("job").ttl(LONG).acquire().await.unwrap();
    let peer = Peer::start(&cluster, &["job"]);
    eventually("it is in the queue", || cluster.keys("job/").len() == 2);
    assert!(peer.lines.try_recv().is_err(), "it has not got the lock");
    guard.release().await.unwrap();
    peer.key();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    // An operator frees it; it has a token to fence the peer off with.
    let revoked = locks.force_release("job", fencepost::ForceRelease::now("gone")).await.unwrap().unwrap();
    let guard = locks.lock("job").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
    assert!(guard.token() > revoked.token);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_etcdctl_is_followed_when_its_lease_ends() {
    let cluster = Cluster::start(1);
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let peer = Peer::start(&cluster, &["job", "--ttl", "1"]);
    peer.key();
    drop(peer);
    locks.lock("job").ttl(LONG).wait(LIMIT).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_crowd_is_inside_one_at_a_time() {
    let cluster = Arc::new(Cluster::start(1));
    let folder = Folder::new("etcdctl");
    // `mkdir` fails if another one is inside.
    let inside = folder.path().join("inside");
    let script = format!("mkdir {0} && echo in && rmdir {0} || echo two", inside.display());
    let peers: Vec<_> = (0..8)
        .map(|_| {
            let (cluster, script) = (cluster.clone(), script.clone());
            std::thread::spawn(move || {
                (0..3)
                    .map(|_| Peer::start(&cluster, &["job", "--", "sh", "-c", &script]).said())
                    .all(|said| said == "in")
            })
        })
        .collect();
    let alone = Arc::new(AtomicBool::new(true));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = Locks::connect(&cluster.url()).await.unwrap();
        for _ in 0..4 {
            let (lock, inside, alone) =
                (locks.lock("job").ttl(LONG).wait(LIMIT), inside.clone(), alone.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..6 {
                    let guard = lock.acquire().await.unwrap();
                    alone.fetch_and(std::fs::create_dir(&inside).is_ok(), Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let _ = std::fs::remove_dir(&inside);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(peers.into_iter().all(|peer| peer.join().unwrap()), "etcdctl was not alone");
    assert!(alone.load(Ordering::SeqCst), "we were not alone");
}
