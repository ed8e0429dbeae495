//! Tells a forked child from its parent. A child inherits the memory and the open files, but not the keeper's
//! thread: what it would do with inherited locks either hangs (a mutex that another thread held at the fork)
//! or reaches into the parent's sockets and timers, which both processes share. So in a child everything
//! inherited is inert: it refuses, says so, and is never dropped.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

use crate::{Error, Result};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks there were above this process since the library was first used. What was made in another
/// generation belongs to the parent, which shares its sockets with us: leave it alone, and do not drop it.
pub fn generation() -> u32 {
    GENERATION.load(SeqCst)
}

/// Counts forks from now on.
pub(crate) fn watch() -> Result<()> {
    static WATCHING: OnceLock<i32> = OnceLock::new();
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, SeqCst);
    }
    // SAFETY: the handler is an `extern "C"` function that lives as long as the process, and only counts.
    #[allow(unsafe_code)]
    let error = *WATCHING.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match error {
        0 => Ok(()),
        error => Err(Error::unavailable("(this process)", std::io::Error::from_raw_os_error(error))),
    }
}

/// The refusal of a child that uses what it has inherited.
pub(crate) fn refusal() -> Error {
    Error::unsupported(
        "using the locks of the process that this one was forked from",
        "connect anew in the child",
    )
}

/// A value of this process. A forked child finds a fresh one; the parent's, which may have been in use by
/// another thread at the fork, is left alone.
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<(u32, T)>,
}

impl<T: Default + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Sync> PerProcess<T> {
    /// Nothing yet: it is made when it is first asked for.
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of this process.
    pub fn get(&'static self) -> &'static T {
        let now = generation();
        loop {
            let seen = self.current.load(SeqCst);
            // SAFETY: only leaked boxes are stored below, so the pointer is null or valid for ever.
            #[allow(unsafe_code)]
            match unsafe { seen.as_ref() } {
                Some((generation, value)) if *generation == now => return value,
                _ => {
                    let fresh = Box::into_raw(Box::new((now, T::default())));
                    if self.current.compare_exchange(seen, fresh, SeqCst, SeqCst).is_err() {
                        // SAFETY: nobody but us has seen it.
                        #[allow(unsafe_code)]
                        drop(unsafe { Box::from_raw(fresh) });
                    }
                }
            }
        }
    }
}
