//! Which nodes vote. A node key says so: `RUN MAX_TTL QUARANTINE MEMBERS`, and two more words in quarantine.
//! `scripts/greet.lua` writes it.

use std::time::Duration;

use super::config::Config;
use super::quorum::majority;
use crate::report::NoMajority;
use crate::{Error, NodeReport, Verdict, format_duration};

/// Of a node without a node key.
const NEW: &str = "it is new, or has lost its data";

/// What a node key means for our deployment.
pub(super) enum Standing {
    Votes,
    /// A greeting lets the node vote, or starts its quarantine. The verdict if it is not greeted.
    GreetFirst(Verdict),
    Refused(Verdict),
}

/// The node key while this run of a server votes in our deployment.
pub(super) fn voting_key(run: &str, config: &Config) -> String {
    format!("{run} {} {} {}", config.max_ttl.as_millis(), config.quarantine.as_millis(), config.members)
}

/// What a node key means. `votes` is what it would have to be, `time` the node's clock, `quarantine` ours.
pub(super) fn standing(node_key: &str, votes: &str, time: u64, quarantine: Duration) -> Standing {
    if node_key == votes {
        return Standing::Votes;
    }
    let mut words = node_key.splitn(6, ' ');
    let [run, max_ttl, theirs, members, ready, reason] = std::array::from_fn(|_| words.next());
    let ours = votes.splitn(4, ' ').collect::<Vec<_>>();
    let wait = |left, why: &str| Verdict::Quarantined { left, why: why.to_owned() };
    if node_key.is_empty() {
        return Standing::GreetFirst(wait(quarantine, NEW));
    }
    // Another run was restarted. By our estimate of its clock a quarantine is over before the node says so.
    let ending = || Standing::GreetFirst(wait(Duration::from_millis(1), "its quarantine is ending"));
    if run != ours.first().copied() || ours.len() != 4 {
        return ending();
    }
    let differences: Vec<String> = [("max_ttl", max_ttl), ("quarantine", theirs), ("members", members)]
        .into_iter()
        .zip(&ours[1..])
        .filter(|((_, theirs), ours)| *theirs != Some(**ours))
        .map(|((what, theirs), ours)| difference(what, theirs.unwrap_or("?"), ours))
        .collect();
    if !differences.is_empty() {
        return Standing::Refused(Verdict::Refused {
            why: format!(
                "it belongs to another deployment ({}); all clients must name the same nodes and parameters, \
                 and `fencepost init --reconfigure` changes them",
                differences.join(", ")
            ),
        });
    }
    let left = ready.and_then(|ready| Some(ready.parse::<u64>().ok()?.saturating_sub(time)));
    let why = match reason {
        Some("new") => NEW,
        Some("restarted") => "it was restarted, and may have lost data",
        _ => "its deployment was changed",
    };
    match left {
        Some(left) if left > 0 => Standing::Refused(wait(Duration::from_micros(left), why)),
        _ => ending(),
    }
}

/// What is different in a node's deployment, for people.
fn difference(what: &str, theirs: &str, ours: &str) -> String {
    let time = |text: &str| {
        text.parse().map_or_else(|_| text.to_owned(), |number| format_duration(Duration::from_millis(number)))
    };
    match what {
        "members" => format!("of {} other nodes", theirs.split('-').next().unwrap_or("?")),
        what => format!("{what} {} instead of {}", time(theirs), time(ours)),
    }
}

/// The error if no majority votes: a configuration error if refusals alone are the reason.
pub(super) fn no_majority(config: &Config, verdicts: Vec<Verdict>) -> Error {
    let n = config.nodes.len();
    let count = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    let refused = count(|verdict| matches!(verdict, Verdict::Refused { .. }));
    let new = count(|verdict| matches!(verdict, Verdict::Quarantined { why, .. } if why == NEW));
    let silent = count(|verdict| matches!(verdict, Verdict::Unreachable { .. }));
    let waiting = count(|verdict| matches!(verdict, Verdict::Quarantined { .. }));
    let next = if new >= majority(n) && new + silent == n {
        // The nodes are new, as far as they know, and none of those that replied has ever voted.
        Some(
            "if these servers have never been used for locks, declare them with `fencepost init`, and they \
             vote at once",
        )
    } else {
        let is_enough = waiting > 0 && refused + silent <= n - majority(n);
        is_enough.then_some("nothing is to be done: nodes vote again when their quarantine is over")
    };
    let labels = config.nodes.iter().map(|node| node.label.clone());
    let nodes = labels.zip(verdicts).map(|(node, verdict)| NodeReport { node, verdict }).collect();
    let none = NoMajority { nodes, next };
    if refused > n - majority(n) {
        Error::config(none.to_string())
    } else {
        Error::Unavailable { store: config.label.clone(), source: Box::new(none) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;
    use proptest::prelude::*;

    #[test]
    fn a_node_key_says_why_a_node_does_not_vote() {
        let url = StoreUrl::parse("redlock://a,b,c?max_ttl=1s&quarantine=3s").unwrap();
        let votes = voting_key("ab12", &Config::from_url(url).unwrap());
        let of = |node_key: &str| standing(node_key, &votes, 5_000_000, Duration::from_secs(3));
        assert!(matches!(of(&votes), Standing::Votes));
        for (node_key, time) in [
            (String::new(), Duration::from_secs(3)),
            (votes.replace("ab12", "cd34"), Duration::from_millis(1)),
            (format!("{votes} 4999999 new"), Duration::from_millis(1)),
        ] {
            let Standing::GreetFirst(Verdict::Quarantined { left, .. }) = of(&node_key) else {
                panic!("{node_key}")
            };
            assert_eq!(left, time, "{node_key}");
        }
        assert!(matches!(
            of(&format!("{votes} 7000000 restarted")),
            Standing::Refused(Verdict::Quarantined { left, why })
                if left == Duration::from_secs(2) && why.contains("restarted")
        ));
        for other in ["ab12 2000 3000 3-00", "ab12 1000 3000 5-00 9000000 new"] {
            assert!(matches!(of(other), Standing::Refused(Verdict::Refused { .. })), "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_node_key_makes_it_panic(node_key in "([0-9a-f]{0,4} ){0,3}.{0,30}", time: u64) {
            let _ = standing(&node_key, "ab 60000 62000 m", time, Duration::from_secs(62));
        }
    }
}
