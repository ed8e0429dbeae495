//! Who is at work on which resource: newer holders wait for older ones, and older ones do not get in after
//! them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::runtime::sync::{lock, until};
use crate::{FencingToken, Name};

/// The gates of all resources that somebody is at.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<HashMap<Name, Gate>>);

#[derive(Debug, Default)]
struct Gate {
    highest: Option<FencingToken>,
    /// How many handlers of each token are at work.
    running: BTreeMap<FencingToken, usize>,
    /// How many wait or are at work. The gate goes with the last.
    visitors: usize,
    changed: Arc<Notify>,
}

/// Why somebody was not let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Stale(FencingToken),
    /// Older ones were still at work when the patience ended.
    Occupied,
}

/// Somebody at a gate: waiting, or at work with the token that was let in.
#[derive(Debug)]
pub(super) struct Visit {
    gates: Arc<Gates>,
    name: Name,
    changed: Arc<Notify>,
    at_work: Option<FencingToken>,
}

/// Says that a request is at work, for as long as any clone of it lives. The layer puts it into the
/// extensions of each request; a handler that leaves work behind hands that a clone.
#[derive(Clone, Debug)]
pub struct Running {
    _visit: Arc<Visit>,
}

impl Gates {
    pub(super) fn visit(self: &Arc<Self>, name: Name) -> Visit {
        let mut gates = lock(&self.0);
        let gate = gates.entry(name.clone()).or_default();
        gate.visitors += 1;
        Visit { gates: self.clone(), name, changed: gate.changed.clone(), at_work: None }
    }
}

impl Visit {
    /// Goes in when all older ones have ended. From here on no older one does.
    pub(super) async fn enter(mut self, token: FencingToken, patience: Duration) -> Result<Running, Closed> {
        let wait = until(&self.changed, || lock(&self.gates.0).get_mut(&self.name)?.look(token));
        tokio::time::timeout(patience, wait).await.unwrap_or(Err(Closed::Occupied))?;
        self.at_work = Some(token);
        Ok(Running { _visit: Arc::new(self) })
    }
}

impl Gate {
    /// Lets a token in, or refuses it, or has it wait.
    fn look(&mut self, token: FencingToken) -> Option<Result<(), Closed>> {
        match self.highest {
            Some(highest) if token < highest => return Some(Err(Closed::Stale(highest))),
            Some(highest) if token == highest => {}
            _ => {
                self.highest = Some(token);
                // Older ones that wait have no reason to any more.
                self.changed.notify_waiters();
            }
        }
        let is_occupied = self.running.range(..token).next().is_some();
        (!is_occupied).then(|| {
            *self.running.entry(token).or_default() += 1;
            Ok(())
        })
    }

    fn end_work(&mut self, token: FencingToken) {
        let Some(count) = self.running.get_mut(&token) else { return };
        *count -= 1;
        if *count == 0 {
            self.running.remove(&token);
            self.changed.notify_waiters();
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut gates = lock(&self.gates.0);
        let Some(gate) = gates.get_mut(&self.name) else { return };
        if let Some(token) = self.at_work {
            gate.end_work(token);
        }
        gate.visitors -= 1;
        if gate.visitors == 0 {
            gates.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    const PATIENCE: Duration = Duration::from_secs(600);

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn visit(gates: &Arc<Gates>) -> Visit {
        gates.visit(Name::new("a").unwrap())
    }

    /// Polls once.
    async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }

    #[tokio::test]
    async fn a_newer_one_waits_for_all_older_ones_and_an_older_one_that_waits_is_refused() {
        let gates = Arc::<Gates>::default();
        let first = visit(&gates).enter(token(7), PATIENCE).await.unwrap();
        let second = visit(&gates).enter(token(7), PATIENCE).await.unwrap();
        let mut eight = pin!(visit(&gates).enter(token(8), PATIENCE));
        assert!(is_pending(&mut eight).await);
        assert_eq!(visit(&gates).enter(token(7), PATIENCE).await.unwrap_err(), Closed::Stale(token(8)));
        let mut nine = pin!(visit(&gates).enter(token(9), PATIENCE));
        assert!(is_pending(&mut nine).await);
        assert_eq!(eight.await.unwrap_err(), Closed::Stale(token(9)));
        drop(first);
        assert!(is_pending(&mut nine).await);
        drop(second);
        drop(nine.await.unwrap());
        assert!(lock(&gates.0).is_empty(), "nobody is left");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_and_the_gate_stays_closed_to_older_ones() {
        let gates = Arc::<Gates>::default();
        let older = visit(&gates).enter(token(7), PATIENCE).await.unwrap();
        assert_eq!(visit(&gates).enter(token(8), PATIENCE).await.unwrap_err(), Closed::Occupied);
        assert_eq!(visit(&gates).enter(token(7), PATIENCE).await.unwrap_err(), Closed::Stale(token(8)));
        drop(older);
        assert!(visit(&gates).enter(token(8), PATIENCE).await.is_ok());
    }
}
