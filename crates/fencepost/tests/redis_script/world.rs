//! Random calls of random steps on a real server, each compared with the model.

use std::collections::{BTreeMap, HashSet, VecDeque};

use fencepost_testkit::eventually;
use fencepost_testkit::redis::Server;

use crate::link::{Link, Reply};
use crate::model::{Call, Fence, Holder, LIMIT, Name, Span, Step, Verdict};

/// The last one tries what a name in an error does to the reply.
const NAMES: [&str; 3] = ["a", "b c", "d\r\ne"];

/// Numbers that look like chance and are the same each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }

    fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| format!("{:x}", self.roll(16))).collect()
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }
}

/// A process: a link that listens to its channel.
struct Process {
    channel: String,
    link: Link,
}

pub(crate) struct World {
    server: Server,
    link: Link,
    /// Users without the right to count listeners, and to publish.
    cannot_count: Link,
    cannot_publish: Link,
    /// Listens to all channels, which must not make a waiter look alive.
    listener: Link,
    processes: Vec<Process>,
    names: Vec<Name>,
    /// Entries that were used, by name.
    entries: Vec<Vec<String>>,
    last: Vec<Step>,
    dice: Dice,
    hash: String,
    steps: BTreeMap<&'static str, usize>,
}

fn keys(name: usize) -> [String; 3] {
    let lock = format!("lock:{}", NAMES[name]);
    [lock.clone(), format!("{{{lock}}}:fence"), format!("{{{lock}}}:waiting")]
}

impl World {
    pub(crate) fn new(script: &str, seed: u64) -> Self {
        let server = Server::start();
        let mut link = Link::open(&server);
        let hash = link.call(&["SCRIPT", "LOAD", script]).text().to_owned();
        for (user, rights) in [("uncounted", "-pubsub"), ("unheard", "+pubsub")] {
            let words = ["ACL", "SETUSER", user, "on", ">secret", "~*", "resetchannels", "+@all", rights];
            assert_eq!(link.call(&words), Reply::Text("OK".into()));
        }
        let mut world = Self {
            cannot_count: Link::open_as(&server, "uncounted"),
            cannot_publish: Link::open_as(&server, "unheard"),
            listener: Link::listening(&server, "PSUBSCRIBE", "*"),
            processes: Vec::new(),
            names: vec![Name::new(); NAMES.len()],
            entries: vec![Vec::new(); NAMES.len()],
            last: Vec::new(),
            dice: Dice(seed),
            hash,
            steps: BTreeMap::new(),
            server,
            link,
        };
        (0..4).for_each(|_| world.start_process());
        world
    }

    /// Goes on for so many calls, then lets everybody leave. The first difference from the model ends it.
    pub(crate) fn run(mut self, calls: usize) -> Verdict<BTreeMap<&'static str, usize>> {
        for number in 0..calls {
            let what = self.turn().and_then(|()| self.compare());
            what.map_err(|error| format!("call {number}: {error}"))?;
        }
        self.leave_nothing()?;
        Ok(self.steps)
    }

    fn turn(&mut self) -> Verdict {
        let name = self.dice.roll(NAMES.len());
        let [lock, fence, queue] = keys(name);
        match self.dice.roll(100) {
            0..=84 => {
                let steps = self.some_steps();
                self.call(&steps, Rights::All)?;
            }
            85..=86 => {
                self.link.call(&["DEL", &lock]);
                self.names[name].holder = Holder::Nobody;
            }
            87..=88 if self.names[name].holder == Holder::Nobody => {
                let value = format!("host {} x", self.dice.hex(6));
                let forever = self.dice.roll(2) == 0;
                let until = self.now() / 1000 + 50_000;
                match forever {
                    true => self.link.call(&["SET", &lock, &value]),
                    false => self.link.call(&["SET", &lock, &value, "PX", "50000"]),
                };
                self.names[name].until = (!forever).then(|| (until, self.now() / 1000 + 50_001));
                self.names[name].holder = Holder::Foreign(value);
            }
            89..=91 => {
                let place = self.dice.roll(self.processes.len());
                let dead = self.processes.remove(place).channel;
                eventually("the server sees that a process is gone", || {
                    self.link.call(&["PUBSUB", "NUMSUB", &dead]).list()[1] == Reply::Number(0)
                });
                self.start_process();
            }
            92..=93 => {
                // The clock was ahead, and went back.
                let token = self.now() + *self.dice.one(&[0_u64, 5_000, 10_000_000, 10_000_000_000]);
                if matches!(self.names[name].fence, Fence::Token { token: last, .. } if last >= token) {
                    return Ok(());
                }
                self.set_fence(name, token);
            }
            94 => {
                self.link.call(&["DEL", &fence]);
                self.names[name].fence = Fence::Missing;
            }
            95 => {
                self.link.call(&["DEL", &fence]);
                self.link.call(&["RPUSH", &fence, "x"]);
                self.names[name].fence = Fence::OfAnotherType;
                self.few_steps_on(name)?;
                self.link.call(&["DEL", &fence]);
                self.names[name].fence = Fence::Missing;
            }
            96 => {
                let token = *self.dice.one(&[LIMIT - 1, LIMIT, 10_000_000_000_000_000]);
                self.set_fence(name, token);
                self.few_steps_on(name)?;
                self.link.call(&["DEL", &fence]);
                self.names[name].fence = Fence::Missing;
            }
            97 => {
                self.link.call(&["SET", &queue, "x"]);
                self.names[name].queue = None;
                self.few_steps_on(name)?;
                self.link.call(&["DEL", &queue]);
                self.names[name].queue = Some(VecDeque::new());
            }
            _ => {
                let step = self.step_on(name);
                let rights = if self.dice.roll(2) == 0 { Rights::NoCount } else { Rights::NoPublish };
                self.call(&[step], rights)?;
            }
        }
        Ok(())
    }

    fn few_steps_on(&mut self, name: usize) -> Verdict {
        for _ in 0..4 {
            let steps = [self.step_on(name), self.step_on((name + 1) % NAMES.len())];
            self.call(&steps, Rights::All)?;
            self.compare()?;
        }
        Ok(())
    }

    fn set_fence(&mut self, name: usize, token: u64) {
        let until = token / 1000 + crate::model::FENCE_MS;
        self.link.call(&["SET", &keys(name)[1], &token.to_string(), "PXAT", &until.to_string()]);
        self.names[name].fence = Fence::Token { token, channel: None };
        self.names[name].fence_until = (until, until);
    }

    fn start_process(&mut self) {
        let channel = self.dice.hex(16);
        self.processes.push(Process { link: Link::listening(&self.server, "SUBSCRIBE", &channel), channel });
    }

    fn new_entry(&mut self, name: usize) -> String {
        let channel = self.processes[self.dice.roll(self.processes.len())].channel.clone();
        let id: Vec<_> = [8, 4, 4, 4, 12].iter().map(|digits| self.dice.hex(*digits)).collect();
        let entry =
            format!(r#"{} {channel} {{"host":"h 1","note":"! {}"}}"#, id.join("-"), self.dice.roll(99));
        self.entries[name].push(entry.clone());
        entry
    }

    fn some_steps(&mut self) -> Vec<Step> {
        let count = *self.dice.one(&[1, 1, 1, 2, 5, 16]);
        (0..count)
            .map(|_| {
                let name = self.dice.roll(NAMES.len());
                self.step_on(name)
            })
            .collect()
    }

    fn step_on(&mut self, name: usize) -> Step {
        if self.dice.roll(20) == 0 && !self.last.is_empty() {
            // The same request once more.
            return self.dice.one(&self.last).clone();
        }
        let of = &self.names[name];
        let value = of.value().unwrap_or_default();
        let (holder, token) = match &of.holder {
            Holder::Ours { entry, token, .. } => (Some(entry.clone()), *token),
            _ => (None, 0),
        };
        let known = self.entries[name].len();
        let entry = match holder {
            Some(entry) if self.dice.roll(2) == 0 => entry,
            _ if known == 0 => self.new_entry(name),
            // Recent ones are more likely to stand in the queue.
            _ => self.entries[name][known - 1 - self.dice.roll(known.min(12))].clone(),
        };
        let token = if self.dice.roll(5) == 0 { token.wrapping_sub(1) } else { token };
        let grant = format!("{} {token}", &entry[..36]);
        let reason = (*self.dice.one(&["stuck", "two\nlines", ""])).to_owned();
        let stale = self.dice.roll(4) == 0;
        let (verb, who, argument) = match self.dice.roll(100) {
            0..=29 => {
                (*self.dice.one(&["wait", "wait", "wait", "try"]), self.new_entry(name), "30000".into())
            }
            30..=44 => {
                let verb = *self.dice.one(&["again", "again 0", "again 1", "again 4"]);
                (verb, entry, "30000".into())
            }
            45..=49 => (*self.dice.one(&["wait", "try"]), entry, "30000".into()),
            50..=68 => ("free", grant, "-".into()),
            69..=76 => ("leave", entry, "-".into()),
            77..=83 => ("renew", grant, (*self.dice.one(&["100", "40000", "90000"])).into()),
            84..=88 => ("attach", format!("{grant}\n{}", self.new_entry(name)), "40000".into()),
            89..=93 => ("ask", if stale { format!("{value}0") } else { value }, reason),
            _ => {
                let value = if stale { format!("x{value}") } else { value };
                ("seize", format!("{}\n{value}", self.new_entry(name)), reason)
            }
        };
        let step = Step { name, verb, who, argument };
        self.last.push(step.clone());
        if self.last.len() > 8 {
            self.last.remove(0);
        }
        step
    }

    fn now(&mut self) -> u64 {
        time(&self.link.call(&["TIME"]))
    }

    fn call(&mut self, steps: &[Step], rights: Rights) -> Verdict {
        let before = self.now();
        let words: Vec<String> = steps.iter().flat_map(|step| keys(step.name)).collect();
        let count = words.len().to_string();
        let mut all = vec!["EVALSHA", &self.hash, &count];
        all.extend(words.iter().map(String::as_str));
        all.extend(steps.iter().flat_map(|step| [step.verb, &step.who, &step.argument]));
        let link = match rights {
            Rights::All => &mut self.link,
            Rights::NoCount => &mut self.cannot_count,
            Rights::NoPublish => &mut self.cannot_publish,
        };
        let reply = link.call(&all);
        let window = (before, self.now());
        let replies = match reply {
            one if steps.len() == 1 => vec![one],
            Reply::List(replies) if replies.len() == steps.len() => replies,
            other => return Err(format!("{steps:?}: {other:?}")),
        };
        let heard = self.listener.heard();
        for process in &mut self.processes {
            let own: Vec<_> = heard.iter().filter(|(to, _)| *to == process.channel).cloned().collect();
            let got = process.link.heard();
            if got != own {
                return Err(format!("{steps:?}: published {own:?}, heard {got:?}"));
            }
        }
        let after = match self.link.call(&["GET", &keys(steps[0].name)[0]]) {
            Reply::Text(value) if rights == Rights::NoPublish => Some(value),
            _ => None,
        };
        let alive: HashSet<_> = self.processes.iter().map(|process| process.channel.clone()).collect();
        let mut call = Call {
            window,
            clock: None,
            heard: heard.into(),
            alive: &alive,
            may_count: rights != Rights::NoCount,
            // Who may not count may not publish, either.
            may_publish: rights == Rights::All,
            after,
        };
        for (step, reply) in steps.iter().zip(&replies) {
            let name = &mut self.names[step.name];
            let before = name.clone();
            name.apply(step, reply, &mut call).map_err(|error| format!("{step:?} in {before:?}: {error}"))?;
            let verb = step.verb.split(' ').next().unwrap_or_default();
            *self.steps.entry(verb).or_default() += 1;
        }
        match call.heard.pop_front() {
            Some(extra) => Err(format!("{steps:?}: published {extra:?}")),
            None => Ok(()),
        }
    }

    /// All keys are as the model has them, and end when it says.
    fn compare(&mut self) -> Verdict {
        for name in 0..NAMES.len() {
            let [lock, fence, queue] = keys(name);
            let questions: [&[&str]; 8] = [
                &["TIME"],
                &["GET", &lock],
                &["PTTL", &lock],
                &["LRANGE", &queue, "0", "-1"],
                &["PTTL", &queue],
                &["GET", &fence],
                &["PTTL", &fence],
                &["TIME"],
            ];
            for words in questions {
                self.link.send(words);
            }
            let found: Vec<_> = questions.iter().map(|_| self.link.receive()).collect();
            let model = &mut self.names[name];
            let now = (time(&found[0]) / 1000, time(&found[7]) / 1000 + 1);
            let ours = matches!(model.holder, Holder::Ours { .. });
            let short = ours && model.until.is_some_and(|until| until.0 <= now.1);
            if found[1] == Reply::Nil && short {
                // So slow was this test.
                model.holder = Holder::Nobody;
            }
            let value = model.value().map_or(Reply::Nil, Reply::Text);
            same(&lock, &found[1], &value)?;
            match &model.queue {
                None => {}
                Some(entries) => {
                    let entries: Vec<_> = entries.iter().cloned().map(Reply::Text).collect();
                    let some = !entries.is_empty();
                    same(&queue, &found[3], &Reply::List(entries))?;
                    ends(&queue, now, &found[4], some.then_some(Some(model.queue_until)))?;
                }
            }
            match &model.fence {
                Fence::Missing => same(&fence, &found[5], &Reply::Nil)?,
                Fence::OfAnotherType => {}
                Fence::Token { token, channel } => {
                    let note = channel.as_ref().map(|channel| format!(" {channel}")).unwrap_or_default();
                    same(&fence, &found[5], &Reply::Text(format!("{token}{note}")))?;
                    ends(&fence, now, &found[6], Some(Some(model.fence_until)))?;
                }
            }
            if model.holder == Holder::Nobody {
                continue;
            }
            ends(&lock, now, &found[2], Some(model.until))?;
            if model.until.is_some_and(|until| until.0 < now.1 + 5_000) {
                // It ends when the dice say so.
                self.link.call(&["PEXPIRE", &lock, "60000"]);
                let after = self.now() / 1000 + 60_001;
                self.names[name].until = Some((now.0 + 60_000, after));
            }
        }
        Ok(())
    }

    fn leave_nothing(&mut self) -> Verdict {
        for name in 0..NAMES.len() {
            if matches!(self.names[name].holder, Holder::Foreign(_)) {
                self.link.call(&["DEL", &keys(name)[0]]);
                self.names[name].holder = Holder::Nobody;
            }
            loop {
                let of = &self.names[name];
                let who = match &of.holder {
                    Holder::Ours { entry, .. } => Some(entry),
                    _ => of.queue.as_ref().and_then(VecDeque::front),
                };
                let Some(who) = who.cloned() else { break };
                self.call(&[Step { name, verb: "leave", who, argument: "-".into() }], Rights::All)?;
                self.compare()?;
            }
        }
        let left = self.server.keys();
        match left.iter().all(|key| key.ends_with(":fence")) {
            true => Ok(()),
            false => Err(format!("left at the end: {left:?}")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    All,
    NoCount,
    NoPublish,
}

/// In microseconds.
fn time(reply: &Reply) -> u64 {
    let [seconds, micros] = reply.list() else { panic!("TIME is two numbers: {reply:?}") };
    let parts = [seconds, micros].map(|part| part.text().parse::<u64>().expect("a number"));
    parts[0] * 1_000_000 + parts[1]
}

fn same(key: &str, found: &Reply, expected: &Reply) -> Verdict {
    if found == expected { Ok(()) } else { Err(format!("{key} is {found:?} instead of {expected:?}")) }
}

/// Whether a key ends when it should: never there, there for ever, or within a span.
fn ends(key: &str, now: Span, left: &Reply, expected: Option<Option<Span>>) -> Verdict {
    let left = left.number();
    let right = match (expected, u64::try_from(left)) {
        (None, _) => left == -2,
        (Some(None), _) => left == -1,
        (Some(Some(_)), Err(_)) => false,
        (Some(Some((from, to))), Ok(left)) => now.1 + left + 2 >= from && now.0 + left <= to + 2,
    };
    if right { Ok(()) } else { Err(format!("{key} has {left} ms left at {now:?}, not {expected:?}")) }
}
