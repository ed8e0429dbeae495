//! `init`: declares a deployment of several servers; and the other commands on it.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Store, assert_fails, text};
use fencepost_testkit::eventually;
use fencepost_testkit::redis::Nodes;

const PARAMETERS: &str = "max_ttl=30s&ttl=5s";

#[test]
fn a_new_deployment_votes_at_once_and_runs_commands() {
    let nodes = Nodes::start(3);
    let store = Store::at(nodes.url_with(PARAMETERS));
    // Before that they say what to do, and nobody is sent to look whether they run.
    let output = store.output(&["run", "--try", "job", "--", "true"]);
    assert_fails(&output, 69, &["declare them with `fencepost init`"]);
    assert!(!text(&output.stderr).contains("next:"), "{output:?}");
    let said = store.succeed(&["init"]);
    assert_eq!(said.lines().filter(|line| line.ends_with(" votes")).count(), 3, "{said}");
    let token =
        || store.succeed(&["run", "job", "--", "printenv", "FENCEPOST_TOKEN"]).trim().parse::<u64>().unwrap();
    let (first, second) = (token(), token());
    assert!(first < second, "{first} {second}");
    assert_eq!(store.json(&["--json", "init"])["nodes"].as_array().unwrap().len(), 3);
}

#[test]
fn a_directory_for_all_users_is_made_as_the_error_says() {
    let files = Store::file();
    let path = files.path("shared");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    let url = format!("file:{}?mode=shared&ttl=5s", path.display());
    let store = Store::at(url);
    let missing = store.output(&["run", "job", "true"]);
    let remedy = format!("fencepost init --store 'file:{}?mode=shared'", path.display());
    assert_fails(&missing, 64, &[&remedy]);
    for said in ["was made", "is there already"] {
        assert!(store.succeed(&["init"]).contains(said), "{said}");
        assert_eq!(mode(&path) & 0o7777, 0o1777);
    }
    store.succeed(&["run", "job", "true"]);
    assert_eq!(mode(&path.join("job.lock")) & 0o777, 0o666);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_fails(&store.output(&["init"]), 64, &["only its owner may write", "chmod 1777"]);
    assert_eq!(mode(&path) & 0o7777, 0o755, "nothing was changed");
    assert_fails(&store.output(&["init", "--reconfigure"]), 64, &["no configuration of its own"]);
}

#[test]
fn show_says_what_each_node_has() {
    let mut nodes = Nodes::start(3);
    let store = Store::at(nodes.url_with(PARAMETERS));
    store.succeed(&["init"]);
    let _running = store.hold("job", &["--note", "nightly"]);
    let holds = || {
        let nodes = store.json(&["--json", "show", "job"])["holder"]["nodes"].clone();
        nodes.as_array().unwrap().iter().filter(|node| node["holds"] == true).count()
    };
    eventually("every node has it", || holds() == 3);
    nodes[2].kill();
    let shown = store.succeed(&["show", "job"]);
    assert_eq!(shown.matches(" holds it, counter ").count(), 2, "{shown}");
    assert!(shown.contains("does not answer"), "{shown}");
    assert_eq!(holds(), 2);
}

#[test]
fn an_existing_deployment_is_only_changed_when_told_to() {
    let nodes = Nodes::start(4);
    let url = |parameters: &str, members: &[usize]| {
        let addrs: Vec<_> = members.iter().map(|node| nodes[*node].addr().to_string()).collect();
        format!("redlock://{}?{parameters}", addrs.join(","))
    };
    let old = Store::at(url(PARAMETERS, &[0, 1, 2]));
    old.succeed(&["init"]);
    let new = Store::at(url(PARAMETERS, &[0, 1, 3]));
    assert_fails(&new.output(&["init"]), 64, &["--reconfigure"]);
    let said = new.succeed(&["init", "--reconfigure"]);
    assert_eq!(said.matches(" votes in ").count(), 3, "{said}");
    assert_fails(
        &old.output(&["run", "--try", "job", "--", "true"]),
        64,
        &["another deployment", "--reconfigure"],
    );
    assert_fails(&new.output(&["run", "--try", "job", "--", "true"]), 69, &["does not vote for another"]);
}

#[test]
fn waiting_says_which_nodes_do_not_vote_and_why() {
    let nodes = Nodes::start(3);
    let store = Store::at(nodes.url_with("max_ttl=4s&quarantine=8s&ttl=4s"));
    let output = store.output(&["run", "job", "--", "true"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("does not vote for another") && said.contains("it is new"), "{said}");
}

#[test]
fn a_store_that_needs_no_init_says_so() {
    let store = Store::redis();
    assert!(store.succeed(&["init"]).contains("needs no init"));
    assert_fails(&store.output(&["init", "--reconfigure"]), 64, &["not supported"]);
    assert!(Store::file().succeed(&["init"]).contains("for locks of this user alone"));
    let two = Store::at("redlock://a,b".to_owned());
    assert_fails(&two.output(&["init"]), 64, &["at least 3", "redis://"]);
}
