//! The Redis store, on real servers.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "redis")]

mod errors;
mod failover;
mod harness;
mod operator;
mod promises;
mod regressions;
mod store;
mod storm;
mod tokens;
mod undo;
mod waiters;
