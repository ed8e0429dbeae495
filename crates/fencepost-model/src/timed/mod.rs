//! Redlock with time: ticks, leases that run out, messages that take as long as they like or never arrive,
//! nodes that restart empty, clocks that are wrong. The clients are production's own state machines.
//!
//! Every message is sent once, may arrive at any later tick in any order, or never. Clocks run at the same
//! rate; what differs is what they show. Time passes in ticks, and any number of things happens within one.
//! Three rules must hold:
//!
//! - MUTEX: no two locks are valid at the same time.
//! - FENCE: a lock that is returned later has a larger token.
//! - CONTINUITY: nobody extends a lock, or attaches it, after a larger token was returned.
//!
//! `tests.rs` and `large.rs` search for what breaks them, `mutants.rs` leaves out one rule of the protocol at
//! a time and must find what does.

mod client;
mod forget;
mod node;
mod resync;
mod rules;
mod state;
mod steps;

#[cfg(test)]
mod large;
#[cfg(test)]
mod mutants;
#[cfg(test)]
mod outcomes;
#[cfg(test)]
mod tests;
