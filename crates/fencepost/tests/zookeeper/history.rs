//! Whatever happens to the links of those who hold a lock: the times in which their guards were valid do not
//! overlap, and tokens grow in that order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::Locks;
use fencepost::SupervisorExt as _;
use fencepost_testkit::history::History;
use fencepost_testkit::{LIMIT, Proxy};

use crate::harness::{Part, bounded, ms, until};

const TTL: Duration = Duration::from_millis(800);
const CLIENTS: usize = 4;

/// Who does what.
#[derive(Default)]
struct Scene {
    history: History,
    /// How often each client has had the lock.
    turns: [AtomicUsize; CLIENTS],
    /// Who has the lock, as far as is known.
    holder: Mutex<Option<usize>>,
    /// Whose link leads nowhere: it holds on for as long as its guard lets it believe.
    cut_off: Mutex<Option<usize>>,
    over: AtomicBool,
}

impl Scene {
    fn turns(&self) -> usize {
        self.turns.iter().map(|turns| turns.load(Ordering::SeqCst)).sum()
    }

    fn holder(&self) -> Option<usize> {
        *self.holder.lock().unwrap()
    }

    async fn turns_of(self: Arc<Self>, number: usize, locks: Locks) {
        let client = self.history.client(u32::try_from(number).unwrap());
        while !self.over.load(Ordering::SeqCst) {
            client.invoke("a");
            // An outage longer than a wait sits out is an error, and another try is right.
            let lock = locks.lock("a").ttl(TTL).wait(LIMIT);
            let Ok(guard) = lock.acquire().await else {
                client.gave_up("outage");
                continue;
            };
            client.acquired(guard.token().get(), guard.valid_until_boottime());
            *self.holder.lock().unwrap() = Some(number);
            // Long enough for a link to be broken meanwhile.
            let mut lost = tokio::time::timeout(ms(30), guard.lost()).await.is_ok();
            while !lost && *self.cut_off.lock().unwrap() == Some(number) {
                lost = tokio::time::timeout(ms(10), guard.lost()).await.is_ok();
            }
            self.turns[number].fetch_add(1, Ordering::SeqCst);
            if lost {
                // It was valid to the end of its last lease, whenever that was noticed.
                client.lost("link", guard.valid_until_boottime());
                drop(guard);
            } else {
                client.released(guard.valid_until_boottime());
                let _ = guard.release().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_are_never_valid_at_once_while_links_break() {
    let part = Part::new();
    let scene = Arc::new(Scene::default());
    let links: Vec<_> = (0..CLIENTS).map(|_| Proxy::start(part.server.addr())).collect();
    let mut tasks = Vec::new();
    for (client, link) in links.iter().enumerate() {
        let locks = Locks::connect(&format!("zookeeper://{}{}", link.addr(), part.chroot)).await.unwrap();
        tasks.push(tokio::spawn(scene.clone().turns_of(client, locks)));
    }
    for round in 0..12 {
        let before = scene.turns();
        until("the lock goes round", async || scene.turns() > before + 4).await;
        let Some(victim) = scene.holder() else { continue };
        if round % 3 < 2 {
            *scene.cut_off.lock().unwrap() = Some(victim);
        }
        match round % 3 {
            0 => links[victim].stall(),
            1 => links[victim].hold_answers(),
            _ => links[victim].reset(),
        }
        let others = || scene.turns() - scene.turns[victim].load(Ordering::SeqCst);
        let before = others();
        until("the others go on", async || others() > before + 3).await;
        *scene.cut_off.lock().unwrap() = None;
        links[victim].pass();
    }
    scene.over.store(true, Ordering::SeqCst);
    for task in tasks {
        bounded("all end", task).await.unwrap();
    }
    scene.history.check();
    part.is_clear().await;
}
