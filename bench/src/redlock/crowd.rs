//! Many clients, each with connections of its own, contend for one name.

use std::time::{Duration, Instant};

use fencepost::Locks;

use super::Deployment;
use crate::cycle::Cycle as _;
use crate::results::{Goal, progress};
use crate::rounds::report_number;

const CLIENTS: usize = 50;
const SPAN: Duration = Duration::from_secs(10);

pub(super) fn run(Deployment { runtime, url, .. }: &Deployment) {
    progress("redlock, 50 clients for one name");
    let counts = runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Locks::connect(url).await.expect("a store"));
        }
        let started = Instant::now();
        let running: Vec<_> = clients
            .iter()
            .map(|client| {
                let lock = client.lock("bench:crowd");
                tokio::spawn(async move {
                    let mut count = 0u32;
                    let end = tokio::time::Instant::from_std(started + SPAN);
                    while tokio::time::timeout_at(end, lock.run()).await.is_ok() {
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut counts = Vec::new();
        for task in running {
            counts.push(task.await.expect("a task"));
        }
        counts
    });
    let [least, most] = [counts.iter().min(), counts.iter().max()].map(|count| *count.unwrap_or(&0));
    let rate = f64::from(counts.iter().sum::<u32>()) / SPAN.as_secs_f64();
    report_number("redlock, 50 clients, one name: acquires/s", rate, "", None);
    let (least, detail) = (f64::from(least), format!("the most {most}"));
    report_number("redlock, 50 clients: acquires of the least", least, &detail, Some(Goal::AtLeast(1.0)));
}
