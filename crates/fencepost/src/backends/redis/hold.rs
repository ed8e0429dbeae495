//! A lock held on a Redis server, and how it is renewed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, oneshot};

use super::cohort::{Choice, Cohorts, Heir};
use super::inbox::{Inbox, LetterBox};
use super::keys::Keys;
use super::node::{Line, Link, Node, On, Script};
use super::resp::Value;
use super::row::{CERTAIN, Row};
use super::{GRANT_TERM, milliseconds, record};
use crate::backend::{Hold, Renewal};
use crate::backends::batch::Batches;
use crate::clock::Moment;
use crate::keeper::Keeper;
use crate::{FencingToken, Loss, Name, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    pub(super) node: Arc<Node>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) renewals: Arc<Renewals>,
    pub(super) cohorts: Arc<Cohorts>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
    pub(super) keys: Arc<Keys>,
    pub(super) value: Arc<str>,
    /// How many turns in a row the lock has had in this process.
    pub(super) handed: usize,
    /// The row that has the lock, and the holder its turn in it.
    pub(super) row: Option<Arc<Row>>,
    /// It came from a holder of another process, so others may well wait for it.
    pub(super) pushed: bool,
    pub(super) giving: Mutex<Giving>,
    /// If a holder of this process has handed it over.
    pub(super) _heir: Option<Heir>,
    /// Open for revocations while the lock is held, on the channel that the value names.
    pub(super) _letters: LetterBox,
    pub(super) _line: Arc<Line>,
}

/// What giving a lock back has come to. One at a time does, and another one begins where that has ended.
#[derive(Debug)]
pub(super) struct Giving {
    /// The identities that the server may have it under, in the order in which it would have got them.
    pub(super) identities: Vec<Owner>,
    /// It is given back, or others have it: what comes later must not touch it.
    pub(super) done: bool,
    /// Something may have been sent that gives it back: not to find the lock is no news from then on.
    begun: bool,
}

impl Giving {
    pub(super) fn new(identity: Owner) -> Mutex<Self> {
        Mutex::new(Self { identities: vec![identity], done: false, begun: false })
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        if let Some(row) = self.row.as_ref().filter(|row| term > row.ttl) {
            // The others did not ask for so long a term.
            row.close();
        }
        let found = renew(&self.renewals, &self.node, self.keys.lock(), self.identity(), term).await?;
        Ok(match found {
            Found::Ours(sent) => {
                if let Some(row) = &self.row {
                    row.renewed(sent, term, self.node.now());
                }
                Renewal::Renewed { sent, term: Some(term) }
            }
            Found::Not(value) => Renewal::Lost(self.lost(&value)),
        })
    }

    async fn release(&self) -> Result<bool> {
        let mut giving = self.giving.lock().await;
        if giving.done {
            return Ok(true);
        }
        if let Some(row) = &self.row
            && row.pass(self.node.now()).is_some()
        {
            giving.done = true;
            drop(giving);
            return self.passed(row).await;
        }
        let again = std::mem::replace(&mut giving.begun, true);
        let ours = self.give(&mut giving.identities).await? || again;
        giving.done = true;
        self.given_back(ours);
        Ok(ours)
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let mut giving = self.giving.lock().await;
        if giving.done {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let renewal = match &self.row {
            Some(row) => self.step_out(row, &mut giving.identities, term).await?,
            None => self.renew(term).await?,
        };
        if matches!(renewal, Renewal::Renewed { .. }) {
            // Whoever attaches it gives it back.
            giving.done = true;
            self.cohorts.prompt(&self.name);
        }
        Ok(renewal)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Held {
    /// What the server has the lock under.
    fn identity(&self) -> Owner {
        self.row.as_ref().map_or(self.owner, |row| row.id)
    }

    /// Closes the row and makes the lock this member's own: whoever attaches it knows the owner, and no row.
    async fn step_out(&self, row: &Row, identities: &mut Vec<Owner>, term: Duration) -> Result<Renewal> {
        row.give();
        identities.push(self.owner);
        let token = i64::try_from(self.token.get()).unwrap_or_default();
        let (row_id, ttl) = (row.id.to_string(), milliseconds(term));
        let arguments = [row_id.as_str(), &ttl, &record::with_token(&self.value, token)];
        let (lock, timeout) = ([self.keys.lock()], self.node.config().timeout.min(term));
        let answer = self.node.run(Script::Attach, On::Locks(&lock), &arguments, timeout, |_| {}).await?;
        let found =
            answer.value.as_list().map(|items| items.first().and_then(Value::as_text).unwrap_or_default());
        let lost = found.map(|found| loss(found, row.id));
        row.given_back(lost.as_ref().is_none_or(|why| matches!(why, Loss::ForceReleased { .. })));
        Ok(match lost {
            None => Renewal::Renewed { sent: answer.sent, term: Some(term) },
            Some(why) => Renewal::Lost(why),
        })
    }

    /// The next of the row has the lock now. Says whether it was still the row's, by the server's word.
    async fn passed(&self, row: &Arc<Row>) -> Result<bool> {
        if !row.is_certain(self.node.now()) {
            return tell(&self.node, &self.keys, row).await;
        }
        // Many turns come to pass in the time of one answer. From when releases ask again, all that follow are told of.
        if row.has_to_tell() {
            self.tell_in(CERTAIN, row);
        }
        Ok(true)
    }

    /// Tells others who has the lock then, if the row still has it. By the keeper: nobody may turn this runtime meanwhile.
    fn tell_in(&self, pause: Duration, row: &Arc<Row>) {
        let (node, keys, row) = (self.node.clone(), self.keys.clone(), Arc::downgrade(row));
        self.keeper.spawn(async move {
            tokio::time::sleep(pause).await;
            if let Some(row) = row.upgrade().filter(|row| !row.is_giving()) {
                let _ = tell(&node, &keys, &row).await;
            }
        });
    }

    /// Tells those who had the lock before, in the same row, what giving it back came to.
    fn given_back(&self, ours: bool) {
        if let Some(row) = &self.row {
            row.given_back(ours);
        }
    }

    /// Gives the lock back, to waiters of this process if there are any.
    async fn give(&self, identities: &mut Vec<Owner>) -> Result<bool> {
        if self.row.is_some() || self.cohorts.want(&self.name) {
            // Several tasks want it, or have just had it, and who is about to come back shall come in time for the same row.
            // Twice: of those who have let others go first, the runtime may take the last one first.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        // Only the first turn gives back our own lock; a further one that of chosen waiters that are gone.
        let (mut ours, mut unknown) = (None, false);
        // What an unanswered request may have handed over is only given back.
        while identities.len() == 1 {
            let Some(choice) = self.cohorts.choose(&self.name, self.handed) else { break };
            match self.hand(identities, choice).await? {
                Handed::To { somebody: true } => return Ok(ours.unwrap_or(true)),
                Handed::To { somebody: false } => ours = ours.or(Some(true)),
                Handed::Not { ours: found } => return Ok(ours.unwrap_or(found)),
                Handed::Unknown => unknown = true,
            }
        }
        let (node, timeout) = (&self.node, self.node.config().timeout);
        let waiter_first = |link: &Arc<Link>| {
            if self.pushed {
                link.answer_last();
            }
        };
        let mut found = false;
        for identity in identities.iter() {
            let arguments = ["free", &identity.to_string(), GRANT_TERM.text];
            let answer =
                node.run(Script::Give, On::One(&self.keys), &arguments, timeout, waiter_first).await?;
            let free = answer.value.as_int() == Some(1);
            // A repeated release finds nothing if the first one did its work.
            found |= free || answer.repeated;
            if free {
                break;
            }
        }
        Ok(ours.unwrap_or(found || unknown))
    }

    /// Hands the lock to waiters of this process.
    async fn hand(&self, identities: &mut Vec<Owner>, choice: Choice) -> Result<Handed> {
        let first = choice.first().clone();
        // Open before the server knows of the row.
        let letters = (choice.len() > 1).then(|| self.inbox.open(Owner::fresh(), Arc::default()));
        let row = letters.as_ref().map(|letters| record::in_row(letters.owner(), first.owner, &first.value));
        let [ttl, turns, count] =
            [milliseconds(first.ttl), choice.turns.to_string(), choice.len().to_string()];
        let (from, row) = (identities[0].to_string(), row.unwrap_or_default());
        let arguments = ["hand", &from, GRANT_TERM.text, &first.value, &ttl, &turns, &count, &row];
        identities.extend(letters.as_ref().map(LetterBox::owner));
        let (node, timeout) = (&self.node, self.node.config().timeout);
        let answer = node.run(Script::Give, On::One(&self.keys), &arguments, timeout, |_| {}).await?;
        let numbers = answer.value.as_list().unwrap_or(std::slice::from_ref(&answer.value));
        let number = |index: usize| numbers.get(index).and_then(Value::as_int);
        let (token, count) = (number(0).unwrap_or(0), number(1).unwrap_or(1));
        if token > 0 {
            self.given_back(true);
        }
        let Some(letters) = letters else {
            if token <= 0 {
                // If a first request has handed it over, that waiter finds itself at the server.
                return Ok(Handed::Not { ours: token != 0 || answer.repeated });
            }
            *identities = vec![first.owner];
            return Ok(Handed::To { somebody: choice.granted(token, answer.sent) });
        };
        if token <= 0 {
            if token == 0 && answer.repeated {
                return Ok(Handed::Unknown);
            }
            identities.pop();
            return Ok(Handed::Not { ours: token != 0 });
        }
        *identities = vec![letters.owner()];
        let members = choice.line_up(token, usize::try_from(count).unwrap_or(1));
        let row = Row::new(letters, first.ttl, members, answer.sent);
        let begun = row.begin();
        if begun.is_some_and(|begun| begun != token) {
            // The server names one that is gone. Not waited for: a release that is dropped here would give it back once more.
            self.tell_in(Duration::ZERO, &row);
        }
        Ok(Handed::To { somebody: begun.is_some() })
    }

    /// The lock is not ours any more, by what was found in its place.
    fn lost(&self, found: &str) -> Loss {
        if let Some(row) = &self.row {
            row.close();
        }
        loss(found, self.identity())
    }
}

/// Why a lock is not held under an identity any more, by what was found in its place.
fn loss(found: &str, identity: Owner) -> Loss {
    match record::revoked(found) {
        Some(reason) if record::identity(found) == Some(identity) => {
            Loss::ForceReleased { reason: reason.to_owned() }
        }
        _ => Loss::Taken,
    }
}

/// Tells others who of a row has the lock now, and says whether it was still the row's.
async fn tell(node: &Node, keys: &Keys, row: &Row) -> Result<bool> {
    let Some(value) = row.value() else { return Ok(true) };
    let timeout = node.config().timeout;
    let arguments = ["pass", &row.id.to_string(), &value];
    let answer = node.run(Script::Give, On::One(keys), &arguments, timeout, |_| {}).await?;
    let Value::Text(found) = &answer.value else { return Ok(true) };
    // It may have been given back before this came to the server.
    match tokio::time::timeout(timeout, row.was_given_back()).await {
        Ok(Some(ours)) => Ok(ours),
        Ok(None) => {
            let why = loss(&String::from_utf8_lossy(found), row.id);
            let ours = matches!(why, Loss::ForceReleased { .. });
            row.lose(why);
            Ok(ours)
        }
        Err(_) => Err(node.unavailable("who gives the lock back for this task has no answer")),
    }
}

/// What a hand-over came to.
enum Handed {
    /// The lock is a waiter's or a row's; `somebody` of them is still there.
    To { somebody: bool },
    /// To nobody; `ours` is whether it was ours to give.
    Not { ours: bool },
    /// A first request was not answered, and may have handed it to a row that nobody knows of.
    Unknown,
}

/// What a renewal found: the lock is ours, by a request sent then; or it is not, and what is there instead.
#[derive(Debug)]
pub(super) enum Found {
    Ours(Moment),
    Not(String),
}

/// Renewals that go to the server together.
pub(super) type Renewals = Batches<Waiting>;

#[derive(Debug)]
pub(super) struct Waiting {
    key: String,
    identity: Owner,
    term: Duration,
    result: oneshot::Sender<Result<Found>>,
}

/// Renews one lock, maybe together with others.
async fn renew(
    renewals: &Arc<Renewals>,
    node: &Arc<Node>,
    key: &str,
    identity: Owner,
    term: Duration,
) -> Result<Found> {
    let (result, answer) = oneshot::channel();
    let one = Waiting { key: key.to_owned(), identity, term, result };
    let over = node.clone();
    renewals.send(one, move |batch| drop(tokio::spawn(send(over.clone(), batch))));
    answer.await.unwrap_or_else(|_| Err(node.unavailable("the runtime that carried the renewal ended")))
}

async fn send(node: Arc<Node>, batch: Vec<Waiting>) {
    let words: Vec<[String; 2]> =
        batch.iter().map(|one| [milliseconds(one.term), one.identity.to_string()]).collect();
    let keys: Vec<&str> = batch.iter().map(|one| one.key.as_str()).collect();
    let arguments: Vec<&str> = words.iter().flatten().map(String::as_str).collect();
    // Late answers are worthless, and a stuck connection should be replaced while there is time to.
    let shortest = batch.iter().map(|one| one.term).min().unwrap_or(node.config().timeout);
    let timeout = node.config().timeout.min((shortest / 3).max(Duration::from_millis(20)));
    let answer = node.run(Script::Renew, On::Locks(&keys), &arguments, timeout, |_| {}).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let text = error.to_string();
            for one in batch {
                let _ = one.result.send(Err(node.unavailable(text.clone())));
            }
            return;
        }
    };
    let lost = answer.value.as_list().unwrap_or_default();
    let found = |index: usize| {
        let number = i64::try_from(index + 1).ok();
        lost.chunks_exact(2).find(|pair| pair[0].as_int() == number).map(|pair| match &pair[1] {
            Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        })
    };
    for (index, one) in batch.into_iter().enumerate() {
        let _ = one.result.send(Ok(found(index).map_or(Found::Ours(answer.sent), Found::Not)));
    }
}
