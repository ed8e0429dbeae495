//! A lock held on a Redis server, and how it is renewed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::cohort::Cohorts;
use super::inbox::LetterBox;
use super::keys::Keys;
use super::node::{Line, Link, Node, On, Script};
use super::resp::Value;
use super::{GRANT_TERM, milliseconds, record};
use crate::backend::{Hold, Renewal};
use crate::backends::batch::Batches;
use crate::clock::Moment;
use crate::{Loss, Name, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    pub(super) node: Arc<Node>,
    pub(super) renewals: Arc<Renewals>,
    pub(super) cohorts: Arc<Cohorts>,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) keys: Arc<Keys>,
    pub(super) value: Arc<str>,
    /// How often in a row the lock stayed in this process.
    pub(super) handed: u32,
    /// It came from a holder of another process, so others may well wait for it.
    pub(super) pushed: bool,
    /// Open for revocations while the lock is held, on the channel that the value names.
    pub(super) _letters: LetterBox,
    pub(super) _line: Arc<Line>,
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let found = renew(&self.renewals, &self.node, &self.keys.lock, &self.value, term).await?;
        Ok(match found {
            Found::Ours(sent) => Renewal::Renewed { sent, term: Some(term) },
            Found::Not(value) => Renewal::Lost(self.loss(&value)),
        })
    }

    async fn release(&self) -> Result<bool> {
        let (node, timeout) = (&self.node, self.node.config().timeout);
        let mut value = self.value.clone();
        // Only the first turn gives back our own lock; a further one that of a chosen waiter that is gone.
        let mut ours = None;
        while let Some(choice) = self.cohorts.choose(&self.name, self.handed) {
            let (ttl, turns) = (milliseconds(choice.seat.ttl), choice.turns.to_string());
            let arguments = ["hand", &*value, GRANT_TERM.text, &choice.seat.value, &ttl, &turns];
            let answer = node.run(Script::Give, On::One(&self.keys), &arguments, timeout, |_| {}).await?;
            let token = answer.value.as_int().unwrap_or(0);
            let ours = *ours.get_or_insert(token != 0 || answer.repeated);
            let next = choice.seat.value.clone();
            if token <= 0 || choice.granted(token, answer.sent) {
                return Ok(ours);
            }
            value = next;
        }
        let arguments = ["free", &*value, GRANT_TERM.text];
        let waiter_first = |link: &Arc<Link>| {
            if self.pushed {
                link.answer_last();
            }
        };
        let answer = node.run(Script::Give, On::One(&self.keys), &arguments, timeout, waiter_first).await?;
        // A repeated release finds nothing if the first one did its work.
        Ok(ours.unwrap_or(answer.repeated || answer.value.as_int() == Some(1)))
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.renew(term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Held {
    /// Why a lock is not ours any more, by what was found in its place.
    fn loss(&self, found: &str) -> Loss {
        match record::revoked(found) {
            Some(reason) if record::owner(found) == Some(self.owner) => {
                Loss::ForceReleased { reason: reason.to_owned() }
            }
            _ => Loss::Taken,
        }
    }
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
    value: Arc<str>,
    term: Duration,
    result: oneshot::Sender<Result<Found>>,
}

/// Renews one lock, maybe together with others.
async fn renew(
    renewals: &Arc<Renewals>,
    node: &Arc<Node>,
    key: &str,
    value: &Arc<str>,
    term: Duration,
) -> Result<Found> {
    let (result, answer) = oneshot::channel();
    let one = Waiting { key: key.to_owned(), value: value.clone(), term, result };
    let over = node.clone();
    renewals.send(one, move |batch| drop(tokio::spawn(send(over.clone(), batch))));
    answer.await.unwrap_or_else(|_| Err(node.unavailable("the runtime that carried the renewal ended")))
}

async fn send(node: Arc<Node>, batch: Vec<Waiting>) {
    let terms: Vec<String> = batch.iter().map(|one| milliseconds(one.term)).collect();
    let keys: Vec<&str> = batch.iter().map(|one| one.key.as_str()).collect();
    let arguments: Vec<&str> =
        batch.iter().zip(&terms).flat_map(|(one, term)| [term.as_str(), &*one.value]).collect();
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
