//! A client for etcd: gRPC over HTTP/2, members that come and go, requests that are repeated. Nothing here
//! knows about locks. Connections are driven on the keeper's runtime.

pub(crate) mod cluster;
mod connection;
mod grpc;
mod history;
mod members;
pub(crate) mod proto;

pub(crate) use self::connection::{Watch, WatchEvent};
