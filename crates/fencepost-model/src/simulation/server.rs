//! A node as a process: it has a clock that can be wrong, can stand still, and can lose what it holds.

use crate::node::{
    Ask, Greet, Held, How, Keys, Life, Message, Mode, NODE, Node, Refusal, Store, Vote, WrongType,
};

use super::clock::Clock;
use super::message::{self, Reply, Request};
use super::plan::Plan;
use super::rules::Rules;
use super::sights::{Sight, Sights};

pub(super) const MEMBERS: &str = "abcd";

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) node: Node,
    pub(super) clock: Clock,
    /// Counts the starts.
    pub(super) process: u32,
    pub(super) frozen_until: u64,
    pub(super) down_until: u64,
    pub(super) snapshot: Store,
    index: usize,
    /// It has been up for long, and was never used before it took the place of another server.
    spare: bool,
}

impl Server {
    /// A server that was declared a member.
    pub(super) fn new(index: usize, clock: Clock, plan: &Plan) -> Self {
        let mut server = Self {
            node: Node::default(),
            clock,
            process: 0,
            frozen_until: 0,
            down_until: 0,
            snapshot: Store::default(),
            index,
            spare: false,
        };
        let run = server.run_id();
        let greet = Greet { how: How::Found, ..terms(plan) };
        server.node.greet(clock.at(0), &Life { run }, &greet).expect("a new server");
        server
    }

    fn run_id(&self) -> String {
        format!("{:x}", (self.index + 1) * 0x1000 + self.process as usize)
    }

    pub(super) fn restart(&mut self, store: Store) {
        self.node = Node { store, ..Node::default() };
        self.process += 1;
        self.spare = false;
        self.frozen_until = 0;
    }

    /// Another server, which is empty, has the address from now on.
    pub(super) fn replace(&mut self) {
        self.restart(Store::default());
        self.spare = true;
    }

    pub(super) fn flush(&mut self) {
        self.node.store.flush();
        self.spare = false;
    }

    /// Whether a key is left that should have ended.
    pub(super) fn leftover(&mut self, now: u64) -> Option<String> {
        self.node.store.at(self.clock.at(now) / 1000);
        let mut keys = self.node.store.all().map(|(key, ..)| key);
        keys.find(|key| *key != NODE && !key.ends_with(":fence")).map(str::to_owned)
    }

    /// Runs a script.
    pub(super) fn run(
        &mut self,
        now: u64,
        request: &Request,
        keys: &[Keys],
        plan: &Plan,
        rules: &Rules,
        sights: &mut Sights,
    ) -> Result<(Reply, Option<Message>), WrongType> {
        let clock = self.clock.at(now);
        let ttl = plan.ttl / 1000;
        match request {
            Request::Greet => Ok((self.greet(clock, plan, rules, sights)?, None)),
            Request::Acquire { lock, ask, entry } => {
                let ask = full(ask, ttl, plan.bound);
                let vote = self.node.acquire(clock, &keys[*lock], &ask, entry.as_deref())?;
                see_vote(&vote, sights);
                Ok((Reply::Vote(vote), None))
            }
            Request::Revoke { lock, ask, victim } => {
                let message = (victim[..16].to_owned(), format!("revoked {victim}"));
                let ask = full(ask, ttl, plan.bound);
                let (vote, message) = self.node.revoke(clock, &keys[*lock], victim, &ask, message)?;
                see_vote(&vote, sights);
                Ok((Reply::Vote(vote), message))
            }
            Request::Hold { lock, value, token, node, not_after, mode } => {
                let held = Held { keys: &keys[*lock], value, ttl, token: *token };
                Ok((self.hold(clock, node, *not_after, *mode, &held, rules, sights)?, None))
            }
            Request::Release { lock, value, wake, entry } => {
                let (ours, message) =
                    self.node.release(clock, &keys[*lock], value, *wake, entry.as_deref())?;
                if ours && !wake {
                    sights.see(Sight::Undone);
                }
                Ok((Reply::Released, message))
            }
        }
    }

    fn greet(
        &mut self,
        clock: u64,
        plan: &Plan,
        rules: &Rules,
        sights: &mut Sights,
    ) -> Result<Reply, WrongType> {
        let run = self.run_id();
        let before = self.node.store.get(NODE)?.map(str::to_owned);
        let trusted = !rules.quarantine || !rules.spares_wait && self.spare && before.is_none();
        let greet = Greet { how: if trusted { How::Found } else { How::Meet }, ..terms(plan) };
        let greeted = self.node.greet(clock, &Life { run: run.clone() }, &greet)?;
        if before.as_ref() != Some(&greeted.node) && greeted.node.split(' ').count() == 6 {
            sights.see(Sight::DataLoss);
        }
        Ok(Reply::Greeted { run, node: greeted.node, now: clock })
    }

    #[expect(clippy::too_many_arguments)]
    fn hold(
        &mut self,
        clock: u64,
        node: &str,
        not_after: u64,
        mode: Mode,
        held: &Held<'_>,
        rules: &Rules,
        sights: &mut Sights,
    ) -> Result<Reply, WrongType> {
        self.node.store.at(clock / 1000);
        let holder = self.node.store.get(&held.keys.lock)?.map(str::to_owned);
        // Without the test of the counter a confirmation of a key that is there is like an extension.
        let ours = holder.as_deref() == Some(held.value);
        let mode = if ours && !rules.counter_test { Mode::Extend } else { mode };
        let verdicts = match self.node.hold(clock, node, not_after, mode, std::slice::from_ref(held))? {
            Err(refusal) => {
                see_refusal(&refusal, sights);
                return Ok(Reply::Not(refusal));
            }
            Ok(verdicts) => verdicts,
        };
        let verdict = verdicts.into_iter().next().unwrap_or(crate::node::Verdict::Gone);
        match verdict {
            crate::node::Verdict::Kept if holder.is_none() => sights.see(Sight::Remade),
            crate::node::Verdict::Passed => sights.see(Sight::PassedRefused),
            _ => {}
        }
        Ok(Reply::Held { verdict, now: clock })
    }
}

fn terms(plan: &Plan) -> Greet<'static> {
    Greet { max_ttl: plan.ttl / 1000, quarantine: plan.quarantine / 1000, members: MEMBERS, how: How::Meet }
}

fn full(ask: &message::Ask, ttl: u64, bound: u64) -> Ask<'_> {
    let message::Ask { value, proposal, node, not_after } = ask;
    Ask { value, ttl, proposal: *proposal, bound, node, not_after: *not_after }
}

fn see_vote(vote: &Vote, sights: &mut Sights) {
    if let Vote::Not(refusal) = vote {
        see_refusal(refusal, sights);
    }
}

fn see_refusal(refusal: &Refusal, sights: &mut Sights) {
    if let Refusal::Late(_) = refusal {
        sights.see(Sight::LateRefused);
    }
}
