//! Signals as file descriptors. They are blocked before any thread starts, so that every thread inherits the
//! mask and only our descriptor ever sees them; what was inherited is kept, to be given to the command
//! unchanged.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, c_int, sigset_t};
use tokio::io::unix::AsyncFd;

/// What a terminal, a shell or an operator sends to a command that shall end.
const ENDING: [c_int; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Everything whose disposition we change somewhere between here and the command.
const TOUCHED: [c_int; 8] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD];

/// What this process inherited from its parent.
#[derive(Clone)]
pub(crate) struct Inherited {
    mask: sigset_t,
    ignored: [bool; TOUCHED.len()],
}

impl Inherited {
    fn record() -> io::Result<Self> {
        let mut mask = empty();
        // SAFETY: with no new set this only writes the current mask to `mask`.
        #[allow(unsafe_code)]
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let mut ignored = [false; TOUCHED.len()];
        for (signal, ignored) in TOUCHED.into_iter().zip(&mut ignored) {
            *ignored = is_ignored(signal)?;
        }
        Ok(Self { mask, ignored })
    }

    fn ignores(&self, signal: c_int) -> bool {
        TOUCHED.iter().zip(self.ignored).any(|(touched, ignored)| *touched == signal && ignored)
    }

    /// Puts everything back, between fork and exec: makes only async-signal-safe calls.
    pub(crate) fn restore(&self) -> io::Result<()> {
        for (signal, ignored) in TOUCHED.into_iter().zip(self.ignored) {
            set(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL })?;
        }
        mask(libc::SIG_SETMASK, &self.mask)
    }
}

/// Signals that arrive as data, and what was inherited before.
pub(crate) struct Caught {
    pub(crate) inherited: Inherited,
    fd: OwnedFd,
}

impl Caught {
    /// Catches what shall end us, and with `stops` also what stops and continues a job. Call before any
    /// thread starts.
    ///
    /// What the parent has told us to ignore (`nohup`) stays ignored.
    pub(crate) fn start(stops: bool) -> io::Result<Self> {
        let inherited = Inherited::record()?;
        let stopping: &[c_int] = if stops { &[SIGTSTP, SIGCONT] } else { &[] };
        let wanted = ENDING.iter().chain(stopping).copied();
        let wanted: Vec<_> = wanted.filter(|signal| !inherited.ignores(*signal)).collect();
        let fd = descriptor(&wanted)?;
        if stops {
            // Giving the terminal back to our own group must not stop us.
            ignore(SIGTTOU)?;
        }
        Ok(Self { inherited, fd })
    }

    /// Moves into the runtime.
    pub(crate) fn listen(self) -> io::Result<Incoming> {
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on; nothing replaces or closes it.
        #[allow(unsafe_code)]
        let fd = unsafe { AsyncFd::register(self.fd)? };
        Ok(Incoming(fd))
    }
}

/// Caught signals, in the runtime.
pub(crate) struct Incoming(AsyncFd<OwnedFd>);

impl Incoming {
    /// The next signal. May be dropped at any time: a signal is taken only when it is returned.
    pub(crate) async fn next(&self) -> c_int {
        loop {
            let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
            match read(self.0.as_fd()) {
                Some(signal) => return signal,
                None => ready.clear_ready(),
            }
        }
    }
}

/// The guardian's view of its children.
pub(crate) struct Children(OwnedFd);

impl Children {
    /// Watches for children that end or stop.
    pub(crate) fn watch() -> io::Result<Self> {
        // Ignored by whoever started us, it would make children vanish without a status.
        set(SIGCHLD, libc::SIG_DFL)?;
        descriptor(&[SIGCHLD]).map(Self)
    }

    /// Forgets the news; the caller looks for itself.
    pub(crate) fn clear(&self) {
        while read(self.0.as_fd()).is_some() {}
    }
}

impl AsFd for Children {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes this process deaf to everything a terminal or an operator sends short of KILL and STOP.
pub(crate) fn ignore_all() -> io::Result<()> {
    ENDING.into_iter().chain([SIGTSTP, SIGTTIN, SIGTTOU]).try_for_each(ignore)
}

/// Stops as a job does that its terminal stops; returns when it was continued, or at once if nobody could
/// continue it (the kernel does not stop an orphaned process group).
pub(crate) fn stop(send: impl FnOnce(rustix::process::Signal) -> rustix::io::Result<()>) -> io::Result<()> {
    let tstp = set_of(&[SIGTSTP]);
    mask(libc::SIG_UNBLOCK, &tstp)?;
    let sent = send(rustix::process::Signal::TSTP);
    mask(libc::SIG_BLOCK, &tstp)?;
    Ok(sent?)
}

/// Blocks signals and opens a descriptor they arrive at.
fn descriptor(signals: &[c_int]) -> io::Result<OwnedFd> {
    let wanted = set_of(signals);
    mask(libc::SIG_BLOCK, &wanted)?;
    // SAFETY: the set is valid; -1 asks for a new descriptor, which nobody else owns.
    #[allow(unsafe_code)]
    unsafe {
        let fd = libc::signalfd(-1, &raw const wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn read(fd: BorrowedFd<'_>) -> Option<c_int> {
    let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(fd, &mut record) {
        // The signal's number is the first field.
        Ok(length) if length == record.len() => {
            c_int::try_from(u32::from_ne_bytes([record[0], record[1], record[2], record[3]])).ok()
        }
        _ => None,
    }
}

fn is_ignored(signal: c_int) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action this only fills in `action`, which is plain data.
    #[allow(unsafe_code)]
    unsafe {
        check(libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()))?;
        Ok(action.assume_init().sa_sigaction == libc::SIG_IGN)
    }
}

fn ignore(signal: c_int) -> io::Result<()> {
    set(signal, libc::SIG_IGN)
}

fn set(signal: c_int, to: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: only SIG_IGN and SIG_DFL are ever set, so no handler of ours can run.
    #[allow(unsafe_code)]
    let before = unsafe { libc::signal(signal, to) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mask(how: c_int, set: &sigset_t) -> io::Result<()> {
    // SAFETY: `set` is a valid set, and the old mask is not asked for.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

fn empty() -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set.
    #[allow(unsafe_code)]
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn set_of(signals: &[c_int]) -> sigset_t {
    let mut set = empty();
    for signal in signals {
        // SAFETY: the set is initialised and the numbers are constants of this file.
        #[allow(unsafe_code)]
        unsafe {
            libc::sigaddset(&raw mut set, *signal);
        }
    }
    set
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
