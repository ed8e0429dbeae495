//! Several connections that one task drives. What is sent over all of them at once, and what comes back at
//! about the same time, then costs one wake-up and not one each.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::runtime::sync::lock;

type Member = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The members of one runtime. Their task runs as long as there are any.
#[derive(Default)]
pub(super) struct Pool(Mutex<Joining>);

#[derive(Default)]
struct Joining {
    new: Vec<Member>,
    waker: Option<Waker>,
    running: bool,
}

impl Pool {
    /// Drives one more to its end, on the current runtime.
    pub(super) fn join(self: &Arc<Self>, member: impl Future<Output = ()> + Send + 'static) {
        let (waker, running) = {
            let mut joining = lock(&self.0);
            joining.new.push(Box::pin(member));
            (joining.waker.take(), std::mem::replace(&mut joining.running, true))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        if !running {
            let pool = self.clone();
            let mut members = Vec::new();
            tokio::spawn(poll_fn(move |context| pool.poll(&mut members, context)));
        }
    }

    /// Looks at all members: one that has nothing to do says so quickly. Another one is the first each time:
    /// the first may use up what the runtime lets one task do in a row.
    fn poll(&self, members: &mut Vec<Member>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let new = {
                let mut joining = lock(&self.0);
                joining.waker = Some(context.waker().clone());
                std::mem::take(&mut joining.new)
            };
            members.extend(new);
            if members.len() > 1 {
                members.rotate_left(1);
            }
            members.retain_mut(|member| member.as_mut().poll(context).is_pending());
            let mut joining = lock(&self.0);
            if joining.new.is_empty() {
                joining.running = !members.is_empty();
                return if joining.running { Poll::Pending } else { Poll::Ready(()) };
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn members_end_one_by_one_and_others_may_join_later() {
        let pool = Arc::<Pool>::default();
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (start, started) = oneshot::channel::<usize>();
            let (end, ended) = oneshot::channel();
            pool.join(async move {
                let _ = end.send(started.await);
            });
            starts.push(start);
            ends.push(ended);
            tokio::task::yield_now().await;
        }
        for (number, (start, ended)) in starts.into_iter().zip(ends).enumerate().rev() {
            start.send(number).unwrap();
            assert_eq!(ended.await.unwrap(), Ok(number));
        }
        tokio::task::yield_now().await;
        assert!(!lock(&pool.0).running, "nobody is left");
        let (end, ended) = oneshot::channel();
        pool.join(async move { end.send(()).unwrap() });
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_uses_up_what_the_runtime_allows_keeps_nobody_from_a_turn() {
        let pool = Arc::<Pool>::default();
        pool.join(async {
            loop {
                tokio::task::coop::consume_budget().await;
            }
        });
        for _ in 0..3 {
            let (end, ended) = oneshot::channel();
            pool.join(async move {
                tokio::task::coop::consume_budget().await;
                end.send(()).unwrap();
            });
            tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap().unwrap();
        }
    }
}
