//! One attempt to acquire, from before its first byte is sent until it is a hold. Dropped before that, it undoes
//! itself: the request that leaves the queue and gives the lock back goes over the same connection, right behind
//! what it undoes.

mod undo;

use std::sync::Arc;
use std::time::Duration;

use super::cohort::Membership;
use super::hold::{Giving, Held};
use super::inbox::LetterBox;
use super::keys::Keys;
use super::node::{Line, Link, On, Script};
use super::resp::Value;
use super::row::Row;
use super::seat::{HandOver, News, Served};
use super::{GRANT_TERM, Store, milliseconds, record};
use crate::backend::{Grant, Request};
use crate::clock::Moment;
use crate::{Error, FencingToken, Holder, Result};

/// How long a waiter sleeps at most before it asks again, at the head of the queue and behind it. Expiry and plain
/// clients push nothing.
const RECHECK_HEAD: Duration = Duration::from_millis(250);
const RECHECK: Duration = Duration::from_millis(700);
/// And how long if another waiter of this process asks for both.
const FAR: Duration = Duration::from_secs(10);

pub(super) struct Claim<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: Arc<Keys>,
    value: Arc<str>,
    /// Kept, and with it the channel that the value names.
    line: Arc<Line>,
    letters: Option<LetterBox>,
    seat: Option<Membership>,
    /// The connection that the last request went over; `None` before the first.
    link: Option<Arc<Link>>,
}

/// What the server said to a request for the lock.
pub(super) enum Said {
    Granted(Grant),
    /// Granted, but a holder of this process has begun to hand over the same lock since that was asked.
    AskAgain,
    Busy {
        holder: Holder,
        /// The server's counter when it answered; a grant by push has a larger token.
        counter: i64,
        sent: Moment,
        again_in: Duration,
    },
}

/// The last answer that the lock is held by somebody else.
struct Asked {
    counter: i64,
    sent: Moment,
    again_in: Duration,
}

/// How the lock came to us.
enum By {
    /// The server's answer, and how often a holder of this process had chosen us alone when we asked.
    Answer(Option<u32>),
    /// Its push, with a short term.
    Push,
    /// A holder of this process, in which it has had that many turns, and the row in which it came.
    HandOver(usize, Option<Arc<Row>>),
}

/// What to do next while waiting.
enum Hint {
    Ask,
    Wait,
    Granted { token: i64, sent: Moment, by: By },
}

impl<'a> Claim<'a> {
    pub(super) fn new(store: &'a Store, request: &'a Request) -> Self {
        store.warm_up();
        let keys = Arc::new(Keys::new(&store.node.config().start, request.name.as_str()));
        let letters = store.inbox.open(request.owner, request.signal.clone());
        let line = store.node.line();
        let value = record::value(request.owner, &line.channel, &request.note).into();
        Self { store, request, keys, value, line, letters: Some(letters), seat: None, link: None }
    }

    /// Asks for the lock once; with `wait`, stands in the queue if it is held.
    pub(super) async fn ask(&mut self, wait: bool) -> Result<Said> {
        let node = &self.store.node;
        let timeout = node.config().timeout.min(self.request.ttl);
        let ttl = milliseconds(self.request.ttl);
        let (keys, value) = (self.keys.clone(), self.value.clone());
        let arguments = [if wait { "wait" } else { "try" }, &*value, GRANT_TERM.text, &ttl];
        let choices = self.seat.as_ref().map(Membership::choices);
        let note_link = |link: &Arc<Link>| self.link = Some(link.clone());
        let answer = match node.run(Script::Take, On::One(&keys), &arguments, timeout, note_link).await {
            Ok(answer) => answer,
            Err(Error::Backend { source, .. }) if source.to_string().contains("WRONGTYPE") => {
                if !wait {
                    self.link = None;
                }
                let holder = Holder::unknown(self.request.name.clone());
                return Ok(self.busy(holder, -1, -1, 0, self.store.clock.now()));
            }
            // A new attempt under a new identity may be made at once; this one is undone.
            Err(Error::Unavailable { source, .. })
                if self.link.as_ref().is_some_and(|link| link.has_ended()) =>
            {
                return Err(Error::Uncertain { name: self.request.name.clone(), source });
            }
            Err(error) => return Err(error),
        };
        let sent = answer.sent;
        match &answer.value {
            Value::Int(token) => {
                Ok(self.granted(*token, sent, By::Answer(choices))?.map_or(Said::AskAgain, Said::Granted))
            }
            Value::List(items) if items.len() == 4 => {
                let holder = match &items[0] {
                    Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    _ => String::new(),
                };
                let [ttl, counter, place] = [1, 2, 3].map(|index| items[index].as_int().unwrap_or(-1));
                let holder = record::holder(&self.request.name, &holder, ttl, Some(counter));
                if !wait {
                    self.link = None;
                }
                Ok(self.busy(holder, ttl, counter, place, sent))
            }
            other => Err(Error::Backend {
                store: node.config().label.clone(),
                source: format!("an answer that makes no sense: {other:?}").into(),
            }),
        }
    }

    fn busy(&self, holder: Holder, ttl: i64, counter: i64, place: i64, sent: Moment) -> Said {
        let most = crate::wait::jittered(if place == 0 { RECHECK_HEAD } else { RECHECK });
        // One millisecond more than the ttl: the key lives to the end of its last one.
        let again_in = u64::try_from(ttl).map_or(most, |ttl| most.min(Duration::from_millis(ttl + 1)));
        Said::Busy { holder, counter, sent, again_in }
    }

    /// Waits until the lock is ours: at the server, or behind others of this process who wait there.
    pub(super) async fn wait(&mut self) -> Result<Grant> {
        let seat = self.store.cohorts.join(self.request, &self.value);
        let mut asked: Option<Asked> = None;
        let first = seat.is_first();
        let seat = self.seat.insert(seat);
        if first && seat.is_lively() {
            // Who has the lock may be about to give it back, and has let others go first so that they can join the same row.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        let mut hint = if first && !seat.is_chosen() { Hint::Ask } else { Hint::Wait };
        loop {
            match hint {
                Hint::Wait => {}
                Hint::Granted { token, sent, by } => {
                    let late = self.store.clock.now().since(sent) > self.request.ttl / 2;
                    if late && matches!(by, By::HandOver(..)) && !self.request.seen.anything() {
                        // Nobody ran this task for so long that its turn may be over. The server has answered: the wait goes
                        // on then.
                        self.request.seen.note(Holder::unknown(self.request.name.clone()));
                    }
                    let asked_before = asked.as_ref().map(|asked| (0..token).contains(&asked.counter));
                    match &by {
                        By::HandOver(_, Some(row)) if self.may_stand_in_queue(row, asked_before) => {
                            self.quit().await;
                        }
                        By::HandOver(_, None) if asked_before == Some(false) => {
                            // Who asked behind it and did not find itself at the server has lost it.
                            if let Some(seat) = &self.seat {
                                seat.decline();
                            }
                            hint = Hint::Ask;
                            continue;
                        }
                        _ => {}
                    }
                    if let Some(grant) = self.granted(token, sent, by)? {
                        return Ok(grant);
                    }
                    hint = Hint::Ask;
                    continue;
                }
                Hint::Ask => match self.ask(true).await? {
                    Said::Granted(grant) => return Ok(grant),
                    Said::AskAgain => {
                        hint = Hint::Ask;
                        continue;
                    }
                    Said::Busy { holder, counter, sent, again_in } => {
                        if let Some(seat) = &self.seat {
                            seat.saw(&holder);
                        }
                        self.request.seen.note(holder);
                        asked = Some(Asked { counter, sent, again_in });
                    }
                },
            }
            hint = self.hint(asked.as_ref()).await;
        }
    }

    /// Whether the server may have us in the queue though it is our turn in a row. The hand-over took out whom it named, if that one
    /// asked before it, as the counter in the last answer tells.
    fn may_stand_in_queue(&self, row: &Row, asked_before: Option<bool>) -> bool {
        let named = row.has_named(self.request.owner);
        match asked_before {
            Some(before) => !named || !before,
            None => !named && self.seat.as_ref().is_some_and(Membership::may_stand_in_queue),
        }
    }

    /// Waits for a push, for news from a holder of this process, or until it is time to ask.
    async fn hint(&self, asked: Option<&Asked>) -> Hint {
        let (Some(letters), Some(seat)) = (&self.letters, &self.seat) else { return Hint::Ask };
        // Who moves up has just seen the lock go to a neighbour and gives it time to come back.
        let pause = match asked {
            _ if !seat.is_first() => crate::wait::jittered(FAR),
            Some(asked) => asked.again_in,
            None => crate::wait::jittered(RECHECK_HEAD),
        };
        let now = || self.store.clock.now();
        tokio::select! {
            biased;
            news = seat.news() => match news {
                News::Granted(HandOver { token, sent, handed, row }) => {
                    Hint::Granted { token, sent, by: By::HandOver(handed, row) }
                }
                News::Ask => Hint::Ask,
                News::Moved => Hint::Wait,
            },
            token = letters.grant() => match asked {
                // A token above the counter that the last answer showed was granted after that answer, so after its
                // request was sent: the short term counts from there. If too little of it is left, or the push is
                // an old one, asking again settles it.
                Some(Asked { counter, sent, .. })
                    if *counter >= 0 && token > *counter && now() < sent.plus(GRANT_TERM.duration / 2) =>
                {
                    Hint::Granted { token, sent: *sent, by: By::Push }
                }
                _ => Hint::Ask,
            },
            () = tokio::time::sleep(pause) => Hint::Ask,
        }
    }

    /// The lock is ours: hands everything over to a hold. `None` if the server has to be asked again, as a holder of this
    /// process hands us the same one.
    fn granted(&mut self, token: i64, sent: Moment, by: By) -> Result<Option<Grant>> {
        let token = u64::try_from(token).ok().and_then(FencingToken::new).ok_or_else(|| Error::Backend {
            store: self.store.node.config().label.clone(),
            source: format!("{token} is not a token").into(),
        })?;
        if let Some(seat) = &self.seat {
            let served = match by {
                By::Answer(choices) => seat.serve(choices),
                By::Push => seat.serve(None),
                By::HandOver(..) => seat.accept(),
            };
            match served {
                Served::Now => {}
                Served::BesideTurn(row) => self.give_back(row),
                Served::AskAgain => return Ok(None),
            }
        }
        self.seat = None;
        let (pushed, ttl) = (matches!(by, By::Push), self.request.ttl);
        let in_row = matches!(by, By::HandOver(_, Some(_)));
        self.link = None;
        let term = match pushed {
            true => GRANT_TERM.duration,
            // Not all of it, so that the rest is made up for soon.
            false if in_row && self.store.clock.now().since(sent) > ttl / 10 => {
                ttl.saturating_sub(Duration::from_millis(1))
            }
            false => ttl,
        };
        let hold = self.hold(token, by)?;
        let pushed = pushed || in_row;
        let (owner, hold) = (self.request.owner, Arc::new(hold));
        Ok(Some(Grant { owner, token, sent, term: Some(term), pushed, hold }))
    }

    fn hold(&mut self, token: FencingToken, by: By) -> Result<Held> {
        let Some(letters) = self.letters.take() else {
            return Err(self.store.node.unavailable("this attempt has ended"));
        };
        let pushed = matches!(by, By::Push);
        let heir = matches!(by, By::HandOver(..)).then(|| self.store.cohorts.count_heir(&self.request.name));
        let (handed, row) = if let By::HandOver(handed, row) = by { (handed, row) } else { (0, None) };
        Ok(Held {
            node: self.store.node.clone(),
            keeper: self.store.keeper.clone(),
            renewals: self.store.renewals.clone(),
            cohorts: self.store.cohorts.clone(),
            inbox: self.store.inbox.clone(),
            name: self.request.name.clone(),
            owner: self.request.owner,
            token,
            keys: self.keys.clone(),
            value: self.value.clone(),
            _line: self.line.clone(),
            handed,
            _heir: heir,
            giving: Giving::new(row.as_ref().map_or(self.request.owner, |row| row.id)),
            row,
            pushed,
            _letters: letters,
        })
    }
}
