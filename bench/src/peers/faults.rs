//! One node of five frozen: what a client that was at work before gets done.

use std::time::Duration;

use fencepost_testkit::redis::Nodes;
use serde_json::json;
use tokio::runtime::Runtime;

use super::team::Team;
use super::{OURS, Peer};
use crate::cycle::runtime;
use crate::results::{add_row, progress};
use crate::rounds::{middle, report_number, report_per_second};

/// How long cycles are counted. Longer than a node's answer is waited for, so that what a client does then is
/// measured as well.
const SPAN: Duration = Duration::from_secs(3);

/// How long a client may take to come back from its last cycle.
const PATIENCE: Duration = Duration::from_secs(8);

const BAD: usize = 4;

/// Cycles a second while a node is frozen, and why there are none.
fn frozen(runtime: &Runtime, nodes: &Nodes, peer: &Peer) -> Result<f64, String> {
    let mut team = Team::start(runtime, peer, 1);
    team.ready(runtime);
    team.cycle(runtime, 1, Duration::from_millis(100))?;
    nodes[BAD].pause();
    // Not as `cycle` is asked elsewhere: the cycle that warms up meets the frozen node, too.
    let answer = team.ask(runtime, &format!("cycle 1 {}", SPAN.as_secs_f64()), SPAN + PATIENCE);
    drop(team);
    nodes[BAD].resume();
    let rate = answer?["per_s"].as_f64();
    rate.ok_or_else(|| "no figure".to_owned())
}

pub(super) fn run(nodes: &Nodes, peers: Vec<Peer>, rounds: usize) {
    let runtime = runtime();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for peer in &peers {
        progress(&format!("redlock, one node frozen: {}", peer.name));
        let found = frozen(&runtime, nodes, peer);
        let note = found.clone().err().unwrap_or_default();
        let what = format!("one node frozen: {}, cycles/s", peer.name);
        // Who did not come back had none.
        report_number(&what, found.clone().unwrap_or(0.0), &note, None);
        add_row(json!({ "store": "redlock, frozen", "peer": peer.name, "per_s": found.ok(), "note": note }));
    }
    let find = |name: &str| peers.iter().find(|peer| peer.name == name);
    let (Some(fencepost), Some(rslock)) = (find(OURS), find("rslock")) else { return };
    for round in 1..=rounds.div_ceil(2) {
        progress(&format!("redlock, one node frozen: ours and rslock, round {round}"));
        ours.extend(frozen(&runtime, nodes, fencepost));
        theirs.extend(frozen(&runtime, nodes, rslock));
    }
    let pairs: Vec<_> = ours.into_iter().zip(theirs).collect();
    if pairs.is_empty() || middle(pairs.iter().map(|(_, theirs)| *theirs).collect()) == 0.0 {
        return println!("redlock, one node frozen: rate / rslock: not measured");
    }
    report_per_second("redlock, one node frozen: rate / rslock", Some(100.0), &pairs);
}
