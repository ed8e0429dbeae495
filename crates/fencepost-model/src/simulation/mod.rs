//! A seeded simulation of Redlock: nodes, clients, connections, clocks and faults in virtual time, around the
//! client's own `quorum.rs` and `retry.rs`. One thread, no wall clock: a seed repeats exactly.
//!
//! **Simulated.** Three or five nodes as `node.rs` has them, each with a clock of its own that can be skewed,
//! drift and step; 20 clients that wait, hold, extend, release, crash, stand still, give up and
//! force-release; connections that keep order, are slow, end, and whose last requests may arrive long after;
//! requests that are delivered twice; links that are parted; nodes that stand still, restart empty or with
//! old data, and are flushed.
//!
//! **Checked.** Tokens are unique and in order; no two guards are valid at a time; who extends has had the
//! lock all the time; nobody waits beyond a deadline; nothing is left; where nothing goes wrong everybody
//! gets the lock. Each as far as it is promised: a seed draws which assumptions it breaks (SAFETY.md, A1 to
//! A4).

mod acquire;
mod client;
mod clock;
mod faults;
mod hold;
mod message;
mod network;
mod plan;
mod promises;
mod random;
mod rules;
mod server;
mod sights;
mod world;

#[cfg(test)]
mod hazards;
#[cfg(test)]
mod tests;
