//! The store in memory, as a store under test.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::{Locks, memory};

use crate::conformance::{Harness, TestStore};

struct Memory(memory::Store, u32);

/// An empty one.
pub fn harness() -> Harness {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Harness::new(Memory(memory::Store::new(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

impl TestStore for Memory {
    fn url(&self) -> String {
        format!("memory:{}", self.1)
    }

    fn locks(&self) -> Pin<Box<dyn Future<Output = Locks> + Send + '_>> {
        Box::pin(async { self.0.locks().expect("the keeper starts") })
    }

    fn stop(&self) {
        self.0.freeze();
    }

    fn resume(&self) {
        self.0.thaw();
    }

    fn remove(&self, name: &str) {
        assert!(self.0.expire(name));
    }

    fn traces(&self) -> usize {
        self.0.held()
    }
}
