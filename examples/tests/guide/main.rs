//! The Rust of the documents. Each block that a document shows stands here, and the compiler reads it; most
//! of
//! it runs, too.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod axum_service;
mod fencing;
mod lock;
mod sqlx_transaction;
mod testing;

use std::path::{Path, PathBuf};

/// What the blocks stand for as the work under a lock.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lines that say something.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// The documents of a folder.
fn documents(folder: &str) -> impl Iterator<Item = PathBuf> {
    let paths = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
}

#[test]
fn every_block_of_rust_in_a_document_stands_in_a_source_that_is_compiled() {
    let folder = root().join("examples/tests/guide");
    let sources: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let mut blocks = 0;
    for document in [".", "docs/guide", "docs/stores"].into_iter().flat_map(documents) {
        let text = std::fs::read_to_string(&document).unwrap();
        for block in text.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            let wanted = lines(block);
            let stands = |source: &String| lines(source).windows(wanted.len()).any(|here| here == wanted);
            assert!(sources.iter().any(stands), "{}: no source has this block:\n{block}", document.display());
            blocks += 1;
        }
    }
    assert!(blocks > 15, "{blocks}");
}
