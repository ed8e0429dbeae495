//! The functions in the schema, called in an order that the library has to be unlucky for.

use crate::stage::{Database, Psql};

/// A database with the schema, and a session in it that is told to do what the library's does.
async fn session() -> (Database, Psql) {
    let database = Database::new();
    database.locks().await.close().await;
    let psql = Psql::start(&database);
    (database, psql)
}

/// Acquires the lock 7 for an owner and returns whether it was granted.
fn acquire(psql: &mut Psql, owner: &str) -> bool {
    psql.ask(&format!(
        "SELECT o_token IS NOT NULL FROM fencepost.acquire(false, 7, 'pg:7', '{owner}', 60000, 'host', 1, '', \
         fencepost.own_session(), 'channel', true, NULL, NULL, false)"
    )) == "t"
}

fn release(psql: &mut Psql, owner: &str) -> bool {
    psql.ask(&format!("SELECT o_found FROM fencepost.release(false, 7, '{owner}', true, NULL)")) == "t"
}

/// Renews the lock 7, and returns how it was lost.
fn renew(psql: &mut Psql, owner: &str) -> String {
    psql.ask(&format!(
        "SELECT coalesce((SELECT o_found FROM fencepost.renew(pg_backend_pid(), '{{f}}', '{{7}}', '{{{owner}}}', \
         '{{60000}}', '{{t}}')), 'renewed')"
    ))
}

#[tokio::test]
async fn who_lost_a_lock_does_not_take_the_next_grant_of_its_session_along() {
    let (database, mut psql) = session().await;
    assert!(acquire(&mut psql, "one"));
    database.psql("UPDATE fencepost.locks SET ends = clock_timestamp()");
    assert_eq!(renew(&mut psql, "one"), "ended");
    assert!(acquire(&mut psql, "two"));
    // A renewal that is tried again, and whoever gives an ended lock back, come late.
    assert_eq!(renew(&mut psql, "one"), "gone");
    assert_eq!(database.advisory_locks(), "1");
    for _ in 0..2 {
        assert!(!release(&mut psql, "one"));
        assert_eq!(database.advisory_locks(), "1");
    }
    assert_eq!(renew(&mut psql, "two"), "renewed");
    assert!(release(&mut psql, "two"));
    assert_eq!(database.advisory_locks(), "0");
}
