//! What wrapper and guardian say to each other: one JSON message a packet, over a socket pair that keeps
//! packets apart and tells each side when the other is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How many locks one command can have, and so the most descriptors in a message.
pub(crate) const MOST_LOCKS: usize = 16;

/// Larger than any message: a name has at most 512 bytes, which JSON makes at most six times as long, and
/// JSON within JSON seven times.
const LARGEST: usize = 8192 * (MOST_LOCKS + 1);

/// Told to the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The lock is held: start the command.
    Go(Start),
    /// The lease ends at `until` on `CLOCK_BOOTTIME`; be done by then.
    Lease { until: Duration, margin: Duration },
    /// The lock is lost: end the command.
    Lost,
    /// Pass a signal on.
    Signal(i32),
}

/// How to start the command.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Added to its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Make it the terminal's foreground group.
    pub(crate) foreground: bool,
    /// As in [`Order::Lease`], if the lock has one.
    pub(crate) lease: Option<(Duration, Duration)>,
    /// End the command when it has run for this long.
    pub(crate) max_hold: Option<Duration>,
}

/// Told by the guardian.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The command runs; its pid is also that of its process group.
    Started { pid: i32 },
    /// The command could not be started, with the system's error number.
    NotStarted { errno: i32 },
    /// The lease was so near its end that the command was not started.
    TooLate,
    /// The command was stopped by a signal.
    Stopped { signal: i32 },
    /// The command has ended, with its wait status; `ended` if it was made to, and its group is gone.
    Exited { status: i32, ended: bool },
}

/// Both ends of a new connection. The first does not block.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&pair.0, true)?;
    Ok(pair)
}

/// Sends a message, and descriptors with it.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LOCKS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no room for the descriptors"));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives a message, and the descriptors that came with it; `None` when the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0u8; LARGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LOCKS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            // The other side left without reading all of ours, which is said once and before its own last
            // words.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_travel_with_their_message() {
        let (here, there) = pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let other = rustix::io::dup(&writer).unwrap();
        send(here.as_fd(), &Order::Go(Start::default()), &[other.as_fd(), writer.as_fd()]).unwrap();
        send(here.as_fd(), &Order::Signal(15), &[]).unwrap();
        drop((here, writer, other));

        let (order, mut descriptors) = receive::<Order>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(order, Order::Go(_)));
        assert_eq!(descriptors.len(), 2);
        for descriptor in descriptors.drain(..) {
            rustix::io::write(descriptor, b"x").unwrap();
            assert_eq!(rustix::io::read(&reader, &mut [0u8; 4]).unwrap(), 1);
        }

        let (order, descriptors) = receive::<Order>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(order, Order::Signal(15)) && descriptors.is_empty());
        assert!(receive::<Order>(there.as_fd()).unwrap().is_none());
    }

    #[test]
    fn the_last_words_of_a_side_that_did_not_listen_are_heard() {
        let (here, there) = pair().unwrap();
        send(here.as_fd(), &Order::Lost, &[]).unwrap();
        send(there.as_fd(), &Answer::TooLate, &[]).unwrap();
        drop(there);
        assert_eq!(receive::<Answer>(here.as_fd()).unwrap().unwrap().0, Answer::TooLate);
        assert!(receive::<Answer>(here.as_fd()).unwrap().is_none());
    }

    #[test]
    fn the_longest_names_fit_into_a_message() {
        let (here, there) = pair().unwrap();
        let name = "\u{1}".repeat(fencepost::MAX_NAME);
        let tokens = serde_json::to_string(&vec![(&name, u64::MAX); MOST_LOCKS]).unwrap();
        let environment = vec![("FENCEPOST_NAME".to_owned(), name), ("FENCEPOST_TOKENS".to_owned(), tokens)];
        let start = Start { environment: environment.clone(), foreground: true, ..Start::default() };
        send(here.as_fd(), &Order::Go(start), &[]).unwrap();
        let (order, _) = receive::<Order>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(order, Order::Go(start) if start.environment == environment));
    }
}
