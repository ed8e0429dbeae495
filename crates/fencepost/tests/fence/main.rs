//! The resource's side: every kind through the same suite, what is particular to each, all interleavings, and many at once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod file;
mod http;
mod interleavings;
mod many;
mod postgres;
mod redis;
mod stage;
mod subjects;
mod suite;
mod trigger;
