//! Background tasks: what a store still does for callers who do not wait for it any more, such as giving back
//! a lock that they gave up. [`Locks::close`](crate::Locks::close) waits for them, or the end of the process
//! would leave what they undo.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};

use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;

/// The background of one store.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackgroundTasks(Arc<watch::Sender<usize>>);

/// One of them. Done when it is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundTask(Arc<watch::Sender<usize>>);

impl BackgroundTasks {
    pub(crate) fn begin(&self) -> BackgroundTask {
        self.0.send_modify(|open| *open += 1);
        BackgroundTask(self.0.clone())
    }

    /// Runs a task in the background.
    pub(crate) fn spawn(&self, keeper: &Keeper, job: impl Future<Output = ()> + Send + 'static) {
        let task = self.begin();
        keeper.spawn(async move {
            job.await;
            drop(task);
        });
    }

    /// Runs something in the background for a caller that waits for it. If the caller goes away, the rest is
    /// a background task, together with the drop of what comes out of it.
    pub(crate) fn carry_out<T: Send + 'static>(
        &self,
        keeper: &Keeper,
        job: impl Future<Output = T> + Send + 'static,
    ) -> Spawned<T> {
        let (sender, answer) = oneshot::channel();
        let rest = Rest::default();
        let job = Box::pin(async move { drop(sender.send(job.await)) });
        keeper.spawn(Job { job, _rest: rest.clone() });
        Spawned { answer, rest, background: self.clone() }
    }

    /// Waits until there are none.
    pub(crate) async fn done(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// The task that a job has become, if it has. Goes with the job.
type Rest = Arc<Mutex<Option<BackgroundTask>>>;

/// What runs in the background. The job ends first, also when it is aborted: its end may begin another task.
struct Job<F> {
    job: Pin<Box<F>>,
    _rest: Rest,
}

impl<F: Future<Output = ()>> Future for Job<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.job.as_mut().poll(context)
    }
}

/// Waits for what is done in the background: `None` if it was aborted.
#[derive(Debug)]
pub(crate) struct Spawned<T> {
    answer: oneshot::Receiver<T>,
    rest: Rest,
    background: BackgroundTasks,
}

impl<T> Future for Spawned<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.answer).poll(context).map(Result::ok)
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        *lock(&self.rest) = Some(self.background.begin());
    }
}
