//! Everything that can happen next.

use crate::client::Client;
use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sight, Sights};
use crate::server::Server;
use crate::state::{Line, Message, Phase, State, Store, UNITS, Verb};

/// What happened, to which owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    Start(usize),
    Look(usize),
    Cancel(usize),
    Renew(usize),
    Release(usize),
    Detach(usize),
    Attach(usize),
    WaiterServed(usize),
    KeeperServed(usize),
    WaiterReads(usize),
    KeeperReads(usize),
    WaiterBreaks(usize),
    WaiterBreaksUnseen(usize),
    KeeperBreaks(usize),
    Connect(usize),
    GhostGoes(usize),
    LateServed(usize),
    LateLost(usize),
    PushRepeated(usize),
    Tick,
    ExpiresEarly,
    Asked,
    Seized,
    Vanishes,
    ForgetsAll,
    ClockGoesBack,
    Replicated,
    FailsOver,
    Promoted,
    Demoted,
}

pub(crate) struct Next {
    pub(crate) step: Step,
    pub(crate) state: State,
    pub(crate) broken: Option<Promise>,
}

pub(crate) struct Steps<'a> {
    pub(crate) from: &'a State,
    pub(crate) rules: &'a Rules,
    pub(crate) limits: &'a Limits,
    pub(crate) sights: &'a mut Sights,
    pub(crate) next: &'a mut Vec<Next>,
}

impl Steps<'_> {
    pub(crate) fn all(&mut self) {
        (0..usize::from(self.limits.owners)).for_each(|at| self.of(at));
        self.of_time();
        self.of_servers();
    }

    fn world(&mut self, step: Step, change: impl FnOnce(&mut State)) {
        let mut state = *self.from;
        change(&mut state);
        self.next.push(Next { step, state, broken: None });
    }

    fn client(&mut self, step: Step, at: usize, act: impl FnOnce(&mut Client<'_>)) {
        let mut state = *self.from;
        let mut client = Client {
            state: &mut state,
            at,
            rules: self.rules,
            limits: self.limits,
            sights: self.sights,
            broken: None,
        };
        act(&mut client);
        let broken = client.broken;
        self.next.push(Next { step, state, broken });
    }

    fn server<T>(
        &mut self,
        state: &mut State,
        at: u8,
        act: impl FnOnce(&mut Server<'_>) -> T,
    ) -> (T, Option<Promise>) {
        let mut server =
            Server { state, at, rules: self.rules, limits: self.limits, sights: self.sights, broken: None };
        let reply = act(&mut server);
        (reply, server.broken)
    }

    fn of(&mut self, at: usize) {
        let (owner, limits, rules) = (self.from.owners[at], self.limits, self.rules);
        let from = self.from;
        match owner.phase {
            Phase::Idle => {
                // Of owners that differ only in their number the smallest begins.
                if !(0..at).any(|lower| from.owners[lower].phase == Phase::Idle) || limits.last_tries {
                    let tries = limits.last_tries && at + 1 == usize::from(limits.owners);
                    self.client(Step::Start(at), at, |client| client.start(tries));
                }
                if let Some(handle) = from.handle {
                    self.client(Step::Attach(at), at, |client| client.attach(handle));
                }
            }
            Phase::Waiting => {
                if owner.looks > 0 && owner.waiter.open && rules.looks && owner.asking < limits.requests {
                    self.client(Step::Look(at), at, |client| {
                        client.state.owners[at].looks -= 1;
                        client.look();
                    });
                }
                if from.cancels > 0 {
                    self.client(Step::Cancel(at), at, |client| {
                        client.state.cancels -= 1;
                        client.cancel();
                    });
                }
            }
            Phase::Holding | Phase::Lost => {
                self.client(Step::Release(at), at, |client| client.release());
                if owner.phase == Phase::Holding && owner.renewals > 0 && !owner.renewing {
                    self.world(Step::Renew(at), |state| {
                        let owner = &mut state.owners[at];
                        owner.renewals -= 1;
                        owner.renewing = true;
                        owner.keeper.send(Verb::Renew(owner.grant()));
                    });
                }
                if owner.phase == Phase::Holding && from.detaches > 0 && !owner.renewing {
                    self.world(Step::Detach(at), |state| {
                        state.detaches -= 1;
                        state.handle = Some(state.owners[at].grant());
                        if limits.copied {
                            state.lock_is_taken_from_its_holder();
                        } else {
                            state.owners[at].phase = Phase::Gone;
                        }
                    });
                }
            }
            _ => {}
        }
        self.of_links(at);
    }

    fn of_links(&mut self, at: usize) {
        let (owner, from) = (self.from.owners[at], self.from);
        for (step, keeper) in [(Step::WaiterServed(at), false), (Step::KeeperServed(at), true)] {
            let link = if keeper { owner.keeper } else { owner.waiter };
            if let Some(request) = link.up.first() {
                let mut state = *from;
                let own = &mut state.owners[at];
                if keeper {
                    own.keeper.up.pop()
                } else {
                    own.waiter.up.pop()
                };
                let (body, broken) = self.server(&mut state, link.server, |server| server.run(request.verb));
                let message = Message { body, age: request.age };
                let own = &mut state.owners[at];
                if keeper {
                    own.keeper.down.push(message)
                } else {
                    own.waiter.down.push(message)
                };
                self.next.push(Next { step, state, broken });
            }
        }
        if let Some(message) = owner.waiter.down.first() {
            self.client(Step::WaiterReads(at), at, |client| {
                client.state.owners[at].waiter.down.pop();
                client.read_waiter(message);
            });
        }
        if let Some(message) = owner.keeper.down.first() {
            self.client(Step::KeeperReads(at), at, |client| {
                client.state.owners[at].keeper.down.pop();
                client.read_keeper(message);
            });
        }
        let alive = !matches!(owner.phase, Phase::Idle | Phase::Gone);
        if from.breaks > 0 && alive && owner.waiter.open {
            let ghosts: &[_] = if self.limits.ghosts { &[false, true] } else { &[false] };
            for ghost in ghosts {
                let step = if *ghost { Step::WaiterBreaksUnseen(at) } else { Step::WaiterBreaks(at) };
                self.client(step, at, |client| {
                    client.state.breaks -= 1;
                    client.break_waiter(*ghost);
                });
            }
        }
        if from.breaks > 0 && alive && !owner.keeper.is_quiet() {
            self.client(Step::KeeperBreaks(at), at, |client| {
                client.state.breaks -= 1;
                client.break_keeper();
            });
        }
        let elsewhere = owner.phase == Phase::Idle && owner.waiter.server != from.primary;
        if !owner.waiter.open || elsewhere {
            self.client(Step::Connect(at), at, |client| client.connect());
        }
        if owner.ghost.is_some() {
            self.world(Step::GhostGoes(at), |state| state.owners[at].ghost = None);
        }
        if let Some((server, verb)) = owner.late.first() {
            let mut state = *from;
            state.owners[at].late.pop();
            self.sights.note(Sight::LateServed);
            let ((), broken) = self.server(&mut state, server, |server| {
                server.run(verb);
            });
            self.next.push(Next { step: Step::LateServed(at), state, broken });
            self.world(Step::LateLost(at), |state| {
                state.owners[at].late.pop();
            });
        }
        if let Some(grant) = owner.stray.filter(|_| owner.waiter.open) {
            self.client(Step::PushRepeated(at), at, |client| {
                client.state.owners[at].stray = None;
                client.pushed(grant);
            });
        }
    }

    fn of_time(&mut self) {
        let (from, limits) = (self.from, self.limits);
        if limits.ticks == 0 || from.now < limits.ticks {
            self.world(Step::Tick, |state| {
                state.tick();
                if limits.ticks > 0 {
                    state.now += 1;
                }
            });
            if self.next.last().is_some_and(|next| lost(from, &next.state)) {
                self.sights.note(Sight::LostInTime);
            }
        }
        if from.store().key.is_some_and(|key| key.left == 1) {
            self.world(Step::ExpiresEarly, |state| state.stores[usize::from(state.primary)].key = None);
        }
    }

    fn of_servers(&mut self) {
        let (from, limits) = (self.from, self.limits);
        let (here, there) = (usize::from(from.primary), usize::from(1 - from.primary));
        let held = from.store().key.is_some();
        if from.revocations > 0 && held {
            for (step, now) in [(Step::Asked, false), (Step::Seized, true)] {
                let mut state = *from;
                state.revocations -= 1;
                let ((), broken) = self.server(&mut state, from.primary, |server| server.revoke(now));
                self.next.push(Next { step, state, broken });
            }
        }
        if from.vanishings > 0 && held {
            self.world(Step::Vanishes, |state| {
                state.vanishings -= 1;
                state.lock_is_taken_from_its_holder();
                state.stores[here].key = None;
            });
        }
        if from.losses > 0 {
            self.world(Step::ForgetsAll, |state| {
                state.losses -= 1;
                state.split = true;
                state.stores[here] = Store { key: None, queue: Line::EMPTY, fence: 0 };
            });
        }
        if from.steps_back > 0 {
            self.world(Step::ClockGoesBack, |state| {
                state.steps_back -= 1;
                state.skew[here] -= 2 * i8::try_from(UNITS).expect("a small number");
            });
        }
        if limits.failovers > 0 && !from.writable[there] && from.stores[there] != from.stores[here] {
            self.world(Step::Replicated, |state| state.stores[there] = state.stores[here]);
        }
        if from.failovers > 0 && !limits.lag {
            self.world(Step::FailsOver, |state| {
                state.failovers -= 1;
                state.stores[there] = state.stores[here];
                state.writable.swap(here, there);
                state.primary = 1 - state.primary;
            });
        }
        if from.failovers > 0 && limits.lag && !from.writable[there] {
            self.world(Step::Promoted, |state| {
                state.failovers -= 1;
                state.split = true;
                state.writable[there] = true;
                state.primary = 1 - state.primary;
            });
        }
        if from.writable[there] {
            self.world(Step::Demoted, |state| {
                state.writable[there] = false;
                state.stores[there] = state.stores[here];
            });
        }
    }
}

fn lost(before: &State, after: &State) -> bool {
    let pairs = before.owners.iter().zip(&after.owners);
    pairs.into_iter().any(|(before, after)| before.phase == Phase::Holding && after.phase == Phase::Lost)
}
