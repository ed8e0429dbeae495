//! What is particular to locks on ZooKeeper, on real servers: one file a topic.
//!
//! As in the conformance tests, nothing here waits for time to pass or compares durations: where an end of
//! something has to be shown, what the servers say of it is compared.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "zookeeper")]

mod harness;

mod answers;
mod ensemble;
mod folders;
mod history;
mod login;
mod loss;
mod operator;
mod outages;
mod ttl;
