//! How to talk to one Redis server: the wire format, connections, and sessions that survive them. No word
//! about locks.

pub(in crate::backends) mod batch;
pub(in crate::backends) mod connection;
pub(in crate::backends) mod connector;
pub(in crate::backends) mod pool;
pub(in crate::backends) mod push;
pub(crate) mod resp;
pub(crate) mod script_client;
mod server_checks;
pub(in crate::backends) mod session;
