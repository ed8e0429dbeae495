//! A part of an etcd that all tests share, as a store under test. What a test stops is its link to it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Cluster;
use crate::Proxy;
use crate::conformance::{Harness, Logged, TestStore};

struct Part {
    cluster: &'static Cluster,
    prefix: String,
    link: Proxy,
}

/// An empty one.
pub(super) fn harness() -> Harness {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let cluster = SHARED.get_or_init(|| Cluster::start(1));
    let prefix = format!("test {}:", NEXT.fetch_add(1, Ordering::Relaxed));
    Harness::new(Part { cluster, prefix, link: Proxy::start(cluster[0].addr()) })
}

impl TestStore for Part {
    fn url(&self) -> String {
        let url = self.cluster.url_at(&self.link.addr().to_string());
        format!("{url}?prefix={}", self.prefix.replace(' ', "%20"))
    }

    fn stop(&self) {
        self.link.stall();
    }

    fn resume(&self) {
        self.link.pass();
    }

    fn remove(&self, name: &str) {
        // The first to come, and nobody who waits for it.
        let folder = format!("{}{name}/", self.prefix);
        let keys = self.cluster.etcdctl(&["get", "--prefix", &folder, "--keys-only", "--sort-by=CREATE"]);
        let first = keys.lines().next().expect("somebody holds it");
        assert_eq!(self.cluster.etcdctl(&["del", first]), "1");
    }

    fn traces(&self) -> usize {
        self.cluster.keys(&self.prefix).len()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        // Logins are of a whole cluster.
        let cluster = Cluster::config().password(password).start(1);
        Some((cluster.url(), Box::new(cluster)))
    }
}
