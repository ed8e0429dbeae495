//! What is particular to locks on several Redis servers, on real ones: one file a topic. What breaks them on
//! purpose is in `scenarios`.
//!
//! As in the conformance tests, nothing here waits for time to pass or compares durations: where an end of
//! something has to be shown, what the servers say of it is compared.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "redlock")]

mod harness;

mod foreign;
mod forked;
mod handles;
mod init;
mod leftovers;
mod operator;
mod quarantine;
mod refusals;
mod repair;
mod round_trips;
mod waiting;
