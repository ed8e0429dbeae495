//! Promise 1 on one Redis: tokens grow, whatever becomes of the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use fencepost::Locks;
use fencepost_testkit::redis::Server;

use crate::harness::{connect, pair, swap, use_once};

const HOUR: i64 = 3600;

#[tokio::test]
async fn tokens_grow_over_a_failover_and_back() {
    let (one, other, _) = pair().await;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(use_once(&connect(&one).await, "a").await);
        tokens.push(use_once(&connect(&one).await, "a").await);
        swap(&one, &other).await;
        tokens.push(use_once(&connect(&other).await, "a").await);
        tokens.push(use_once(&connect(&other).await, "a").await);
        swap(&other, &one).await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test]
async fn tokens_grow_over_a_failover_to_a_server_whose_clock_is_behind() {
    let one = Server::config().movable_clock().line("repl-diskless-sync-delay 0").start();
    one.set_clock(3 * HOUR);
    let other = Server::config().line("repl-diskless-sync-delay 0").replica_of(&one).start();
    let follows = || other.cli(&["INFO", "replication"]).contains("master_link_status:up");
    crate::harness::until("the replica follows", async || follows()).await;
    let ahead = use_once(&connect(&one).await, "a").await;
    swap(&one, &other).await;
    assert!(use_once(&connect(&other).await, "a").await > ahead);
}

#[tokio::test]
async fn tokens_grow_over_a_restart_with_all_data_and_a_clock_that_went_back() {
    let mut server =
        Server::config().movable_clock().line("appendonly yes").line("appendfsync always").start();
    let before = use_once(&connect(&server).await, "a").await;
    server.set_clock(-HOUR);
    server.kill();
    server.restart();
    let locks = connect(&server).await;
    let after = use_once(&locks, "a").await;
    assert!(after > before, "{after} after {before}");
    assert!(use_once(&locks, "a").await > after);
}

#[tokio::test]
async fn a_fence_lives_for_an_hour_after_its_lock() {
    let server = Server::start();
    use_once(&connect(&server).await, "a").await;
    let left: i64 = server.cli(&["TTL", "{lock:a}:fence"]).parse().unwrap();
    assert!((HOUR - 60..=HOUR).contains(&left), "{left}");
}

/// A way to a server that does not say which run of it this is, as some servers that are compatible with
/// Redis do not.
fn without_run_id(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(target) else { continue };
            let (back, there) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || copy(client, there, |_| ()));
            thread::spawn(move || copy(server, back, hide));
        }
    });
    addr
}

fn copy(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        change(&mut buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn hide(answer: &mut [u8]) {
    let field = b"run_id:";
    if let Some(at) = answer.windows(field.len()).position(|window| window == field) {
        answer[at] = b'x';
    }
}

#[tokio::test]
async fn tokens_grow_on_a_server_that_does_not_tell_its_runs_apart() {
    let mut server = Server::start();
    let connect =
        async |server: &Server| Locks::connect(&server.url_at(without_run_id(server.addr()))).await.unwrap();
    let locks = connect(&server).await;
    let mut last = use_once(&locks, "a").await;
    let old = server.snapshot();
    for _ in 0..20 {
        last = use_once(&locks, "a").await;
    }
    server.restart_from(&old);
    let next = use_once(&connect(&server).await, "a").await;
    assert!(next > last, "{next} after {last}");
}
