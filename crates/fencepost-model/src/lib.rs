//! State-space searches and a seeded simulation of Redlock with fencing tokens.
//!
//! The decisions of the client are not modelled: `quorum.rs` and `retry.rs` are the files that production
//! runs, compiled into this crate. What is modelled is everything around them: nodes, messages, clocks and
//! faults.

#![allow(dead_code)]

#[path = "../../fencepost/src/backends/redlock/quorum.rs"]
mod quorum;
#[path = "../../fencepost/src/backends/redlock/retry.rs"]
mod retry;

#[cfg(test)]
mod clock_free;
pub mod node;
mod search;
#[cfg(test)]
mod simulation;
mod timed;
