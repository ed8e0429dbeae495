//! Starts real servers on free ports with temporary folders, breaks them on purpose, and checks the histories
//! of those who held locks meanwhile.
//!
//! Blocking code on the standard library: a test of an async library must not share its runtime with the
//! thing that breaks it. Everything started here ends with its value, and also when the test process is
//! killed.

mod certificates;
mod clock;
pub mod conformance;
pub mod etcd;
mod eventually;
pub mod file;
mod folder;
pub mod history;
pub mod local;
pub mod memory;
mod port;
pub mod postgres;
mod process;
mod proxy;
mod random;
pub mod redis;
pub mod zookeeper;

pub use certificates::Certificates;
pub use clock::Clock;
pub use eventually::{LIMIT, eventually};
pub use folder::Folder;
pub use process::state as process_state;
pub use proxy::Proxy;
pub use random::SplitMix64;
