//! etcd: a cycle beside a put and a delete without a lease, and a waiter's waking beside a bare watch. The raw side speaks
//! the same protocol over the same kind of connection, with nothing in between.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use fencepost::Locks;
use fencepost_testkit::etcd::Cluster;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use prost::Message;

use crate::cycle::{one_by_one, runtime};
use crate::rounds::{SLICE, Slice, report_times};
use crate::wake;

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
struct Raw {
    sender: SendRequest<Bytes>,
    base: String,
}

impl Raw {
    async fn connect(address: &str) -> Self {
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
}

pub(crate) fn run(rounds: usize) {
    measure("etcd", Cluster::config().durable().start(1), rounds, Some(1.8), Some(3.0));
    // What is left of the ratios where the disk costs nothing: mostly two switches between threads a request.
    measure("etcd without fsync", Cluster::start(1), rounds, None, None);
}

fn measure(what: &str, cluster: Cluster, rounds: usize, cycle: Option<f64>, waking: Option<f64>) {
    let runtime = runtime();
    let locks = runtime.block_on(Locks::connect(&cluster.url())).expect("a store");
    let lock = locks.lock("bench:one");
    let address = cluster[0].addr().to_string();
    let raw = runtime.block_on(Raw::connect(&address));
    let bare = || {
        runtime.block_on(async {
            let mut out = Slice::default();
            let started = Instant::now();
            while started.elapsed() < SLICE {
                let before = Instant::now();
                raw.cycle().await;
                out.times.push(before.elapsed());
            }
            out.took = started.elapsed();
            out
        })
    };
    let pairs: Vec<_> = (0..rounds).map(|_| (one_by_one(&runtime, &lock), bare())).collect();
    report_times(&format!("{what}: cycle / put and delete"), cycle, &pairs);
    let pairs: Vec<_> = (0..rounds.div_ceil(2))
        .map(|round| {
            (wake::gaps("locks", &cluster.url()), wake::gaps("etcd watch", &format!("{address} wake{round}")))
        })
        .collect();
    report_times(&format!("{what}: waking a process / bare watch"), waking, &pairs);
    runtime.block_on(locks.close());
}

/// The part of one of two processes that wake each other by a put that the other one watches.
pub(crate) fn watch(
    target: &str,
    side: &str,
    turns: usize,
    hold: Duration,
    note: impl Fn(Duration, Duration),
) {
    let (address, name) = target.split_once(' ').expect("an address and a name");
    let other = if side == "0" { "1" } else { "0" };
    let key = |side: &str| format!("{name}/{side}").into_bytes();
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("nanoseconds"))
    };
    runtime().block_on(async {
        let raw = Raw::connect(address).await;
        // From the beginning: what the other one has put already is not missed.
        let create = Create { key: key(side), start_revision: 1 };
        let (mut answers, _open) = raw.open("Watch/Watch", &Watch { create: Some(create) }, false).await;
        let mut bytes = BytesMut::new();
        if side == "0" {
            raw.call("KV/Put", &Put { key: key(side), value: Vec::new() }).await;
        }
        for _ in 0..turns {
            while !next(&mut answers, &mut bytes).await {}
            let acquired = now();
            tokio::time::sleep(hold).await;
            let released = now();
            raw.call("KV/Put", &Put { key: key(other), value: Vec::new() }).await;
            note(acquired, released);
        }
    });
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
