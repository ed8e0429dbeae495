//! Tasks of two processes that take turns while everything goes wrong between any two of their steps, on a
//! real server. No token repeats, and none is smaller than one that was handed out before it was asked for;
//! while the server keeps its data two never hold the lock at once, either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::history::{Client, History, Rule};
use fencepost_testkit::redis::Server;

use crate::harness::{ms, until};

/// Short, so that some leases run out.
const TTL: Duration = Duration::from_millis(600);
const TASKS: u32 = 8;
const FAULTS: u64 = 40;

/// Numbers that look like chance and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Has the lock again and again, in every way in which one can, until it is told to stop. What it detaches
/// goes on by `other`.
async fn contend(lock: Lock, other: Lock, client: Client, mut dice: Dice, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        client.invoke("a");
        let patience = if dice.roll(4) == 0 { ms(dice.roll(20)) } else { ms(3000) };
        let wait = async {
            match dice.roll(30) {
                0 => lock.try_acquire().await,
                1 => lock.clone().max_hold(ms(10)).acquire().await.map(Some),
                _ => lock.acquire().await.map(Some),
            }
        };
        match tokio::time::timeout(patience, wait).await {
            Ok(Ok(Some(guard))) => {
                client.acquired(guard.token().get(), guard.valid_until_boottime());
                hold(&guard, &mut dice).await;
                match go_on_elsewhere(guard, &other, &mut dice).await {
                    Ok(guard) => give_back(guard, &client, &mut dice).await,
                    Err(error) => client.lost(&error.to_string(), None),
                }
            }
            Ok(Ok(None)) => client.gave_up("is held"),
            Ok(Err(error)) => client.gave_up(&error.to_string()),
            Err(_) => client.gave_up("was cancelled"),
        }
    }
}

async fn hold(guard: &Guard, dice: &mut Dice) {
    match dice.roll(400) {
        0..10 => tokio::time::sleep(ms(dice.roll(8))).await,
        10..20 => drop(guard.extend().await),
        21 => drop(guard.extend_to(TTL * 2).await),
        20 => drop(tokio::time::timeout(TTL, guard.lost()).await),
        30..100 => tokio::task::yield_now().await,
        _ => {}
    }
}

/// Sometimes another process has the rest of its time.
async fn go_on_elsewhere(guard: Guard, other: &Lock, dice: &mut Dice) -> fencepost::Result<Guard> {
    if dice.roll(16) > 0 {
        return Ok(guard);
    }
    let guard = other.attach(&guard.detach().await?).await?;
    hold(&guard, dice).await;
    Ok(guard)
}

async fn give_back(guard: Guard, client: &Client, dice: &mut Dice) {
    let until = guard.valid_until_boottime();
    match guard.check() {
        Ok(()) => client.released(until),
        // A revocation ends it before its lease does.
        Err(error) => client.lost(&error.to_string(), None),
    }
    match dice.roll(160) {
        0..20 => drop(guard),
        // The caller goes away under way.
        20..40 => drop(tokio::time::timeout(ms(0), guard.release()).await),
        // Nobody attaches it: its lease ends.
        50 => drop(guard.detach().await),
        _ => drop(guard.release().await),
    }
}

/// Breaks something, and mends it.
async fn strike(server: &Server, links: &[Proxy; 2], operator: &Locks, forgetful: bool, dice: &mut Dice) {
    let link = &links[usize::from(dice.roll(2) == 1)];
    match dice.roll(if forgetful { 10 } else { 7 }) {
        0 => link.cut(),
        1 => link.cut_next_answer(),
        2 => link.stall(),
        3 => link.hold_answers(),
        4 => drop(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"])),
        5 => drop(server.cli(&["SCRIPT", "FLUSH"])),
        6 => drop(operator.force_release("a", "in the way").await),
        7 => drop(operator.force_release("a", fencepost::ForceRelease::now("in the way")).await),
        8 => drop(server.cli(&["FLUSHALL"])),
        _ => drop(server.cli(&["DEL", "lock:a"])),
    }
    // Some last for longer than a lease.
    tokio::time::sleep(if dice.roll(8) == 0 { TTL } else { ms(dice.roll(10)) }).await;
    link.pass();
}

async fn storm(forgetful: bool, seed: u64, rules: &[Rule]) {
    let server = Server::start();
    let links = [Proxy::start(server.addr()), Proxy::start(server.addr())];
    let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
    let url = |link: &Proxy| format!("{}?timeout=300ms", server.url_at(link.addr()));
    let processes =
        [Locks::connect(&url(&links[0])).await.unwrap(), Locks::connect(&url(&links[1])).await.unwrap()];
    // Half of the tasks of each process run in a runtime of their own.
    let elsewhere =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut tasks = Vec::new();
    for number in 0..2 * TASKS {
        let [ours, other] = [0, 1].map(|offset| &processes[((number + offset) % 2) as usize]);
        let [lock, other] = [ours, other].map(|locks| locks.lock("a").ttl(TTL));
        let (client, dice) = (history.client(number), Dice(seed + u64::from(number)));
        let contend = contend(lock, other, client, dice, stop.clone());
        tasks.push(if number / 2 % 2 == 0 { tokio::spawn(contend) } else { elsewhere.spawn(contend) });
    }
    let (operator, mut dice) = (Locks::connect(&server.url()).await.unwrap(), Dice(!seed));
    for _ in 0..FAULTS {
        let before = history.acquisitions();
        strike(&server, &links, &operator, forgetful, &mut dice).await;
        until("locks are granted again", async || history.acquisitions() > before + 40).await;
    }
    // While this one has it nobody is served, and who does not clean up stays in the queue.
    let last = operator.lock("a").acquire().await.unwrap();
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    elsewhere.shutdown_background();
    history.check_for(rules);
    for locks in processes {
        locks.close().await;
    }
    assert_eq!(server.cli(&["LRANGE", "{lock:a}:waiting", "0", "-1"]), "");
    last.release().await.unwrap();
    until("nothing is left", async || server.keys_like("lock:*").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_hold_through_cuts_cancels_revocations_and_expiry() {
    let rules =
        [Rule::Exclusion, Rule::UniqueTokens, Rule::OrderedTokens, Rule::TokensInTurn, Rule::LateLoss];
    storm(false, 1, &rules).await;
}

#[tokio::test]
async fn tokens_keep_their_order_when_the_server_forgets_locks_and_counters() {
    storm(true, 2, &[Rule::UniqueTokens, Rule::OrderedTokens]).await;
}
