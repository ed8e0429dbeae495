//! The faults that locks are known to break under, each done on purpose to real servers and real processes.
//!
//! Tests are named after their row in docs/scenarios.md: `s01_…` to `s50_…`. The expectation of a row is what
//! must hold (nobody holds twice, tokens grow, nothing stays behind) and what must still work. As everywhere,
//! nothing waits for time to pass or compares durations: "without delay" means that it happens while the
//! fault lasts.

#![allow(clippy::unwrap_used)]
// Each harness brings the same way to wait along.
#![allow(clippy::duplicate_mod)]
#![cfg(all(feature = "all-stores", feature = "http"))]

// What the tests of each store have to look into it; not all of it is of use here.
#[allow(dead_code)]
#[path = "../etcd/harness.rs"]
mod cluster;
#[allow(dead_code)]
#[path = "../postgres/harness.rs"]
mod database;
#[allow(dead_code)]
#[path = "../common/family.rs"]
mod family;
#[allow(dead_code)]
#[path = "../redlock/harness.rs"]
mod redis_nodes;
#[allow(dead_code)]
#[path = "../zookeeper/harness.rs"]
mod zoo;

mod amnesia;
mod children;
mod clients;
mod clocks;
mod contention;
mod crowd;
mod embedded;
mod etcd;
mod failover;
mod holders;
mod listed;
mod network;
mod nodes;
mod postgres;
mod refusals;
mod register;
mod sentinel;
mod troubles;
mod zookeeper;
