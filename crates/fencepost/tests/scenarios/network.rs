//! Links that are slow, lose, repeat, hold back and cut: what arrives late or twice takes nobody's lock.

use fencepost::{Error, Guard, Locks};
use fencepost_testkit::redis::{Nodes, Server};
use fencepost_testkit::{LIMIT, Proxy};

use crate::children::client;
use crate::crowd::Crowd;
use crate::redis_nodes::{
    CALM, LONG, boottime, clock, connect, connect_to_all, counter, declared, holds, is_clear, ms, patient,
    take, until, use_once,
};

/// Many clients with links of their own belong to one deployment if its name says so. An answer may take
/// longer than a lease.
const NAMED: &str = "max_ttl=1s&quarantine=3s&deployment=test&timeout=4s";

/// Long leases, and answers that are not waited for long.
const HASTY: &str = "max_ttl=20m&deployment=test&timeout=2s";

/// A crowd of three on three servers, and the links of each.
async fn crowd_over_links() -> (Nodes, Vec<Vec<Proxy>>, Crowd) {
    let nodes = Nodes::start(3);
    Locks::init(&nodes.url_with(NAMED)).await.unwrap();
    let links: Vec<_> = (0..3).map(|_| nodes.proxies()).collect();
    let mut crowd = Crowd::new(ms(500), ms(1000));
    for links in &links {
        crowd.join(&nodes.url_through(links, NAMED)).await;
    }
    (nodes, links, crowd)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_delays_up_to_three_times_the_ttl_let_nobody_in_twice() {
    let (_nodes, links, crowd) = crowd_over_links().await;
    for (client, links) in links.iter().enumerate() {
        for delay in [20, 500, 1500] {
            links[0].delay(ms(delay));
            crowd.goes_on(3).await;
            links.iter().for_each(|link| link.delay(ms(delay)));
            // What is answered after more than half of a lease is no grant, and the others go on.
            if delay > 20 {
                crowd.is_refused(client).await;
            }
            crowd.goes_on(3).await;
            links.iter().for_each(Proxy::pass);
        }
    }
    crowd.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_a_grant_that_was_long_under_way_is_valid_from_its_sending_on() {
    let nodes = declared(3, NAMED).await;
    let links = nodes.proxies();
    let url = |parameters: &str| nodes.url_through(&links, parameters);
    let (late, rival) = (Locks::connect(&url(NAMED)).await.unwrap(), connect(&nodes, NAMED).await);
    let lock = late.lock("a").ttl(ms(1000)).without_renewal();
    // Its connections are all there behind this: answers are held back that it asks for, not greetings.
    until("it is granted everywhere", async || {
        let _guard = lock.try_acquire().await;
        nodes.iter().all(|node| holds(node, "a"))
    })
    .await;
    is_clear(&nodes).await;
    let guard = loop {
        links.iter().for_each(Proxy::hold_answers);
        let attempt = tokio::spawn({
            let lock = lock.clone();
            async move { lock.try_acquire().await }
        });
        until("all nodes have granted it", async || {
            attempt.is_finished() || nodes.iter().all(|node| holds(node, "a"))
        })
        .await;
        let near_the_limit = boottime() + ms(350);
        until("the answers are late", async || boottime() > near_the_limit).await;
        links.iter().for_each(Proxy::pass);
        // On a busy machine they may come too late for a grant.
        if let Ok(Some(guard)) = attempt.await.unwrap() {
            break guard;
        }
        is_clear(&nodes).await;
    };
    let next = rival.lock("a").ttl(ms(1000)).wait(LIMIT).acquire().await.unwrap();
    assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s16_loss_and_repetition_let_nobody_in_twice() {
    let (_nodes, links, crowd) = crowd_over_links().await;
    for round in 0..3 {
        for (index, link) in links.iter().flatten().enumerate() {
            match (index + round) % 3 {
                // Now it is the server that hears twice, now the client that hears nothing.
                0 => link.lose_every(3),
                1 => link.repeat(ms(20)),
                _ => link.delay(ms(10)),
            }
        }
        crowd.goes_on(10).await;
    }
    links.iter().flatten().for_each(Proxy::pass);
    crowd.goes_on(10).await;
    crowd.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s16_a_request_that_is_delivered_twice_has_one_vote() {
    let (nodes, links, locks) = through_links().await;
    for _ in 0..5 {
        let before: Vec<_> = nodes.iter().map(Server::evalsha_calls).collect();
        links.iter().for_each(|link| link.repeat(ms(0)));
        let guard = take(&locks).await;
        let heard = |(node, before): (&Server, &u64)| node.evalsha_calls() >= before + 2;
        until("all have heard it twice", async || nodes.iter().zip(&before).all(heard)).await;
        let token = guard.token().get();
        let counters: Vec<_> = nodes.iter().map(counter).collect();
        assert!(counters.iter().all(|counter| *counter == token), "{counters:?} for {token}");
        links.iter().for_each(Proxy::pass);
        guard.extend().await.unwrap();
        assert!(guard.token().get() == token);
        guard.release().await.unwrap();
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_an_acquire_that_arrives_after_its_time_grants_nothing() {
    let nodes = declared(3, HASTY).await;
    let links = nodes.proxies();
    let mut dead = client(&nodes.url_through(&links, HASTY));
    assert!(dead.ask("acquire 600000").parse::<u64>().is_ok());
    assert_eq!(dead.ask("release"), "fine");
    is_clear(&nodes).await;
    // The request is under way, and nobody is left to take it back: the client dies before it gives up.
    links.iter().for_each(Proxy::strand);
    let idle: Vec<_> = links.iter().map(Proxy::harm).collect();
    dead.tell("try 600000");
    let sent = || links.iter().zip(&idle).all(|(link, idle)| link.harm() > *idle);
    until("the request is under way", async || sent()).await;
    dead.kill();
    let (too_late, before): (Vec<_>, Vec<_>) =
        nodes.iter().map(|node| (clock(node) + 3_000_000, node.evalsha_calls())).unzip();
    until("its time is over", async || nodes.iter().zip(&too_late).all(|(node, end)| clock(node) > *end))
        .await;
    links.iter().for_each(Proxy::pass);
    let heard = |(node, before): (&Server, &u64)| node.evalsha_calls() > *before;
    until("it arrives", async || nodes.iter().zip(&before).all(heard)).await;
    assert!(!nodes.iter().any(|node| holds(node, "a")));
    use_once(&connect(&nodes, HASTY).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s18_a_release_that_arrives_late_does_not_take_the_next_holders_lock() {
    let nodes = declared(3, HASTY).await;
    let links = nodes.proxies();
    let locks = Locks::connect(&nodes.url_through(&links, HASTY)).await.unwrap();
    let rival = connect(&nodes, HASTY).await;
    use_once(&locks).await;
    let guard = take(&locks).await;
    reaches_all_nodes(&guard, &nodes).await;
    links[0].strand();
    guard.release().await.unwrap();
    assert!(holds(&nodes[0], "a"), "its release is still under way");
    let next = take(&rival).await;
    let owner = next.owner().to_string();
    let ours = |node: &Server| node.cli(&["GET", "lock:a"]).starts_with(&owner);
    // When the client notices that nothing is answered there, it makes up for the release over a new
    // connection; then the next holder completes its lock.
    until("the next holder has all nodes", async || {
        drop(locks.lock("b").ttl(LONG).try_acquire().await);
        next.extend().await.unwrap();
        nodes.iter().all(ours)
    })
    .await;
    let before = nodes[0].evalsha_calls();
    links[0].pass();
    until("the late one arrives", async || nodes[0].evalsha_calls() > before).await;
    assert!(nodes.iter().all(ours));
    next.extend().await.unwrap();
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

/// Extends a lock until all nodes have it.
async fn reaches_all_nodes(guard: &Guard, nodes: &Nodes) {
    until("all nodes have it", async || {
        guard.extend().await.unwrap();
        nodes.iter().all(|node| holds(node, "a"))
    })
    .await;
}

/// Servers, a link to each, and a client by way of these.
async fn through_links() -> (Nodes, Vec<Proxy>, Locks) {
    let nodes = Nodes::start(3);
    let links = nodes.proxies();
    let url = nodes.url_through(&links, CALM);
    Locks::init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    use_once(&locks).await;
    (nodes, links, locks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_an_acquire_that_a_majority_heard_late_is_undone_there() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    use_once(&locks).await;
    nodes[0].pause();
    nodes[1].pause();
    let error = locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    nodes[0].resume();
    nodes[1].resume();
    // Its own requests reach the nodes behind the late ones.
    use_once(&locks).await;
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_release_that_is_lost_with_the_connection_is_made_up_for() {
    let (nodes, links, locks) = through_links().await;
    for lost in 0..3 {
        let guard = take(&locks).await;
        reaches_all_nodes(&guard, &nodes).await;
        links[lost].stall();
        guard.release().await.unwrap();
        assert!(holds(&nodes[lost], "a"));
        links[lost].reset();
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_an_acquire_whose_answers_are_lost_with_the_connections_is_undone() {
    let (nodes, links, locks) = through_links().await;
    links[1].hold_answers();
    links[2].hold_answers();
    let attempt = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.try_acquire().await }
    });
    until("the nodes have granted it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    links[1].reset();
    links[2].reset();
    // The attempt fails, or is repeated over new connections.
    drop(attempt.await.unwrap());
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s33_a_waiter_whose_connection_was_reset_leaves_no_queue() {
    let (nodes, links, others) = through_links().await;
    let locks = Locks::connect(&nodes.url_through(&links, CALM)).await.unwrap();
    let guard = take(&locks).await;
    reaches_all_nodes(&guard, &nodes).await;
    let queues = || nodes.iter().filter(|node| !node.keys_like("*:waiters").is_empty()).count();
    let waiter = tokio::spawn({
        let lock = patient(&others, "a");
        async move { lock.acquire().await }
    });
    until("it waits", async || queues() == 3).await;
    links[2].reset();
    waiter.abort();
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    is_clear(&nodes).await;
}

/// A holder that is cut off from some nodes in some way keeps its lock if they are a minority, and has lost
/// it before anybody else gets it if they are not.
async fn is_partitioned(cut_off: &[usize], how: fn(&Proxy)) {
    let nodes = declared(5, HASTY).await;
    let links = nodes.proxies();
    let locks = Locks::connect(&nodes.url_through(&links, HASTY)).await.unwrap();
    let rival = connect(&nodes, HASTY).await;
    let minority = cut_off.len() < 3;
    let lock = locks.lock("a").ttl(ms(if minority { 30_000 } else { 1500 }));
    let guard = lock.renew_every(ms(200)).wait(LIMIT).acquire().await.unwrap();
    cut_off.iter().for_each(|&node| how(&links[node]));
    if minority {
        let before = locks.stats().renewed;
        until("it is renewed by the others", async || locks.stats().renewed >= before + 6).await;
        guard.check().unwrap();
        assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    } else {
        let next = take(&rival).await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        assert!(next.token() > guard.token());
    }
    links.iter().for_each(Proxy::pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_holder_cut_off_from_a_minority_keeps_its_lock() {
    for how in [Proxy::cut, Proxy::stall, Proxy::hold_requests, Proxy::hold_answers] {
        is_partitioned(&[0, 1], how).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_holder_cut_off_from_a_majority_has_lost_before_the_next_one_holds() {
    is_partitioned(&[0, 1, 2], Proxy::cut).await;
    is_partitioned(&[0, 1, 2, 3, 4], Proxy::stall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_holder_cut_off_in_one_direction_has_lost_before_the_next_one_holds() {
    is_partitioned(&[1, 2, 3], Proxy::hold_requests).await;
    is_partitioned(&[1, 2, 3], Proxy::hold_answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_holder_cut_off_from_exactly_its_nodes_has_lost_before_the_next_one_holds() {
    let nodes = declared(5, HASTY).await;
    let links = nodes.proxies();
    let (far, near) = links.split_at(3);
    let locks = Locks::connect(&nodes.url_through(&links, HASTY)).await.unwrap();
    let rival = connect(&nodes, HASTY).await;
    // Two nodes never hear of it.
    near.iter().for_each(Proxy::stall);
    let guard = locks.lock("a").ttl(ms(2000)).wait(LIMIT).acquire().await.unwrap();
    far.iter().for_each(Proxy::stall);
    near.iter().for_each(Proxy::reset);
    let next = take(&rival).await;
    assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_an_answer_that_breaks_off_in_the_middle_leaves_nothing_behind_on_redlock() {
    let (nodes, links, locks) = through_links().await;
    for broken in [&[0][..], &[0, 1], &[0, 1, 2]] {
        let cut = || broken.iter().for_each(|&node: &usize| links[node].cut_next_answer());
        // Counters that disagree need a second round.
        let ahead = clock(&nodes[1]).max(counter(&nodes[1])) + 30_000_000;
        for disagree in [false, true] {
            if disagree {
                nodes[1].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
            }
            cut();
            drop(locks.lock("a").ttl(LONG).try_acquire().await);
            links.iter().for_each(Proxy::pass);
            is_clear(&nodes).await;
        }
        let guard = take(&locks).await;
        cut();
        // It is answered, or nobody knows; in no case is the lock lost.
        let extended = guard.extend().await;
        assert!(matches!(extended, Ok(_) | Err(Error::Uncertain { .. })), "{extended:?}");
        links.iter().for_each(Proxy::pass);
        until("it can be extended again", async || guard.extend().await.is_ok()).await;
        cut();
        let released = guard.release().await;
        assert!(matches!(released, Ok(()) | Err(Error::Uncertain { .. })), "{released:?}");
        links.iter().for_each(Proxy::pass);
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_what_was_granted_before_the_link_broke_is_given_back_over_the_next_one() {
    let server = Server::start();
    let link = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(link.addr())).await.unwrap();
    link.hold_answers();
    let attempt = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.try_acquire().await.map(drop) }
    });
    until("the server has granted it", async || holds(&server, "a")).await;
    link.cut();
    attempt.await.unwrap().unwrap_err();
    link.pass();
    until("it is given back", async || !holds(&server, "a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_an_answer_that_breaks_off_in_the_middle_leaves_nothing_behind_on_redis() {
    let server = Server::start();
    let link = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(link.addr())).await.unwrap();
    for _ in 0..3 {
        link.cut_next_answer();
        drop(locks.lock("a").ttl(LONG).try_acquire().await);
        until("it is given back", async || !holds(&server, "a")).await;
        let guard = patient(&locks, "a").acquire().await.unwrap();
        link.cut_next_answer();
        let extended = guard.extend().await;
        assert!(matches!(extended, Ok(_) | Err(Error::Uncertain { .. })), "{extended:?}");
        until("it can be extended again", async || guard.extend().await.is_ok()).await;
        link.cut_next_answer();
        let released = guard.release().await;
        assert!(matches!(released, Ok(()) | Err(Error::Uncertain { .. })), "{released:?}");
        until("it is given back", async || !holds(&server, "a")).await;
        link.pass();
    }
}
