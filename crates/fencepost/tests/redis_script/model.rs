//! What the script has to do to one lock, said once more in other words.

use std::collections::{HashSet, VecDeque};

use crate::link::Reply;

/// The clock's first microsecond at which tokens are refused.
pub(crate) const LIMIT: u64 = 1 << 53;
/// How long a fence outlives its token and the clock, in milliseconds.
pub(crate) const FENCE_MS: u64 = 3_600_000;
pub(crate) const QUEUE_MS: u64 = 60_000;
/// The term of a pushed grant and of a seized lock.
pub(crate) const TERM_MS: u64 = 1_000;

/// From and to, in milliseconds of the server's clock: when something ends.
pub(crate) type Span = (u64, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: usize,
    pub(crate) verb: &'static str,
    pub(crate) who: String,
    pub(crate) argument: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    Ours { entry: String, token: u64, asked: Option<String> },
    Foreign(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    Missing,
    Token { token: u64, channel: Option<String> },
    OfAnotherType,
}

/// One lock: its three keys.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) holder: Holder,
    /// `None`: for ever.
    pub(crate) until: Option<Span>,
    /// `None`: a key of another type.
    pub(crate) queue: Option<VecDeque<String>>,
    pub(crate) queue_until: Span,
    pub(crate) fence: Fence,
    pub(crate) fence_until: Span,
}

/// What is known of the call that a step is part of.
pub(crate) struct Call<'a> {
    /// The server's clock before and after it, in microseconds.
    pub(crate) window: (u64, u64),
    /// The clock as the script read it, once that is known.
    pub(crate) clock: Option<u64>,
    /// All that was published meanwhile.
    pub(crate) heard: VecDeque<(String, String)>,
    /// The channels that somebody listens to.
    pub(crate) alive: &'a HashSet<String>,
    /// The caller's rights.
    pub(crate) may_count: bool,
    pub(crate) may_publish: bool,
    /// The lock after the call, where nobody could be told of the token.
    pub(crate) after: Option<String>,
}

pub(crate) type Verdict<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}

fn channel(entry: &str) -> &str {
    &entry[37..53]
}

impl Call<'_> {
    fn until(&self, term_ms: u64) -> Span {
        (self.window.0 / 1000 + term_ms, self.window.1 / 1000 + 1 + term_ms)
    }

    fn is_alive(&self, entry: &str) -> bool {
        self.alive.contains(channel(entry))
    }

    fn was_told(&mut self, channel: &str, message: &str) -> Verdict {
        if !self.may_publish {
            return Ok(());
        }
        let told = self.heard.pop_front();
        ensure!(
            told.as_ref().is_some_and(|(to, what)| to == channel && what == message),
            "instead of {message:?} to {channel}: {told:?}"
        );
        Ok(())
    }

    /// The token in the push to a waiter.
    fn pushed(&mut self, entry: &str) -> Verdict<String> {
        if !self.may_publish {
            let after = self.after.as_ref().ok_or("nobody holds what was given on")?;
            return Ok(after.rsplit(' ').next().unwrap_or_default().to_owned());
        }
        let told = self.heard.pop_front();
        let start = format!("granted {} ", &entry[..36]);
        match told {
            Some((to, message)) if to == channel(entry) && message.starts_with(&start) => {
                Ok(message[start.len()..].to_owned())
            }
            other => Err(format!("instead of a grant to {entry}: {other:?}")),
        }
    }
}

/// Who is to get a lock.
enum Next {
    /// Itself, by the reply; it may have been taken out of the queue for that.
    Caller {
        popped: bool,
    },
    Waiter(String),
    Nobody,
    /// The server cannot tell who listens. The one at the head stays there.
    Unknown,
}

impl Name {
    pub(crate) fn new() -> Self {
        Self {
            holder: Holder::Nobody,
            until: None,
            queue: Some(VecDeque::new()),
            queue_until: (0, 0),
            fence: Fence::Missing,
            fence_until: (0, 0),
        }
    }

    pub(crate) fn value(&self) -> Option<String> {
        match &self.holder {
            Holder::Nobody => None,
            Holder::Foreign(value) => Some(value.clone()),
            Holder::Ours { entry, token, asked: None } => Some(format!("{entry} {token}")),
            Holder::Ours { entry, token, asked: Some(reason) } => Some(format!("!{entry} {token}\n{reason}")),
        }
    }

    /// Applies a step, and says what is wrong with its reply.
    pub(crate) fn apply(&mut self, step: &Step, reply: &Reply, call: &mut Call<'_>) -> Verdict {
        match step.verb {
            "free" | "leave" => self.give(step, reply, call),
            "renew" | "attach" => self.renew(step, reply, call),
            "ask" | "seize" => self.revoke(step, reply, call),
            _ => self.acquire(step, reply, call),
        }
    }

    fn give(&mut self, step: &Step, reply: &Reply, call: &mut Call<'_>) -> Verdict {
        let leave = step.verb == "leave";
        let mut stood = 0;
        if leave && let Some(queue) = &mut self.queue {
            let before = queue.len();
            queue.retain(|entry| *entry != step.who);
            stood = before - queue.len();
        }
        let theirs = match &self.holder {
            Holder::Ours { entry, token, .. } => {
                entry[..36] == step.who[..36] && (leave || step.who[36..] == format!(" {token}"))
            }
            _ => false,
        };
        if self.queue.is_none() && (theirs || leave) {
            if theirs {
                self.holder = Holder::Nobody;
            }
            return fails(reply, "WRONGTYPE");
        }
        if !theirs {
            return equal(reply, &Reply::Number(i64::try_from(stood).unwrap_or(-1)));
        }
        self.holder = Holder::Nobody;
        match self.next(None, call) {
            Next::Unknown => fails(reply, ""),
            Next::Waiter(entry) => match self.refused(Some(&entry), Some(&entry), call) {
                Some(text) => fails(reply, text),
                None => {
                    equal(reply, &Reply::Number(1))?;
                    self.push(entry, call)
                }
            },
            Next::Caller { .. } | Next::Nobody => equal(reply, &Reply::Number(1)),
        }
    }

    fn renew(&mut self, step: &Step, reply: &Reply, call: &mut Call<'_>) -> Verdict {
        let (mine, new) =
            step.who.split_once('\n').map_or((&step.who[..], None), |(mine, new)| (mine, Some(new)));
        let found = match &mut self.holder {
            Holder::Ours { entry, token, asked: None }
                if mine[36..] == format!(" {token}")
                    && (entry[..36] == mine[..36] || new.is_some_and(|new| new[..36] == entry[..36])) =>
            {
                if let Some(new) = new {
                    new.clone_into(entry);
                }
                true
            }
            _ => false,
        };
        if !found {
            return equal(reply, &Reply::Text(self.value().unwrap_or_default()));
        }
        self.extend(&step.argument, call)?;
        equal(reply, &Reply::Number(1))
    }

    fn extend(&mut self, ttl: &str, call: &Call<'_>) -> Verdict {
        let (from, to) = call.until(ttl.parse().map_err(|_| "a ttl is a number")?);
        self.until = Some(self.until.map_or((from, to), |(a, b)| (from.max(a), to.max(b))));
        Ok(())
    }

    fn revoke(&mut self, step: &Step, reply: &Reply, call: &mut Call<'_>) -> Verdict {
        let (entry, value) = match step.verb {
            "seize" => step.who.split_once('\n').ok_or("a seizure names two")?,
            _ => ("", &step.who[..]),
        };
        if self.value().as_deref() != Some(value) {
            return self.is_busy(reply, -1);
        }
        if let Some(text) = self.refused(None, None, call) {
            return fails(reply, text);
        }
        self.draw(reply, None, call)?;
        if let Holder::Ours { entry: victim, .. } = &self.holder {
            call.was_told(channel(victim), &format!("revoked {} {}", &victim[..36], step.argument))?;
        }
        if step.verb == "seize" {
            let token = number(reply)?;
            self.holder = Holder::Ours { entry: entry.to_owned(), token, asked: None };
            self.until = Some(call.until(TERM_MS));
        } else if let Holder::Ours { asked, .. } = &mut self.holder {
            *asked = Some(step.argument.clone());
        } else {
            let first = value.strip_prefix('!').unwrap_or(value).split('\n').next().unwrap_or_default();
            self.holder = Holder::Foreign(format!("!{first}\n{}", step.argument));
        }
        Ok(())
    }

    fn acquire(&mut self, step: &Step, reply: &Reply, call: &mut Call<'_>) -> Verdict {
        let who = &step.who;
        match &self.holder {
            Holder::Nobody if self.queue.is_none() => return fails(reply, "WRONGTYPE"),
            Holder::Nobody => {
                self.pass_over_stopped(who);
                let (entry, popped) = match self.next(Some(who), call) {
                    Next::Caller { popped } => (None, popped.then_some(who)),
                    Next::Waiter(entry) => (Some(entry), None),
                    Next::Nobody => return Err("a caller is somebody".into()),
                    Next::Unknown => return fails(reply, ""),
                };
                if let Some(text) =
                    self.refused(entry.as_deref(), entry.as_ref().or(popped).map(|e| &e[..]), call)
                {
                    return fails(reply, text);
                }
                let Some(entry) = entry else {
                    self.draw(reply, None, call)?;
                    self.holder = Holder::Ours { entry: who.clone(), token: number(reply)?, asked: None };
                    self.until = Some(call.until(step.argument.parse().map_err(|_| "a ttl is a number")?));
                    return Ok(());
                };
                self.push(entry, call)?;
            }
            Holder::Ours { entry, token, asked: None } if entry == who => {
                equal(reply, &Reply::Text(token.to_string()))?;
                return self.extend(&step.argument, call);
            }
            Holder::Ours { entry, asked: Some(_), .. } if entry == who => return self.is_busy(reply, -1),
            _ => {}
        }
        if step.verb == "try" {
            return self.is_busy(reply, -1);
        }
        let Some(queue) = &mut self.queue else { return fails(reply, "WRONGTYPE") };
        let mut place = None;
        if let Some(stood) = step.verb.strip_prefix("again") {
            if queue.front().is_some_and(|first| first != who && !call.is_alive(first)) && call.may_count {
                queue.pop_front();
            }
            // Who waits twice may stand in another place than the first.
            let there = stood.trim().parse().ok().filter(|place| queue.get(*place) == Some(who));
            place = there.or_else(|| queue.iter().position(|entry| entry == who));
        }
        let place = place.unwrap_or_else(|| {
            queue.push_back(who.clone());
            queue.len() - 1
        });
        self.queue_until = call.until(QUEUE_MS);
        self.is_busy(reply, i64::try_from(place).unwrap_or(-2))
    }

    /// A grant by push was not taken: what else that process waits for stands back.
    fn pass_over_stopped(&mut self, who: &str) {
        let (Fence::Token { channel: Some(stopped), .. }, Some(queue)) = (&self.fence, &mut self.queue)
        else {
            return;
        };
        if stopped != channel(who) {
            let mut place = 0;
            queue.retain(|entry| {
                place += 1;
                place > 257 || channel(entry) != stopped
            });
        }
    }

    fn next(&mut self, caller: Option<&str>, call: &Call<'_>) -> Next {
        let Some(queue) = &mut self.queue else { return Next::Nobody };
        while let Some(head) = queue.pop_front() {
            if Some(&head[..]) == caller {
                return Next::Caller { popped: true };
            }
            if !call.may_count {
                queue.push_front(head);
                self.queue_until = call.until(QUEUE_MS);
                return Next::Unknown;
            }
            if call.is_alive(&head) {
                return Next::Waiter(head);
            }
        }
        if caller.is_some() { Next::Caller { popped: false } } else { Next::Nobody }
    }

    /// Whether the fence refuses a token, and what the error says. Whoever was popped is back then.
    fn refused(&mut self, to: Option<&str>, popped: Option<&str>, call: &Call<'_>) -> Option<&'static str> {
        let text = match &mut self.fence {
            Fence::OfAnotherType => "WRONGTYPE",
            Fence::Token { token, channel: noted } if *token + 1 >= LIMIT => {
                // As the script counts: in a float.
                *token = (*token).max(LIMIT);
                *noted = to.map(|entry| channel(entry).to_owned());
                self.fence_until = ends(*token, call.window);
                "out of range"
            }
            _ => return None,
        };
        if let (Some(popped), Some(queue)) = (popped, &mut self.queue) {
            queue.push_front(popped.to_owned());
            self.queue_until = call.until(QUEUE_MS);
        }
        Some(text)
    }

    fn push(&mut self, entry: String, call: &mut Call<'_>) -> Verdict {
        let token = Reply::Text(call.pushed(&entry)?);
        self.draw(&token, Some(channel(&entry)), call)?;
        self.holder = Holder::Ours { entry, token: number(&token)?, asked: None };
        self.until = Some(call.until(TERM_MS));
        Ok(())
    }

    /// A token is the clock, or the last one plus one if that is more.
    fn draw(&mut self, reply: &Reply, channel: Option<&str>, call: &mut Call<'_>) -> Verdict {
        let token = number(reply)?;
        let least = match self.fence {
            Fence::Token { token, .. } => token + 1,
            _ => 0,
        };
        let (from, to) = call.clock.map_or(call.window, |clock| (clock, clock));
        ensure!(
            token >= least.max(from) && token <= least.max(to),
            "token {token}, last {least}, clock {from} to {to}"
        );
        if token > least {
            call.clock = Some(token);
        }
        self.fence = Fence::Token { token, channel: channel.map(str::to_owned) };
        self.fence_until = ends(token, call.window);
        Ok(())
    }

    fn is_busy(&self, reply: &Reply, place: i64) -> Verdict {
        let Reply::List(items) = reply else { return Err(format!("instead of a holder: {reply:?}")) };
        let [value, Reply::Number(left), at] = &items[..] else {
            return Err(format!("instead of a holder: {reply:?}"));
        };
        equal(value, &Reply::Text(self.value().unwrap_or_default()))?;
        equal(at, &Reply::Number(place))?;
        let expected = match (&self.holder, self.until) {
            (Holder::Nobody, _) => *left == -2,
            (_, None) => *left == -1,
            (_, Some(_)) => *left >= 0,
        };
        ensure!(expected, "{left} ms left of {:?}", self.holder);
        Ok(())
    }
}

fn ends(token: u64, window: (u64, u64)) -> Span {
    (token.max(window.0) / 1000 + FENCE_MS, token.max(window.1) / 1000 + 1 + FENCE_MS)
}

fn number(reply: &Reply) -> Verdict<u64> {
    match reply {
        Reply::Text(text) => text.parse().map_err(|_| format!("{text:?} is not a token")),
        other => Err(format!("instead of a token: {other:?}")),
    }
}

fn equal(found: &Reply, expected: &Reply) -> Verdict {
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    Ok(())
}

fn fails(reply: &Reply, text: &str) -> Verdict {
    ensure!(matches!(reply, Reply::Error(error) if error.contains(text)), "no error {text:?}: {reply:?}");
    Ok(())
}
