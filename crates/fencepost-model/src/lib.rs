//! State-space searches and a seeded simulation of Redlock with fencing tokens, and a search of the failovers
//! of one Redis that Sentinel finds (`reign`).
//!
//! Of Redlock the decisions of the client are not modelled: `quorum.rs` and `retry.rs` are the files that
//! production runs, compiled into this crate. What is modelled is everything around them: nodes, messages,
//! clocks and faults.

// The searches and the simulation are tests. `node` is for those of the crate's own folder, too.
#[cfg(test)]
mod clock_free;
pub mod node;
#[cfg(test)]
#[path = "../../fencepost/src/backends/redlock/quorum.rs"]
mod quorum;
#[cfg(test)]
mod reign;
#[cfg(test)]
#[path = "../../fencepost/src/backends/redlock/retry.rs"]
mod retry;
#[cfg(test)]
mod search;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod timed;
