//! Hears of changes in the directory. Holders are told at once that an operator took their lock, and waiters
//! go on to the file that took the place of another.
//!
//! One thread per store. It starts with the first wait, or when the first lock has been held for a while.
//! Without it, renewals find out.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::client::Client;
use super::keys::file_name;
use super::{fork, local_queue};
use crate::Name;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;

/// How old a store is before it listens for holders alone. The kernel takes about ten milliseconds to end a
/// listener: more than all else that a short command under a lock does.
const SOON: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Listener {
    planned: AtomicBool,
    inotify: Mutex<Inotify>,
}

#[derive(Debug, Default)]
enum Inotify {
    #[default]
    NotYet,
    /// A thread reads from it. It ends when the watch is removed.
    On { inotify: Arc<OwnedFd>, watch: i32, generation: u32 },
    /// It could not be started, or the store was closed.
    Off,
}

/// A hold that must hear when something happens to its lock file.
pub(super) trait Watched: Send + Sync + std::fmt::Debug {
    fn name(&self) -> &Name;

    /// Tells the guard if the lock is gone.
    fn look(&self);
}

impl Listener {
    /// Starts in a while, the first time.
    pub(super) fn start_soon(&self, client: &Arc<Client>) {
        if self.planned.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(keeper) = Keeper::of(&client.clock) else { return self.start(client) };
        let client = Arc::downgrade(client);
        keeper.spawn(async move {
            tokio::time::sleep(SOON).await;
            if let Some(client) = client.upgrade() {
                client.listener.start(&client);
                // What has happened before.
                tell_holders(&client, |_| true);
            }
        });
    }

    /// Starts now, the first time.
    pub(super) fn start(&self, client: &Arc<Client>) {
        let mut inotify = lock(&self.inotify);
        if !matches!(*inotify, Inotify::NotYet) {
            return;
        }
        *inotify = start_thread(client).unwrap_or_else(|error| {
            tracing::warn!(
                store = client.label, %error,
                "holders are not told at once when an operator takes their lock; the next renewal notices"
            );
            Inotify::Off
        });
    }

    /// Whether we would hear of a replaced file.
    pub(super) fn is_listening(&self) -> bool {
        matches!(*lock(&self.inotify), Inotify::On { .. })
    }

    /// Ends the thread; there will be none any more.
    pub(super) fn stop(&self) {
        // In a forked child the watch is the parent's.
        if let Inotify::On { inotify, watch, generation } =
            std::mem::replace(&mut *lock(&self.inotify), Inotify::Off)
            && generation == fork::generation()
        {
            let _ = inotify::remove_watch(&*inotify, watch);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_thread(client: &Arc<Client>) -> std::io::Result<Inotify> {
    let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
    // What no ordinary acquire or release does: files touched, replaced, removed.
    let events = WatchFlags::ATTRIB | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
    let watch = inotify::add_watch(&*inotify, &client.directory.path, events)?;
    let (heard, client) = (inotify.clone(), Arc::downgrade(client));
    std::thread::Builder::new()
        .name("fencepost-watch".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || listen(&heard, &client))?;
    Ok(Inotify::On { inotify, watch, generation: fork::generation() })
}

fn listen(inotify: &OwnedFd, client: &Weak<Client>) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(inotify, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        let what = event.events();
        let Some(client) = client.upgrade().filter(|_| !what.contains(ReadFlags::IGNORED)) else { return };
        let missed = what.contains(ReadFlags::QUEUE_OVERFLOW);
        let file = event.file_name().and_then(|name| name.to_str().ok());
        let is_changed = |name: &Name| missed || file == Some(file_name(name).as_str());
        tell_holders(&client, is_changed);
        if missed || what.intersects(ReadFlags::MOVED_TO | ReadFlags::DELETE) {
            local_queue::restart(&client, is_changed);
        }
    }
}

/// Lets holds look whether they still are.
fn tell_holders(client: &Client, is_changed: impl Fn(&Name) -> bool) {
    // Not under the mutex: the last reference may be dropped here, and takes itself out of the table.
    let holds: Vec<_> = lock(&client.holds).values().filter_map(Weak::upgrade).collect();
    for hold in holds.iter().filter(|hold| is_changed(hold.name())) {
        hold.look();
    }
}
