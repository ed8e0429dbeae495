//! `show`: who holds one lock.

mod common;

use common::{Store, code, text};

#[test]
fn a_holder_is_shown_with_all_that_is_known() {
    for store in [Store::file(), Store::redis()] {
        let running = store.hold("job", &["--note", "nightly"]);
        let shown = store.succeed(&["show", "job"]);
        for word in ["owner", "token", "host", "age", "left", "nightly"] {
            assert!(shown.contains(word), "no {word} in {shown}");
        }
        assert!(shown.contains(&format!("pid      {}\n", running.pid().as_raw_nonzero())), "{shown}");
        let holder = &store.json(&["--json", "show", "job"])["holder"];
        assert_eq!((&holder["name"], &holder["note"]), (&"job".into(), &"nightly".into()));
    }
}

#[test]
fn a_free_lock_is_free() {
    for store in [Store::file(), Store::redis()] {
        let output = store.output(&["show", "job"]);
        assert_eq!((code(&output), &*text(&output.stdout)), (1, "lock `job` is free\n"));
        assert_eq!(
            store.json(&["--json", "show", "job"]),
            serde_json::json!({ "name": "job", "holder": null })
        );
    }
}
