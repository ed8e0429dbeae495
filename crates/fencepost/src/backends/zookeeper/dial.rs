//! How a server is found that serves a session, a new one or the one that we have.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::config::Config;
use super::connection::garbled;
use super::jute;
use super::protocol::{self, SessionId};
use crate::Result;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;

/// What to say to which servers.
pub(super) struct Dial<'a> {
    pub(super) config: &'a Config,
    pub(super) clock: &'a Clock,
    pub(super) session: SessionId,
    /// In milliseconds.
    pub(super) timeout: i32,
    /// A server that does not know this transaction yet refuses us.
    pub(super) last_zxid: i64,
}

impl Dial<'_> {
    /// Asks all servers in turn, again and again, unless nobody listens on any of them. `reason` is why not
    /// so far; it is up to date also for a caller that stops to wait.
    pub(super) async fn until(&self, deadline: Moment, reason: &Reason) -> Option<(Moment, Greeting)> {
        loop {
            let round = self.clock.now().plus(self.config.timeout);
            let listening = match self.round(round.min(deadline)).await {
                Ok(found) => return Some(found),
                Err((why, listening)) => {
                    reason.note(why, self.clock.now() < deadline);
                    listening
                }
            };
            let pause = crate::wait::jittered(Duration::from_millis(100));
            if !listening || self.clock.now().plus(pause) >= deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks each server once, from one at random on; says why none was right, and whether any listened.
    pub(super) async fn round(&self, deadline: Moment) -> Result<(Moment, Greeting), (Arc<str>, bool)> {
        let (mut why, mut listening) = (Arc::from("no server was asked"), false);
        let count = self.config.servers.len();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between zero and the count
        let start = (crate::wait::random() * count as f64) as usize;
        for turn in 0..count {
            let server = &self.config.servers[(start + turn) % count];
            let sent = self.clock.now();
            // What time there is, shared with those still to be asked.
            let share = deadline.since(sent) / u32::try_from(count - turn).unwrap_or(1);
            let greeting = greet(server, self.session, self.timeout, self.last_zxid);
            let (host, port) = server;
            match self.clock.within(Some(sent.plus(share)), greeting).await {
                Some(Ok(greeting)) => return Ok((sent, greeting)),
                Some(Err(error)) => {
                    listening |= error.kind() != std::io::ErrorKind::ConnectionRefused;
                    why = format!("{host}:{port}: {error}").into();
                }
                None => {
                    listening = true;
                    why = format!("{host}:{port}: no answer in time").into();
                }
            }
        }
        Err((why, listening))
    }
}

/// Why no server has granted a session so far.
#[derive(Debug, Default)]
pub(super) struct Reason(Mutex<Option<Arc<str>>>);

impl Reason {
    /// A round that was cut short tells less than the rounds before it.
    fn note(&self, why: Arc<str>, whole_round: bool) {
        let mut known = lock(&self.0);
        if whole_round || known.is_none() {
            *known = Some(why);
        }
    }

    pub(super) fn get(&self) -> Arc<str> {
        lock(&self.0).clone().unwrap_or_else(|| "no server granted a session in time".into())
    }
}

/// What a server says to a greeting.
pub(super) enum Greeting {
    Welcome {
        session: SessionId,
        timeout: i32,
        stream: TcpStream,
    },
    /// The session has ended.
    Expired,
}

/// Asks a server for a session, or for the one we have.
async fn greet(
    server: &(String, u16),
    session: SessionId,
    timeout: i32,
    last_zxid: i64,
) -> io::Result<Greeting> {
    let mut stream = TcpStream::connect((server.0.as_str(), server.1)).await?;
    stream.set_nodelay(true)?;
    let mut message = Vec::new();
    protocol::encode_connect(&mut message, session, timeout, last_zxid);
    stream.write_all(&message).await?;
    let length = stream.read_u32().await?;
    // Nothing else is this short; more would be another service on this port.
    if length > 1024 {
        return Err(garbled(jute::Garbled));
    }
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await?;
    let (session, timeout) = protocol::decode_connected(&answer).map_err(garbled)?;
    Ok(match timeout {
        ..=0 => Greeting::Expired,
        timeout => Greeting::Welcome { session, timeout, stream },
    })
}
