//! What keeps held locks held: clock, leases, the keeper's thread and its background tasks. Nothing here is
//! public but what [`backend`](crate::backend) and [`memory`](crate::memory) export.

pub(crate) mod alarm;
pub(crate) mod background;
pub(crate) mod clock;
#[cfg_attr(not(feature = "unstable-backend"), allow(unreachable_pub))]
pub(crate) mod fork;
pub(crate) mod keeper;
pub(crate) mod lease;
pub(crate) mod lease_state;
pub(crate) mod loss_signal;
pub(crate) mod sync;
