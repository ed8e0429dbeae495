//! One attempt to win a majority: the shell around [`Attempt`], which decides.

use std::sync::Arc;
use std::time::Duration;

use super::acquire_request::{AcquireRequest, Denial, Kind};
use super::nodes::{Nodes, RuntimeSlot};
use super::quorum::{Attempt, AttemptReply, NextStep, NodeSet, VoteState, majority};
use super::record;
use super::release::{ReleaseRequest, Then};
use super::request::{Delivery, Progress, QuorumRequest, late};
use super::retry::{AskOrder, Obstacle, obstacle};
use super::session::{Script, Session};
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::record::Record;
use crate::runtime::clock::Moment;
use crate::runtime::lease::valid_until;
use crate::{Holder, Verdict};

/// How long the node that contenders ask first may take to reply.
const GATE: Duration = Duration::from_millis(100);
/// The least time that an attempt waits for the rest of the nodes once others are in the way.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// How long an attempt that has failed waits for the rest of the replies, if they belong into an error.
const REST: Duration = Duration::from_millis(100);

pub(super) struct QuorumAttempt {
    nodes: Arc<Nodes>,
    slot: Arc<RuntimeSlot>,
    pub(super) request: AcquireRequest,
    /// Validity counts from here: before anything was sent.
    pub(super) sent: Moment,
    /// No node may act on a request of this attempt later.
    pub(super) give_up_at: Moment,
    proposal: String,
    progress: Progress<State>,
}

struct State {
    attempt: Attempt<Moment>,
    /// The sessions over which the nodes were asked.
    sessions: Vec<Option<Arc<Session>>>,
    verdicts: Vec<Option<Verdict>>,
    denials: Vec<Denial>,
    /// The time from `sent` to the first reply, and to the last.
    round_trip: Option<Duration>,
    last_reply: Duration,
    decision: Option<Decision>,
    /// Its caller does not have the attempt yet, so nobody can have given it back.
    starting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Won { token: u64 },
    Failed,
}

impl QuorumAttempt {
    /// Asks the nodes, at least for a token of `least`.
    pub(super) fn start(
        nodes: &Arc<Nodes>,
        slot: &Arc<RuntimeSlot>,
        request: AcquireRequest,
        order: AskOrder,
        least: u64,
        timeout: Duration,
    ) -> Arc<Self> {
        let (n, sent) = (nodes.len(), nodes.clock.now());
        let until = valid_until(sent, request.ttl);
        let votes = vec![VoteState::Idle; n];
        let (attempt, first) = match order {
            AskOrder::AtOnce => Attempt::at_once(votes, until),
            AskOrder::InOrder => Attempt::in_order(votes, request.first_node(n), until),
        };
        // The median of the nodes' clocks.
        let mut times: Vec<u64> =
            nodes.each.iter().map(|node| node.time(sent)).filter(|time| *time > 0).collect();
        times.sort_unstable();
        let started = Arc::new(Self {
            nodes: nodes.clone(),
            slot: slot.clone(),
            request,
            sent,
            give_up_at: sent.plus(timeout).min(until),
            proposal: times.get(times.len() / 2).copied().unwrap_or(0).max(least).to_string(),
            progress: Progress::new(State {
                attempt,
                sessions: vec![None; n],
                verdicts: vec![None; n],
                denials: Vec::new(),
                round_trip: None,
                last_reply: Duration::ZERO,
                decision: None,
                starting: true,
            }),
        });
        started.take(NextStep::Ask(first));
        started.progress.lock().starting = false;
        started
    }

    /// Waits for the decision, at most until the attempt's time is over.
    pub(super) async fn decision(self: &Arc<Self>) -> Decision {
        let wait = async {
            loop {
                let patience = self.progress.until(|state| match state.decision {
                    Some(decision) => Some(Ok(decision)),
                    None => self.patience(state).map(|patience| Err((patience, state.attempt.gate))),
                });
                let (patience, gate) = match patience.await {
                    Ok(decision) => return decision,
                    Err(patience) => patience,
                };
                let decided = self.progress.until(|state| state.decision);
                match tokio::time::timeout(patience, decided).await {
                    Ok(decision) => return decision,
                    // The gate replied meanwhile: the others were asked only then.
                    Err(_) if self.progress.lock().attempt.gate != gate => {}
                    Err(_) => self.pass_over(),
                }
            }
        };
        match self.nodes.clock.within(Some(self.give_up_at), wait).await {
            Some(decision) => decision,
            None => {
                self.abandon();
                self.progress.lock().decision.unwrap_or(Decision::Failed)
            }
        }
    }

    /// How much longer to wait for the nodes that have not replied; `None`: for as long as the attempt may
    /// take. An attempt keeps its part of the votes from others meanwhile, so two of them must not both wait
    /// for a node that is frozen.
    fn patience(&self, state: &State) -> Option<Duration> {
        if state.attempt.gate.is_some() {
            return Some(GATE);
        }
        let replied = state.attempt.granted().len() + state.denials.len();
        let contended = !state.denials.is_empty() && replied >= majority(self.nodes.len());
        contended.then(|| (2 * state.last_reply).max(STRAGGLERS))
    }

    /// Goes on without the nodes that have not replied.
    fn pass_over(self: &Arc<Self>) {
        let now = self.nodes.clock.now();
        let mut state = self.progress.lock();
        let step = match state.attempt.gate {
            Some(_) => state.attempt.pass_slow_gate(),
            None => {
                let silent = state.open_nodes();
                let steps = silent.iter().map(|node| state.attempt.on_reply(node, AttemptReply::Silent, now));
                steps.fold(NextStep::Wait, |step, next| if next == NextStep::Wait { step } else { next })
            }
        };
        let step = state.decide(step);
        drop(state);
        self.take(step);
    }

    /// Waits a little for the rest of the nodes. An attempt fails with the first denial that leaves no
    /// majority: only the rest shows whether somebody holds the lock, and what an error has to say.
    pub(super) async fn wait_for_rest(&self) {
        let failure = self.failure();
        let patience = match failure.obstacle {
            Some(Obstacle::Held { .. } | Obstacle::FirstNode { .. }) => return,
            Some(Obstacle::Split) => REST.min(failure.round_trip * 3),
            None => REST,
        };
        let deadline = self.nodes.clock.now().plus(patience).min(self.give_up_at);
        let all = self.progress.until(|state| state.open_nodes().is_empty().then_some(()));
        self.nodes.clock.within(Some(deadline), all).await;
    }

    /// Takes a step that the attempt has decided on. Called without any lock held.
    fn take(self: &Arc<Self>, step: NextStep) {
        match step {
            NextStep::Ask(nodes) => {
                let round = Arc::new(Round { attempt: self.clone(), token: None });
                self.nodes.ask(&self.slot, &round, nodes);
            }
            NextStep::Confirm { token, nodes } => {
                let round = Arc::new(Round { attempt: self.clone(), token: Some(token) });
                // Over the sessions that carried the grants.
                let sessions = self.progress.lock().sessions.clone();
                let sessions = nodes.iter().filter_map(|node| sessions[node].as_ref());
                sessions.for_each(|session| self.nodes.send(&round, session));
            }
            NextStep::Won { .. } | NextStep::Failed => self.progress.notify(),
            NextStep::Wait => {}
        }
    }

    fn count(self: &Arc<Self>, node: usize, reply: AttemptReply, verdict: Verdict, denial: Option<Denial>) {
        let now = self.nodes.clock.now();
        let mut state = self.progress.lock();
        state.verdicts[node] = Some(verdict);
        state.denials.extend(denial);
        if reply != AttemptReply::Silent {
            state.last_reply = now.since(self.sent);
            state.round_trip = state.round_trip.or(Some(state.last_reply));
        }
        let step = state.attempt.on_reply(node, reply, now);
        let step = state.decide(step);
        let is_awaited = state.decision == Some(Decision::Failed) || !state.denials.is_empty();
        drop(state);
        self.take(step);
        if is_awaited {
            self.progress.notify();
        }
    }

    /// Ends the attempt: nothing more is sent.
    pub(super) fn abandon(self: &Arc<Self>) {
        let mut state = self.progress.lock();
        let step = state.attempt.give_up();
        state.decide(step);
    }

    /// The sessions over which nodes were asked.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.progress.lock().sessions.iter().flatten().cloned().collect()
    }

    /// How to give back what the attempt may have been granted, and what nodes keep for `life`.
    pub(super) fn undo(&self, life: Duration, then: Then) -> ReleaseRequest {
        let (keys, value) = (self.request.keys.clone(), self.request.value.clone());
        ReleaseRequest::new(keys, value, then, self.give_up_at, life)
    }

    /// What the attempt has run into so far.
    pub(super) fn failure(&self) -> Failure {
        let state = self.progress.lock();
        let n = self.nodes.len();
        // Nodes that had no time to reply, because others had decided, might have voted.
        let timed_out = self.nodes.clock.now() >= self.give_up_at;
        let open = if timed_out { 0 } else { state.open_nodes().len() };
        let voted =
            |verdict: &Option<Verdict>| matches!(verdict, Some(Verdict::Granted | Verdict::Held { .. }));
        let silent = state.attempt.asked().iter().filter(|&node| !voted(&state.verdicts[node])).count();
        let silent_at_least = silent.saturating_sub(open);
        let left = |ttl: i64| u64::try_from(ttl).ok().map(Duration::from_millis);
        let victim = |denial: &Denial| record::victim(&denial.value).to_owned();
        let denials: Vec<_> = state.denials.iter().map(|denial| (victim(denial), left(denial.ttl))).collect();
        let count = |denial: &Denial| denials.iter().filter(|(other, _)| *other == victim(denial)).count();
        let obstacle = (n - silent_at_least >= majority(n)).then(|| {
            let (granted, gated) = (state.attempt.granted().len(), state.attempt.gate.is_some());
            obstacle(n, granted, &denials, gated)
        });
        let holder = state.denials.iter().max_by_key(|denial| count(denial));
        Failure {
            obstacle,
            holder: holder.map(|denial| denial.holder(&self.request.name)),
            is_foreign: state.denials.iter().any(|denial| Record::parse(&denial.value).is_none()),
            may_be_outage: n - silent < majority(n),
            silent: silent_at_least,
            counter: state.denials.iter().map(|denial| denial.counter).max(),
            verdicts: state.verdicts.iter().map(|said| said.clone().unwrap_or_else(late)).collect(),
            round_trip: state.round_trip.unwrap_or_default(),
        }
    }
}

impl State {
    /// The nodes that were asked for their vote and have not replied.
    fn open_nodes(&self) -> NodeSet {
        let votes = self.attempt.votes.iter().enumerate();
        votes.filter(|(_, vote)| **vote == VoteState::Asked).map(|(node, _)| node).collect()
    }

    /// Notes a decision.
    fn decide(&mut self, step: NextStep) -> NextStep {
        match step {
            NextStep::Won { token } => self.decision = Some(Decision::Won { token }),
            NextStep::Failed => self.decision = Some(Decision::Failed),
            NextStep::Wait | NextStep::Ask(_) | NextStep::Confirm { .. } => {}
        }
        step
    }
}

/// One round of an attempt, as nodes are asked for it: for the lock; or, if they granted it with a smaller
/// counter, to confirm this token.
struct Round {
    attempt: Arc<QuorumAttempt>,
    token: Option<u64>,
}

impl QuorumRequest for Round {
    fn script(&self) -> Script {
        match (self.token, &self.attempt.request.kind) {
            (Some(_), _) => Script::Hold,
            (None, Kind::Lock { .. }) => Script::Ops,
            (None, Kind::Revoke { .. }) => Script::Revoke,
        }
    }

    /// Sends nothing once the attempt is decided: whoever undoes it has decided it before. But all nodes that
    /// are asked at first are asked, where others are quick enough to decide meanwhile: a lock is to stand on
    /// all of them, and a failure is to say what each of them has.
    fn send(&self, session: &Arc<Session>, delivery: Delivery) -> Result<(), String> {
        let attempt = &self.attempt;
        let mut state = attempt.progress.lock();
        let is_over = state.decision.is_some() && !state.starting;
        if is_over || delivery.sent >= attempt.give_up_at {
            return Err("the attempt is over".to_owned());
        }
        let not_after = session.node.at_most(attempt.give_up_at, delivery.sent);
        let (request, config) = (&attempt.request, &attempt.nodes.config);
        match self.token {
            None => request.send(session, config, [&attempt.proposal, &not_after], delivery)?,
            Some(token) => {
                request.send_confirm(session, config, [&token.to_string(), &not_after], delivery)?
            }
        }
        state.sessions[session.node.index] = Some(session.clone());
        Ok(())
    }

    fn leaves_out_laggards(&self) -> bool {
        true
    }

    fn on_reply(self: Arc<Self>, node: usize, _: Moment, reply: Result<Value, Verdict>) {
        let (reply, verdict, denial) = match (self.token, reply) {
            (None, Err(verdict)) => (AttemptReply::Silent, verdict, None),
            (None, Ok(Value::Int(value))) => {
                (AttemptReply::Granted(u64::try_from(value).unwrap_or(0)), Verdict::Granted, None)
            }
            (None, Ok(value)) => {
                let denial = Denial::read(&value);
                let by = denial.holder(&self.attempt.request.name).to_string();
                (AttemptReply::Denied, Verdict::Held { by }, Some(denial))
            }
            (Some(token), Ok(value)) if matches!(value.as_list(), Some([_, Value::Int(1)])) => {
                (AttemptReply::Confirmed(token), Verdict::Granted, None)
            }
            (Some(token), reply) => {
                let verdict = reply.map(|_| Verdict::Held { by: "another attempt since".to_owned() });
                (AttemptReply::Refused(token), verdict.unwrap_or_else(|verdict| verdict), None)
            }
        };
        self.attempt.count(node, reply, verdict, denial);
    }
}

/// What an attempt that failed ran into.
pub(super) struct Failure {
    /// What was in the way, if it was other contenders; `None` if too few nodes could vote.
    pub(super) obstacle: Option<Obstacle>,
    /// Who has the most nodes of those that denied.
    pub(super) holder: Option<Holder>,
    /// A client of other make is in the way.
    pub(super) is_foreign: bool,
    /// Too few nodes could vote, if those that had no time to reply cannot.
    pub(super) may_be_outage: bool,
    /// How many nodes were asked and could not vote.
    pub(super) silent: usize,
    /// The largest counter of the nodes that denied.
    pub(super) counter: Option<u64>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) round_trip: Duration,
}
