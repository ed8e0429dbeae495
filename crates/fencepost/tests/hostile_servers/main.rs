//! Servers that mean harm, or are another service: whatever they send, a client ends in time with an error
//! that says what is wrong and can be shown, takes no more than a bounded amount of it, and does not panic.
//!
//! The servers here are fakes, since no real one does this: a listener that speaks just enough of a protocol,
//! and then misbehaves.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "all-stores")]

mod etcd;
mod fake;
mod mode;
mod postgres;
mod redis;
mod redis_cluster;
mod redlock;
mod zookeeper;
