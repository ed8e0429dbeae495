//! Commands behind a guard key, from our driver and from any other client.

use fencepost::fence::redis::{Reply, SCRIPT};
use fencepost::fence::{Error, Fence, Redis};
use fencepost_testkit::redis::Server;
use fencepost_testkit::{Proxy, redis};

use crate::harness::{bounded, calm, fresh, redis, token};

async fn connect() -> Redis {
    Redis::connect(&calm(&redis().url())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_behind_the_check_or_not_at_all() {
    let (server, resource) = (connect().await, fresh("hash"));
    server.activate(&resource, token(7)).await.unwrap();
    let add = ["HINCRBY", &resource, "n", "5"];
    assert_eq!(server.run(&resource, token(7), &add).await.unwrap(), Reply::Int(5));
    assert_eq!(server.run(&resource, token(8), &add).await.unwrap(), Reply::Int(10));
    let refusal = server.run(&resource, token(7), &add).await.unwrap_err();
    assert_eq!(refusal.stale().unwrap().highest, token(8));
    assert!(server.run_once(&resource, token(8), &add).await.unwrap_err().stale().is_some());
    assert_eq!(server.run_once(&resource, token(9), &add).await.unwrap(), Reply::Int(15));
    assert_eq!(
        server.run(&resource, token(9), &["HGETALL", &resource]).await.unwrap(),
        Reply::List(vec![Reply::Bytes(b"n".to_vec()), Reply::Bytes(b"15".to_vec())])
    );
    assert_eq!(server.run(&resource, token(9), &["GET", "no such key"]).await.unwrap(), Reply::Nil);
    let wrong = server.run(&resource, token(9), &["INCR", &resource]).await.unwrap_err();
    assert!(matches!(wrong, Error::Failed(fencepost::Error::Backend { .. })), "{wrong:?}");
}

#[test]
fn other_clients_use_the_same_script_and_the_same_guard() {
    let (server, resource) = (redis(), fresh("peer"));
    let guard = format!("{{fence:{resource}}}:token");
    let eval = |token: &str, rule: &str, words: &[&str]| {
        let mut all = vec!["EVAL", SCRIPT, "1", &guard, token, rule];
        all.extend(words);
        match server.call(&all) {
            redis::Reply::Text(text) | redis::Reply::Error(text) => text,
            reply => format!("{reply:?}"),
        }
    };
    assert_eq!(eval("9007199254740991", ">=", &["SET", "k", "v"]), "OK");
    assert!(eval("9007199254740990", ">=", &["SET", "k", "x"]).starts_with("STALE 9007199254740991"));
    assert!(eval("9007199254740991", ">", &["SET", "k", "x"]).starts_with("STALE 9007199254740991"));
    for (token, rule) in
        [("0", ">="), ("-1", ">="), ("1e3", ">="), ("9007199254740992", ">="), ("5", "="), ("", ">=")]
    {
        assert!(eval(token, rule, &["SET", "k", "x"]).starts_with("ERR"), "{token} {rule}");
    }
    assert_eq!(server.cli(&["GET", "k"]), "v");
    assert_eq!(server.cli(&["PTTL", &guard]), "-1", "a guard never expires");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let ours = connect().await;
        assert_eq!(ours.guard_key(&resource), guard);
        let refusal = ours.activate(&resource, token(1 << 52)).await.unwrap_err();
        assert_eq!(refusal.stale().unwrap().highest, token((1 << 53) - 1));
    });
    for rubbish in ["rubbish", "-1", "0x10", "1e3", "nan", " 3", ""] {
        server.cli(&["SET", &guard, rubbish]);
        assert!(eval("5000", ">=", &["SET", "k", "x"]).contains("holds no token"), "{rubbish:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_forget_is_refused() {
    let server = redis::Server::config().maxmemory_policy("allkeys-lru").start();
    let error = Fence::connect(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("noeviction") && error.to_string().contains("token"), "{error}");
    Fence::connect(&format!("{}?allow=evicting", server.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_script_cache_and_a_new_connection_change_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let fence = Fence::connect(&calm(&server.url_at(proxy.addr()))).await.unwrap();
    let active = fence.resource("a").activate(token(7)).await.unwrap();
    active.write("one").await.unwrap();
    server.cli(&["SCRIPT", "FLUSH"]);
    active.write("two").await.unwrap();
    proxy.reset();
    // Depending on when the end of the connection is noticed; never taken for done.
    if let Err(error) = active.write("three").await {
        assert!(
            matches!(error, Error::Uncertain { .. } | Error::Failed(fencepost::Error::Unavailable { .. })),
            "{error:?}"
        );
    }
    active.write("four").await.unwrap();
    assert_eq!(active.read().await.unwrap().as_deref(), Some(b"four".as_slice()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_is_uncertain_and_a_new_token_keeps_it_out() {
    let server = Server::start();
    let fence = Fence::connect(&format!("{}?timeout=3s", server.url())).await.unwrap();
    let active = fence.resource("a").activate(token(7)).await.unwrap();
    server.pause();
    let error = bounded("the timeout", active.write("late")).await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    assert!(error.to_string().contains("take the lock again"), "{error}");
    server.resume();
    let calm = Fence::connect(&calm(&server.url())).await.unwrap();
    let next = calm.resource("a").activate(token(8)).await.unwrap();
    // It has come by now or never will.
    let value = next.read().await.unwrap();
    assert!(value.is_none() || value.as_deref() == Some(b"late"), "{value:?}");
    assert!(active.write("again").await.unwrap_err().stale().is_some());
    assert_eq!(next.read().await.unwrap(), value);
}
