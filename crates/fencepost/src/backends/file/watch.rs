//! Tells holders at once that an operator took their lock, and sends waiters to the new file of a lock that was
//! replaced. One thread per store, started with the first wait, or when the first lock has been held for a while; without it,
//! renewals find out.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::fs::inotify::{ReadFlags, Reader};

use super::bell::Bell;
use super::{Shared, place};
use crate::Name;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;

/// How old a store is before it listens for holders alone. The kernel takes about ten milliseconds to end a listener: more than all
/// else that a short command under a lock does.
const SOON: Duration = Duration::from_millis(100);

/// The thread that listens to the directory, while there is one.
#[derive(Debug, Default)]
pub(super) struct Watch {
    planned: AtomicBool,
    asked: AtomicBool,
    bell: Mutex<Option<Bell>>,
}

/// A hold that wants to know when something happens to its lock file.
pub(super) trait Watched: Send + Sync + std::fmt::Debug {
    fn name(&self) -> &Name;

    /// Tells the guard if the lock is gone.
    fn look(&self);
}

impl Watch {
    /// Starts the thread in a while, the first time.
    pub(super) fn ensure_soon(&self, shared: &Arc<Shared>) {
        if self.planned.load(Ordering::Relaxed) || self.planned.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(keeper) = Keeper::of(&shared.clock) else { return self.ensure(shared) };
        let shared = Arc::downgrade(shared);
        keeper.spawn(async move {
            tokio::time::sleep(SOON).await;
            if let Some(shared) = shared.upgrade() {
                shared.watch.ensure(&shared);
                // What has happened before.
                shared.look(|_| true);
            }
        });
    }

    /// Starts the thread, the first time.
    pub(super) fn ensure(&self, shared: &Arc<Shared>) {
        if self.asked.load(Ordering::Acquire) {
            return;
        }
        let mut bell = lock(&self.bell);
        if self.asked.load(Ordering::Acquire) {
            return;
        }
        match start(shared) {
            Ok(started) => *bell = Some(started),
            Err(error) => tracing::warn!(
                store = shared.label, %error,
                "holders are not told at once when an operator takes their lock; the next renewal notices"
            ),
        }
        self.asked.store(true, Ordering::Release);
    }

    /// Whether there is a thread that hears of replaced files.
    pub(super) fn tells(&self) -> bool {
        lock(&self.bell).is_some()
    }

    /// Ends the thread; there will be none any more.
    pub(super) fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        if let Some(bell) = lock(&self.bell).take() {
            bell.ring();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(shared: &Arc<Shared>) -> std::io::Result<Bell> {
    let bell = Bell::listening_to_directory(&shared.place.path)?;
    let (heard, shared) = (bell.clone(), Arc::downgrade(shared));
    std::thread::Builder::new()
        .name("fencepost-watch".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || listen(&heard, &shared))?;
    Ok(bell)
}

fn listen(bell: &Bell, shared: &Weak<Shared>) {
    let Some(changes) = bell.changes() else { return };
    while let Ok(true) = bell.wait() {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(changes, &mut buffer);
        // Ends when nothing is left to read.
        while let Ok(event) = events.next() {
            let Some(shared) = shared.upgrade() else { return };
            let missed = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let file = event.file_name().and_then(|name| name.to_str().ok());
            let touched = |name: &Name| missed || file == Some(place::file_name(name).as_str());
            shared.look(touched);
            if event.events().intersects(ReadFlags::MOVED_TO | ReadFlags::DELETE | ReadFlags::QUEUE_OVERFLOW)
            {
                shared.restart_contenders(touched);
            }
        }
    }
}

impl Shared {
    /// Lets holds look whether they still are.
    fn look(&self, touched: impl Fn(&Name) -> bool) {
        // Not under the mutex: the last reference may be dropped here, and takes itself out of the table.
        let holds: Vec<_> = lock(&self.held).values().filter_map(Weak::upgrade).collect();
        for hold in holds.iter().filter(|hold| touched(hold.name())) {
            hold.look();
        }
    }
}
