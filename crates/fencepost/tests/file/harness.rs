//! A store in a directory of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use fencepost::{Guard, Locks};
use fencepost_testkit::Folder;

use crate::family::Family;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Removed with this value.
pub(crate) struct Directory(Folder);

impl Directory {
    pub(crate) fn new() -> Self {
        Self(Folder::new("file"))
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn open_to(&self, mode: u32) {
        std::fs::set_permissions(self.path(), PermissionsExt::from_mode(mode)).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.lock"))
    }

    pub(crate) async fn locks(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }

    /// Starts a child that does `what` and waits until it says `done: …`; returns what it said.
    pub(crate) fn child(&self, what: &str) -> (Family, String) {
        Family::start("child", what, &self.url(), |_| {})
    }
}

pub(crate) async fn held(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).ttl(HOUR).acquire().await.unwrap()
}

/// Polls a future once.
pub(crate) async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        })
    })
    .await
}
