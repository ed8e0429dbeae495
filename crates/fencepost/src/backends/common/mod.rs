//! What more than one store uses. Nothing here knows a store.

pub(in crate::backends) mod backoff;
pub(in crate::backends) mod batch;
pub(in crate::backends) mod foreign;
pub(in crate::backends) mod parameter;
pub(in crate::backends) mod stream;
pub(in crate::backends) mod tls;
