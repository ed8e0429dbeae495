//! Distributed locks that are safe to build on.
//!
//! One kind of lock over whatever you already run: nothing at all (files on this machine), one Redis server
//! or several, PostgreSQL, etcd or ZooKeeper. Every lock comes with a [fencing token](FencingToken) that only
//! grows, a [`Guard`] that says *at risk* and then *lost* before its lease can run out, automatic renewal,
//! and the same tools to see, time and break locks on every store. A release wakes the next waiter. Waiters
//! poll where nothing would wake them: for a detached lock of files, and for a lock that a client of other
//! make holds.
//!
//! ```no_run
//! use std::time::Duration;
//! use fencepost::Locks;
//!
//! # async fn example() -> fencepost::Result<()> {
//! # async fn write(_: u64) {}
//! let locks = Locks::connect("redis://127.0.0.1:6379").await?;
//! let lock = locks.lock("order:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
//! let guard = lock.acquire().await?;
//! write(guard.token().get()).await;           // the resource refuses a smaller token
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! A lock alone cannot stop a holder that was paused past the end of its lease from writing when it wakes up:
//! only the resource can, by refusing a token smaller than the largest it has seen. [`fence`] has resources
//! that do. `SAFETY.md` in the repository says what each store promises and what breaks it.
//!
//! Start at [`Locks::connect`]. Code without an async runtime uses [`blocking`].
//!
//! # Testing
//! [`memory`] is for tests of your own code: a store inside the process, with a clock that moves when the
//! test says so, and with faults on demand. The URL `memory:` is the same without either. Tokio's paused
//! clock moves neither.
//!
//! # Features
//! `file` and `redis` are on by default; `redlock`, `postgres`, `etcd` and `zookeeper` add a store each.
//! `tls` adds TLS to the stores that are there, `http` a layer for HTTP services to [`fence`].
//! `unstable-backend` opens the interface of stores and resources, which may still change before 1.0.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "unstable-backend")]
pub mod backend;
// An interface, and private: it has what stores of one's own need, too.
#[cfg(not(feature = "unstable-backend"))]
#[allow(dead_code, unreachable_pub, unused_imports)]
mod backend;
mod backends;
pub mod blocking;
mod connect_options;
mod error;
pub mod fence;
mod guard;
mod handle;
mod holder;
mod identity;
mod lock;
mod locks;
mod name;
mod options;
#[cfg_attr(not(feature = "unstable-backend"), allow(unreachable_pub))]
mod owner;
mod report;
mod runtime;
mod secret;
mod set;
mod state;
mod stats;
mod supervisor;
mod text;
mod token;
mod url;
mod wait;
mod watch;

#[cfg(test)]
mod tests;

pub use backend::{Capabilities, ForceRelease, Revoked};
#[cfg(feature = "etcd")]
pub use backends::etcd::EtcdCompare;
pub use backends::memory;
#[cfg(feature = "postgres")]
pub use backends::postgres;
pub use backends::{Parameter, StoreKind, stores};
pub use connect_options::ConnectOptions;
pub use error::{Error, Loss, Result, Risk, Source};
pub use guard::Guard;
pub use handle::Handle;
pub use holder::{Holder, Listing};
pub use lock::Lock;
pub use locks::Locks;
pub use name::{MAX_NAME, Name};
pub use options::DEFAULT_TTL;
pub use owner::Owner;
pub use report::{NodeReport, NodeView, Verdict};
pub use set::{GuardSet, LockSet};
pub use state::State;
pub use stats::{Distribution, Losses, Stats};
#[cfg(feature = "etcd")]
pub use supervisor::EtcdExt;
pub use supervisor::SupervisorExt;
pub use text::{format_duration, parse_duration};
// For the command, which shows the same texts.
#[doc(hidden)]
pub use text::{is_unfit, printable};
pub use token::FencingToken;
pub use wait::{Retry, Wait};
pub use watch::Watch;

/// What [`fence::http`] speaks of.
#[cfg(feature = "http")]
pub use ::http;
/// What [`ConnectOptions::tls_config`] takes.
#[cfg(feature = "tls")]
pub use ::rustls;
/// What [`fence::postgres`] speaks of.
#[cfg(feature = "postgres")]
pub use ::tokio_postgres;
