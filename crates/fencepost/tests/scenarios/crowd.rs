//! Clients that take one lock from each other while something breaks, and the history of what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::{Lock, Locks};
use fencepost_testkit::history::{Client, Figures, History};
use tokio::task::JoinHandle;

use crate::fleet::{bounded, until};

/// Each client has the lock `a` again and again, until the end.
pub(crate) struct Crowd {
    history: History,
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    ttl: Duration,
    wait: Duration,
}

impl Crowd {
    /// Nobody yet. Whoever joins asks for leases of `ttl` and gives up after `wait`, to begin anew.
    pub(crate) fn new(ttl: Duration, wait: Duration) -> Self {
        Self { history: History::new(), over: Arc::default(), clients: Vec::new(), ttl, wait }
    }

    /// One more client, with a connection of its own.
    pub(crate) async fn join(&mut self, url: &str) {
        let locks = Locks::connect(url).await.unwrap();
        let client = self.history.client(u32::try_from(self.clients.len()).unwrap());
        let over = self.over.clone();
        let lock = locks.lock("a").ttl(self.ttl).wait(self.wait);
        self.clients.push(tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                turn(&client, &lock).await;
            }
            locks.close().await;
        }));
    }

    /// Waits until the lock was had so many more times.
    pub(crate) async fn goes_on(&self, times: usize) {
        let before = self.history.acquisitions();
        until("the lock goes round", async || self.history.acquisitions() >= before + times).await;
    }

    /// Lets all come to their end, and checks what they saw.
    pub(crate) async fn end(self) -> Figures {
        self.over.store(true, Ordering::SeqCst);
        for client in self.clients {
            bounded("all end", client).await.unwrap();
        }
        self.history.check()
    }
}

async fn turn(client: &Client, lock: &Lock) {
    client.invoke("a");
    // An outage is no failure of the test; what it lets happen would be.
    let Ok(guard) = lock.acquire().await else {
        return client.gave_up("outage");
    };
    client.acquired(guard.token().get(), guard.valid_until_boottime());
    tokio::task::yield_now().await;
    let until = guard.valid_until_boottime();
    match guard.check() {
        Ok(()) => client.released(until),
        Err(_) => client.lost("outage", until),
    }
    let _ = guard.release().await;
}
