//! What an operation costs as numbers grow: locks held, those who wait for one name, names that are
//! contended. Processor time is what counts: it is the same however long somebody waits for a core.

mod crowd;
mod held;
mod masters;
pub(crate) mod player;
mod target;

use serde_json::json;

use crate::Part;
use crate::results::{Goal, add_row};
use crate::rounds::{middle, report_number};
use target::Target;

/// What is measured, by its name and how it is started.
type Start = fn() -> Target;
const TARGETS: [(&str, Start); 1] = [("redis", Target::redis)];

/// An operation may cost so much more than at the smallest size.
const FLAT: f64 = 1.25;

pub(crate) const PARTS: [Part; 3] =
    [("growth-held", held), ("growth-crowd", crowd), ("growth-masters", masters::run)];

fn held(rounds: usize) {
    TARGETS.iter().for_each(|(name, start)| held::run(name, *start, rounds.div_ceil(5)));
}

fn crowd(rounds: usize) {
    TARGETS.iter().for_each(|(name, start)| crowd::run(name, *start, rounds.div_ceil(5)));
}

/// Microseconds of processor time that one operation takes.
#[derive(Clone, Copy)]
struct Cost {
    client: f64,
    server: f64,
}

/// Writes down what an operation costs at each size, each by its rounds; the first is what the others are
/// compared with.
fn report(target: &str, operation: &str, what: &str, sizes: &[usize], costs: &[Vec<Cost>], goal: bool) {
    let of = |costs: &Vec<Cost>, side: fn(&Cost) -> f64| middle(costs.iter().map(side).collect());
    let whole = |cost: &Cost| cost.client + cost.server;
    let first = of(&costs[0], whole);
    for (size, costs) in sizes.iter().zip(costs) {
        let (client, server) = (of(costs, |cost| cost.client), of(costs, |cost| cost.server));
        let ratio = of(costs, whole) / first;
        report_number(
            &format!("{target}, {size} {what}: CPU {operation} / {}", sizes[0]),
            ratio,
            &format!("{client:.1} us client, {server:.1} us server"),
            goal.then_some(Goal::AtMost(FLAT)),
        );
        add_row(json!({
            "target": target,
            "operation": operation,
            "what": what,
            "size": size,
            "ratio": ratio,
            "client_us": client,
            "server_us": server,
        }));
    }
}
