//! One Redis that Sentinel finds, on real servers: what happens when another server becomes master.

#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![cfg(feature = "redis")]

mod failover;
mod failovers;
mod harness;
mod quarantine;
mod resolving;
