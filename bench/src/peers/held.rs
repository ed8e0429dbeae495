//! Ten thousand locks, each kept by its library's own renewal, with a ttl of 5 s.

use std::time::Duration;

use fencepost_testkit::redis::Server;
use serde_json::json;

use super::team::Team;
use super::{Peer, nodes};
use crate::cycle::runtime;
use crate::held::SPAN;
use crate::results::{add_row, progress};
use crate::rounds::report_number;

const COUNT: usize = 10_000;

/// For those that keep a thread for each: more would bring the machine to a halt.
const FEW: usize = 1_000;

/// How long all may take to be held.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(_: usize) {
    // A server each: what one leaves behind must not be counted for the next.
    let on_one = |count: usize, peer: &dyn Fn(&str) -> Peer| {
        let server = Server::start();
        hold("redis", &peer(&server.url()), count);
    };
    on_one(COUNT, &Peer::ours);
    on_one(COUNT, &|url| Peer::rust("rslock, one node", "rslock", vec![url.to_owned()]));
    on_one(COUNT, &|url| Peer::node("redis-semaphore", url));
    on_one(FEW, &|url| Peer::python("python-redis-lock", url));
    let (_nodes, url, _) = nodes();
    hold("redlock", &Peer::ours(&url), COUNT);
    let (_nodes, _, urls) = nodes();
    hold("redlock", &Peer::rust("rslock", "rslock", urls), COUNT);
}

fn hold(store: &str, peer: &Peer, count: usize) {
    progress(&format!("{store}: {count} held by {}", peer.name));
    let runtime = runtime();
    let mut team = Team::start(&runtime, peer, 1);
    team.ready(&runtime);
    let acquired = team.ask(&runtime, &format!("hold {count} {}", SPAN.as_secs()), PATIENCE);
    let told = acquired.and_then(|_| team.answer(&runtime, SPAN + PATIENCE));
    let what = format!("{store}, {count} held by {}: lost in %", peer.name);
    match told {
        Ok(mut told) => {
            let figure = |field: &str| told[field].as_f64().unwrap_or(f64::NAN);
            let held = told["held"].as_f64().unwrap_or(count as f64);
            let lost = 100.0 * figure("lost") / held.max(1.0);
            let detail = format!(
                "of {held}; {:.1} kB each, {:.3} of a core, {} threads {}",
                figure("bytes_each") / 1e3,
                figure("core"),
                figure("threads"),
                told["note"].as_str().unwrap_or_default()
            );
            report_number(&what, lost, &detail, None);
            told["store"] = json!(format!("{store}, held"));
            told["peer"] = json!(peer.name);
            told["asked"] = json!(count);
            told["lost_percent"] = json!(lost);
            add_row(told);
        }
        Err(error) => {
            add_row(json!({ "store": format!("{store}, \
                held"), "peer": peer.name, "asked": count, "note": error }));
        }
    }
}
