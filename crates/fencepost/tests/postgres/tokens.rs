//! Tokens grow, whatever becomes of their row.

use fencepost::{FencingToken, Locks};

use crate::harness::{Database, take};

#[tokio::test]
async fn tokens_grow_when_the_row_was_collected() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut last = None;
    for _ in 0..20 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
        database.psql("DELETE FROM fencepost.locks");
    }
}

#[tokio::test]
async fn tokens_grow_when_the_clock_went_back() {
    let database = Database::new();
    let locks = database.locks().await;
    take(&locks, "a").await.release().await.unwrap();
    // As after a grant by a server whose clock was a day ahead.
    database.psql("UPDATE fencepost.locks SET token = token + 86400000000");
    let ahead: u64 = database.psql("SELECT token FROM fencepost.locks").parse().unwrap();
    assert_eq!(take(&locks, "a").await.token().get(), ahead + 1);
}

#[tokio::test]
async fn idle_rows_are_collected_after_a_day_and_held_ones_never() {
    let database = Database::new();
    let locks = database.locks().await;
    let _held = take(&locks, "held").await;
    for name in ["old", "young"] {
        take(&locks, name).await.release().await.unwrap();
    }
    database.psql("UPDATE fencepost.locks SET ends = ends - interval '25 hours' WHERE name = 'old'");
    database.psql("SELECT fencepost.collect()");
    assert_eq!(database.psql("SELECT name FROM fencepost.locks ORDER BY 1"), "held\nyoung");
}

#[tokio::test]
async fn tokens_come_from_a_sequence_that_the_user_names() {
    let database = Database::new();
    database.psql("CREATE SEQUENCE public.fence START 1000");
    let locks = database.locks_with("sequence=public.fence").await;
    for (name, token) in [("a", 1000), ("b", 1001), ("a", 1002)] {
        let guard = take(&locks, name).await;
        assert_eq!(guard.token().get(), token);
        guard.release().await.unwrap();
    }
    // Never smaller than the row, whatever is done to the sequence.
    database.psql("ALTER SEQUENCE public.fence RESTART 1");
    assert_eq!(take(&locks, "a").await.token().get(), 1003);
    let error = Locks::connect(&format!("{}&sequence=nope", database.url())).await;
    assert!(error.is_err() || error.unwrap().lock("a").try_acquire().await.is_err());
}

#[tokio::test]
async fn the_driver_takes_a_token_as_it_is_and_gives_it_back() {
    let database = Database::new();
    let (client, locks) = (database.client().await, database.locks().await);
    let token = take(&locks, "a").await.token();
    client.batch_execute("CREATE TABLE job (id int, token bigint)").await.unwrap();
    client.execute("INSERT INTO job VALUES (1, $1), (2, NULL), (3, -1)", &[&token]).await.unwrap();
    let rows = client.query("SELECT token FROM job ORDER BY id", &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, FencingToken>(0), token);
    assert_eq!(rows[1].get::<_, Option<FencingToken>>(0), None);
    assert!(rows[2].try_get::<_, FencingToken>(0).is_err());
}
