//! What can go wrong with etcd: leaders that die, leases that end, answers that are lost, revisions that are
//! compacted away, users, certificates, and what must not be left behind.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "etcd")]

mod answers;
mod cluster;
mod connecting;
mod fork;
mod handles;
mod harness;
mod leases;
mod operator;
mod queue;
