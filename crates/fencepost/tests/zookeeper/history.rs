//! Whatever happens to the links of those who hold a lock: the times in which their guards were valid do not overlap, and
//! tokens grow in that order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::{LIMIT, Proxy};

use crate::stage::{Part, bounded, ms, until};

const TTL: Duration = Duration::from_millis(800);
const CLIENTS: usize = 4;

/// One time that a lock was held, by the clock that guards count by.
#[derive(Clone, Copy, Debug)]
struct Turn {
    client: usize,
    token: u64,
    from: Duration,
    to: Duration,
}

#[derive(Default)]
struct History {
    turns: Mutex<Vec<Turn>>,
    /// Who has the lock, as far as is known.
    holder: Mutex<Option<usize>>,
    /// Whose link leads nowhere: it holds on for as long as its guard lets it believe.
    cut_off: Mutex<Option<usize>>,
    over: AtomicBool,
}

fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

impl History {
    fn count(&self) -> usize {
        self.turns.lock().unwrap().len()
    }

    fn holder(&self) -> Option<usize> {
        *self.holder.lock().unwrap()
    }

    async fn turns_of(self: Arc<Self>, client: usize, locks: Locks) {
        while !self.over.load(Ordering::SeqCst) {
            // An outage longer than a wait sits out is an error, and another try is right.
            let lock = locks.lock("a").ttl(TTL).wait(LIMIT);
            let Ok(guard) = lock.acquire().await else { continue };
            let from = boottime();
            *self.holder.lock().unwrap() = Some(client);
            // Long enough for a link to be broken meanwhile.
            let mut lost = tokio::time::timeout(ms(30), guard.lost()).await.is_ok();
            while !lost && *self.cut_off.lock().unwrap() == Some(client) {
                lost = tokio::time::timeout(ms(10), guard.lost()).await.is_ok();
            }
            // A lost guard was valid to the end of its last lease, whenever that was noticed.
            let now = boottime();
            let to = guard.valid_until_boottime().map_or(now, |end| end.min(now));
            let token = guard.token().get();
            self.turns.lock().unwrap().push(Turn { client, token, from, to });
            if lost {
                drop(guard);
            } else {
                let _ = guard.release().await;
            }
        }
    }

    fn check(&self) {
        let mut turns = self.turns.lock().unwrap().clone();
        turns.sort_by_key(|turn| turn.from);
        for pair in turns.windows(2) {
            assert!(pair[0].to <= pair[1].from, "two held it at once: {pair:?}");
            assert!(pair[0].token < pair[1].token, "tokens out of order: {pair:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_are_never_valid_at_once_while_links_break() {
    let part = Part::new();
    let history = Arc::new(History::default());
    let links: Vec<_> = (0..CLIENTS).map(|_| Proxy::start(part.server.addr())).collect();
    let mut tasks = Vec::new();
    for (client, link) in links.iter().enumerate() {
        let locks = Locks::connect(&format!("zookeeper://{}{}", link.addr(), part.chroot)).await.unwrap();
        tasks.push(tokio::spawn(history.clone().turns_of(client, locks)));
    }
    for round in 0..12 {
        let before = history.count();
        until("the lock goes round", async || history.count() > before + 4).await;
        let Some(victim) = history.holder() else { continue };
        if round % 3 < 2 {
            *history.cut_off.lock().unwrap() = Some(victim);
        }
        match round % 3 {
            0 => links[victim].stall(),
            1 => links[victim].hold_answers(),
            _ => links[victim].reset(),
        }
        let others = || history.turns.lock().unwrap().iter().filter(|turn| turn.client != victim).count();
        let before = others();
        until("the others go on", async || others() > before + 3).await;
        *history.cut_off.lock().unwrap() = None;
        links[victim].pass();
    }
    history.over.store(true, Ordering::SeqCst);
    for task in tasks {
        bounded("all end", task).await.unwrap();
    }
    history.check();
    part.is_clear().await;
}
