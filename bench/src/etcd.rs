//! etcd: a cycle beside a put and a delete without a lease, and a waiter's waking beside a bare watch. The
//! raw side speaks the same protocol over the same kind of connection, with nothing in between.

use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};
use fencepost::Locks;
use fencepost_measure::{Turn, now};
use fencepost_testkit::etcd::Cluster;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::runtime::Runtime;

use crate::cycle::{Cycle as _, in_turns, runtime};
use crate::results::progress;
use crate::rounds::{SLICE, Slice, report_times};
use crate::wake::{HOLD, TURNS};
use crate::{wake, workers};

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<Create>,
}

#[derive(Clone, PartialEq, Message)]
struct Create {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Watched {
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {}

/// A bare connection.
pub(crate) struct Raw {
    sender: SendRequest<Bytes>,
    base: String,
}

impl Raw {
    pub(crate) async fn connect(address: &str) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("an open socket");
        let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender, base: format!("http://{address}/etcdserverpb.") }
    }

    async fn open(&self, path: &str, message: &impl Message, end: bool) -> (RecvStream, SendStream<Bytes>) {
        let request = http::Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let mut sender = self.sender.clone().ready().await.expect("an open connection");
        let (response, mut body) = sender.send_request(request, false).expect("a stream");
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.encoded_len()).expect("a short message"));
        frame.extend_from_slice(&message.encode_to_vec());
        body.send_data(frame.freeze(), end).expect("an open stream");
        (response.await.expect("an answer").into_body(), body)
    }

    async fn call(&self, path: &str, message: &impl Message) {
        let (mut answer, _) = self.open(path, message, true).await;
        while let Some(data) = answer.data().await {
            let _ = answer.flow_control().release_capacity(data.expect("data").len());
        }
        let trailers = answer.trailers().await.expect("trailers").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0", "{trailers:?}");
    }

    async fn cycle(&self) {
        let key = b"raw/0123456789abcdef".to_vec();
        self.call("KV/Put", &Put { key: key.clone(), value: vec![b'x'; 120] }).await;
        self.call("KV/DeleteRange", &Delete { key }).await;
    }

    pub(crate) fn slice(&self, runtime: &Runtime) -> Slice {
        runtime.block_on(async {
            let mut out = Slice::default();
            let started = Instant::now();
            while started.elapsed() < SLICE {
                let before = Instant::now();
                self.cycle().await;
                out.times.push(before.elapsed());
            }
            out.took = started.elapsed();
            out
        })
    }
}

pub(crate) fn run(rounds: usize) {
    measure("etcd", Cluster::config().durable().start(1), rounds, Some(1.5), Some(3.0));
    // What is left of the ratios where the disk costs nothing: mostly two switches between threads a request.
    measure("etcd without fsync", Cluster::start(1), rounds, None, None);
}

fn measure(what: &str, cluster: Cluster, rounds: usize, cycle: Option<f64>, waking: Option<f64>) {
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(&cluster.url())).expect("a store");
    let lock = locks.lock("bench:one");
    let address = cluster[0].addr().to_string();
    let raw = runtime.block_on(Raw::connect(&address));
    progress(&format!("{what}, cycles"));
    let either = async |ours| if ours { lock.run().await } else { raw.cycle().await };
    let pairs: Vec<_> = (0..rounds).map(|_| in_turns(&runtime, either)).collect();
    report_times(&format!("{what}: cycle / put and delete"), cycle, &pairs);
    let what = format!("{what}: waking a process / bare watch");
    wake::report(&what, waking, (&cluster.url(), rounds), |round| {
        workers::pair("etcd watch", &format!("{address} wake{round}"))
    });
    runtime.block_on(locks.close());
}

/// One of two processes that wake each other by a put that the other one watches.
pub(crate) fn pass_to_and_fro(target: &str, begins: bool) -> Vec<Turn> {
    let (address, name) = target.split_once(' ').expect("an address and a name");
    let key = |side: bool| format!("{name}/{side}").into_bytes();
    runtime().block_on(async {
        let raw = Raw::connect(address).await;
        // From the beginning: what the other one has put already is not missed.
        let create = Create { key: key(begins), start_revision: 1 };
        let (mut answers, _open) = raw.open("Watch/Watch", &Watch { create: Some(create) }, false).await;
        let (mut bytes, mut turns) = (BytesMut::new(), Vec::new());
        if begins {
            raw.call("KV/Put", &Put { key: key(true), value: Vec::new() }).await;
        }
        for _ in 0..TURNS {
            let asked = now();
            while !next(&mut answers, &mut bytes).await {}
            let acquired = now();
            tokio::time::sleep(HOLD).await;
            turns.push(Turn { token: 0, asked, acquired, released: now() });
            raw.call("KV/Put", &Put { key: key(!begins), value: Vec::new() }).await;
        }
        turns
    })
}

/// Reads the next answer of a watch; says whether it brought an event.
async fn next(answers: &mut RecvStream, bytes: &mut BytesMut) -> bool {
    loop {
        let length = match bytes.get(1..5) {
            Some(length) => u32::from_be_bytes(length.try_into().expect("four bytes")) as usize,
            None => usize::MAX,
        };
        if length != usize::MAX && bytes.len() >= 5 + length {
            let message = bytes.split_to(5 + length).freeze().slice(5..);
            return !Watched::decode(message).expect("an answer").events.is_empty();
        }
        let data = answers.data().await.expect("an open watch").expect("data");
        let _ = answers.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
}
