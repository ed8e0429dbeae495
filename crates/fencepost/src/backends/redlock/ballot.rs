//! One attempt to win a majority: the shell around `quorum::Attempt`. Replies are counted where they are read; only the
//! decision wakes whoever waits for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::contest::{Manner, Standing};
use super::failure::{Denial, Failure};
use super::fleet::{Fleet, Heard, Line, Question, Reach, late};
use super::node::{Link, Script};
use super::paper::Paper;
use super::quorum::{Answer, Attempt, Nodes, Seat, Step, majority};
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::resp::Value;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::{Error, Verdict};

pub(super) struct Ballot {
    pub(super) fleet: Arc<Fleet>,
    pub(super) line: Arc<Line>,
    pub(super) paper: Paper,
    /// Validity counts from here: before anything was sent.
    pub(super) sent: Moment,
    /// When a node shall not take the request any more.
    pub(super) give_up_at: Moment,
    proposal: String,
    state: Mutex<State>,
    decided: Notify,
}

struct State {
    attempt: Attempt<Moment>,
    /// The connections that the nodes were asked over.
    links: Vec<Option<Arc<Link>>>,
    /// What the nodes said, or why they could not be asked; `None` as long as nothing is known.
    verdicts: Vec<Option<Verdict>>,
    denials: Vec<Denial>,
    /// To be asked as soon as they are connected.
    expected: Nodes,
    /// Were asked before, or were to be: if such a node cannot be connected to, it is not tried over and over.
    tried: Nodes,
    round_trip: Duration,
    /// When the last answer came.
    heard_at: Moment,
    /// The attempt's time was over before it was decided.
    timed_out: bool,
    outcome: Option<Outcome>,
}

impl State {
    fn verdicts(&self) -> Vec<Verdict> {
        self.verdicts.iter().map(|verdict| verdict.clone().unwrap_or_else(late)).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Won { token: u64 },
    Failed,
}

/// How long the node that contenders agreed to ask first may take to answer.
const GATE: Duration = Duration::from_millis(100);
/// The least that stragglers are waited for once others are in the way.
const STRAGGLERS: Duration = Duration::from_millis(20);

/// How long an attempt that has failed waits for the rest of the answers, if they belong into an error.
const REST: Duration = Duration::from_millis(100);

impl Ballot {
    /// Asks the nodes. The decision comes by [`decision`](Self::decision).
    pub(super) fn cast(
        fleet: &Arc<Fleet>,
        line: &Arc<Line>,
        paper: Paper,
        manner: Manner,
        hint: u64,
        timeout: Duration,
    ) -> Arc<Self> {
        let (n, sent) = (fleet.len(), fleet.clock.now());
        let until = sent.plus(paper.ttl.saturating_sub(crate::runtime::lease::drift(paper.ttl)));
        let seats = vec![Seat::Idle; n];
        let (attempt, nodes) = match manner {
            Manner::AtOnce => Attempt::at_once(seats, until),
            Manner::InOrder => Attempt::in_order(seats, paper.first(n), until),
        };
        let mut times: Vec<u64> =
            fleet.nodes.iter().map(|node| node.time(sent)).filter(|time| *time > 0).collect();
        times.sort_unstable();
        let state = State {
            attempt,
            links: vec![None; n],
            verdicts: vec![None; n],
            denials: Vec::new(),
            expected: Nodes::default(),
            tried: Nodes::default(),
            round_trip: Duration::ZERO,
            heard_at: sent,
            timed_out: false,
            outcome: None,
        };
        let ballot = Arc::new(Self {
            fleet: fleet.clone(),
            line: line.clone(),
            paper,
            sent,
            give_up_at: sent.plus(timeout).min(until),
            proposal: times.get(times.len() / 2).copied().unwrap_or(0).max(hint).to_string(),
            state: Mutex::new(state),
            decided: Notify::new(),
        });
        ballot.act(&mut lock(&ballot.state), Step::Ask(nodes));
        ballot
    }

    /// Waits for the decision, at most until the attempt's time is over.
    pub(super) async fn decision(self: &Arc<Self>) -> Outcome {
        let wait = async {
            loop {
                let (decided, changed) = (self.decided.notified(), self.line.changed());
                tokio::pin!(decided, changed);
                decided.as_mut().enable();
                changed.as_mut().enable();
                let patience = {
                    let mut state = lock(&self.state);
                    if !state.expected.is_empty() {
                        let expected = std::mem::take(&mut state.expected);
                        self.act(&mut state, Step::Ask(expected));
                    }
                    if let Some(outcome) = state.outcome {
                        return outcome;
                    }
                    self.patience(&state)
                };
                tokio::select! {
                    () = decided => {}
                    () = changed => {}
                    () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => self.pass_over(),
                }
            }
        };
        match self.fleet.clock.within(Some(self.give_up_at), wait).await {
            Some(outcome) => outcome,
            None => {
                self.abandon();
                let mut state = lock(&self.state);
                state.timed_out = true;
                state.outcome.unwrap_or(Outcome::Failed)
            }
        }
    }

    /// How much longer to wait for the nodes that have not answered; `None`: for as long as the attempt may take. Who
    /// has a part of the votes keeps it from others meanwhile, so two of them must not both wait for a node that is frozen.
    fn patience(&self, state: &State) -> Option<Duration> {
        if state.attempt.gate.is_some() {
            return Some(GATE);
        }
        let answered = state.attempt.granted().len() + state.denials.len();
        let contended = !state.denials.is_empty() && answered >= majority(self.fleet.len());
        contended.then(|| (2 * state.heard_at.since(self.sent)).max(STRAGGLERS))
    }

    /// Goes on without the nodes that have not answered.
    fn pass_over(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.attempt.gate.is_some() {
            let step = state.attempt.pass_slow_gate();
            return self.act(&mut state, step);
        }
        state.expected = Nodes::default();
        let seats = state.attempt.seats.iter().enumerate();
        let late: Nodes = seats.filter(|(_, seat)| **seat == Seat::Asked).map(|(node, _)| node).collect();
        for node in late.iter() {
            let step = state.attempt.hear(node, Answer::Silent, self.fleet.clock.now());
            self.act(&mut state, step);
        }
    }

    /// Waits a little for what the other nodes have to say. An attempt fails with the first denial that leaves no majority,
    /// which may be one: whether somebody holds the lock, and all that belongs into an error, shows only then.
    pub(super) async fn hear_out(&self) {
        let patience = match self.failure() {
            failure if matches!(failure.standing(), Some(Standing::Held { .. } | Standing::Gated { .. })) => {
                return;
            }
            failure if failure.standing().is_none() => REST,
            failure => REST.min(failure.round_trip * 3),
        };
        let wait = async {
            loop {
                let heard = self.decided.notified();
                tokio::pin!(heard);
                heard.as_mut().enable();
                if !lock(&self.state).attempt.seats.contains(&Seat::Asked) {
                    return;
                }
                heard.await;
            }
        };
        let deadline = self.fleet.clock.now().plus(patience).min(self.give_up_at);
        self.fleet.clock.within(Some(deadline), wait).await;
    }

    /// Takes one step, and the steps that follow from it. Never waits.
    fn act(self: &Arc<Self>, state: &mut State, step: Step) {
        let mut heard: Vec<(usize, Answer)> = Vec::new();
        let mut next = Some(step);
        while let Some(step) = next {
            match step {
                Step::Wait => {}
                Step::Ask(nodes) => {
                    let majority = majority(self.fleet.len());
                    let (up, keeping_up) = self.line.up();
                    let (insist, spare) = (up < majority, keeping_up >= majority);
                    let asked = nodes.iter().filter_map(|node| {
                        let answer = self.ask(state, node, insist, spare)?;
                        Some((node, answer))
                    });
                    heard.extend(asked);
                }
                Step::Confirm { token, nodes } => {
                    let question = Arc::new(Confirmation { ballot: self.clone(), token });
                    for node in nodes.iter() {
                        let put = state.links[node].as_ref().map(|link| self.fleet.put(&question, link));
                        if !matches!(put, Some(Ok(()))) {
                            heard.push((node, Answer::Silent));
                        }
                    }
                }
                Step::Won { token } => self.decide(state, Outcome::Won { token }),
                Step::Failed => self.decide(state, Outcome::Failed),
            }
            next = heard.pop().map(|(node, answer)| state.attempt.hear(node, answer, self.fleet.clock.now()));
        }
    }

    fn decide(&self, state: &mut State, outcome: Outcome) {
        state.outcome = Some(outcome);
        self.decided.notify_waiters();
    }

    /// Asks one node for its vote; with `spare` not if it lags behind. Returns an answer if there will be none.
    fn ask(self: &Arc<Self>, state: &mut State, node: usize, insist: bool, spare: bool) -> Option<Answer> {
        let insist = insist && !state.tried.contains(node);
        state.tried.insert(node);
        match self.fleet.reach(&self.line, node, self.fleet.clock.now(), insist) {
            Reach::Opening => {
                state.expected.insert(node);
                None
            }
            Reach::Down(verdict) => {
                state.verdicts[node] = Some(verdict);
                Some(Answer::Silent)
            }
            Reach::Up(link) if spare && link.keeps_up() == Some(false) => {
                let why = "it has not answered many earlier requests".to_owned();
                state.verdicts[node] = Some(Verdict::Unreachable { why });
                Some(Answer::Silent)
            }
            Reach::Up(link) => match self.fleet.put(self, &link) {
                Ok(()) => {
                    state.links[node] = Some(link);
                    None
                }
                Err(why) => {
                    state.verdicts[node] = Some(Verdict::Unreachable { why });
                    Some(Answer::Silent)
                }
            },
        }
    }

    fn note(self: &Arc<Self>, node: usize, answer: Answer, note: impl FnOnce(&mut State)) {
        let now = self.fleet.clock.now();
        let mut state = lock(&self.state);
        note(&mut state);
        state.heard_at = now;
        if state.round_trip.is_zero() {
            state.round_trip = now.since(self.sent);
        }
        let step = state.attempt.hear(node, answer, now);
        self.act(&mut state, step);
        if state.outcome == Some(Outcome::Failed) || !state.denials.is_empty() {
            self.decided.notify_waiters();
        }
    }

    /// Ends the attempt: nothing more is sent.
    pub(super) fn abandon(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let step = state.attempt.give_up();
        self.act(&mut state, step);
    }

    /// The connections over which nodes were asked.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.state).links.iter().flatten().cloned().collect()
    }

    pub(super) fn failure(&self) -> Failure {
        let state = lock(&self.state);
        let open =
            state.attempt.seats.iter().filter(|seat| **seat == Seat::Asked && !state.timed_out).count();
        let silent = state.attempt.asked().iter().filter(|&node| !voted(&state.verdicts[node])).count();
        Failure {
            denials: state.denials.clone(),
            granted: state.attempt.granted().len(),
            gated: state.attempt.gate.is_some(),
            silent: silent.saturating_sub(open),
            open,
            verdicts: state.verdicts(),
            round_trip: state.round_trip,
        }
    }

    /// Why no majority could vote.
    pub(super) fn no_majority(&self) -> Error {
        self.fleet.no_majority(lock(&self.state).verdicts())
    }

    /// Sends something while the attempt is not decided. Whoever gives it back has decided it before.
    fn while_open(&self, send: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let state = lock(&self.state);
        if state.outcome.is_some() {
            return Err("the attempt is over".to_owned());
        }
        send()
    }

    fn send_paper(&self, link: &Link, alone: bool, sent: Moment, call: Call) -> Result<(), String> {
        if sent >= self.give_up_at {
            return Err("its time is over".to_owned());
        }
        let numbers = [&*self.proposal, &self.not_after(link, sent)];
        self.paper.send(link, &self.fleet.config, numbers, alone, sent, call)
    }

    /// The latest that a node may act on a request of this attempt, by its own clock.
    fn not_after(&self, link: &Link, sent: Moment) -> String {
        let left = u64::try_from(self.give_up_at.since(sent).as_micros()).unwrap_or(u64::MAX);
        link.node.time(sent).saturating_add(left).to_string()
    }
}

impl Question for Ballot {
    fn script(&self) -> Script {
        self.paper.script()
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        self.send_paper(link, false, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        self.while_open(|| self.send_paper(link, true, sent, call))
    }

    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        match heard {
            Heard::Not(verdict) => {
                self.note(node, Answer::Silent, |state| state.verdicts[node] = Some(verdict))
            }
            Heard::Reply(Value::Int(value)) => {
                let value = u64::try_from(value).unwrap_or(0);
                self.note(node, Answer::Granted(value), |state| {
                    state.verdicts[node] = Some(Verdict::Granted)
                });
            }
            Heard::Reply(reply) => {
                let denial = Denial::read(&reply);
                let by = self.paper.holder(&denial).to_string();
                self.note(node, Answer::Denied, |state| {
                    state.verdicts[node] = Some(Verdict::Held { by });
                    state.denials.push(denial);
                });
            }
        }
    }
}

fn voted(verdict: &Option<Verdict>) -> bool {
    matches!(verdict, Some(Verdict::Granted | Verdict::Held { .. }))
}

/// The second round of a ballot: asks nodes that granted with a smaller counter to confirm the token.
struct Confirmation {
    ballot: Arc<Ballot>,
    token: u64,
}

impl Question for Confirmation {
    fn script(&self) -> Script {
        Script::Hold
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        let ballot = &self.ballot;
        let (paper, config) = (&ballot.paper, &ballot.fleet.config);
        let token = self.token.to_string();
        let keys = [config.node_key.as_str(), paper.keys.lock(), paper.keys.counter()];
        let not_after = ballot.not_after(link, sent);
        let arguments = [&*link.votes, &not_after, "confirm", &paper.value, &paper.px, &token];
        link.eval(Script::Hold, &keys, &arguments, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        self.ballot.while_open(|| self.send(link, sent, call))
    }

    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let confirmed = matches!(
            &heard,
            Heard::Reply(reply) if matches!(reply.as_list(), Some([_, Value::Int(1)]))
        );
        let answer = if confirmed { Answer::Confirmed(self.token) } else { Answer::Refused(self.token) };
        self.ballot.note(node, answer, |state| match heard {
            Heard::Not(verdict) => state.verdicts[node] = Some(verdict),
            Heard::Reply(_) if confirmed => {}
            Heard::Reply(_) => {
                let by = "another attempt since".to_owned();
                state.verdicts[node] = Some(Verdict::Held { by });
            }
        });
    }
}
