//! Promise 7: each kind of trouble has an error of its own, that names the holder and never a password.

use fencepost::{Error, Locks, Wait};
use std::error::Error as _;
use std::time::Duration;

use super::{Harness, IN_VAIN, bounded, patient};

fn describes_us(error: &Error, note: &str) {
    let holder = error.holder().expect("the holder is named");
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.note.as_deref(), Some(note));
    assert!(holder.age().is_some() && holder.owner.is_some());
    let host = holder.host.as_deref().unwrap();
    let message = error.to_string();
    for part in ["`a`", host, &std::process::id().to_string(), note, "held for"] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

pub async fn busy_names_the_holder(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let _held = patient(&locks, "a").note("nightly report").acquire().await.unwrap();
    let error = rival.lock("a").wait(Wait::No).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }) && error.is_transient(), "{error}");
    describes_us(&error, "nightly report");
    assert_eq!(rival.stats().busy, 1);
}

pub async fn timeout_names_the_holder(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let _held = patient(&locks, "a").note("nightly report").acquire().await.unwrap();
    let error = rival.lock("a").wait(IN_VAIN).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.is_transient(), "{error}");
    describes_us(&error, "nightly report");
}

pub async fn bad_names_and_options_are_refused_before_anything_is_done(harness: Harness) {
    let locks = harness.locks().await;
    let second = Duration::from_secs(1);
    let refused = [
        locks.lock(""),
        locks.lock("a\0b"),
        locks.lock("x".repeat(513)),
        locks.lock("a").ttl(Duration::ZERO),
        locks.lock("a").ttl(Duration::MAX),
        locks.lock("a").ttl(second).renew_every(second),
        locks.lock("a").max_hold(Duration::ZERO),
        locks.lock("a").note("x".repeat(1025)),
    ];
    for lock in refused {
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && !error.is_transient(), "{error}");
        assert!(matches!(lock.try_acquire().await, Err(Error::Invalid { .. })));
    }
    assert!(matches!(locks.show("").await, Err(Error::Invalid { .. })));
    assert!(matches!(locks.force_release("", "x").await, Err(Error::Invalid { .. })));
    let none: [&str; 0] = [];
    assert!(matches!(locks.all(none).acquire().await, Err(Error::Invalid { .. })));
    harness.is_clear().await;
}

const PASSWORD: &str = "correct-horse-battery";

/// All an error says: to people, to developers, and in its sources.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(" {inner} {inner:?}");
        source = inner.source();
    }
    text
}

pub async fn no_password_is_shown_to_a_developer_or_in_an_error(harness: Harness) {
    let Some((url, _server)) = harness.with_login(PASSWORD) else { return };
    assert!(url.contains(PASSWORD), "{url}");
    let locks = bounded("connecting ends", Locks::connect(&url)).await.unwrap();
    let (lock, set) = (locks.lock("a"), locks.all(["b", "c"]));
    let (one, both) = (lock.acquire().await.unwrap(), set.acquire().await.unwrap());
    let shown = format!("{locks:?} {lock:?} {set:?} {one:?} {both:?} {:?}", locks.capabilities());
    let pretty = format!("{locks:#?} {lock:#?} {set:#?} {one:#?} {both:#?}");
    assert!(!shown.contains("horse") && !pretty.contains("horse"), "{shown} {pretty}");
    one.release().await.unwrap();
    both.release().await.unwrap();
    // A login that is refused, a server that is not there, and a URL that makes no sense.
    let wrong = url.replace(PASSWORD, "wrong-horse-battery");
    let (login, rest) = url.split_once('@').unwrap();
    let (hosts, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
    let nowhere: Vec<_> = (1..=hosts.split(',').count()).map(|port| format!("127.0.0.1:{port}")).collect();
    let absent = format!("{login}@{}{path}", nowhere.join(","));
    let senseless = format!("{url}{}nope=1", if url.contains('?') { '&' } else { '?' });
    for url in [wrong, absent, senseless] {
        let outcome = match bounded("connecting ends", Locks::connect(&url)).await {
            Ok(locks) => bounded("the try ends", locks.lock("a").try_acquire()).await.map(drop),
            Err(error) => Err(error),
        };
        // Some servers let everybody log in, and look at the login when something is asked for.
        if let Err(error) = outcome {
            assert!(!everything(&error).contains("horse"), "{error:?}");
        }
    }
}
