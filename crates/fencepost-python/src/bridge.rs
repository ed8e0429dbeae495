//! Wakes an event loop. Finished calls are put down under a mutex and a byte is written to a socket that the
//! loop reads: that needs no interpreter, so the keeper's thread never waits for one, and a loop that is
//! closed is simply not read.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// The loop's end.
#[pyclass(frozen, module = "fencepost._fencepost")]
pub(crate) struct Bridge {
    socket: UnixStream,
    bell: Arc<Bell>,
}

/// The calls' end.
pub(crate) struct Bell {
    socket: UnixStream,
    done: Mutex<Vec<u64>>,
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let (socket, far) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Self { socket, bell: Arc::new(Bell { socket: far, done: Mutex::default() }) })
    }

    /// What the loop has to wait for.
    fn fileno(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// The numbers of the calls that are done since the last time.
    fn drain(&self) -> PyResult<Vec<u64>> {
        // The bytes first: a call that is done after this rings again.
        let mut bytes = [0; 64];
        loop {
            match (&self.socket).read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(std::mem::take(&mut *self.bell.done.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Bridge {
    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }
}

impl Bell {
    pub(crate) fn ring(&self, number: u64) {
        let first = {
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push(number);
            done.len() == 1
        };
        if first {
            // A full socket wakes the loop as well as one more byte would; a closed one has no loop behind
            // it.
            let _ = (&self.socket).write(&[0]);
        }
    }
}
