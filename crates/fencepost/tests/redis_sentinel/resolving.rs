//! How the master is found.

use fencepost::{Error, Locks};

use crate::harness::{connect, declared, start, use_once};

async fn refused(url: &str) -> String {
    match Locks::connect(url).await {
        Err(Error::Config { message, .. }) => message,
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn a_service_that_the_sentinels_do_not_know_is_named_with_those_that_they_do() {
    let all = start(0).await;
    let message = refused(&all.url().replace("/locks", "/lokcs")).await;
    assert!(message.contains("no service `lokcs`; they know `locks`"), "{message}");
}

#[tokio::test]
async fn a_redis_in_the_place_of_a_sentinel_is_told_from_one() {
    let all = start(0).await;
    let message = refused(&format!("redis+sentinel://{}/locks", all[0].addr())).await;
    assert!(message.contains("and no Redis"), "{message}");
}

#[tokio::test]
async fn a_minority_of_the_sentinels_may_be_away_and_no_majority() {
    let all = declared(0).await;
    all.sentinels()[0].pause();
    use_once(&connect(&all).await, "a").await;
    all.sentinels()[1].pause();
    let error = Locks::connect(&all.url()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("no majority of the sentinels") && text.contains("no answer"), "{text}");
    all.sentinels()[1].resume();
    use_once(&connect(&all).await, "a").await;
}

#[tokio::test]
async fn the_sentinels_have_a_login_of_their_own() {
    let all = declared(0).await;
    for sentinel in all.sentinels() {
        let said = sentinel.call(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
        assert_eq!(said, Some(fencepost_testkit::redis::Reply::Text("OK".to_owned())));
    }
    assert!(refused(&all.url()).await.contains("sentinel_password"));
    let message = refused(&all.url_with("sentinel_password=wr0ng&max_ttl=1s")).await;
    assert!(message.contains("WRONGPASS") && !message.contains("wr0ng"), "{message}");
    let locks = Locks::connect(&all.url_with("sentinel_password=s3cret&max_ttl=1s")).await.unwrap();
    use_once(&locks, "a").await;
    // The master has another one, which no sentinel is shown.
    all[0].cli(&["CONFIG", "SET", "requirepass", "0ther"]);
    let url = all.url_with("sentinel_password=s3cret&max_ttl=1s");
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    Locks::connect(&url.replace("://", "://:0ther@")).await.unwrap();
}
