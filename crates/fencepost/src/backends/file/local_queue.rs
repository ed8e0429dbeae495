//! Waiting. The callers of this process that wait for a name stand in a queue. One thread stands in the
//! kernel's queue for them, blocked in `flock`, and gives the flock to the first of them.
//!
//! A blocked `flock` cannot be called off. A thread whose callers have all gone stays where it is, serves
//! callers that come later, and gives up a flock that it wins for nobody.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::acquire::{AttemptOutcome, claim};
use super::client::Client;
use super::keys::file_name;
use super::lockfile::LockFile;
use super::operator::current_holder;
use crate::backend::{Grant, Request};
use crate::backends::common::backoff::Backoff;
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::{Name, Owner, Result};

/// Between two looks at a lock that no flock is worth waiting for: one that is detached, or whose file an
/// operator replaces.
const LOOKS: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));

/// The waiting callers of this process, by name.
#[derive(Debug, Default)]
pub(super) struct LocalQueues(Mutex<HashMap<Name, Queue>>);

#[derive(Debug)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// The thread that serves this queue. A thread that finds another number here was replaced.
    thread: u64,
}

#[derive(Debug)]
struct Waiter {
    request: Request,
    reply: oneshot::Sender<Result<Grant>>,
}

/// Takes a place in the queue.
pub(super) fn join(client: &Arc<Client>, request: &Request) -> Result<LocalWaiter> {
    let (reply, answer) = oneshot::channel();
    let mut queues = lock(&client.queues.0);
    let queue = match queues.entry(request.name.clone()) {
        Entry::Occupied(queue) => queue.into_mut(),
        Entry::Vacant(vacant) => {
            let thread = start_thread(client, &request.name)?;
            vacant.insert(Queue { waiters: VecDeque::new(), thread })
        }
    };
    queue.waiters.push_back(Waiter { request: request.clone(), reply });
    Ok(LocalWaiter { client: client.clone(), request: request.clone(), answer })
}

fn start_thread(client: &Arc<Client>, name: &Name) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let thread = NEXT.fetch_add(1, Ordering::Relaxed);
    let (of, name) = (client.clone(), name.clone());
    let spawned = std::thread::Builder::new()
        .name("fencepost-wait".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || serve(&of, &name, thread));
    spawned.map(|_| thread).map_err(|error| {
        client.unavailable(format!("the thread that waits for a lock did not start: {error}"))
    })
}

/// What the thread of a queue does: wins the flock, gives it to the first waiter, and starts over.
fn serve(client: &Arc<Client>, name: &Name, thread: u64) {
    let mut looks = LOOKS;
    while client.queues.first(name, thread).is_some() {
        let won = wait_for_flock(client, name);
        // Again: who was first before may have gone.
        let Some(request) = client.queues.first(name, thread) else { return };
        let claimed = match won {
            Ok(Some(file)) => claim(client, file, &request),
            Ok(None) => Ok(AttemptOutcome::Passing),
            Err(error) => Err(error.into()),
        };
        let answer = match claimed {
            Ok(AttemptOutcome::Granted(grant)) => Ok(grant),
            Err(failure) => Err(client.error(name, failure)),
            Ok(AttemptOutcome::Busy(detached)) => {
                let left = detached.expires_in.unwrap_or_default();
                request.seen.note(detached);
                std::thread::sleep(looks.pause().min(left));
                continue;
            }
            Ok(AttemptOutcome::Passing) => {
                std::thread::sleep(looks.pause());
                continue;
            }
        };
        looks = LOOKS;
        // If the waiter has gone meanwhile, its grant is dropped here, and so given back.
        drop(client.queues.remove(name, request.owner()).map(|waiter| waiter.reply.send(answer)));
    }
}

/// Waits for the flock of a name's file. Without a listener `None` if it is taken: nobody would tell us that
/// the file was replaced, and its flock may never be free.
fn wait_for_flock(client: &Client, name: &Name) -> std::io::Result<Option<LockFile>> {
    let file = LockFile::open_or_create(&client.directory, &file_name(name))?;
    if client.listener.is_listening() {
        file.lock()?;
    } else if !file.try_lock()? {
        return Ok(None);
    }
    Ok(Some(file))
}

impl LocalQueues {
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        lock(&self.0).get(name).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// The first waiter. `None` tells this thread to end: it was replaced, or there is nobody left to serve.
    fn first(&self, name: &Name, thread: u64) -> Option<Request> {
        let mut queues = lock(&self.0);
        let queue = queues.get(name).filter(|queue| queue.thread == thread)?;
        let first = queue.waiters.front().map(|waiter| waiter.request.clone());
        if first.is_none() {
            queues.remove(name);
        }
        first
    }

    fn remove(&self, name: &Name, owner: Owner) -> Option<Waiter> {
        let mut queues = lock(&self.0);
        let waiters = &mut queues.get_mut(name)?.waiters;
        let place = waiters.iter().position(|waiter| waiter.request.owner() == owner)?;
        waiters.remove(place)
    }
}

/// Gives new threads to queues whose file was replaced. The old ones stand in the queue of a file that nobody
/// uses any more.
pub(super) fn restart(client: &Arc<Client>, is_replaced: impl Fn(&Name) -> bool) {
    let mut queues = lock(&client.queues.0);
    // Its thread stands in the wrong queue, and nobody needs another one.
    queues.retain(|name, queue| !queue.waiters.is_empty() || !is_replaced(name));
    for (name, queue) in queues.iter_mut().filter(|(name, _)| is_replaced(name)) {
        match start_thread(client, name) {
            Ok(thread) => queue.thread = thread,
            Err(error) => tracing::warn!(
                name = %printable(name.as_str()), %error,
                "waiting for a lock was not taken up again after its file was replaced"
            ),
        }
    }
}

/// A caller in the queue, and the future of its grant.
pub(super) struct LocalWaiter {
    client: Arc<Client>,
    request: Request,
    answer: oneshot::Receiver<Result<Grant>>,
}

impl Future for LocalWaiter {
    type Output = Result<Grant>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Grant>> {
        Pin::new(&mut self.answer).poll(context).map(|answer| {
            let ended = |_| self.client.unavailable("the thread that waits for the lock ended".to_owned());
            answer.map_err(ended).flatten()
        })
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        if self.answer.is_terminated() {
            return;
        }
        self.client.queues.remove(&self.request.name, self.request.owner());
        // A grant that came too late is given back before we look.
        drop(self.answer.try_recv());
        // The holder may have changed while we waited; the error of a wait in vain names the last one.
        if let Ok(Some(holder)) = current_holder(&self.client, &self.request.name) {
            self.request.seen.note(holder);
        }
    }
}
