//! How a connection begins, until the server has let us in: TLS or not, and which ways to log in are refused.
//! And how much a server may send.
//!
//! The crate takes [`Login`] for TLS that begins at once, and leaves the rest to us: whether to ask for TLS,
//! what to do if the server has none, and what to make of the server's first messages.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(feature = "tls")]
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backends::common::stream::Stream;
use crate::{Error, Result};

/// Asks the server whether it speaks TLS: the length of this message, and the number of the request.
#[cfg(feature = "tls")]
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// What every connection of one store begins with.
#[derive(Clone)]
pub(super) struct Login {
    /// The password may be sent as it is.
    pub(super) cleartext: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
}

/// Why this server is not talked to.
#[derive(Debug)]
pub(super) struct Refusal(&'static str);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Refusal {}

fn refused(why: &'static str) -> io::Error {
    io::Error::other(Refusal(why))
}

#[cfg(feature = "tls")]
const NO_TLS: &str =
    "the server does not speak TLS; set it up there, or allow a connection without it by `sslmode=prefer`";
const CLEARTEXT: &str = "the server asks for the password in clear text, and this connection does not prove \
                         who it is; use `scram-sha-256` there, or `sslmode=verify-full`, or allow it by \
                         `allow=cleartext`";

const TOO_MUCH: &str = "the server sends more than fencepost takes; name a PostgreSQL server in the URL, or \
                        ask for less at once by a longer prefix";

/// The longest message that is taken, and the longest answer. A row of ours has some hundred bytes.
const MAX_MESSAGE: usize = 16 << 20;
const MAX_ANSWER: usize = 64 << 20;

/// The same until the server is ready.
const MAX_FIRST: usize = 64 << 10;
const MAX_LOGIN: usize = 1 << 20;

/// What a message costs beside its bytes: a row without columns takes memory, too.
const OVERHEAD: usize = 128;

impl<S: Stream + 'static> MakeTlsConnect<S> for Login {
    type Stream = LoginStream;
    type TlsConnect = Connect;
    type Error = Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connect> {
        Ok(Connect { login: self.clone(), host: host.to_owned() })
    }
}

pub(super) struct Connect {
    login: Login,
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    host: String,
}

impl<S: Stream + 'static> TlsConnect<S> for Connect {
    type Stream = LoginStream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<LoginStream, Self::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let limits = MessageLimits { cleartext: self.login.cleartext, ..MessageLimits::default() };
            Ok(LoginStream { stream: self.open(stream).await?, limits })
        })
    }
}

impl Connect {
    #[cfg(not(feature = "tls"))]
    async fn open(&self, stream: impl Stream + 'static) -> Result<Box<dyn Stream>> {
        Ok(Box::new(stream))
    }

    #[cfg(feature = "tls")]
    async fn open(
        &self,
        mut stream: impl Stream + 'static,
    ) -> Result<Box<dyn Stream>, Box<dyn std::error::Error + Send + Sync>> {
        let Some(tls) = &self.login.tls else { return Ok(Box::new(stream)) };
        let connector = tls.connector(&self.host)?;
        stream.write_all(&TLS_REQUEST).await?;
        let mut answer = [0];
        stream.read_exact(&mut answer).await?;
        match answer {
            // Only this byte was read: what follows it in clear is not taken for something that TLS protects.
            [b'S'] => Ok(Box::new(connector.connect(stream).await?)),
            _ if tls.is_required() => Err(refused(NO_TLS).into()),
            _ => Ok(Box::new(stream)),
        }
    }
}

/// A connection, with its limits.
pub(super) struct LoginStream {
    stream: Box<dyn Stream>,
    limits: MessageLimits,
}

#[cfg(unix)]
impl LoginStream {
    /// A connection to a unix socket, which has no TLS.
    pub(super) fn plain(stream: tokio::net::UnixStream) -> Self {
        let limits = MessageLimits { cleartext: true, ..MessageLimits::default() };
        Self { stream: Box::new(stream), limits }
    }
}

/// Reads along what the server sends, and keeps nothing of it. A message is one byte for its kind, four for
/// its length, which counts itself, and the rest. The crate would wait for the end of any message, and
/// collect all rows of an answer.
#[derive(Debug, Default)]
struct MessageLimits {
    /// The password may be sent as it is.
    cleartext: bool,
    stage: Stage,
    /// What there is of the head of a message. A request to log in has four more bytes, which say how.
    head: Vec<u8>,
    /// What is to come of the message.
    rest: usize,
    /// Bytes since the last answer ended.
    taken: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Login,
    /// The server has let us in, and says what it is.
    Greeting,
    Session,
}

impl MessageLimits {
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let Some((byte, more)) = bytes.split_first() else { return Ok(()) };
            bytes = more;
            self.head.push(*byte);
            let length = |a, b, c, d| u32::from_be_bytes([a, b, c, d]) as usize;
            let rest = match *self.head {
                [kind, a, b, c, d] => {
                    let length = length(a, b, c, d);
                    self.count(kind, length)?;
                    if kind == b'R' && length >= 8 && self.stage == Stage::Login {
                        continue;
                    }
                    length.saturating_sub(4)
                }
                [_, a, b, c, d, w, x, y, z] => {
                    match [w, x, y, z] {
                        [0, 0, 0, 0] => self.stage = Stage::Greeting,
                        [0, 0, 0, 3] if !self.cleartext => return Err(refused(CLEARTEXT)),
                        _ => {}
                    }
                    length(a, b, c, d) - 8
                }
                _ => continue,
            };
            self.rest = rest;
            self.head.clear();
        }
    }

    /// Refuses a message that is too long, or one too many.
    fn count(&mut self, kind: u8, length: usize) -> io::Result<()> {
        let (one, all) =
            if self.stage == Stage::Session { (MAX_MESSAGE, MAX_ANSWER) } else { (MAX_FIRST, MAX_LOGIN) };
        match kind {
            b'Z' if self.stage != Stage::Login => {
                self.stage = Stage::Session;
                self.taken = 0;
            }
            // Notifications, notices and settings come unasked, and are not collected.
            b'A' | b'N' | b'S' if self.stage == Stage::Session => {}
            _ => self.taken = self.taken.saturating_add(length.saturating_add(OVERHEAD)),
        }
        if length > one || self.taken > all { Err(refused(TOO_MUCH)) } else { Ok(()) }
    }
}

impl TlsStream for LoginStream {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate itself is checked; servers that insist on a binding as well are rare.
        ChannelBinding::none()
    }
}

impl AsyncRead for LoginStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(())))
            && let Err(refusal) = self.limits.read(&buf.filled()[before..])
        {
            // The crate does not see the request, so it cannot answer it.
            buf.set_filled(before);
            return Poll::Ready(Err(refusal));
        }
        read
    }
}

impl AsyncWrite for LoginStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    proptest! {
        /// However the bytes arrive, and whatever comes before.
        #[test]
        fn a_request_for_the_password_is_seen_in_any_pieces(
            before in vec((any::<u8>(), vec(any::<u8>(), 0..9)), 0..4),
            size in 1usize..20,
        ) {
            let before = before.into_iter().filter(|(kind, _)| *kind != b'R');
            let before: Vec<u8> = before.flat_map(|(kind, body)| message(kind, &body)).collect();
            let requests: [(&[u8], bool); 3] =
                [(&[0, 0, 0, 3], true), (&[0, 0, 0, 5, 1, 2, 3, 4], false), (&[0, 0, 0, 10, b'x'], false)];
            for (request, seen) in requests {
                let login = |request: &[u8]| message(b'R', request);
                let bytes = [before.clone(), login(request), login(&[0; 4]), login(&[0, 0, 0, 3])];
                let mut limits = MessageLimits::default();
                let refused = bytes.concat().chunks(size).any(|piece| limits.read(piece).is_err());
                prop_assert_eq!(refused, seen);
            }
        }

        /// However the bytes arrive.
        #[test]
        fn what_is_too_long_is_refused_at_its_head(
            size in 1usize..20,
            kind in any::<u8>().prop_filter("another way", |kind| *kind != b'R'),
        ) {
            let head = |length: usize| [&[kind], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat();
            let ready = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
            for (before, most) in [(&[][..], MAX_FIRST), (&ready, MAX_MESSAGE)] {
                for (length, seen) in [(most, false), (most + 1, true)] {
                    let mut limits = MessageLimits::default();
                    let bytes = [before, &head(length)].concat();
                    let refused = bytes.chunks(size).any(|piece| limits.read(piece).is_err());
                    prop_assert_eq!(refused, seen, "{}", length);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..60)) {
            let _ = MessageLimits::default().read(&bytes);
        }
    }

    fn ready() -> MessageLimits {
        let mut limits = MessageLimits::default();
        limits.read(&[message(b'R', &[0; 4]), message(b'Z', b"I")].concat()).unwrap();
        limits
    }

    #[test]
    fn an_answer_without_end_is_refused_and_many_answers_are_not() {
        let rows = message(b'D', &[0; 1000]).repeat(1000);
        let (mut limits, mut patient) = (ready(), ready());
        let taken = (0..100).take_while(|_| limits.read(&rows).is_ok()).count();
        assert_eq!(taken, MAX_ANSWER / (1000 * (1004 + OVERHEAD)));
        for _ in 0..100 {
            patient.read(&rows).unwrap();
            patient.read(&message(b'Z', b"I")).unwrap();
            patient.read(&message(b'A', &[0; 1000]).repeat(1000)).unwrap();
        }
        // Rows of nothing take memory, too.
        let empty = message(b'D', &[0; 2]).repeat(1000);
        assert!((0..600).any(|_| limits.read(&empty).is_err()));
    }

    /// Only who has let us in is ready: before that, nothing may be long.
    #[test]
    fn a_server_that_claims_to_be_ready_too_early_gains_nothing() {
        let mut limits = MessageLimits::default();
        limits.read(&message(b'Z', b"I")).unwrap();
        assert!(limits.read(&message(b'N', &[0; MAX_FIRST])).is_err());
        let mut limits = MessageLimits::default();
        limits.read(&message(b'R', &[0; 4])).unwrap();
        let notices = message(b'N', &[0; 1000]).repeat(2000);
        assert!(limits.read(&notices).is_err(), "the crate keeps them until it is ready");
    }
}
