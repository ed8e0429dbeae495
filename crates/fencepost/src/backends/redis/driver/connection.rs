//! One connection to one server. A request goes into a buffer at once; one task writes what has gathered and
//! hands out the replies.
//!
//! Sending never waits. So a request that undoes an unanswered one is sent right after it on the same
//! connection, and the server sees the two in that order. A connection never reconnects by itself: when it
//! ends, everything unanswered fails, and the owner decides what to do.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::{io, iter};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::oneshot;

use super::batch::{BatchedScript, Expected, PendingReply, ScriptBatch, Step, Taken};
use super::resp::{self, Decoder, Part, Value};
use crate::backends::common::stream::Stream;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;

/// More unanswered requests than this mean that the server is stuck; further ones fail at once.
const MAX_UNANSWERED: usize = 1 << 18;

/// Replies that are handed out at a time. Their callers' next requests are written before the others get
/// theirs: so the server and its callers work at the same time, and not in turns.
pub(super) const AT_A_TIME: usize = 32;

/// Bytes that are read at a time, and how often in one turn. Connections may share a task: a server that
/// sends without end must leave the others their turns.
const CHUNK: usize = 8192;
const CHUNKS_A_TURN: usize = 8;

/// Bytes of pushes, or of one reply, after which a server is not waited for any more: it talks, and does not
/// answer.
const MAX_UNANSWERING: usize = 16 << 20;

/// A connection with nothing to send keeps a buffer of at most this size.
const MAX_SPARE: usize = 1 << 16;

/// A reply on its way.
pub(in crate::backends) type Reply = oneshot::Receiver<Value>;

/// Called with a reply by the task that read it, or with `None` if the connection ended instead.
pub(in crate::backends) type Call = Box<dyn FnOnce(Option<Value>) + Send>;

/// A call that passes a reply on. Nobody may wait for it any more.
pub(super) fn reply() -> (Call, Reply) {
    let (sender, reply) = oneshot::channel();
    (Box::new(move |value| drop(value.map(|value| sender.send(value)))), reply)
}

#[derive(Default)]
struct Shared {
    outgoing: Vec<u8>,
    /// What is still being gathered, to go after that.
    batch: ScriptBatch,
    pending: VecDeque<PendingReply>,
    /// Calls that wait for a reply, those of the batch included.
    waiting: usize,
    /// Of the driver.
    waker: Option<Waker>,
    /// Why the connection ended.
    ended: Option<String>,
    /// A request has timed out and nothing was heard since.
    suspect: bool,
}

impl Shared {
    fn append<'a>(&mut self, parts: impl Iterator<Item = Part<'a>> + Clone, reply: Option<PendingReply>) {
        self.finish_batch();
        resp::encode(&mut self.outgoing, parts);
        self.waiting += reply.as_ref().map_or(0, |reply| reply.calls.len());
        self.pending.extend(reply);
    }

    /// Puts what was gathered into the buffer.
    ///
    /// A server writes first to the client that it has had something for last. With nothing before it, the
    /// reply to a step that pushes would be written, and its reader woken, before the push.
    fn finish_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if batch.pushes && self.outgoing.is_empty() {
            resp::encode(&mut self.outgoing, iter::once(Part::Words(&["PING"])));
            self.pending.push_back(PendingReply { sent: batch.sent, ..PendingReply::default() });
        }
        batch.finish(&mut self.outgoing, &mut self.pending);
    }
}

pub(in crate::backends) struct Connection {
    shared: Arc<Mutex<Shared>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// A connection over a stream, and its driver: a future that must run until the connection has ended.
    /// `on_push` is called for what the server sends unasked.
    pub(in crate::backends) fn new(
        stream: Box<dyn Stream>,
        on_push: impl Fn(Vec<Value>) + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::<Mutex<Shared>>::default();
        let mut driver = Driver {
            stream,
            shared: shared.clone(),
            outgoing: Vec::new(),
            written: 0,
            incoming: Vec::with_capacity(4096),
            decoder: Decoder::default(),
            heard: 0,
            on_push: Box::new(on_push),
        };
        let drive = async move {
            let error = poll_fn(|context| driver.poll(context)).await;
            end(&driver.shared, error.to_string());
        };
        (Self { shared }, drive)
    }

    /// Puts a command into the buffer. The receiver fails if the connection ends before the reply.
    pub(in crate::backends) fn command(&self, words: &[&str]) -> Result<Reply, String> {
        let (call, reply) = reply();
        let pending = PendingReply { calls: vec![call], ..PendingReply::default() };
        self.put(|shared| shared.append(iter::once(Part::Words(words)), Some(pending)))?;
        Ok(reply)
    }

    /// The same, for a server that is only taking the slot of its key over.
    pub(in crate::backends) fn command_asking(&self, words: &[&str]) -> Result<Reply, String> {
        let (call, reply) = reply();
        self.put(|shared| {
            let pending = |calls| Some(PendingReply { calls, ..PendingReply::default() });
            shared.append(iter::once(Part::Words(&["ASKING"])), pending(Vec::new()));
            shared.append(iter::once(Part::Words(words)), pending(vec![call]));
        })?;
        Ok(reply)
    }

    /// Puts a command into the buffer, sent at `sent`. `call` is called with the reply right where that is
    /// read: so many replies come to one decision, and only that wakes somebody. Not called if this fails.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(in crate::backends) fn send_calling<'a>(
        &self,
        parts: impl Iterator<Item = Part<'a>> + Clone,
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        let pending = PendingReply { sent: Some(sent), calls: vec![call], ..PendingReply::default() };
        self.put(|shared| shared.append(parts, Some(pending)))
    }

    /// Puts a command into the buffer that is answered by a push alone.
    pub(in crate::backends) fn send_unanswered(&self, words: &[&str]) -> Result<(), String> {
        self.put(|shared| shared.append(iter::once(Part::Words(words)), None))
    }

    /// Puts a command into the buffer that is answered by a push, or else by an error: `refused` is called
    /// with that. What follows tells which: if that is not answered as it must be, replies have gone to the
    /// wrong requests, and the connection ends.
    pub(in crate::backends) fn send_answered_by_push(
        &self,
        words: &[&str],
        refused: Call,
    ) -> Result<(), String> {
        let reply = |kind, calls| Some(PendingReply { kind, calls, ..PendingReply::default() });
        self.put(|shared| {
            shared.append(iter::once(Part::Words(words)), reply(Expected::Refusal, vec![refused]));
            shared.append(iter::once(Part::Words(&["PING"])), reply(Expected::Pong, Vec::new()));
        })
    }

    /// Adds a step to the call that is being gathered, sent at `sent`. It goes after all that was put into
    /// the buffer before, and before all that is put there later. `call` is called with the reply to this
    /// step, or to the whole call if the server refused that. Not called if this fails.
    pub(in crate::backends) fn join<W: AsRef<[u8]>>(
        &self,
        script: &Arc<BatchedScript>,
        step: &Step<'_, W>,
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        self.put(|shared| {
            if !shared.batch.takes(script, step) {
                shared.finish_batch();
            }
            shared.batch.push(script, step, sent, call);
            shared.waiting += 1;
        })
    }

    /// Makes a request, if one can be taken, and wakes the driver.
    fn put(&self, request: impl FnOnce(&mut Shared)) -> Result<(), String> {
        let mut shared = lock(&self.shared);
        if let Some(why) = &shared.ended {
            return Err(why.clone());
        }
        if shared.waiting >= MAX_UNANSWERED {
            return Err(format!("{MAX_UNANSWERED} requests are unanswered"));
        }
        request(&mut shared);
        let driver = shared.waker.clone();
        drop(shared);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    /// Whether a new request has a chance: not ended, and not silent since a request timed out.
    pub(in crate::backends) fn is_usable(&self) -> bool {
        let shared = lock(&self.shared);
        shared.ended.is_none() && !shared.suspect
    }

    /// How many requests are unanswered, and since when the first of them is, if it told; `None` if it has
    /// ended.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(in crate::backends) fn backlog(&self) -> Option<(usize, Option<Moment>)> {
        let shared = lock(&self.shared);
        let oldest = shared.pending.front().map_or(shared.batch.sent, |reply| reply.sent);
        shared.ended.is_none().then_some((shared.waiting, oldest))
    }

    /// Whether it has ended.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(in crate::backends) fn has_ended(&self) -> bool {
        lock(&self.shared).ended.is_some()
    }

    /// Notes that a request timed out. Unless something is heard before the next request, that one goes over
    /// a new connection.
    pub(in crate::backends) fn suspect(&self) {
        lock(&self.shared).suspect = true;
    }

    /// Why the connection ended, if it has.
    pub(in crate::backends) fn why_ended(&self) -> String {
        lock(&self.shared).ended.clone().unwrap_or_else(|| "the connection ended".to_owned())
    }

    /// Ends the connection; what is unanswered fails.
    pub(in crate::backends) fn close(&self) {
        end(&self.shared, "the connection was closed".to_owned());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

fn end(shared: &Mutex<Shared>, why: String) {
    let (pending, waker) = {
        let mut shared = lock(shared);
        shared.ended.get_or_insert(why);
        shared.finish_batch();
        (std::mem::take(&mut shared.pending), shared.waker.take())
    };
    if let Some(waker) = waker {
        waker.wake();
    }
    for reply in pending {
        reply.answer(None);
    }
}

struct Driver {
    stream: Box<dyn Stream>,
    shared: Arc<Mutex<Shared>>,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    decoder: Decoder,
    /// Bytes since the last reply.
    heard: usize,
    on_push: Box<dyn Fn(Vec<Value>) + Send>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The runtime that drove it is gone.
        end(&self.shared, "the runtime of this connection ended".to_owned());
    }
}

impl Driver {
    /// Runs until the connection ends, and says why it did.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        {
            // Before anything can be pending: a close must be heard also while the server reads nothing.
            let mut shared = lock(&self.shared);
            if shared.ended.is_some() {
                return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
            }
            shared.waker = Some(context.waker().clone());
        }
        match self.write(context).and_then(|()| self.read(context)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Writes what has gathered.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            if self.written == self.outgoing.len() {
                self.outgoing.clear();
                self.written = 0;
                {
                    let mut shared = lock(&self.shared);
                    shared.finish_batch();
                    std::mem::swap(&mut shared.outgoing, &mut self.outgoing);
                }
                if self.outgoing.is_empty() {
                    self.outgoing.shrink_to(MAX_SPARE);
                    // Only TLS keeps bytes back.
                    if let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context) {
                        flushed?;
                    }
                    return Ok(());
                }
            }
            match Pin::new(&mut self.stream).poll_write(context, &self.outgoing[self.written..])? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => self.written += count,
            }
        }
    }

    /// Reads what is there and hands it out, for one turn.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut chunk = [std::mem::MaybeUninit::uninit(); CHUNK];
        for _ in 0..CHUNKS_A_TURN {
            if self.hand_out()? {
                context.waker().wake_by_ref();
                return Ok(());
            }
            let mut buffer = ReadBuf::uninit(&mut chunk);
            if Pin::new(&mut self.stream).poll_read(context, &mut buffer)?.is_pending() {
                return Ok(());
            }
            if buffer.filled().is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            self.heard += buffer.filled().len();
            self.incoming.extend_from_slice(buffer.filled());
        }
        // Only after the runtime has looked at its sockets and timers. A task that wakes itself is run first,
        // dozens of times, and the others would not be heard meanwhile.
        let _ = pin!(tokio::task::yield_now()).poll(context);
        Ok(())
    }

    /// Hands out what was read, [so many](AT_A_TIME) replies at most; `true` if there is more.
    fn hand_out(&mut self) -> io::Result<bool> {
        let (mut used, mut answered) = (0, 0);
        while answered < AT_A_TIME {
            let (value, length) = self.decoder.decode(&self.incoming[used..]).map_err(garbled)?;
            used += length;
            match value {
                None => break,
                Some(Value::Push(items)) => (self.on_push)(items),
                Some(reply) => answered += self.answer(reply)?,
            }
        }
        self.incoming.drain(..used);
        if self.heard > MAX_UNANSWERING {
            self.heard = 0;
            // A server may push for as long as it likes to a client that asks it for nothing.
            if lock(&self.shared).waiting > 0 {
                return Err(garbled("the server sends messages without end and answers nothing"));
            }
        }
        Ok(answered >= AT_A_TIME && !self.incoming.is_empty())
    }

    /// Passes a reply on. Returns how many calls it was for.
    fn answer(&mut self, reply: Value) -> io::Result<usize> {
        self.heard = 0;
        let (pending, reply) = {
            let mut shared = lock(&self.shared);
            shared.suspect = false;
            let mut reply = reply;
            loop {
                let mut pending =
                    shared.pending.pop_front().ok_or_else(|| garbled("a reply to no request"))?;
                match pending.take(reply) {
                    Taken::Last(last) => {
                        shared.waiting -= pending.calls.len();
                        break (pending, last);
                    }
                    Taken::MoreToCome => {
                        shared.pending.push_front(pending);
                        return Ok(0);
                    }
                    Taken::OfNext(back) => {
                        shared.waiting -= pending.calls.len();
                        reply = back;
                    }
                    Taken::Garbled => return Err(garbled("a reply to another request")),
                }
            }
        };
        let count = pending.calls.len();
        pending.answer(Some(reply));
        Ok(count)
    }
}

fn garbled(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redis::driver::batch::Sharing;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Always has more to say. Whoever reads so much of it in one go does nothing else.
    struct Endless(usize);

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            out: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            const MESSAGE: &[u8] = b">2\r\n+message\r\n+x\r\n";
            assert!(self.0 < 64 << 20, "it was read and nothing else was done");
            while out.remaining() >= MESSAGE.len() {
                out.put_slice(MESSAGE);
            }
            self.0 += out.filled().len();
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Endless {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_server_that_sends_without_end_leaves_the_others_their_turns() {
        let (endless, drive_endless) = Connection::new(Box::new(Endless(0)), |_| {});
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let (other, drive_other) = Connection::new(Box::new(ours), |_| {});
        tokio::spawn(async { tokio::join!(drive_endless, drive_other) });
        // A task like the one of the connections: the runtime would let that one run often before it comes
        // back here.
        let asked = tokio::spawn(async move {
            for _ in 0..20 {
                let reply = other.command(&["PING"]).unwrap();
                theirs.read_exact(&mut [0; b"*1\r\n$4\r\nPING\r\n".len()]).await.unwrap();
                theirs.write_all(b"+PONG\r\n").await.unwrap();
                assert_eq!(reply.await.unwrap().as_text(), Some("PONG"));
            }
        });
        asked.await.unwrap();
        assert!(!endless.has_ended(), "nobody has asked it for anything yet");
        endless.command(&["PING"]).unwrap().await.unwrap_err();
        assert!(endless.why_ended().contains("answers nothing"), "{}", endless.why_ended());
    }

    #[tokio::test]
    async fn something_goes_before_a_step_that_pushes_unless_something_does_anyway() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let (connection, drive) = Connection::new(Box::new(ours), |_| {});
        tokio::spawn(drive);
        let script = Arc::new(BatchedScript { name: "sha".to_owned(), most: 9, ..Default::default() });
        let join = |pushes| {
            let (sender, reply) = oneshot::channel();
            let sharing = Sharing::of_one_server(true);
            let step = Step { keys: &["k"], arguments: &["a"], needs_end: false, sharing, pushes };
            connection
                .join(&script, &step, Moment::NEVER, Box::new(move |value| drop(sender.send(value))))
                .unwrap();
            reply
        };
        let mut expect = async |commands: &[&[&str]], replies: &str| {
            let mut sent = Vec::new();
            commands.iter().for_each(|words| resp::encode(&mut sent, iter::once(Part::Words(words))));
            let mut came = vec![0; sent.len()];
            let read = tokio::time::timeout(std::time::Duration::from_secs(60), theirs.read_exact(&mut came));
            read.await.expect("as many bytes").unwrap();
            assert_eq!(String::from_utf8(came), String::from_utf8(sent));
            theirs.write_all(replies.as_bytes()).await.unwrap();
        };
        let (ping, call): (&[&str], &[&str]) = (&["PING"], &["EVALSHA", "sha", "1", "k", "a"]);
        let pushing = join(true);
        expect(&[ping, call], "+PONG\r\n:1\r\n").await;
        assert_eq!(pushing.await.unwrap(), Some(Value::Int(1)), "the answer to the step, not to the PING");
        let (plain, pushing) = (join(false), join(true));
        expect(&[call, call], ":2\r\n:3\r\n").await;
        assert_eq!(
            (plain.await.unwrap(), pushing.await.unwrap()),
            (Some(Value::Int(2)), Some(Value::Int(3)))
        );
        let refused = join(true);
        expect(&[ping, call], "-NOPERM this user has no permissions to run 'ping'\r\n:4\r\n").await;
        assert_eq!(refused.await.unwrap(), Some(Value::Int(4)), "a server may refuse the PING");
    }
}
