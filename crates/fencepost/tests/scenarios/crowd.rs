//! Clients that take one lock from each other while something breaks, and the history of what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::history::{Client, Figures, History};
use tokio::task::JoinHandle;

use crate::redis_nodes::{boottime, bounded, ms, until};

/// Of so many turns, one lasts for as long as its guard says that it may. The others are as short as can be.
const LONG_ONES: usize = 6;

/// Each client has the lock `a` again and again, until the end.
pub(crate) struct Crowd {
    history: History,
    over: Arc<AtomicBool>,
    clients: Vec<(JoinHandle<()>, Arc<Counts>)>,
    ttl: Duration,
    wait: Duration,
}

/// What became of the turns of one client.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    refused: AtomicUsize,
    /// Held to the end of a lease that nobody renewed.
    sat_out: AtomicUsize,
}

impl Crowd {
    /// Nobody yet. Whoever joins asks for leases of `ttl` and gives up after `wait`, to begin anew.
    pub(crate) fn new(ttl: Duration, wait: Duration) -> Self {
        Self { history: History::new(), over: Arc::default(), clients: Vec::new(), ttl, wait }
    }

    /// One more client, with a connection of its own.
    pub(crate) async fn join(&mut self, url: &str) {
        let locks = Locks::connect(url).await.unwrap();
        let number = self.clients.len();
        let client = self.history.client(u32::try_from(number).unwrap());
        let counts = Arc::new(Counts { begun: number.into(), ..Counts::default() });
        let (over, counted) = (self.over.clone(), counts.clone());
        let lock = locks.lock("a").ttl(self.ttl).wait(self.wait);
        let task = tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                turn(&client, &lock, &counted).await;
            }
            locks.close().await;
        });
        self.clients.push((task, counts));
    }

    /// Waits until the lock was had so many more times.
    pub(crate) async fn goes_on(&self, times: usize) {
        let before = self.history.acquisitions();
        until("the lock goes round", async || self.history.acquisitions() >= before + times).await;
    }

    /// Waits until this client has been told that it cannot have the lock.
    pub(crate) async fn is_refused(&self, client: usize) {
        let refused = || self.clients[client].1.refused.load(Ordering::SeqCst);
        let before = refused();
        until("it is refused", async || refused() > before).await;
    }

    /// Lets all come to their end, and checks what they saw, some of them to the end of a lease.
    pub(crate) async fn end(self) -> Figures {
        let sat_out =
            || self.clients.iter().map(|(_, counts)| counts.sat_out.load(Ordering::SeqCst)).sum::<usize>();
        until("somebody holds to the end of a lease", async || sat_out() > 1).await;
        self.over.store(true, Ordering::SeqCst);
        for (client, _) in self.clients {
            bounded("all end", client).await.unwrap();
        }
        self.history.check()
    }
}

async fn turn(client: &Client, lock: &Lock, counts: &Counts) {
    let is_long = counts.begun.fetch_add(1, Ordering::SeqCst).is_multiple_of(LONG_ONES);
    client.invoke("a");
    // An outage is no failure of the test; what it lets happen would be.
    let lock = if is_long { lock.clone().without_renewal() } else { lock.clone() };
    let Ok(guard) = lock.acquire().await else {
        counts.refused.fetch_add(1, Ordering::SeqCst);
        return client.gave_up("outage");
    };
    client.acquired(guard.token().get(), guard.valid_until_boottime());
    if is_long {
        sit_out(&guard).await;
    }
    let until = guard.valid_until_boottime();
    match guard.check() {
        Ok(()) => client.released(until),
        Err(_) => client.lost("outage", until),
    }
    if is_long {
        counts.sat_out.fetch_add(1, Ordering::SeqCst);
    }
    let _ = guard.release().await;
}

/// Asks the guard until it says that the lock is lost.
async fn sit_out(guard: &Guard) {
    loop {
        let asked = boottime();
        if guard.check().is_err() {
            return;
        }
        let until = guard.valid_until_boottime().unwrap();
        assert!(asked < until, "a guard says at {asked:?} that it holds until {until:?}");
        tokio::time::sleep(ms(2)).await;
    }
}
