//! One Redis node with Fencepost's scripts: what they do to the keys and what they answer, given the node's
//! clock. This is the specification of `backends/redlock/scripts/*.lua`, held against a real server by
//! `tests/differential.rs`.

mod greet;
mod store;

use std::collections::BTreeSet;

pub use greet::{Greet, Greeted, How, Life};
pub use store::{Store, Value, WrongType};

/// Where a node keeps what it is.
pub const NODE: &str = "{fencepost}:node";
/// How long a counter outlives its last use, in milliseconds.
const RETAIN: u64 = 86_400_000;
/// How long a queue outlives the last waiter that asked, in milliseconds.
const QUEUE: u64 = 60_000;

/// The keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The value of the holder.
    pub lock: String,
    /// The counter.
    pub fence: String,
    /// Who waits.
    pub queue: String,
}

impl Keys {
    /// The keys of the lock `name`.
    pub fn of(name: &str) -> Self {
        let lock = format!("lock:{name}");
        Self { fence: format!("{{{lock}}}:fence"), queue: format!("{{{lock}}}:queue"), lock }
    }
}

/// What a request that may raise the counter says. Times are microseconds of the node's clock, the ttl
/// milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The value of the caller.
    pub value: &'a str,
    /// How long the key shall live.
    pub ttl: u64,
    /// The counter that the caller would like.
    pub proposal: u64,
    /// How far the proposal may be from the node's clock.
    pub bound: u64,
    /// What the node key must be.
    pub node: &'a str,
    /// When the request is too late.
    pub not_after: u64,
}

/// What `ops.lua` answers to whoever takes a lock, and `revoke.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The key is the caller's, and this is the counter.
    Granted(u64),
    /// The key is somebody else's.
    Held {
        /// The value of the holder.
        holder: String,
        /// What `PTTL` says of the key.
        left: i64,
        /// The counter.
        counter: u64,
        /// The clock.
        now: u64,
    },
    /// The script did nothing.
    Not(Refusal),
}

/// Whether `hold.lua` may make a lock anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Confirms a token while the key is there, from the grant that the caller knows of.
    Confirm,
    /// Prolongs the lock while the key is there.
    Extend,
    /// The same, and makes the lock anew where it was lost.
    Repair,
}

/// What `hold.lua` says of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the caller's.
    Kept,
    /// It is gone.
    Gone,
    /// The counter is larger than the token.
    Passed,
    /// It has this holder.
    Other(String),
}

/// One lock in a call of `hold.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// Its keys.
    pub keys: &'a Keys,
    /// The value of the caller.
    pub value: &'a str,
    /// The new ttl, in milliseconds.
    pub ttl: u64,
    /// The token.
    pub token: u64,
}

/// Why a script did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node key is another.
    Node(String),
    /// The request comes too late by this clock.
    Late(u64),
}

/// An answer, or why there is none.
pub type Answered<T> = Result<T, Refusal>;

/// A message to a channel.
pub type Message = (String, String);

/// A node. All times are microseconds of its own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its keys.
    pub store: Store,
    /// The channels that somebody listens to.
    pub listeners: BTreeSet<String>,
}

impl Node {
    /// `ops.lua`, to take a lock. `entry` is a waiter's place in the queue.
    pub fn acquire(
        &mut self,
        now: u64,
        keys: &Keys,
        ask: &Ask<'_>,
        entry: Option<&str>,
    ) -> Result<Vote, WrongType> {
        if let Some(refusal) = self.refuse(now, ask.node, ask.not_after)? {
            return Ok(Vote::Not(refusal));
        }
        if !self.store.exists(&keys.lock) {
            self.store.set_px(&keys.lock, ask.value, ask.ttl);
            let counter = self.next_counter(now, keys, ask)?;
            if let Some(entry) = entry {
                let _ = self.store.lrem(&keys.queue, entry);
            }
            return Ok(Vote::Granted(counter));
        }
        if self.store.get(&keys.lock)? == Some(ask.value) {
            self.store.prolong(&keys.lock, ask.ttl);
            return Ok(Vote::Granted(self.counter(keys)?));
        }
        if let Some(entry) = entry
            && let Ok(waits) = self.store.contains(&keys.queue, entry)
        {
            if !waits {
                self.store.rpush(&keys.queue, entry)?;
            }
            self.store.pexpire(&keys.queue, QUEUE);
        }
        self.held(now, keys)
    }

    /// `revoke.lua`: takes the key from `victim`, or takes it if it is free. The message goes to the victim.
    pub fn revoke(
        &mut self,
        now: u64,
        keys: &Keys,
        victim: &str,
        ask: &Ask<'_>,
        message: Message,
    ) -> Result<(Vote, Option<Message>), WrongType> {
        if let Some(refusal) = self.refuse(now, ask.node, ask.not_after)? {
            return Ok((Vote::Not(refusal), None));
        }
        let holder = self.store.get(&keys.lock)?.map(str::to_owned);
        if let Some(holder) = &holder
            && (holder == ask.value || holder != victim && !revokes(holder, victim))
        {
            let vote =
                if holder == ask.value { Vote::Granted(self.counter(keys)?) } else { self.held(now, keys)? };
            return Ok((vote, None));
        }
        let counter = self.next_counter(now, keys, ask)?;
        if holder.is_none() {
            self.store.set_px(&keys.lock, ask.value, ask.ttl);
            return Ok((Vote::Granted(counter), None));
        }
        self.store.set_keep_ttl(&keys.lock, ask.value);
        let message = self.listeners.contains(&message.0).then_some(message);
        Ok((Vote::Granted(counter), message))
    }

    /// `hold.lua`: one verdict for each lock.
    pub fn hold(
        &mut self,
        now: u64,
        node: &str,
        not_after: u64,
        mode: Mode,
        locks: &[Held<'_>],
    ) -> Result<Answered<Vec<Verdict>>, WrongType> {
        if let Some(refusal) = self.refuse(now, node, not_after)? {
            return Ok(Err(refusal));
        }
        locks.iter().map(|lock| self.hold_one(mode, lock)).collect::<Result<_, _>>().map(Ok)
    }

    fn hold_one(&mut self, mode: Mode, lock: &Held<'_>) -> Result<Verdict, WrongType> {
        let Held { keys, value, ttl, token } = *lock;
        let counter = self.counter(keys)?;
        match self.store.get(&keys.lock) {
            Err(WrongType) => return Ok(Verdict::Other(String::new())),
            Ok(Some(holder)) if holder != value => return Ok(Verdict::Other(holder.to_owned())),
            Ok(Some(_)) if mode == Mode::Confirm && counter > token => return Ok(Verdict::Passed),
            Ok(Some(_)) => self.store.prolong(&keys.lock, ttl),
            Ok(None) if mode != Mode::Repair => return Ok(Verdict::Gone),
            Ok(None) => self.store.set_px(&keys.lock, value, ttl),
        }
        self.store.set_px(&keys.fence, &counter.max(token).to_string(), RETAIN);
        Ok(Verdict::Kept)
    }

    /// `attach.lua`: moves the lock from one value to another. The counter, or what was found instead.
    pub fn attach(
        &mut self,
        now: u64,
        keys: &Keys,
        (node, not_after): (&str, u64),
        (from, to): (&str, &str),
        ttl: u64,
    ) -> Result<Answered<Result<u64, String>>, WrongType> {
        if let Some(refusal) = self.refuse(now, node, not_after)? {
            return Ok(Err(refusal));
        }
        let holder = self.store.get(&keys.lock)?;
        if holder == Some(from) {
            self.store.set_keep_ttl(&keys.lock, to);
        } else if holder != Some(to) {
            return Ok(Ok(Err(holder.unwrap_or_default().to_owned())));
        }
        self.store.prolong(&keys.lock, ttl);
        Ok(Ok(Ok(self.counter(keys)?)))
    }

    /// `ops.lua`, to undo that: whether the key was the caller's.
    pub fn put_back(&mut self, now: u64, keys: &Keys, value: &str, before: &str) -> Result<bool, WrongType> {
        self.store.at(now / 1000);
        let ours = self.store.get(&keys.lock)? == Some(value);
        if ours {
            self.store.set_keep_ttl(&keys.lock, before);
        }
        Ok(ours)
    }

    /// `ops.lua`, to give it back: whether the key was the caller's, and who is told, if anybody shall be.
    pub fn release(
        &mut self,
        now: u64,
        keys: &Keys,
        value: &str,
        wake: bool,
        entry: Option<&str>,
    ) -> Result<(bool, Option<Message>), WrongType> {
        self.store.at(now / 1000);
        if let Some(entry) = entry {
            let _ = self.store.lrem(&keys.queue, entry);
        }
        let holder = self.store.get(&keys.lock)?;
        if !holder.is_some_and(|holder| holder == value || revokes(holder, value)) {
            return Ok((false, None));
        }
        self.store.del(&keys.lock);
        Ok((true, if wake { self.wake(keys) } else { None }))
    }

    /// Takes waiters out of the queue until one of them can be reached.
    fn wake(&mut self, keys: &Keys) -> Option<Message> {
        while let Ok(Some(entry)) = self.store.lpop(&keys.queue) {
            let channel = entry.get(..16).unwrap_or(&entry);
            if self.listeners.contains(channel) {
                let who = entry.get(17..).unwrap_or_default();
                return Some((channel.to_owned(), format!("free {who} ")));
            }
        }
        None
    }

    /// `prelude.lua` and `ops.lua`: does this node vote, and is it not too late?
    fn refuse(&mut self, now: u64, key: &str, not_after: u64) -> Result<Option<Refusal>, WrongType> {
        self.store.at(now / 1000);
        let node = self.store.get(NODE)?;
        if node != Some(key) {
            return Ok(Some(Refusal::Node(node.unwrap_or_default().to_owned())));
        }
        Ok((now > not_after).then_some(Refusal::Late(now)))
    }

    /// `ops.lua` and `revoke.lua`: the counter after a grant.
    fn next_counter(&mut self, now: u64, keys: &Keys, ask: &Ask<'_>) -> Result<u64, WrongType> {
        let near = ask.proposal.clamp(now.saturating_sub(ask.bound), now + ask.bound);
        let counter = self.counter(keys)? + 1;
        if near > counter + ask.bound / 5 {
            self.store.set_px(&keys.fence, &near.to_string(), RETAIN);
            return Ok(near);
        }
        self.store.set_keep_ttl(&keys.fence, &counter.to_string());
        Ok(counter)
    }

    fn counter(&mut self, keys: &Keys) -> Result<u64, WrongType> {
        Ok(self.store.get(&keys.fence)?.and_then(|counter| counter.parse().ok()).unwrap_or(0))
    }

    fn held(&mut self, now: u64, keys: &Keys) -> Result<Vote, WrongType> {
        let holder = self.store.get(&keys.lock)?.unwrap_or_default().to_owned();
        let left = self.store.pttl(&keys.lock);
        Ok(Vote::Held { holder, left, counter: self.counter(keys)?, now })
    }
}

/// A revoked lock has `!` in front and the reason behind.
fn revokes(holder: &str, value: &str) -> bool {
    let rest = holder.strip_prefix('!').and_then(|rest| rest.strip_prefix(value));
    rest.is_some_and(|rest| rest.starts_with('\n'))
}
