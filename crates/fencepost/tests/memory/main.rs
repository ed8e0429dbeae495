//! The core's promises on the store in memory, whose clock and faults tests command: what real servers cannot
//! be
//! made to do on time.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

#[path = "../common/waiting.rs"]
mod waiting;

mod blocking;
mod cancellation;
mod errors;
mod faults;
mod loss_in_time;
mod validity_from_send;
mod wakeup_is_a_hint;

use waiting::{bounded, until};

/// A ttl that does not end while a test runs.
const LONG: Duration = Duration::from_secs(600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
