//! A ZooKeeper client: sessions that live on over one connection after the other. Knows no locks.

mod call;
mod connect;
mod connection;
mod jute;
mod protocol;
pub(super) mod requests;
mod session;
mod session_driver;
#[cfg(test)]
mod tests;
mod watches;

pub(super) use self::call::{CallError, Cause, Pending, if_exists};
pub(super) use self::protocol::ErrorCode;
pub(super) use self::requests::{Permission, Stat};
pub(super) use self::session::{OpenSession, Session};
pub(super) use self::watches::{NodeChange, NodeWatch};
