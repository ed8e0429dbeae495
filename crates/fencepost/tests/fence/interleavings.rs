//! Holders, pauses and writes in every order: with `activate` first no update is lost, and without it the
//! search finds the lost one.
//!
//! Each holder shows its token, then reads a number and writes one more, some times over. A holder may be
//! paused after any step, for any number of steps of the others: its lease has ended, and the next one has
//! the lock. Each write that was accepted must have added one.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tokio::runtime::{Builder, Handle};

use crate::harness::token;
use crate::subjects::{Kind, Subject, kinds};

const HOLDERS: usize = 3;

/// How often each holder reads and writes, and who makes the next step, again and again.
type Plan = (Vec<usize>, Vec<usize>);

fn plans() -> impl Strategy<Value = Plan> {
    let rounds = proptest::collection::vec(1..=2usize, HOLDERS);
    let steps = proptest::collection::vec(0..HOLDERS, 4..16);
    (rounds, steps)
}

#[derive(Clone, Copy)]
enum Step {
    Activate,
    Read,
    Write,
}

struct Holder {
    steps: Vec<Step>,
    next: usize,
    read: u64,
    refused: bool,
}

impl Holder {
    fn new(rounds: usize, activates: bool) -> Self {
        let mut steps = Vec::new();
        if activates {
            steps.push(Step::Activate);
        }
        steps.extend([Step::Read, Step::Write].repeat(rounds));
        Self { steps, next: 0, read: 0, refused: false }
    }
}

/// Plays one plan; fails if an update was lost.
async fn play(subject: &dyn Subject, plan: &Plan, activates: bool) -> Result<(), TestCaseError> {
    let (rounds, steps) = plan;
    let mut holders: Vec<_> = rounds.iter().map(|rounds| Holder::new(*rounds, activates)).collect();
    let mut written = 0;
    for chosen in steps {
        // The lock has an order: nobody begins before the one in front has begun.
        let started = holders.iter().take_while(|holder| holder.next > 0).count();
        let chosen = (*chosen).min(started).min(HOLDERS - 1);
        let holder = &mut holders[chosen];
        let token = token(10 + chosen as u64);
        let Some(step) = holder.steps.get(holder.next).filter(|_| !holder.refused) else { continue };
        holder.next += 1;
        match step {
            Step::Activate => holder.refused = !subject.activate(token).await,
            Step::Read => holder.read = subject.read().await,
            Step::Write if subject.write(token, holder.read + 1).await => written += 1,
            Step::Write => holder.refused = true,
        }
    }
    prop_assert_eq!(subject.read().await, written, "an update was lost");
    Ok(())
}

fn search(kind: &dyn Kind, runtime: &Handle, activates: bool, cases: u32) -> Result<(), TestError<Plan>> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&plans(), |plan| {
        runtime.block_on(async { play(&*kind.subject().await, &plan, activates).await })
    })
}

#[test]
fn with_activate_first_no_update_is_lost() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in runtime.block_on(kinds()) {
        if let Err(error) = search(&*kind, runtime.handle(), true, 60) {
            panic!("{}: {error}", kind.name());
        }
    }
}

/// The search must be able to find what it looks for.
#[test]
fn without_activate_the_lost_update_is_found() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in runtime.block_on(kinds()) {
        match search(&*kind, runtime.handle(), false, 1000) {
            Err(TestError::Fail(_, plan)) => {
                // The shortest: the second reads, the first writes what it had read before, the second writes
                // over it.
                assert!(plan.1.len() <= 8, "{}: {plan:?}", kind.name());
            }
            other => panic!("{}: no lost update was found: {other:?}", kind.name()),
        }
    }
}
