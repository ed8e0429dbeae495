//! The event queue, and who gets each event.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::node::Keys;

use super::client::{Client, Doing};
use super::clock::Clock;
use super::message::{Packet, Reply, Tag};
use super::plan::{Clocks, Plan};
use super::promises::{Kept, Promises};
use super::random::Random;
use super::rules::Rules;
use super::server::Server;
use super::sights::{Sight, Sights};

#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrive(Packet),
    Answer {
        client: usize,
        node: usize,
        connection: u64,
        tag: Tag,
        sent: u64,
        reply: Reply,
    },
    Push {
        client: usize,
        node: usize,
        connection: u64,
        text: String,
    },
    /// A client learns that a connection has ended.
    Cut {
        client: usize,
        node: usize,
        connection: u64,
    },
    Timer {
        client: usize,
        life: u32,
        timer: Timer,
    },
    Fault,
    Stop,
}

/// What a client has set an alarm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    Begin,
    /// The time of an attempt is over.
    GiveUp(u64),
    Retry(u64),
    Deadline(u64),
    /// Of a guard.
    Extend(u64),
    /// Of a round of a guard.
    RoundOver(u64, u64),
    Expire(u64),
    Release(u64),
    Undo(u64),
}

struct Scheduled {
    time: u64,
    order: u64,
    /// Apart, because the queue moves what is in it.
    event: Box<Event>,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rules: Rules,
    pub(super) random: Random,
    /// True time.
    pub(super) now: u64,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
    pub(super) keys: Vec<Keys>,
    pub(super) promises: Promises,
    pub(super) sights: Sights,
    /// What happened, if anybody wants to read it.
    pub(super) log: Option<Vec<String>>,
    /// The first promise that was not kept.
    pub(super) broken: Option<String>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    ids: u64,
}

/// Writes a line to the log, if there is one.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.log.is_some() {
            let text = format!($($text)*);
            $world.write(text);
        }
    };
}
pub(super) use note;

impl World {
    pub(super) fn new(seed: u64, rules: Rules, logged: bool, change: impl FnOnce(&mut Plan)) -> Self {
        let mut random = Random::new(seed);
        let mut plan = Plan::draw(&mut random);
        change(&mut plan);
        let servers = (0..plan.nodes).map(|node| Server::new(node, server_clock(&plan, &mut random), &plan));
        let servers = servers.collect();
        let clients = (0..plan.clients).map(|_| new_client(&plan, &mut random)).collect();
        let keys = ["a", "b", "c"].iter().take(plan.locks).map(|name| Keys::of(name)).collect();
        let promises = Promises::new(&plan);
        let mut world = Self {
            rules,
            random,
            now: 0,
            servers,
            clients,
            keys,
            promises,
            sights: Sights::default(),
            log: logged.then(Vec::new),
            broken: None,
            queue: BinaryHeap::new(),
            order: 0,
            ids: 0,
            plan,
        };
        note!(world, "seed {seed}: {:?}", world.plan);
        world.begin();
        world
    }

    fn begin(&mut self) {
        for client in 0..self.clients.len() {
            let pause = self.random.within(0..self.plan.ttl);
            self.alarm(client, pause, Timer::Begin);
        }
        if !self.plan.faults.is_empty() {
            self.at(self.plan.calm, Event::Fault);
        }
        self.at(self.plan.duration, Event::Stop);
    }

    /// Runs to the end, or to the first broken promise.
    pub(super) fn run(&mut self) {
        while self.broken.is_none() {
            let Some(Reverse(Scheduled { time, order, event })) = self.queue.pop() else { break };
            self.now = time;
            if let Some(later) = self.put_off(&event) {
                // In its old place among the rest, so that nothing overtakes it.
                self.queue.push(Reverse(Scheduled { time: later, order, event }));
                continue;
            }
            self.dispatch(*event);
            if self.plan.is_quiet() && self.all_done() {
                break;
            }
        }
        if self.broken.is_none() {
            self.broken = self.left_at_the_end();
        }
    }

    /// Everybody has had the lock often enough, and has given it back.
    fn all_done(&self) -> bool {
        self.clients.iter().all(|client| {
            client.wins >= WINS && matches!(client.doing, Doing::Nothing) && client.undos.is_empty()
        })
    }

    /// Until when nobody takes an event: the node or the client stands still.
    fn put_off(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Arrive(packet) => self.servers[packet.node].frozen_until,
            Event::Answer { client, .. }
            | Event::Push { client, .. }
            | Event::Cut { client, .. }
            | Event::Timer { client, .. } => self.clients[*client].paused_until,
            Event::Fault | Event::Stop => 0,
        };
        (until > self.now).then_some(until)
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Answer { client, node, connection, tag, sent, reply } => {
                self.answer(client, node, connection, tag, sent, reply);
            }
            Event::Push { client, node, connection, text } => {
                if self.is_open(client, node, connection) {
                    self.push(client, &text);
                }
            }
            Event::Cut { client, node, connection } => {
                if self.clients[client].links[node].connection == connection {
                    self.close(client, node);
                }
            }
            Event::Timer { client, life, timer } => {
                if self.clients[client].life == life {
                    self.timer(client, timer);
                }
            }
            Event::Fault => self.fault(),
            Event::Stop => self.stop(),
        }
    }

    fn timer(&mut self, client: usize, timer: Timer) {
        match timer {
            Timer::Begin => self.begin_something(client),
            Timer::GiveUp(trial) => self.give_up(client, trial),
            Timer::Retry(wait) => self.retry(client, wait),
            Timer::Deadline(wait) => self.deadline(client, wait),
            Timer::Extend(guard) => self.extend(client, guard),
            Timer::RoundOver(guard, round) => self.end_round(client, guard, round),
            Timer::Expire(guard) => self.expire(client, guard),
            Timer::Release(guard) => self.release(client, guard),
            Timer::Undo(undo) => self.retry_undo(client, undo),
        }
    }

    /// Some clients stop at once, others finish what they do.
    fn stop(&mut self) {
        note!(self, "stop");
        let quiet = self.plan.is_quiet();
        for client in 0..self.clients.len() {
            self.clients[client].stopping = true;
            if !quiet && self.random.chance(0.5) {
                self.crash(client);
            } else {
                self.finish(client);
            }
        }
    }

    /// What should not be there when everybody has stopped and everything has ended that has an end.
    fn left_at_the_end(&mut self) -> Option<String> {
        for (index, client) in self.clients.iter().enumerate() {
            if !matches!(client.doing, Doing::Nothing) {
                return Some(format!("WAIT: client {index} never comes to an end: {:?}", client.doing));
            }
            if self.plan.is_quiet() && client.wins < WINS {
                return Some(format!("PROGRESS: client {index} won {} times", client.wins));
            }
        }
        // Where nothing went wrong, all was given back; else it ends by itself.
        let wait = if self.plan.is_quiet() { 0 } else { 60_000_000 + self.plan.ttl + self.plan.quarantine };
        let steady = self.plan.clocks != Clocks::Wild;
        let end = self.now + wait + if steady { 0 } else { 3 * WILD.unsigned_abs() };
        self.servers.iter_mut().enumerate().find_map(|(index, server)| {
            server.leftover(end).map(|key| format!("LEFT: {key} on node {index}"))
        })
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { time, order: self.order, event: Box::new(event) }));
    }

    /// Sets an alarm by a client's clock.
    pub(super) fn alarm(&mut self, client: usize, after: u64, timer: Timer) {
        let Client { clock, life, .. } = self.clients[client];
        let time = clock.when(clock.at(self.now) + after);
        self.at(time, Event::Timer { client, life, timer });
    }

    /// What a client's clock shows.
    pub(super) fn local(&self, client: usize) -> u64 {
        self.clients[client].clock.at(self.now)
    }

    pub(super) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn see(&mut self, sight: Sight) {
        self.sights.see(sight);
    }

    pub(super) fn check(&mut self, kept: Kept) {
        if let Err(broken) = kept {
            note!(self, "{broken}");
            self.broken.get_or_insert(broken);
        }
    }

    pub(super) fn write(&mut self, text: String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:>6}.{:03} {text}", now / 1000, now % 1000));
        }
    }
}

/// How often everybody gets a lock where nothing goes wrong.
pub(super) const WINS: u32 = 3;
/// How wrong a wild clock can be.
pub(super) const WILD: i64 = 600_000_000;
/// Microseconds a second: what a clock may gain or lose.
const RATE: i64 = 2000;

fn server_clock(plan: &Plan, random: &mut Random) -> Clock {
    let error = match plan.clocks {
        Clocks::Good | Clocks::Stepping => random.around(plan.steady_error()),
        Clocks::Wild => random.around(WILD),
    };
    let rate = if plan.clocks == Clocks::Wild { 20 * RATE } else { RATE };
    Clock::new(error, random.around(rate))
}

fn new_client(plan: &Plan, random: &mut Random) -> Client {
    const YEAR: i64 = 365 * 86_400 * 1_000_000;
    // A few are ahead and drive the counters to the bound; between them the rest counts up by ones.
    let years = if random.chance(0.2) { 10 * YEAR } else { -10 * YEAR };
    let wild = (plan.wild_proposals && random.chance(0.5)).then_some(years);
    let clock = Clock::new(random.around(YEAR), random.around(RATE));
    Client::new(clock, wild, plan.nodes, plan.locks)
}
