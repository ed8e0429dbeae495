//! Others can see who holds what.

use super::{Harness, LONG, patient, take};

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
