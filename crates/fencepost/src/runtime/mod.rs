//! What keeps held locks held: clock, leases, the keeper's thread and its background tasks. Nothing here is
//! public but what [`backend`](crate::backend) and [`memory`](crate::memory) export.

// Public for stores of one's own alone.
#![cfg_attr(not(feature = "unstable-backend"), allow(unreachable_pub))]

pub(crate) mod alarm;
#[allow(dead_code)] // for some stores
pub(crate) mod background;
pub(crate) mod block_on;
pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod keeper;
pub(crate) mod lease;
pub(crate) mod lease_state;
pub(crate) mod loss_signal;
pub(crate) mod sync;
