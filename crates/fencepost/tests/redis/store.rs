//! What is particular to the Redis store: its queue, its batches, its connections.

use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::history::History;
use fencepost_testkit::redis::Server;
use tokio::sync::mpsc;

use crate::harness::{connect, queues, secs, until};

#[tokio::test]
async fn many_waiters_of_several_clients_exclude_each_other() {
    let server = Server::start();
    let history = History::new();
    let mut tasks = Vec::new();
    for process in 0..4 {
        let locks = connect(&server).await;
        for task in 0..10 {
            let (locks, client) = (locks.clone(), history.client(process * 10 + task));
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    client.invoke("hot");
                    let guard = locks.lock("hot").acquire().await.unwrap();
                    client.acquired(guard.token().get(), guard.valid_until_boottime());
                    tokio::task::yield_now().await;
                    client.released(guard.valid_until_boottime());
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(history.check().acquisitions, 800);
    assert!(server.keys_like("lock:*").is_empty());
}

#[tokio::test]
async fn waiters_of_different_clients_are_served_in_the_order_they_came() {
    let server = Server::start();
    let guard = connect(&server).await.lock("turn").acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for client in 0..5u64 {
        let (locks, served) = (connect(&server).await, served.clone());
        tokio::spawn(async move {
            let guard = locks.lock("turn").acquire().await.unwrap();
            served.send(client).unwrap();
            guard.release().await.unwrap();
        });
        queues(&server, "turn", client + 1).await;
    }
    guard.release().await.unwrap();
    for client in 0..5u64 {
        assert_eq!(order.recv().await, Some(client));
    }
}

/// First come, first served holds among tasks as it does among processes.
#[tokio::test]
async fn every_task_that_waits_has_its_own_place_in_the_queue() {
    let server = Server::start();
    let (crowd, other) = (connect(&server).await, connect(&server).await);
    let guard = crowd.lock("turn").acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for place in 0..6u64 {
        let (locks, served) = (if place == 3 { &other } else { &crowd }.clone(), served.clone());
        tokio::spawn(async move {
            let guard = locks.lock("turn").acquire().await.unwrap();
            served.send(place).unwrap();
            guard.release().await.unwrap();
        });
        queues(&server, "turn", place + 1).await;
    }
    guard.release().await.unwrap();
    for place in 0..6u64 {
        assert_eq!(order.recv().await, Some(place));
    }
}

#[tokio::test]
async fn a_waiter_that_does_not_react_does_not_hold_up_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (holder, deaf, next) = (
        connect(&server).await,
        Locks::connect(&server.url_at(proxy.addr())).await.unwrap(),
        connect(&server).await,
    );
    let guard = holder.lock("turn").acquire().await.unwrap();
    let first = tokio::spawn(async move { deaf.lock("turn").acquire().await });
    queues(&server, "turn", 1).await;
    let second = tokio::spawn(async move { next.lock("turn").acquire().await });
    queues(&server, "turn", 2).await;
    proxy.stall();
    let before = guard.token();
    guard.release().await.unwrap();
    let guard = second.await.unwrap().unwrap();
    assert!(guard.token() > before);
    first.abort();
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["SCRIPT", "FLUSH"]);
    guard.extend().await.unwrap();
    server.cli(&["SCRIPT", "FLUSH"]);
    guard.release().await.unwrap();
    server.cli(&["SCRIPT", "FLUSH"]);
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced_without_an_error() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    for _ in 0..3 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        guard.extend().await.unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn renewals_travel_in_batches() {
    let server = Server::start();
    let locks = connect(&server).await;
    let mut guards = Vec::new();
    for index in 0..300 {
        guards.push(
            locks.lock(format!("many:{index}")).ttl(secs(10)).renew_every(secs(1)).acquire().await.unwrap(),
        );
    }
    let before = server.evalsha_calls();
    until("each lock was renewed twice", async || locks.stats().renewed >= 600).await;
    let calls = server.evalsha_calls() - before;
    assert!(calls < 150, "{calls} calls renewed 300 locks twice");
    assert!(guards.iter().all(|guard| matches!(guard.state(), State::Held { .. })));
}

#[tokio::test]
async fn a_foreign_holder_can_only_be_cut_off() {
    let server = Server::start();
    let locks = connect(&server).await;
    server.cli(&["SET", "lock:a", "somebody-else", "PX", "60000"]);
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.to_string().contains("foreign client"));
    assert!(matches!(locks.force_release("a", "why").await, Err(Error::Unsupported { .. })));
    assert!(locks.force_release("a", fencepost::ForceRelease::now("why")).await.unwrap().unwrap().freed);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_force_release_now_serves_the_first_waiter() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server).await, connect(&server).await);
    let guard = holder.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock("a").acquire().await });
    queues(&server, "a", 1).await;
    let revoked = holder.force_release("a", fencepost::ForceRelease::now("stuck")).await.unwrap().unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(guard.token() < revoked.token && revoked.token < next.token());
    assert!(guard.state().is_lost());
    assert!(guard.release().await.is_err());
    assert!(matches!(next.state(), State::Held { .. }));
}

/// Tries to take all names in one turn, and says how each went.
async fn take_together(locks: &Locks, names: &[String]) -> Vec<Result<bool, Error>> {
    let take = |name: &String| {
        let lock = locks.lock(name);
        tokio::spawn(async move {
            match lock.try_acquire().await? {
                Some(guard) => guard.release().await.map(|()| true),
                None => Ok(false),
            }
        })
    };
    let tasks: Vec<_> = names.iter().map(take).collect();
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

#[tokio::test]
async fn what_many_tasks_ask_for_in_one_turn_is_one_request() {
    let server = Server::start();
    let locks = connect(&server).await;
    let names: Vec<_> = (0..64).map(|index| format!("many:{index}")).collect();
    let before = server.evalsha_calls();
    let outcomes = take_together(&locks, &names).await;
    let calls = server.evalsha_calls() - before;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(true))), "{outcomes:?}");
    assert!((2..64).contains(&calls), "{calls} requests for 64 cycles");
}

/// What a server refuses to one of those who went together it does not refuse to the others.
#[tokio::test]
async fn a_name_that_is_not_allowed_is_refused_alone() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "&*", "~*ours*"]);
    let locks = Locks::connect(&server.url().replace("://", "://some:pw@")).await.unwrap();
    let names: Vec<_> = (0..20).flat_map(|index| [format!("ours:{index}"), format!("no:{index}")]).collect();
    for (outcome, name) in take_together(&locks, &names).await.into_iter().zip(names) {
        match name.starts_with("ours") {
            true => assert!(matches!(outcome, Ok(true)), "{name}: {outcome:?}"),
            false => assert!(matches!(outcome, Err(Error::Config { .. })), "{name}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_key_of_a_wrong_type_and_a_forgotten_script_spoil_nothing_for_others() {
    let server = Server::start();
    let locks = connect(&server).await;
    server.cli(&["RPUSH", "lock:list", "x"]);
    server.cli(&["RPUSH", "{lock:fence}:fence", "no text"]);
    server.cli(&["SET", "{lock:queue}:waiting", "no list"]);
    server.cli(&["SCRIPT", "FLUSH"]);
    let names = ["a", "list", "b", "fence", "c", "queue", "d"].map(str::to_owned);
    for (outcome, name) in take_together(&locks, &names).await.into_iter().zip(&names) {
        match name.as_str() {
            "list" => assert!(matches!(outcome, Ok(false)), "{name}: {outcome:?}"),
            "fence" | "queue" => {
                let error = outcome.unwrap_err();
                let key = if name == "fence" { "`{lock:fence}:fence`" } else { "`{lock:queue}:waiting`" };
                assert!(matches!(error, Error::Backend { .. }), "{error:?}");
                assert!(error.to_string().contains(key), "{error}");
            }
            _ => assert!(matches!(outcome, Ok(true)), "{name}: {outcome:?}"),
        }
    }
    assert!(server.keys_like("lock:fence").is_empty(), "what was not granted is not taken");
    assert!(server.keys_like("lock:queue").is_empty(), "what was not granted is not taken");
}
