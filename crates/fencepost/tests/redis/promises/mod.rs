//! The promises again, where a test needs to look into the server, or to break its link.

use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::LIMIT;
use fencepost_testkit::redis::Server;

use crate::harness::{bounded, ms, until};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(1500);

/// One Redis, empty at the start.
struct Harness(Server);

impl Harness {
    fn new() -> Self {
        Self(Server::start())
    }

    fn server(&self) -> &Server {
        &self.0
    }

    fn server_mut(&mut self) -> &mut Server {
        &mut self.0
    }

    async fn locks(&self) -> Locks {
        Locks::connect(&self.0.url()).await.unwrap()
    }

    fn stop(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }

    async fn is_clear(&self) {
        until("no key is left", async || self.0.keys_like("lock:*").is_empty()).await;
    }
}

fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

async fn take(locks: &Locks, name: &str) -> Guard {
    patient(locks, name).acquire().await.unwrap()
}

async fn becomes_free(locks: &Locks, name: &str) {
    take(locks, name).await.release().await.unwrap();
}

/// Makes each `async fn(Harness)` a test.
macro_rules! on_redis {
    ($($test:ident),+ $(,)?) => {
        mod tests {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(super::Harness::new()).await;
                }
            )+
        }
    };
}

mod cancellation;
mod connecting;
mod deadline;
mod errors;
mod identity;
mod loss_in_time;
mod no_orphans;
mod token_order;
mod validity_from_send;
mod wakeup_is_a_hint;
