//! One connection to one server: requests are put into its buffer at once, in order, and one task writes what
//! has gathered and hands out the replies.
//!
//! Sending never waits. So a request that was dropped while unanswered can be undone by another one sent
//! right after it on the same connection, and the server sees the two in that order. A connection never
//! reconnects by itself: when it ends, everything unanswered fails, and the owner decides what to do.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::{io, iter};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::batch::{BatchedScript, ScriptBatch, Step};
use super::pool::Pool;
use super::resp::{self, Decoder, Part, Value};
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;

/// A byte stream to a server.
pub(in crate::backends) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// More unanswered requests than this mean that the server is stuck; further ones fail at once.
const MAX_UNANSWERED: usize = 1 << 18;

/// Replies that are handed out at a time. What those who get them ask for next is written before the others
/// get theirs: so the server and its callers work at the same time and not in turns.
pub(super) const AT_A_TIME: usize = 32;

/// Bytes that are read at a time, and how often in one turn. Connections share a task: one whose server sends
/// without end lets the others have their turns.
const CHUNK: usize = 8192;
const CHUNKS_A_TURN: usize = 8;

/// Bytes between two replies, pushes and the second reply, after which a server is not waited for any more:
/// it talks, and does not answer.
const MAX_UNANSWERING: usize = 16 << 20;

#[derive(Debug)]
pub(in crate::backends) struct Connection {
    shared: Arc<Mutex<Shared>>,
}

/// The most that a connection with nothing to send keeps ready for it twice: one buffer gathers while the
/// other is written.
const MOST_SPARE: usize = 1 << 16;

/// A reply on its way.
pub(in crate::backends) type Reply = oneshot::Receiver<Value>;

/// Called with a reply by the task that read it, or with `None` if the connection ended instead.
pub(in crate::backends) type Call = Box<dyn FnOnce(Option<Value>) + Send>;

/// Who waits for a reply.
enum Waiting {
    Receiver(oneshot::Sender<Value>),
    Call {
        sent: Moment,
        call: Call,
    },
    /// Several, each for a step of its own.
    Batch {
        sent: Moment,
        calls: Vec<Call>,
    },
    /// The answer is of no interest.
    Nobody {
        sent: Moment,
    },
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a waiting request")
    }
}

impl Waiting {
    fn count(&self) -> usize {
        match self {
            Self::Receiver(_) | Self::Call { .. } => 1,
            Self::Batch { calls, .. } => calls.len(),
            Self::Nobody { .. } => 0,
        }
    }

    fn answer(self, reply: Option<Value>) {
        match (self, reply) {
            (Self::Call { call, .. }, reply) => call(reply),
            (Self::Batch { calls, .. }, Some(Value::List(replies))) if replies.len() == calls.len() => {
                calls.into_iter().zip(replies).for_each(|(call, reply)| call(Some(reply)));
            }
            // The call as a whole was refused.
            (Self::Batch { calls, .. }, reply) => calls.into_iter().for_each(|call| call(reply.clone())),
            // Nobody may wait any more: dropped requests are answered, too.
            (Self::Receiver(sender), Some(reply)) => drop(sender.send(reply)),
            (Self::Receiver(_), None) | (Self::Nobody { .. }, _) => {}
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    outgoing: Vec<u8>,
    /// What is still being gathered, to go behind that.
    batch: ScriptBatch,
    unanswered: VecDeque<Waiting>,
    /// How many wait for a reply.
    waiting: usize,
    /// The driver, and whether it will run without being woken.
    waker: Option<Waker>,
    woken: bool,
    /// Why the connection ended.
    ended: Option<String>,
    /// A request has timed out and nothing was heard since.
    suspect: bool,
}

impl Shared {
    /// Whether another request can be taken.
    fn check(&self) -> Result<(), String> {
        match &self.ended {
            Some(why) => Err(why.clone()),
            None if self.waiting >= MAX_UNANSWERED => {
                Err(format!("{MAX_UNANSWERED} requests are unanswered"))
            }
            None => Ok(()),
        }
    }

    /// Puts what was gathered into the buffer.
    ///
    /// A server writes first to the client that it has had something for last. With nothing before it, the
    /// reply to a release would be written, and its reader woken, before the push to the next holder.
    fn finish_batch(&mut self) {
        if self.batch.take_pushes() && self.outgoing.is_empty() {
            resp::encode_parts(&mut self.outgoing, iter::once(Part::Words(&["PING"])));
            self.unanswered.extend(self.batch.sent.map(|sent| Waiting::Nobody { sent }));
        }
        self.unanswered.extend(self.batch.finish(&mut self.outgoing).map(|(sent, mut calls)| {
            match (calls.len(), calls.pop()) {
                (1, Some(call)) => Waiting::Call { sent, call },
                (_, last) => {
                    calls.extend(last);
                    Waiting::Batch { sent, calls }
                }
            }
        }));
    }

    /// The driver, if it has to be woken: once is enough for all that gathers until it runs.
    fn sleeper(&mut self) -> Option<Waker> {
        let woken = std::mem::replace(&mut self.woken, true);
        self.waker.as_ref().filter(|_| !woken).cloned()
    }
}

impl Connection {
    /// Starts driving a stream on the current runtime, by a task that it may share with others. `on_push` is
    /// called for what the server sends unasked.
    pub(in crate::backends) fn start(
        pool: &Arc<Pool>,
        stream: Box<dyn Stream>,
        on_push: impl Fn(Vec<Value>) + Send + 'static,
    ) -> Self {
        let shared = Arc::<Mutex<Shared>>::default();
        let mut driver = Driver {
            stream,
            shared: shared.clone(),
            outgoing: Vec::new(),
            written: 0,
            incoming: Vec::with_capacity(4096),
            decoder: Decoder::default(),
            heard: 0,
            paused: false,
            on_push,
        };
        pool.join(async move {
            let error = poll_fn(|context| driver.poll(context)).await;
            end(&driver.shared, error.to_string());
        });
        Self { shared }
    }

    /// Puts a command into the buffer. The reply comes, or the receiver fails when the connection ends.
    pub(in crate::backends) fn send<'a>(
        &self,
        words: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Reply, String> {
        let (sender, reply) = oneshot::channel();
        self.put(Some(Waiting::Receiver(sender)), |out| resp::encode(out, words.len(), words))?;
        Ok(reply)
    }

    /// The same for plain words.
    pub(in crate::backends) fn command(&self, words: &[&str]) -> Result<Reply, String> {
        self.send(words.iter().map(|word| word.as_bytes()))
    }

    /// Puts a command into the buffer, sent at `sent`. `call` is called with the reply, without any detour:
    /// so that many replies can come to one decision, and only that wakes somebody. Not called if this fails.
    pub(in crate::backends) fn send_calling<'a>(
        &self,
        parts: impl Iterator<Item = Part<'a>> + Clone,
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        self.put(Some(Waiting::Call { sent, call }), |out| resp::encode_parts(out, parts))
    }

    /// Puts a command into the buffer that is answered by a push alone.
    pub(in crate::backends) fn send_unanswered(&self, words: &[&str]) -> Result<(), String> {
        self.put(None, |out| resp::encode_parts(out, iter::once(Part::Words(words))))
    }

    /// Asks for a step of a call that others may join, sent at `sent`. It goes behind all that was put into
    /// the buffer before, and before all that is put there later. `call` is called with the reply to this
    /// step, or to the whole call if the server refused that. Not called if this fails.
    pub(in crate::backends) fn join<W: AsRef<[u8]>>(
        &self,
        script: &Arc<BatchedScript>,
        step: &Step<'_, W>,
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        let mut shared = lock(&self.shared);
        shared.check()?;
        if !shared.batch.takes(script, step) {
            shared.finish_batch();
        }
        shared.batch.push(script, step, sent, call);
        if step.alone {
            shared.finish_batch();
        }
        shared.waiting += 1;
        let sleeper = shared.sleeper();
        drop(shared);
        if let Some(driver) = sleeper {
            driver.wake();
        }
        Ok(())
    }

    fn put(&self, answer_to: Option<Waiting>, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), String> {
        let mut shared = lock(&self.shared);
        shared.check()?;
        shared.finish_batch();
        encode(&mut shared.outgoing);
        shared.waiting += usize::from(answer_to.is_some());
        shared.unanswered.extend(answer_to);
        let sleeper = shared.sleeper();
        drop(shared);
        if let Some(driver) = sleeper {
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
    pub(in crate::backends) fn backlog(&self) -> Option<(usize, Option<Moment>)> {
        let shared = lock(&self.shared);
        if shared.ended.is_some() {
            return None;
        }
        let oldest = match shared.unanswered.front() {
            Some(Waiting::Call { sent, .. } | Waiting::Batch { sent, .. } | Waiting::Nobody { sent }) => {
                Some(*sent)
            }
            Some(Waiting::Receiver(_)) => None,
            None => shared.batch.sent,
        };
        Some((shared.waiting, oldest))
    }

    /// Whether it has ended.
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
    let (unanswered, waker) = {
        let mut shared = lock(shared);
        shared.ended.get_or_insert(why);
        shared.finish_batch();
        (std::mem::take(&mut shared.unanswered), shared.waker.take())
    };
    if let Some(waker) = waker {
        waker.wake();
    }
    for waiting in unanswered {
        waiting.answer(None);
    }
}

struct Driver<P> {
    stream: Box<dyn Stream>,
    shared: Arc<Mutex<Shared>>,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    decoder: Decoder,
    /// Bytes since the last reply.
    heard: usize,
    /// There is more to hand out in what was read.
    paused: bool,
    on_push: P,
}

impl<P> Drop for Driver<P> {
    fn drop(&mut self) {
        // The runtime that drove it is gone.
        end(&self.shared, "the runtime of this connection ended".to_owned());
    }
}

impl<P: Fn(Vec<Value>)> Driver<P> {
    /// Runs until the connection ends, and says why it did.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        {
            // Stored before anything can be pending: a close has to be heard also while the server reads
            // nothing.
            let mut shared = lock(&self.shared);
            if shared.ended.is_some() {
                return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
            }
            shared.woken = false;
            if !shared.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                shared.waker = Some(context.waker().clone());
            }
        }
        let mut chunks = CHUNKS_A_TURN;
        loop {
            let wrote = match self.write(context) {
                Ok(wrote) => wrote,
                Err(error) => return Poll::Ready(error),
            };
            let read = match self.read(context, &mut chunks) {
                Ok(read) => read,
                Err(error) => return Poll::Ready(error),
            };
            if self.paused {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if chunks == 0 {
                // Only after the runtime has looked at its sockets and timers: whoever wakes itself is asked
                // first, for dozens of times, and the others would not be heard meanwhile.
                let _ = pin!(tokio::task::yield_now()).poll(context);
                return Poll::Pending;
            }
            if !wrote && !read {
                return Poll::Pending;
            }
        }
    }

    /// Writes what has gathered; `true` if anything was written.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        loop {
            if self.written == self.outgoing.len() {
                self.outgoing.clear();
                self.written = 0;
                let mut shared = lock(&self.shared);
                shared.finish_batch();
                std::mem::swap(&mut shared.outgoing, &mut self.outgoing);
                if self.outgoing.is_empty() {
                    drop(shared);
                    if self.outgoing.capacity() > MOST_SPARE {
                        // The other one is as large, for the next time that very much is sent at once.
                        self.outgoing = Vec::new();
                    }
                    // Only TLS keeps bytes back.
                    if let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context) {
                        flushed?;
                    }
                    return Ok(progress);
                }
            }
            match Pin::new(&mut self.stream).poll_write(context, &self.outgoing[self.written..]) {
                Poll::Pending => return Ok(progress),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Err(error),
            }
            progress = true;
        }
    }

    /// Reads what is there, at most so many chunks, and hands it out; `true` if anything came.
    fn read(&mut self, context: &mut Context<'_>, chunks: &mut usize) -> io::Result<bool> {
        let mut chunk = [std::mem::MaybeUninit::uninit(); CHUNK];
        let mut progress = self.paused;
        if self.paused {
            self.hand_out()?;
        }
        while !self.paused && *chunks > 0 {
            let mut buffer = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(progress),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                }
                Poll::Ready(Ok(())) => {}
            }
            progress = true;
            *chunks -= 1;
            self.heard += buffer.filled().len();
            self.incoming.extend_from_slice(buffer.filled());
            self.hand_out()?;
        }
        Ok(progress)
    }

    fn hand_out(&mut self) -> io::Result<()> {
        let (mut used, mut answered) = (0, 0);
        self.paused = false;
        while !self.paused {
            let (value, length) = self.decoder.decode(&self.incoming[used..]).map_err(garbled)?;
            used += length;
            let Some(value) = value else { break };
            match value {
                Value::Push(items) => (self.on_push)(items),
                value => {
                    self.heard = 0;
                    let next = {
                        let mut shared = lock(&self.shared);
                        shared.suspect = false;
                        let next = shared.unanswered.pop_front();
                        let count = next.as_ref().map_or(0, Waiting::count);
                        shared.waiting -= count;
                        answered += count;
                        next
                    };
                    self.paused = answered >= AT_A_TIME && used < self.incoming.len();
                    match next {
                        Some(waiting) => waiting.answer(Some(value)),
                        None => return Err(garbled("a reply to no request")),
                    }
                }
            }
        }
        self.incoming.drain(..used);
        if self.heard > MAX_UNANSWERING { self.check_heard() } else { Ok(()) }
    }

    /// A server may push for as long as it likes to somebody who asks it for nothing.
    fn check_heard(&mut self) -> io::Result<()> {
        self.heard = 0;
        match lock(&self.shared).waiting {
            0 => Ok(()),
            _ => Err(garbled("the server sends messages without end and answers nothing")),
        }
    }
}

fn garbled(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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
        let pool = Arc::<Pool>::default();
        let endless = Connection::start(&pool, Box::new(Endless(0)), |_| {});
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let other = Connection::start(&pool, Box::new(ours), |_| {});
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
        let connection = Connection::start(&Arc::default(), Box::new(ours), |_| {});
        let script = Arc::new(BatchedScript { name: "sha".to_owned(), most: 9, ..Default::default() });
        let join = |pushes| {
            let (sender, reply) = oneshot::channel();
            let step = Step { keys: &["k"], arguments: &["a"], needs_end: false, alone: true, pushes };
            connection
                .join(&script, &step, Moment::NEVER, Box::new(move |value| drop(sender.send(value))))
                .unwrap();
            reply
        };
        let mut expect = async |commands: &[&[&str]], replies: &str| {
            let mut sent = Vec::new();
            commands.iter().for_each(|words| resp::encode_parts(&mut sent, iter::once(Part::Words(words))));
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
