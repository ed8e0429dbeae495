//! How to talk to one Redis server: the wire format, connections, and sessions that survive them.

pub(in crate::backends) mod batch;
pub(in crate::backends) mod connection;
pub(in crate::backends) mod connector;
pub(in crate::backends) mod per_runtime;
pub(crate) mod resp;
pub(crate) mod script_client;
pub(in crate::backends) mod session;
pub(in crate::backends) mod shard_channels;
