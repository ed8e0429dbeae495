//! Clients of other make on the same keys: they poll, and wake nobody.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_testkit::redis::Nodes;

use crate::harness::{CALM, connect_to_all, declared, ms, take, until};

/// A client that takes the lock `a` as the algorithm's description has it, and polls for it.
struct Poller {
    nodes: Vec<BufReader<TcpStream>>,
    value: String,
    random: u64,
}

impl Poller {
    fn new(nodes: &Nodes, seed: u64) -> Self {
        let connect = |addr| BufReader::new(TcpStream::connect(addr).unwrap());
        let nodes = nodes.iter().map(|node| connect(node.addr())).collect();
        Self { nodes, value: String::new(), random: seed * 7919 + 1 }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    /// Sends a command to all nodes, and then reads the answers: how many begin like this.
    fn ask(&mut self, words: &[&str], expected: &str) -> usize {
        let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let command = format!("*{}\r\n{words}", words.matches('$').count());
        for node in &mut self.nodes {
            node.get_mut().write_all(command.as_bytes()).unwrap();
        }
        let said = |node: &mut BufReader<TcpStream>| {
            let mut line = String::new();
            node.read_line(&mut line).unwrap();
            usize::from(line.starts_with(expected))
        };
        self.nodes.iter_mut().map(said).sum()
    }

    fn try_lock(&mut self) -> bool {
        self.value = format!("{:020}", self.random());
        let value = self.value.clone();
        let granted = self.ask(&["SET", "lock:a", &value, "NX", "PX", "10000"], "+OK");
        let locked = granted > self.nodes.len() / 2;
        if !locked {
            self.unlock();
        }
        locked
    }

    fn unlock(&mut self) {
        const FREE: &str =
            "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";
        let value = self.value.clone();
        self.ask(&["EVAL", FREE, "1", "lock:a", &value], ":");
    }

    /// Locks, holds and unlocks until it is told to stop.
    fn run(mut self, stop: &AtomicBool, locked: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            if self.try_lock() {
                locked.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(ms(30));
                self.unlock();
            }
            let pause = 100 + self.random() % 100;
            std::thread::sleep(ms(pause));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_its_share_beside_many_clients_that_poll() {
    const POLLERS: u64 = 15;
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let (stop, locked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let poll = |seed: u64| {
        let (poller, stop, locked) = (Poller::new(&nodes, seed), stop.clone(), locked.clone());
        std::thread::spawn(move || poller.run(&stop, &locked))
    };
    let pollers: Vec<_> = (0..POLLERS).map(poll).collect();
    until("they poll", async || locked.load(Ordering::Relaxed) > 2 * POLLERS).await;
    let before = locked.load(Ordering::Relaxed);
    const TIMES: u64 = 10;
    for _ in 0..TIMES {
        take(&locks).await.release().await.unwrap();
        // For them to come in between.
        let now = locked.load(Ordering::Relaxed);
        until("one of them has it", async || locked.load(Ordering::Relaxed) > now).await;
    }
    let theirs = locked.load(Ordering::Relaxed) - before;
    stop.store(true, Ordering::Relaxed);
    pollers.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(theirs <= 2 * TIMES * POLLERS, "they had it {theirs} times while we had it {TIMES} times");
}
