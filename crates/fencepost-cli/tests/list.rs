//! `list`: who holds what.

mod common;

use common::{Store, text};

#[test]
fn every_holder_is_listed_by_name() {
    for store in [Store::file(), Store::redis()] {
        let output = store.output(&["list"]);
        assert!(output.status.success() && output.stdout.is_empty());
        assert!(text(&output.stderr).contains("no lock is held"));
        assert_eq!(store.json(&["--json", "list"]), serde_json::json!([]));

        store.succeed(&["acquire", "--ttl", "1h", "order:2"]);
        store.succeed(&["acquire", "--ttl", "1h", "--note", "two\nlines", "order:1"]);
        let _running = store.hold("report", &["--note", "nightly"]);

        let table = store.succeed(&["list"]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].starts_with("NAME"), "{table}");
        assert!(lines[1].starts_with("order:1") && lines[1].contains(r"two\nlines"), "{table}");
        assert!(lines[3].starts_with("report") && lines[3].ends_with("nightly"), "{table}");

        let some = store.json(&["--json", "list", "order:"]);
        let names: Vec<_> = some.as_array().unwrap().iter().map(|holder| &holder["name"]).collect();
        assert_eq!(names, ["order:1", "order:2"]);
        assert!(some[0]["token"].is_u64() && some[0]["host"].is_string() && some[0]["age_ms"].is_u64());
    }
}
