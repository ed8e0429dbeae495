//! A part of a ZooKeeper that all tests share, as a store under test. What a test stops is its link to it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Server;
use crate::Proxy;
use crate::conformance::{Harness, Logged, TestStore};

struct Part {
    server: &'static Server,
    chroot: String,
    link: Proxy,
}

/// An empty one.
pub(super) fn harness() -> Harness {
    // Ends with the test process: its supervisor sees to that.
    static SHARED: OnceLock<Server> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let server = SHARED.get_or_init(Server::start);
    let chroot = format!("/test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Harness::new(Part { server, chroot, link: Proxy::start(server.addr()) })
}

impl TestStore for Part {
    fn url(&self) -> String {
        format!("zookeeper://{}{}", self.link.addr(), self.chroot)
    }

    fn stop(&self) {
        self.link.stall();
    }

    fn resume(&self) {
        self.link.pass();
    }

    fn remove(&self, name: &str) {
        let folder = format!("{}/fencepost/{name}", self.chroot);
        let mut client = self.server.client();
        // The first to come has the smallest number, which its name ends with.
        let mut children = client.children(&folder).expect("the folder is there");
        children.sort_by_key(|child| child[child.len() - 10..].to_owned());
        let first = children.swap_remove(0);
        assert!(client.delete(&format!("{folder}/{first}")).expect("the server answers"));
    }

    fn traces(&self) -> usize {
        let nodes = self.server.client().tree(&self.chroot);
        nodes.iter().filter(|node| node.contains("-lock-")).count()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        // Everybody may log in; a login is looked at when a node is used.
        Some((self.url().replace("//", &format!("//alice:{password}@")), Box::new(())))
    }
}
