//! The store of files, in a temporary folder.

use crate::Folder;
use crate::local::{Server, Servers, Store};

/// Without any server.
pub static LOCAL: Store = Store {
    name: "file",
    missing: || None,
    start: |_| Box::new(Folder::new("locks")),
    blows: &[],
    excuse: |_, _, _| None,
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
