//! Takes each step on the real server and on the model, and compares.

use fencepost_model::node::{
    self, Greet, How, Keys, Life, Mode, NODE, Node, Refusal, Verdict, Vote, WrongType,
};
use fencepost_testkit::redis::Reply;

use crate::real::{self, Found, HEARD, Real, Script, UNHEARD};
use crate::step::{Ask, BOUND, Hold, Move, NAMES, NodeKey, QUARANTINES, Step, TTLS};

const START: u64 = 1_760_000_000_000_000;
/// What the clock moves with each step, in microseconds.
const TICK: u64 = 777;
/// No key is left with less than this, in milliseconds, so that none ends by itself.
const ENOUGH: i64 = 30_000;
/// What model and server may differ by for rounding and ticks, in milliseconds.
const ROUNDING: i64 = 100;

pub(crate) struct Comparison<'a> {
    real: Real<'a>,
    node: Node,
    life: Life,
    now: u64,
    keys: [Keys; 2],
    told: String,
}

/// What a step came to: replies of both, and all keys of the server.
type Both = (Reply, Reply, Vec<Found>);

impl<'a> Comparison<'a> {
    pub(crate) fn new(real: Real<'a>) -> Self {
        let mut node = Node::default();
        node.listeners.insert(HEARD.to_owned());
        let life = Life { run: real.run_id() };
        Self { real, node, life, now: START, keys: NAMES.map(Keys::of), told: String::new() }
    }

    /// Whether a key can have ended that the model still has.
    pub(crate) fn took_too_long(&self) -> bool {
        self.real.elapsed() > ENOUGH - 2 * ROUNDING
    }

    pub(crate) fn take(&mut self, step: &Step) -> Result<(), String> {
        self.now += TICK;
        self.node.store.at(self.now / 1000);
        let (expected, reply, found) = self.both(step);
        if !same_reply(&expected, &reply, self.real.elapsed()) {
            return Err(format!("{step:?}\n  model  {expected:?}\n  server {reply:?}"));
        }
        self.compare_keys(&found).map_err(|difference| format!("{step:?}: {difference}"))
    }

    pub(crate) fn compare_messages(&mut self) -> Result<(), String> {
        let heard = self.real.heard();
        if heard == self.told { Ok(()) } else { Err(format!("told {:?}, heard {heard:?}", self.told)) }
    }

    fn both(&mut self, step: &Step) -> Both {
        match step {
            Step::Turn { right_node, moves } => self.turn(*right_node, moves),
            Step::Revoke(ask, reason) => self.revoke(ask, *reason),
            Step::Hold { right_node, not_after, mode, locks } => {
                self.hold(*right_node, *not_after, *mode, locks)
            }
            Step::Attach(hold, to, right_node, not_after) => self.attach(hold, *to, *right_node, *not_after),
            Step::Greet { max_ttl, quarantine, members, how } => {
                self.greet(TTLS[*max_ttl], QUARANTINES[*quarantine], ["abcd", "0123"][*members], *how)
            }
            other => {
                self.disturb(other);
                let (_, found) = self.real.call(Script::Look, &[], &[], self.now);
                (Reply::Nil, Reply::Nil, found)
            }
        }
    }

    fn turn(&mut self, right_node: bool, moves: &[Move]) -> Both {
        let node = self.node_key(right_node);
        let (mut on, mut args, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for one in moves {
            expected.push(match one {
                Move::Take(ask, waiter) => self.take_lock(ask, *waiter, &node, &mut on, &mut args),
                Move::GiveBack { name, owner, wake, entry } => {
                    self.give_back(*name, *owner, *wake, *entry, &mut on, &mut args)
                }
                Move::PutBack { name, owner, before } => {
                    self.put_back(*name, *owner, *before, &mut on, &mut args)
                }
            });
        }
        if moves.iter().any(|one| matches!(one, Move::Take(..))) {
            on.push(NODE.to_owned());
            args.extend([node, BOUND.to_string()]);
        }
        let on: Vec<_> = on.iter().map(String::as_str).collect();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let (reply, found) = self.real.call(Script::Ops, &on, &args, self.now);
        let expected = if moves.len() == 1 { expected.remove(0) } else { Reply::List(expected) };
        (expected, reply, found)
    }

    /// Does it in the model; says what to ask the server for.
    fn take_lock(
        &mut self,
        ask: &Ask,
        waiter: Option<usize>,
        node: &str,
        on: &mut Vec<String>,
        args: &mut Vec<String>,
    ) -> Reply {
        let (keys, value, entry) = (self.keys[ask.name].clone(), value(ask.owner), waiter.map(entry));
        let request = self.request(ask, &value, node);
        let expected = self.node.acquire(self.now, &keys, &request, entry.as_deref());
        let Numbers { ttl, proposal, not_after, .. } = Numbers::of(&request);
        on.extend([keys.lock, keys.fence]);
        args.extend(entry.is_some().then(|| "line".to_owned()));
        args.extend([ttl, value, proposal, not_after]);
        if let Some(entry) = entry {
            on.push(keys.queue);
            args.push(entry);
        }
        vote(expected)
    }

    fn give_back(
        &mut self,
        name: usize,
        owner: usize,
        wake: bool,
        waiter: Option<usize>,
        on: &mut Vec<String>,
        args: &mut Vec<String>,
    ) -> Reply {
        let (keys, value, entry) = (self.keys[name].clone(), value(owner), waiter.map(entry));
        let expected = match self.node.release(self.now, &keys, &value, wake, entry.as_deref()) {
            Err(WrongType) => wrong_type(),
            Ok((ours, message)) => {
                self.tell(message);
                number(u64::from(ours))
            }
        };
        on.extend([keys.lock, keys.queue]);
        if wake && entry.is_none() {
            args.extend(["free".to_owned(), value]);
        } else {
            let word = if wake { "wake" } else { "quiet" };
            args.extend(["leave".to_owned(), value, entry.unwrap_or_default(), word.to_owned()]);
        }
        expected
    }

    fn put_back(
        &mut self,
        name: usize,
        owner: usize,
        before: usize,
        on: &mut Vec<String>,
        args: &mut Vec<String>,
    ) -> Reply {
        let (keys, value, before) = (self.keys[name].clone(), value(owner), value(before));
        let expected = match self.node.put_back(self.now, &keys, &value, &before) {
            Err(WrongType) => wrong_type(),
            Ok(ours) => number(u64::from(ours)),
        };
        on.extend([keys.lock, keys.queue]);
        args.extend(["back".to_owned(), value, before]);
        expected
    }

    fn revoke(&mut self, ask: &Ask, reason: usize) -> Both {
        let (keys, victim, node) =
            (self.keys[ask.name].clone(), value(ask.owner), self.node_key(ask.right_node));
        let ours = format!("!{victim}\nreason {reason}");
        let request = self.request(ask, &ours, &node);
        let channel = [HEARD, UNHEARD][ask.owner % 2];
        let message = (channel.to_owned(), "revoked".to_owned());
        let expected = self.node.revoke(self.now, &keys, &victim, &request, message);
        let expected = expected.map(|(vote, message)| {
            self.tell(message);
            vote
        });
        let numbers = Numbers::of(&request);
        let args = [
            &*node,
            &numbers.not_after,
            &victim,
            &ours,
            &numbers.ttl,
            &numbers.proposal,
            &numbers.bound,
            channel,
            "revoked",
        ];
        let (reply, found) =
            self.real.call(Script::Revoke, &[NODE, &keys.lock, &keys.fence], &args, self.now);
        (vote(expected), reply, found)
    }

    fn hold(&mut self, right_node: bool, not_after: i64, mode: Mode, locks: &[Hold]) -> Both {
        let node = self.node_key(right_node);
        let limit = self.now.saturating_add_signed(not_after);
        let values: Vec<_> = locks.iter().map(|lock| value(lock.owner)).collect();
        let tokens: Vec<_> = locks.iter().map(|lock| self.token(lock)).collect();
        let keys = self.keys.clone();
        let wanted: Vec<_> = (locks.iter().zip(&values).zip(&tokens))
            .map(|((lock, value), token)| node::Held {
                keys: &keys[lock.name],
                value,
                ttl: TTLS[lock.ttl],
                token: *token,
            })
            .collect();
        let expected = match self.node.hold(self.now, &node, limit, mode, &wanted) {
            Err(WrongType) => wrong_type(),
            Ok(Err(refusal)) => refused(refusal),
            Ok(Ok(verdicts)) => {
                let verdicts = verdicts.into_iter().map(|verdict| match verdict {
                    Verdict::Kept => Reply::Number(1),
                    Verdict::Gone => Reply::Number(0),
                    Verdict::Passed => Reply::Number(2),
                    Verdict::Other(holder) => Reply::Text(holder),
                });
                Reply::List([number(self.now)].into_iter().chain(verdicts).collect())
            }
        };
        let mode = match mode {
            Mode::Confirm => "confirm",
            Mode::Extend => "extend",
            Mode::Repair => "mend",
        };
        let mut args = vec![node.clone(), limit.to_string(), mode.to_owned()];
        let mut on = vec![NODE];
        for held in &wanted {
            on.extend([&*held.keys.lock, &held.keys.fence]);
            args.extend([held.value.to_owned(), held.ttl.to_string(), held.token.to_string()]);
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let (reply, found) = self.real.call(Script::Hold, &on, &args, self.now);
        (expected, reply, found)
    }

    fn attach(&mut self, lock: &Hold, to: usize, right_node: bool, not_after: i64) -> Both {
        let (limit, node) = (self.now.saturating_add_signed(not_after), self.node_key(right_node));
        let (keys, from, to, ttl) =
            (self.keys[lock.name].clone(), value(lock.owner), value(to), TTLS[lock.ttl]);
        let expected = match self.node.attach(self.now, &keys, (&node, limit), (&from, &to), ttl) {
            Err(WrongType) => wrong_type(),
            Ok(Err(refusal)) => refused(refusal),
            Ok(Ok(Ok(counter))) => number(counter),
            Ok(Ok(Err(other))) => Reply::List(vec![Reply::Text(other)]),
        };
        let args = [&*node, &limit.to_string(), &from, &to, &ttl.to_string()];
        let (reply, found) =
            self.real.call(Script::Attach, &[NODE, &keys.lock, &keys.fence], &args, self.now);
        (expected, reply, found)
    }

    fn greet(&mut self, max_ttl: u64, quarantine: u64, members: &str, how: How) -> Both {
        let greet = Greet { max_ttl, quarantine, members, how };
        let expected = match self.node.greet(self.now, &self.life, &greet) {
            Err(WrongType) => wrong_type(),
            Ok(greeted) => Reply::List(vec![
                Reply::Text(self.life.run.clone()),
                Reply::Text(greeted.node),
                number(greeted.now),
            ]),
        };
        let how = match how {
            How::Meet => "meet",
            How::Found => "found",
            How::Reform => "reform",
            How::Look => "look",
        };
        let args = [&*max_ttl.to_string(), &quarantine.to_string(), members, how];
        let (reply, found) = self.real.call(Script::Greet, &[NODE], &args, self.now);
        (expected, reply, found)
    }

    /// What is done to the keys without any script.
    fn disturb(&mut self, step: &Step) {
        match step {
            Step::SetNode(key) => {
                let text = self.other_node_key(*key);
                self.node.store.set(NODE, &text);
                self.real.command(&["SET", NODE, &text]);
            }
            Step::Foreign(name) => {
                self.node.store.set(&self.keys[*name].lock, "a stranger");
                self.real.command(&["SET", &self.keys[*name].lock, "a stranger"]);
            }
            Step::Alien(name, true) => {
                let key = &self.keys[*name].queue;
                self.node.store.set(key, "a text");
                self.real.command(&["SET", key, "a text"]);
            }
            Step::Alien(name, false) => {
                let key = &self.keys[*name].lock;
                self.node.store.del(key);
                self.node.store.rpush(key, "a list").expect("it was deleted");
                self.real.command(&["DEL", key]);
                self.real.command(&["RPUSH", key, "a list"]);
            }
            Step::Delete(name, which) => {
                let keys = &self.keys[*name];
                let key = [&*keys.lock, &keys.fence, &keys.queue, NODE][*which];
                self.node.store.del(key);
                self.real.command(&["DEL", key]);
            }
            Step::Elapse(time) => self.elapse(*time),
            Step::Flush => {
                self.node.store.flush();
                self.real.command(&["FLUSHALL"]);
            }
            _ => unreachable!("a step without a script"),
        }
    }

    /// Lets time pass, and as much more as ends every key that would be left with little.
    fn elapse(&mut self, mut time: u64) {
        let left: Vec<_> = self.node.store.all().map(|(key, _, left)| (key.to_owned(), left)).collect();
        let signed = |time: u64| i64::try_from(time).expect("a short time");
        while let Some((_, short)) =
            left.iter().find(|(_, left)| (0..ENOUGH).contains(&(left - signed(time))))
        {
            time = u64::try_from(*short).expect("a key with an end") + 1;
        }
        for (key, left) in left.iter().filter(|(_, left)| *left >= 0) {
            let rest = left - signed(time);
            self.real.command(&["PEXPIRE", key, &rest.to_string()]);
        }
        self.now += time * 1000;
        self.node.store.at(self.now / 1000);
    }

    fn compare_keys(&self, found: &[Found]) -> Result<(), String> {
        let expected: Vec<Found> = self
            .node
            .store
            .all()
            .map(|(key, value, left)| {
                let value = match value {
                    node::Value::Text(text) => Reply::Text(text.clone()),
                    node::Value::List(list) => Reply::List(list.iter().cloned().map(Reply::Text).collect()),
                };
                (key.to_owned(), value, left)
            })
            .collect();
        let same = |(key, value, left): &Found, (real_key, real_value, real_left): &Found| {
            key == real_key && value == real_value && same_end(*left, *real_left, self.real.elapsed())
        };
        let all = expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| same(a, b));
        if all { Ok(()) } else { Err(format!("\n  model  {expected:?}\n  server {found:?}")) }
    }

    fn request<'r>(&self, ask: &Ask, value: &'r str, node: &'r str) -> node::Ask<'r> {
        node::Ask {
            value,
            ttl: TTLS[ask.ttl],
            proposal: self.now.saturating_add_signed(ask.proposal),
            bound: BOUND.unsigned_abs(),
            node,
            not_after: self.now.saturating_add_signed(ask.not_after),
        }
    }

    fn node_key(&mut self, right: bool) -> String {
        let key = self.node.store.get(NODE).expect("the node key is a text").unwrap_or_default().to_owned();
        if right { key } else { "ffff 1 1 nobody".to_owned() }
    }

    fn other_node_key(&self, key: NodeKey) -> String {
        let run = &self.life.run;
        match key {
            NodeKey::OtherRun => "0badcafe 70000 2000 abcd".to_owned(),
            NodeKey::OtherRunInQuarantine => format!("0badcafe 70000 2000 abcd {}", self.now - 5),
            NodeKey::Quarantine(left) => {
                format!("{run} 70000 2000 abcd {}", self.now.saturating_add_signed(left) + TICK)
            }
            NodeKey::Garbage => format!("{run} 70000 2000"),
        }
    }

    /// A token near the counter.
    fn token(&mut self, lock: &Hold) -> u64 {
        let counter = self.node.store.get(&self.keys[lock.name].fence).expect("a counter is a text");
        let counter = counter.map_or(self.now, |counter| counter.parse().expect("a number"));
        counter.saturating_add_signed(lock.token)
    }

    fn tell(&mut self, message: Option<node::Message>) {
        if let Some((channel, text)) = message {
            assert_eq!(channel, HEARD);
            self.told += &real::message(&text);
        }
    }
}

/// The numbers of a request as text.
struct Numbers {
    ttl: String,
    proposal: String,
    not_after: String,
    bound: String,
}

impl Numbers {
    fn of(ask: &node::Ask<'_>) -> Self {
        Self {
            ttl: ask.ttl.to_string(),
            proposal: ask.proposal.to_string(),
            not_after: ask.not_after.to_string(),
            bound: ask.bound.to_string(),
        }
    }
}

fn owner(index: usize) -> String {
    format!("{index:0>36}")
}

fn value(index: usize) -> String {
    owner(index) + " a record"
}

fn entry(waiter: usize) -> String {
    format!("{} waiter {waiter}", [HEARD, UNHEARD, HEARD][waiter])
}

fn number(number: u64) -> Reply {
    Reply::Number(i64::try_from(number).expect("below 2^63"))
}

fn refused(refusal: Refusal) -> Reply {
    let (word, what) = match refusal {
        Refusal::Node(node) => ("NODE", Reply::Text(node)),
        Refusal::Late(now) => ("LATE", number(now)),
    };
    Reply::List(vec![Reply::Text(word.to_owned()), what])
}

fn wrong_type() -> Reply {
    Reply::Error("WRONGTYPE".to_owned())
}

fn vote(vote: Result<Vote, WrongType>) -> Reply {
    match vote {
        Err(WrongType) => wrong_type(),
        Ok(Vote::Granted(counter)) => number(counter),
        Ok(Vote::Held { holder, left, counter, now }) => Reply::List(vec![
            Reply::Text("HELD".to_owned()),
            Reply::Text(holder),
            Reply::Number(left),
            number(counter),
            number(now),
        ]),
        Ok(Vote::Not(refusal)) => refused(refusal),
    }
}

/// Equal, but for the time that a key has left.
fn same_reply(expected: &Reply, reply: &Reply, elapsed: i64) -> bool {
    match (expected, reply) {
        (Reply::Error(expected), Reply::Error(error)) => error.contains(expected.as_str()),
        (Reply::List(expected), Reply::List(real)) if held(expected) && held(real) => {
            let left = |list: &[Reply]| match list[2] {
                Reply::Number(left) => left,
                _ => panic!("not a time: {list:?}"),
            };
            let rest = |list: &[Reply]| [&list[..2], &list[3..]].concat();
            rest(expected) == rest(real) && same_end(left(expected), left(real), elapsed)
        }
        (Reply::List(expected), Reply::List(real)) => {
            let mut pairs = expected.iter().zip(real);
            expected.len() == real.len() && pairs.all(|(expected, real)| same_reply(expected, real, elapsed))
        }
        _ => expected == reply,
    }
}

fn held(list: &[Reply]) -> bool {
    list.first() == Some(&Reply::Text("HELD".to_owned()))
}

/// The server's key may be closer to its end by the time that the test took, and no more.
fn same_end(model: i64, real: i64, elapsed: i64) -> bool {
    if model < 0 { model == real } else { (model - elapsed - ROUNDING..=model + ROUNDING).contains(&real) }
}
