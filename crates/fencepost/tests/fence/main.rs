//! The resource's side: every kind through the same suite, what is particular to each, all interleavings, and
//! many at once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod begin;
mod docs;
mod file;
mod harness;
mod hostile;
mod http;
mod http_ends;
mod interleavings;
mod many;
mod overlap;
mod postgres;
mod redis;
mod subjects;
mod suite;
mod trigger;
mod trigger_ways;
mod trigger_years;
