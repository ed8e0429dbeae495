//! What the README says to type exists.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

/// The examples that a page has lines to copy for.
fn named_in(page: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let lines = text.split("$ cargo run --example ").skip(1);
    lines.map(|rest| rest.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn both_pages_name_the_same_examples_and_all_of_them_start() {
    let names = named_in("../README.md");
    assert_eq!(names.iter().collect::<Vec<_>>(), ["orders", "oversell", "stale-writer"]);
    assert_eq!(named_in("README.md"), names);
    for name in names {
        let help = common::succeed(&name, &["--help"]);
        assert!(help.contains("--store <URL>"), "{help}");
    }
}
