//! Waiting for a future on a thread that may block, and finding out whether this one may.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::Handle;
use tokio::task::{coop, yield_now};

/// Runs a future to its end on this thread; its timers and sockets are those of `runtime`.
///
/// [`Handle::block_on`] panics where tokio thinks that a thread should not block. This never does.
pub(crate) fn block_on<T>(runtime: &Handle, future: impl Future<Output = T>) -> T {
    let _inside = runtime.enter();
    let (thread, mut future) = (WakeThread::new(), pin!(future));
    let waker = Waker::from(thread.clone());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return out;
        }
        thread.wait();
    }
}

/// Whether this thread is polling a task of tokio's, and everything else that runs there would wait for a
/// call that blocks. Threads of `spawn_blocking`, and of `block_in_place`, have a runtime and may block.
///
/// Tokio does not tell them apart for us, but it treats them differently. It counts the steps of what it
/// polls, and makes it pause after so many; a thread that may block has no such limit. And a pause waits for
/// the scheduler, if one drives this thread: that tells a task which has switched its limit off.
pub(crate) fn is_polling_a_task() -> bool {
    has_a_limit() || pauses_for_a_scheduler()
}

/// A limit fits into a byte.
const STEPS: usize = 256;

fn has_a_limit() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut first = None;
    for _ in 0..STEPS {
        match coop::poll_proceed(&mut context) {
            Poll::Pending => return true,
            // Dropped last, the first one takes back all steps.
            Poll::Ready(step) if first.is_none() => first = Some(step),
            Poll::Ready(step) => step.made_progress(),
        }
    }
    false
}

fn pauses_for_a_scheduler() -> bool {
    let thread = WakeThread::new();
    let waker = Waker::from(thread.clone());
    let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
    !thread.woken.load(Ordering::Acquire)
}

/// Wakes a thread that waits.
struct WakeThread {
    thread: Thread,
    /// Beside the thread's own token, which anything else that parks it takes.
    woken: AtomicBool,
}

impl WakeThread {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), woken: AtomicBool::new(false) })
    }

    fn wait(&self) {
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{LocalSet, block_in_place, spawn_blocking};

    use super::*;

    fn one_thread() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn many_threads() -> Runtime {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    #[test]
    fn a_thread_that_may_block_is_told_from_one_that_polls() {
        assert!(!is_polling_a_task(), "a plain thread");
        for runtime in [one_thread(), many_threads()] {
            {
                let _inside = runtime.enter();
                assert!(!is_polling_a_task(), "a plain thread that has entered a runtime");
            }
            runtime.block_on(async {
                assert!(is_polling_a_task(), "in block_on");
                assert!(tokio::spawn(async { is_polling_a_task() }).await.unwrap(), "a task");
                assert!(!spawn_blocking(is_polling_a_task).await.unwrap(), "spawn_blocking");
                assert!(tokio::spawn(coop::unconstrained(async { is_polling_a_task() })).await.unwrap());
                let local = LocalSet::new();
                let task = local.spawn_local(async { is_polling_a_task() });
                local.await;
                assert!(task.await.unwrap(), "a local task");
            });
        }
        many_threads().block_on(async {
            assert!(!block_in_place(is_polling_a_task), "block_in_place");
            assert!(!tokio::spawn(async { block_in_place(is_polling_a_task) }).await.unwrap());
        });
    }

    /// A task that has used up its limit is one all the same, and looking costs none of it.
    #[test]
    fn looking_takes_no_step_from_the_task() {
        one_thread().block_on(std::future::poll_fn(|context| {
            let mut steps = 0;
            while coop::has_budget_remaining() {
                assert!(is_polling_a_task());
                let Poll::Ready(step) = coop::poll_proceed(context) else { panic!("no step left") };
                step.made_progress();
                steps += 1;
            }
            assert!(steps > 100, "{steps}");
            assert!(is_polling_a_task(), "without a step left");
            Poll::Ready(())
        }));
    }

    /// A thread may have been unparked by somebody else, and somebody else may take what unparks it.
    #[test]
    fn a_wake_up_is_not_missed_and_a_false_one_is_no_answer() {
        let runtime = one_thread();
        let mut polled = 0;
        thread::current().unpark();
        let future = std::future::poll_fn(|context| {
            polled += 1;
            let waker = context.waker().clone();
            match polled {
                1 => drop(thread::spawn(move || waker.wake())),
                2 => {
                    waker.wake();
                    thread::park();
                }
                _ => return Poll::Ready(()),
            }
            Poll::Pending
        });
        block_on(runtime.handle(), future);
        assert_eq!(polled, 3);
    }

    #[test]
    fn it_does_not_panic_where_tokio_would() {
        let inner = many_threads();
        let handle = inner.handle().clone();
        let out = one_thread().block_on(async move { block_on(&handle, async { 7 }) });
        assert_eq!(out, 7);
    }
}
