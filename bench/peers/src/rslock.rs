//! `rslock` on one node or on several: no token, lighter commands (`SET NX`, compare and delete), and always
//! the answers of all nodes.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_measure::{Client, Contender, Holding};
use rslock::{LockGuard, LockManager};

use crate::Error;

const TTL: Duration = Duration::from_secs(30);

/// How long all may take to be held.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Peer(LockManager);

pub(crate) struct Lock(LockManager, String);

impl Peer {
    pub(crate) fn new(urls: &[String]) -> Self {
        Self(LockManager::new(urls.to_vec()))
    }
}

impl Client for Peer {
    type Contender = Lock;
    type Error = Error;

    async fn contender(&self, name: &str) -> Result<Lock, Error> {
        Ok(Lock(self.0.clone(), name.to_owned()))
    }

    async fn hold(&self, count: usize, ttl: Duration) -> Result<Holding, Error> {
        let held = Arc::new(AtomicUsize::new(0));
        let mut running = tokio::task::JoinSet::new();
        for number in 0..count {
            let (manager, held) = (self.0.clone(), Arc::clone(&held));
            running.spawn(async move {
                let name = format!("rslock:held:{count}:{number}");
                let kept = manager.using(name.as_bytes(), ttl, async || {
                    held.fetch_add(1, Ordering::Relaxed);
                    pending::<()>().await;
                });
                if kept.await.is_err() {
                    held.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }
        let all = async {
            while held.load(Ordering::Relaxed) < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // Those that are lost before the last was there are missing at the end as well.
        let _ = tokio::time::timeout(PATIENCE, all).await;
        Ok(Box::new(move || {
            let _ = &running;
            held.load(Ordering::Relaxed)
        }))
    }
}

impl Contender for Lock {
    type Held = LockGuard;
    type Error = Error;

    async fn acquire(&mut self) -> Result<LockGuard, Error> {
        Ok(self.0.acquire(self.1.as_bytes(), TTL).await?)
    }

    async fn release(&mut self, held: LockGuard) -> Result<(), Error> {
        held.release().await;
        Ok(())
    }

    fn token(_: &LockGuard) -> Option<u64> {
        None
    }
}
