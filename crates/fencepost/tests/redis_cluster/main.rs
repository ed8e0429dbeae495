//! The Redis store on real clusters: slots that move, masters that change, replicas that must have a grant.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "redis")]

mod failover;
mod harness;
mod moves;
mod operator;
mod refusals;
mod replicas;
