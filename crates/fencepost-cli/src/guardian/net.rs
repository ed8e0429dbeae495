//! The last net: a process that only waits until its guardian is gone. If wrapper and guardian are killed at
//! once, it kills the command's group; where the store works that way it keeps the lock held until then.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

/// How often, and after which pauses, it looks whether a killed group has vanished.
const LOOKS: (usize, Duration) = (500, Duration::from_millis(10));
/// What it is called in lists of processes.
const NAME: &[u8] = b"lock-net";

/// The net, from the guardian's side. Ends with [`take_down`](Self::take_down) alone: a guardian that ends
/// otherwise lets it act.
pub(super) struct Net {
    process: Pid,
    line: OwnedFd,
}

impl Net {
    /// Forks it, with everything that is open but `wrapper`: that connection has to end with the guardian.
    /// Must be called while this process has only one thread.
    pub(super) fn hang(wrapper: Option<&OwnedFd>) -> io::Result<Self> {
        let (end, line) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: no other thread exists, so the child may go on as an ordinary process.
        #[allow(unsafe_code)]
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(line);
                if let Some(wrapper) = wrapper {
                    // SAFETY: nobody in this process uses it any more, and nothing is dropped at the end.
                    unsafe { libc::close(wrapper.as_raw_fd()) };
                }
                wait(end);
                // SAFETY: ends the process, without what its parent wants to be done at its own end.
                unsafe { libc::_exit(0) }
            }
            pid => {
                let process = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no pid"))?;
                Ok(Self { process, line })
            }
        }
    }

    /// Where the command says its pid, before it is one.
    pub(super) fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Ends it; the command needs it no more.
    pub(super) fn take_down(self) {
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// Waits until the guardian is gone, and kills the group that it was told of.
fn wait(line: OwnedFd) {
    let _ = rustix::process::setpgid(None, None);
    let _ = rustix::thread::set_name(c"lock-net");
    rename();
    let (mut line, mut group) = (File::from(line), [0; 4]);
    // The end comes with the guardian's; without a group before it, nothing runs.
    if line.read_exact(&mut group).is_err() || io::copy(&mut line, &mut io::sink()).is_err() {
        return;
    }
    let Some(group) = Pid::from_raw(i32::from_ne_bytes(group)) else { return };
    for _ in 0..LOOKS.0 {
        if kill_process_group(group, Signal::KILL).is_err() {
            return;
        }
        // Nobody tells us when a process dies that is not our child.
        std::thread::sleep(LOOKS.1);
    }
}

/// Takes another command line than the wrapper has, so that `pkill -9 -f fencepost` does not end all three.
fn rename() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the command in parentheses, which may contain anything; the arguments are from the
    // 48th to the 49th.
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(45).map(str::parse::<usize>));
    let Some([Ok(start), Ok(end)]) = fields.and_then(|mut fields| Some([fields.next()?, fields.next()?]))
    else {
        return;
    };
    if start == 0 || end.saturating_sub(start) <= NAME.len() {
        return;
    }
    // SAFETY: the kernel says that our arguments are there, on the stack of the first thread; nobody here
    // reads them any more.
    #[allow(unsafe_code)]
    unsafe {
        let arguments = std::ptr::with_exposed_provenance_mut::<u8>(start);
        arguments.write_bytes(0, end - start);
        arguments.copy_from_nonoverlapping(NAME.as_ptr(), NAME.len());
    }
}
