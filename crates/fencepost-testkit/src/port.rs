//! Free ports below the range the kernel hands out to clients, so that a server that restarts finds its port
//! free.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// How far from its port a node of a Redis Cluster listens for the others.
const BUS: u32 = 10_000;

/// A port that nobody listened on a moment ago. Another process may still be faster: the caller tries again.
pub(crate) fn free() -> u16 {
    find(COUNT, 0)
}

/// The same for a port whose bus port is free, too.
pub(crate) fn free_with_bus() -> u16 {
    find(COUNT - BUS, BUS)
}

/// A free port among the first so many, with another free one so far from it.
fn find(count: u32, distance: u32) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes run side by side: each starts somewhere else.
    let start = std::process::id().wrapping_mul(7919);
    for _ in 0..count {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % count;
        let all = [port, port + distance].map(|port| u16::try_from(port).expect("below 32000"));
        if all.iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return all[0];
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + count);
}
