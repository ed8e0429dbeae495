//! The store of files, in a temporary folder.

use fencepost::blocking::Locks;

use crate::Folder;
use crate::conformance::{Harness, TestStore};
use crate::local::{Server, Servers, Store};

/// Without any server.
pub static LOCAL: Store = Store {
    name: "file",
    missing: || None,
    start: |_| Box::new(Folder::new("locks")),
    blows: &[],
    excuse: |_, _, _| None,
    harness: || Harness::new(Folder::new("file")),
};

impl Servers for Folder {
    fn url(&self) -> String {
        // Made by the store, for us alone.
        format!("file://{}", self.path().join("store").display())
    }

    fn count(&self) -> usize {
        0
    }

    fn get(&mut self, _: usize) -> &mut dyn Server {
        unreachable!("files have no server")
    }
}

impl TestStore for Folder {
    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    fn stop(&self) {
        unreachable!("a file store cannot be stopped")
    }

    fn resume(&self) {}

    fn remove(&self, _: &str) {
        unreachable!("the kernel keeps a file lock")
    }

    fn traces(&self) -> usize {
        let url = TestStore::url(self);
        let look =
            move || Locks::connect(&url).and_then(|locks| locks.list("").map(|list| list.holders.len()));
        std::thread::spawn(look).join().expect("it does not panic").expect("the folder can be read")
    }
}
