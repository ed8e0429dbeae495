//! `greet.lua`: whether a node votes.

use super::{NODE, Node, WrongType};

/// What the server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Another one after each start.
    pub run: String,
}

/// What is to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Votes if it has lost nothing, as far as it knows, else after its quarantine.
    Meet,
    /// Votes now, because an operator says so.
    Found,
    /// Votes after a quarantine under new terms.
    Reform,
    /// Only looks.
    Look,
}

/// The terms of a deployment, and what is asked for. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greet<'a> {
    /// The longest ttl.
    pub max_ttl: u64,
    /// How long a node that has lost something does not vote.
    pub quarantine: u64,
    /// A fingerprint of the members.
    pub members: &'a str,
    /// What is to be settled.
    pub how: How,
}

/// The answer: the node key, empty if there is none, and the clock. The run id is the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeted {
    /// The node key.
    pub node: String,
    /// The clock.
    pub now: u64,
}

/// What a node key says.
struct Said<'a> {
    run: &'a str,
    /// The node key without run and quarantine.
    terms: &'a str,
    quarantine: u64,
    /// The end of the quarantine that it is in.
    ready: Option<u64>,
}

impl<'a> Said<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let (run, max_ttl, quarantine, members) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let ready = words.next().unwrap_or_default();
        // Behind it, the reason.
        let ready = &ready[..ready.bytes().take_while(u8::is_ascii_digit).count()];
        let digits = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
        let fits = !run.is_empty()
            && run.bytes().all(|byte| byte.is_ascii_hexdigit())
            && [max_ttl, quarantine].iter().all(|word| !word.is_empty() && digits(word))
            && !members.is_empty();
        let terms = &text[run.len() + 1..run.len() + 3 + max_ttl.len() + quarantine.len() + members.len()];
        fits.then_some(Self { run, terms, quarantine: quarantine.parse().ok()?, ready: ready.parse().ok() })
    }
}

impl Node {
    /// `greet.lua`.
    pub fn greet(&mut self, now: u64, life: &Life, greet: &Greet<'_>) -> Result<Greeted, WrongType> {
        self.store.at(now / 1000);
        let Greet { max_ttl, quarantine, members, how } = *greet;
        let run = &life.run;
        let ours = format!("{run} {max_ttl} {quarantine} {members}");
        let before = self.store.get(NODE)?.map(str::to_owned);
        let said = before.as_deref().and_then(Said::parse);
        // Votes again after the longest lease that this node can have granted, by its own terms or by ours.
        let wait = |terms: &str, longest: u64, reason: &str| {
            format!("{terms} {} {reason}", now + quarantine.max(longest) * 1000)
        };
        let longest = said.as_ref().map_or(0, |said| said.quarantine);
        let after = match (how, &before, &said) {
            (How::Look, ..) => None,
            (How::Found, ..) => Some(ours),
            (How::Reform, Some(before), _) if before.starts_with(&ours) => None,
            (How::Reform, ..) => Some(wait(&ours, longest, "changed")),
            (How::Meet, _, None) => Some(wait(&ours, 0, "new")),
            (How::Meet, _, Some(said)) if said.run != run => {
                Some(wait(&format!("{run} {}", said.terms), longest, "restarted"))
            }
            (How::Meet, _, Some(said)) if said.ready.is_some_and(|ready| now >= ready) => {
                Some(format!("{run} {}", said.terms))
            }
            (How::Meet, ..) => None,
        };
        if let Some(after) = &after {
            self.store.set(NODE, after);
        }
        Ok(Greeted { node: after.or(before).unwrap_or_default(), now })
    }
}
