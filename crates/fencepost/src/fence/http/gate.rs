//! Who is at work on which resource: newer holders wait for older ones, and older ones do not get in behind them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::runtime::sync::lock;
use crate::{FencingToken, Name};

/// The gates of all resources that somebody is at, and how many are.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<HashMap<Name, (Arc<Gate>, usize)>>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    highest: Option<FencingToken>,
    /// How many handlers of each token are at work.
    running: BTreeMap<FencingToken, usize>,
}

/// Why somebody was not let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Stale(FencingToken),
    /// Older ones were still at work when the patience ended.
    Occupied,
}

/// Somebody at a gate, in front of it or behind it. The gate lives as long as anybody is.
#[derive(Debug)]
pub(super) struct Visit {
    gates: Arc<Gates>,
    name: Name,
    gate: Arc<Gate>,
}

/// Says that a request is at work, for as long as any clone of it lives. The layer puts it into the extensions of each
/// request; a handler that leaves work behind hands that a clone.
#[derive(Clone, Debug)]
pub struct Running {
    _permit: Arc<Permit>,
}

#[derive(Debug)]
struct Permit {
    visit: Visit,
    token: FencingToken,
}

impl Gates {
    pub(super) fn visit(self: &Arc<Self>, name: Name) -> Visit {
        let gate = {
            let mut gates = lock(&self.0);
            let (gate, visitors) = gates.entry(name.clone()).or_default();
            *visitors += 1;
            gate.clone()
        };
        Visit { gates: self.clone(), name, gate }
    }
}

impl Visit {
    /// Goes in when all older ones have ended. From here on no older one does.
    pub(super) async fn enter(self, token: FencingToken, patience: Duration) -> Result<Running, Closed> {
        let wait = async {
            loop {
                let changed = self.gate.changed.notified();
                tokio::pin!(changed);
                // Before the look, so that no end is missed behind it.
                changed.as_mut().enable();
                if let Some(said) = self.look(token) {
                    return said;
                }
                changed.await;
            }
        };
        tokio::time::timeout(patience, wait).await.unwrap_or(Err(Closed::Occupied))?;
        Ok(Running { _permit: Arc::new(Permit { visit: self, token }) })
    }

    /// Goes in, or is refused, or has to wait.
    fn look(&self, token: FencingToken) -> Option<Result<(), Closed>> {
        let mut state = lock(&self.gate.state);
        match state.highest {
            Some(highest) if token < highest => return Some(Err(Closed::Stale(highest))),
            Some(highest) if token == highest => {}
            _ => {
                state.highest = Some(token);
                // Older ones that wait have no reason to any more.
                self.gate.changed.notify_waiters();
            }
        }
        let occupied = state.running.range(..token).next().is_some();
        (!occupied).then(|| {
            *state.running.entry(token).or_default() += 1;
            Ok(())
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let gate = &self.visit.gate;
        let mut state = lock(&gate.state);
        if let Some(count) = state.running.get_mut(&self.token) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(&self.token);
                gate.changed.notify_waiters();
            }
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut gates = lock(&self.gates.0);
        if let Some((_, visitors)) = gates.get_mut(&self.name) {
            *visitors -= 1;
            if *visitors == 0 {
                gates.remove(&self.name);
            }
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
