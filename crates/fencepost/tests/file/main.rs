//! The file store against real files and real processes.
#![cfg(feature = "file")]
#![allow(unsafe_code, clippy::unwrap_used)]

mod ancestors;
mod children;
mod detached;
mod directory;
#[allow(dead_code)]
#[path = "../common/family.rs"]
mod family;
mod files;
mod harness;
mod operator;
mod processes;
mod waiting;

use children::act;
use family::Family;

/// Not a test of its own: what children do.
#[test]
fn child() {
    let Some((what, url)) = Family::task() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(act(&what, &url));
}
