//! How a server is found that serves a session, a new one or the one that we have.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::super::config::Config;
use super::jute::read_frame;
use super::protocol::{ConnectRequest, SessionId, decode_connected};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::{Clock, Moment};

/// A server's answer to the first message.
pub(super) struct Connected {
    pub(super) sent: Moment,
    pub(super) session: SessionId,
    /// In milliseconds; not positive if the session has expired.
    pub(super) timeout: i32,
    pub(super) stream: TcpStream,
}

pub(super) struct NoServer {
    pub(super) why: Arc<str>,
    /// At least one of them listens.
    listening: bool,
}

/// Asks all servers in turn, again and again until the deadline, unless nobody listens on any of them.
pub(super) async fn connect(
    config: &Config,
    clock: &Clock,
    request: ConnectRequest,
    deadline: Moment,
) -> Result<Connected, Arc<str>> {
    let mut reason = None;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(100));
    loop {
        let round = clock.now().plus(config.timeout);
        let NoServer { why, listening } = match ask_each(config, clock, request, round.min(deadline)).await {
            Ok(connected) => return Ok(connected),
            Err(none) => none,
        };
        if clock.now() >= deadline {
            // A round that was cut short tells less than the rounds before it.
            return Err(reason.unwrap_or(why));
        }
        if !listening {
            return Err(why);
        }
        reason = Some(why);
        backoff.sleep().await;
    }
}

/// Asks each server once, from one at random on. They share the time until the deadline.
pub(super) async fn ask_each(
    config: &Config,
    clock: &Clock,
    request: ConnectRequest,
    deadline: Moment,
) -> Result<Connected, NoServer> {
    let mut none = NoServer { why: "no server was asked".into(), listening: false };
    let count = config.servers.len();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between zero and the count
    let start = (crate::wait::random() * count as f64) as usize;
    for turn in 0..count {
        let (host, port) = &config.servers[(start + turn) % count];
        let sent = clock.now();
        let share = deadline.since(sent) / u32::try_from(count - turn).unwrap_or(1);
        let asked = clock.within(Some(sent.plus(share)), ask(host, *port, request)).await;
        match asked.unwrap_or_else(|| Err(io::Error::other("no answer in time"))) {
            Ok((session, timeout, stream)) => return Ok(Connected { sent, session, timeout, stream }),
            Err(error) => {
                none.listening |= error.kind() != io::ErrorKind::ConnectionRefused;
                none.why = format!("{host}:{port}: {error}").into();
            }
        }
    }
    Err(none)
}

async fn ask(host: &str, port: u16, request: ConnectRequest) -> io::Result<(SessionId, i32, TcpStream)> {
    /// No honest answer comes near it; a longer one is of another service on this port.
    const MAX_ANSWER: usize = 1024;
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let mut message = Vec::new();
    request.encode(&mut message);
    stream.write_all(&message).await?;
    let answer = read_frame(&mut stream, MAX_ANSWER).await?;
    let (session, timeout) = decode_connected(&answer)?;
    Ok((session, timeout, stream))
}
