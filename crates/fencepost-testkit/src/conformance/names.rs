//! Any text is a name, and different names are different locks. Only Redis wants braces to form a hash tag.

use super::{Harness, take};

pub async fn any_text_is_a_name_of_its_own(harness: Harness) {
    let locks = harness.locks().await;
    let long = "x".repeat(512);
    let (wide, lookalike) = ("ä".repeat(256), "x".repeat(511));
    let names = [
        "a",
        "A",
        " a",
        "a ",
        ".",
        "..",
        "../a",
        "/etc/passwd",
        "a/b",
        "a%2Fb",
        "a\\b",
        "{a}",
        "a{b}c",
        "{",
        "a:fence",
        "lock:a",
        "*",
        "?",
        "[a]",
        "\n",
        "\u{1}",
        "ä",
        "a\u{308}",
        "日本語",
        "🔒",
        "con",
        "-rf",
        "~",
        "a.lock",
        &long,
        &lookalike,
        &wide,
    ];
    let mut guards = Vec::new();
    for name in names {
        let guard = take(&locks, name).await;
        assert_eq!(guard.name().as_str(), name);
        let holder = locks.show(name).await.unwrap().unwrap();
        assert_eq!((holder.name.as_str(), holder.owner), (name, Some(guard.owner())));
        guards.push(guard);
    }
    let mut listed: Vec<_> =
        locks.list("").await.unwrap().holders.iter().map(|holder| holder.name.to_string()).collect();
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, expected);
    for guard in guards {
        guard.release().await.unwrap();
    }
    harness.is_clear().await;
}
