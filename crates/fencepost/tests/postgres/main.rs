//! What can go wrong with locks on PostgreSQL, on real servers.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "postgres")]

mod crashes;
mod functions;
mod handover;
mod harness;
mod hostile;
mod links;
mod login;
mod many;
mod pools;
mod psql;
mod room;
mod sessions;
mod tokens;
mod transactions;
