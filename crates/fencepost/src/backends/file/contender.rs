//! Waiting. One thread per process and name stands in the kernel's queue, blocked in `flock`; the callers of this
//! process stand in order behind it.
//!
//! A blocked `flock` cannot be called off. A thread whose callers have all gone stays where it is, serves whoever
//! comes later, and gives a flock that it wins for nobody up at once.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::bell::Bell;
use super::claim::Claim;
use super::lockfile::LockFile;
use super::{Shared, place};
use crate::backend::{Grant, Request};
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::{Error, Name, Result};

/// How often a thread looks that would not be told of a replaced file.
const UNTOLD: Duration = Duration::from_millis(100);

/// The pause before a file is opened that has taken the place of another one.
const GONE: Duration = Duration::from_millis(1);

/// The callers that wait, by name.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<HashMap<Name, Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// Which thread serves this queue. One that finds another number here has been replaced.
    thread: u64,
    /// Wakes that thread while it waits for the end of a lease.
    bell: Option<Bell>,
}

#[derive(Debug)]
struct Waiter {
    request: Request,
    reply: oneshot::Sender<Result<Grant>>,
}

impl Queues {
    /// Whether anybody waits for this lock.
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        lock(&self.0).get(name).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// The first caller that still waits, if this thread is the one to serve it.
    fn first(&self, name: &Name, thread: u64) -> Option<Waiter> {
        let mut queues = lock(&self.0);
        let queue = queues.get_mut(name).filter(|queue| queue.thread == thread)?;
        std::iter::from_fn(|| queue.waiters.pop_front()).find(|waiter| !waiter.reply.is_closed())
    }

    /// Whether this thread has anybody left to serve. If not, it is not the queue's thread any more.
    fn goes_on(&self, name: &Name, thread: u64) -> bool {
        let mut queues = lock(&self.0);
        let Some(queue) = queues.get_mut(name).filter(|queue| queue.thread == thread) else { return false };
        queue.prune();
        let empty = queue.waiters.is_empty();
        if empty {
            queues.remove(name);
        }
        !empty
    }

    /// Lets those go who do not wait any more.
    fn prune(&self, name: &Name) {
        if let Some(queue) = lock(&self.0).get_mut(name) {
            queue.prune();
        }
    }
}

impl Queue {
    fn prune(&mut self) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        if let (true, Some(bell)) = (self.waiters.is_empty(), &self.bell) {
            bell.ring();
        }
    }
}

impl Shared {
    /// Takes a place in the queue.
    pub(super) fn enter(self: &Arc<Self>, request: &Request) -> Result<Place> {
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter { request: request.clone(), reply };
        let mut queues = lock(&self.queues.0);
        let queue = queues.entry(request.name.clone()).or_default();
        queue.waiters.push_back(waiter);
        if queue.thread == 0
            && let Err(error) = self.start_contender(&request.name, queue)
        {
            queues.remove(&request.name);
            return Err(error);
        }
        drop(queues);
        Ok(Place { shared: self.clone(), request: request.clone(), answer })
    }

    /// Puts a caller back to the head of the queue.
    fn put_back(self: &Arc<Self>, name: &Name, waiter: Waiter, bell: Option<Bell>) {
        let mut queues = lock(&self.queues.0);
        let queue = queues.entry(name.clone()).or_default();
        queue.bell = bell;
        queue.waiters.push_front(waiter);
        // It may have gone while it was out of the queue.
        queue.prune();
        // Another thread may have taken over, served everybody else and gone.
        if queue.thread == 0
            && let Err(error) = self.start_contender(name, queue)
            && let Some(mut queue) = queues.remove(name)
            && let Some(waiter) = queue.waiters.pop_front()
        {
            drop(waiter.reply.send(Err(error)));
        }
    }

    /// Sends a new thread for a queue whose file was replaced: the old one stands in the queue of a file that nobody
    /// uses any more.
    pub(super) fn restart_contenders(self: &Arc<Self>, replaced: impl Fn(&Name) -> bool) {
        for (name, queue) in lock(&self.queues.0).iter_mut() {
            if replaced(name)
                && !queue.waiters.is_empty()
                && let Err(error) = self.start_contender(name, queue)
            {
                let name = printable(name.as_str());
                tracing::warn!(%name, %error, "waiting for a lock was not taken up again after its file was replaced");
            }
        }
    }

    fn start_contender(self: &Arc<Self>, name: &Name, queue: &mut Queue) -> Result<()> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let thread = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (shared, name) = (self.clone(), name.clone());
        let spawned = std::thread::Builder::new()
            .name("fencepost-wait".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || contend(&shared, &name, thread));
        spawned.map_err(|error| Error::Unavailable {
            store: self.label.clone(),
            source: format!("the thread that waits for the lock did not start: {error}").into(),
        })?;
        queue.thread = thread;
        Ok(())
    }
}

/// What a contender does: wins the flock, gives it to the first in the queue, and starts over.
fn contend(shared: &Arc<Shared>, name: &Name, thread: u64) {
    let file_name = place::file_name(name);
    let mut listening = None;
    while shared.queues.goes_on(name, thread) {
        let won = LockFile::open_or_create(&shared.place, &file_name).and_then(|file| {
            if shared.watch.tells() {
                return file.lock().map(|()| Some(file));
            }
            // Nobody would tell us that the file was replaced, and its flock may never be free.
            Ok(if file.try_lock()? { Some(file) } else { None })
        });
        let Some(won) = won.transpose() else {
            std::thread::sleep(UNTOLD);
            continue;
        };
        let Some(waiter) = shared.queues.first(name, thread) else { continue };
        let claim = won.map_err(|error| shared.failed(&file_name, "lock", error));
        match claim.and_then(|file| shared.claim(file, &waiter.request, &file_name)) {
            // A caller that has gone meanwhile leaves the grant in the channel, whose drop gives it back.
            Ok(Claim::Granted(grant)) => drop(waiter.reply.send(Ok(grant))),
            Err(error) => drop(waiter.reply.send(Err(error))),
            Ok(Claim::Gone) => {
                shared.put_back(name, waiter, None);
                // An operator may be at it.
                std::thread::sleep(GONE);
            }
            Ok(Claim::Leased(holder)) => {
                let left = holder.expires_in.unwrap_or_default();
                waiter.request.seen.note(holder);
                match listening.take() {
                    Some(bell) => {
                        shared.put_back(name, waiter, Some(Bell::clone(&bell)));
                        bell.wait_for(left);
                    }
                    // Listen first, then look again: a change in between is not missed.
                    None => match Bell::listening(&shared.place.path.join(&file_name)) {
                        Ok(bell) => {
                            shared.put_back(name, waiter, Some(bell.clone()));
                            listening = Some(bell);
                        }
                        Err(error) => {
                            let error = shared.failed(&file_name, "watch", error);
                            drop(waiter.reply.send(Err(error)));
                        }
                    },
                }
            }
        }
    }
}

/// A caller's place in the queue, and the future of its grant.
pub(super) struct Place {
    shared: Arc<Shared>,
    request: Request,
    answer: oneshot::Receiver<Result<Grant>>,
}

impl Future for Place {
    type Output = Result<Grant>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Grant>> {
        Pin::new(&mut self.answer).poll(context).map(|answer| {
            answer.unwrap_or_else(|_| {
                let source = "the thread that waits for the lock ended".into();
                Err(Error::Unavailable { store: self.shared.label.clone(), source })
            })
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.answer.is_terminated() {
            return;
        }
        // First closed, then out of the queue: between the two, nobody takes us for one that waits.
        self.answer.close();
        self.shared.queues.prune(&self.request.name);
        // The holder may have changed while we waited; the error of a wait in vain names the last one.
        if let Ok(Some(holder)) = self.shared.look_up(&self.request.name) {
            self.request.seen.note(holder);
        }
    }
}
