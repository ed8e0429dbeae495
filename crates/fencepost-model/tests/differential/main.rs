//! The node model against the scripts on a real Redis: random sequences of calls get the same replies and
//! leave the same keys, values, ends and messages.
//!
//! The scripts run unchanged, with the clock in their hands replaced: where they ask for `TIME`, they get the
//! model's. So replies, counters and clamping compare exactly. Keys end by the server's own clock; ttls are
//! so long that nothing ends by itself, and waiting is a step that shortens what every key has left.

mod comparison;
mod real;
mod step;

use fencepost_testkit::redis::Server;
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use comparison::Comparison;
use real::Real;

fn compare(cases: u32, flushes: bool) {
    let server = Server::start();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = vec(step::some(flushes), 1..=40);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        let mut comparison = Comparison::new(Real::new(&server));
        let outcome = steps
            .iter()
            .try_for_each(|step| comparison.take(step))
            .and_then(|()| comparison.compare_messages());
        // On a machine that stood still keys may have ended by themselves: that says nothing.
        if comparison.took_too_long() { Ok(()) } else { outcome.map_err(TestCaseError::fail) }
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn the_scripts_do_what_the_model_says() {
    compare(800, false);
}

#[test]
fn the_scripts_do_what_the_model_says_on_a_server_that_is_flushed() {
    compare(400, true);
}
