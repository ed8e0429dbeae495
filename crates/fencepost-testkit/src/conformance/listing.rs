//! Others can see who holds what.

use std::collections::HashSet;

use fencepost::{Holder, Locks};

use super::{Harness, LONG, bounded, patient, take, until};

pub async fn show_says_who_holds_a_lock_and_why(harness: Harness) {
    let locks = harness.locks().await;
    let guard = patient(&locks, "a").note("nightly: ä \"quoted\"\nline").acquire().await.unwrap();
    let holder = harness.locks().await.show("a").await.unwrap().unwrap();
    assert_eq!(holder.name.as_str(), "a");
    assert_eq!((holder.owner, holder.token), (Some(guard.owner()), Some(guard.token())));
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.note.as_deref(), Some("nightly: ä \"quoted\"\nline"));
    assert!(holder.host.is_some() && holder.age().is_some());
    assert_eq!(holder.expires_in.is_some(), locks.capabilities().leases);
    assert!(holder.expires_in.is_none_or(|left| left <= LONG && left > LONG / 2));
}

pub async fn list_is_sorted_and_cut_to_the_prefix(harness: Harness) {
    let locks = harness.locks().await;
    let mut guards = Vec::new();
    for name in ["job:b", "job:a", "job", "other", "jo*", "job:ä/{x}"] {
        guards.push(take(&locks, name).await);
    }
    let names = async |prefix: &str| -> Vec<String> {
        let holders = locks.list(prefix).await.unwrap().holders;
        holders.iter().map(|holder| holder.name.to_string()).collect()
    };
    assert_eq!(names("").await, ["jo*", "job", "job:a", "job:b", "job:ä/{x}", "other"]);
    assert_eq!(names("job:").await, ["job:a", "job:b", "job:ä/{x}"]);
    assert_eq!(names("jo*").await, ["jo*"]);
    assert_eq!(names("nope").await, [""; 0]);
}

pub async fn nobody_is_shown_after_the_release(harness: Harness) {
    let locks = harness.locks().await;
    assert_eq!(locks.show("a").await.unwrap(), None);
    take(&locks, "a").await.release().await.unwrap();
    assert_eq!(locks.show("a").await.unwrap(), None);
    assert_eq!(locks.list("").await.unwrap().holders, []);
}

/// Each over a connection of its own, as the waiters of several processes are.
pub async fn waiters_are_shown_in_order_of_arrival_until_they_wait_no_more(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let guard = take(&locks, "a").await;
    assert_eq!(operator.show("a").await.unwrap().unwrap().queue, []);
    let notes = ["first: ä \"quoted\"\nline", "second", "third"];
    let mut waiting = Vec::new();
    for (place, note) in notes.iter().enumerate() {
        let lock = patient(&harness.locks().await, "a").note(*note);
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        waits(&operator, &notes[..=place]).await;
    }
    let holder = operator.show("a").await.unwrap().unwrap();
    assert_eq!(holder.owner, Some(guard.owner()));
    let owners: HashSet<_> = holder.queue.iter().map(|waiter| waiter.owner.unwrap()).collect();
    assert!(owners.len() == notes.len() && !owners.contains(&guard.owner()), "{owners:?}");
    for waiter in &holder.queue {
        assert_eq!((waiter.name.as_str(), &waiter.host), ("a", &holder.host));
        assert_eq!(waiter.pid, Some(std::process::id()));
        assert!(waiter.age().is_some() && waiter.queue.is_empty());
    }
    assert!(holder.queue.is_sorted_by_key(|waiter| waiter.since));

    let second = waiting.remove(1);
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    waits(&operator, &[notes[0], notes[2]]).await;

    guard.release().await.unwrap();
    let [first, third] = <[_; 2]>::try_from(waiting).unwrap();
    // Where the store is not fair, either may be the next.
    let next = bounded("one of them has it", async {
        let (mut first, mut third) = (first, third);
        tokio::select! {
            guard = &mut first => (guard.unwrap(), notes[0], third, notes[2]),
            guard = &mut third => (guard.unwrap(), notes[2], first, notes[0]),
        }
    });
    let (guard, held, left, waits_on) = next.await;
    waits(&operator, &[waits_on]).await;
    assert_eq!(operator.show("a").await.unwrap().unwrap().note.as_deref(), Some(held));
    guard.release().await.unwrap();
    let guard = bounded("the last has it", left).await.unwrap();
    waits(&operator, &[]).await;
    guard.release().await.unwrap();
}

/// Waits until the waiters of lock `a` are those with such notes, in this order.
async fn waits(operator: &Locks, expected: &[&str]) {
    let note = |waiter: &Holder| waiter.note.clone().unwrap_or_default();
    until(&format!("{expected:?} are shown"), async || {
        let queue = operator.show("a").await.unwrap().map(|holder| holder.queue);
        queue.is_some_and(|queue| queue.iter().map(note).eq(expected.iter().copied()))
    })
    .await;
}
