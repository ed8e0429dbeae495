//! The promises of Fencepost, one file each, against every store.
//!
//! Tests are named `promise::what_is_promised::store`. They wait for conditions, never for time, and compare
//! the order of events, never durations: a slow machine makes them slow, not wrong.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod stage;

// The promises.
mod cancellation;
mod deadline;
mod errors;
mod identity;
mod loss_in_time;
mod no_orphans;
mod token_order;
mod validity_from_send;
mod wakeup_is_a_hint;

// What they stand on.
mod blocking;
mod connecting;
mod detach;
mod exclusion;
mod faults;
mod force_release;
mod handles;
mod listing;
mod names;
mod retry;
mod scope;
mod sets;
