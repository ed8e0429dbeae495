//! A node of a Redis Cluster. What it says of slots leads nowhere, or round in circles.

use std::io;

use crate::fake::Peer;
use crate::mode::{ESCAPES, Mode, PASSWORD, check_all};
use crate::redis::{self, command, honest};

/// Answers like the only node of a cluster, but for one command. `SELF` is its own port.
fn node(word: &'static str, answer: String) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        let own = answer.replace("SELF", &peer.port()?.to_string());
        loop {
            let words = command(peer)?;
            let answer = if words[0] == word { own.clone() } else { honest(peer, &words)? };
            peer.send(answer.as_bytes())?;
        }
    }
}

/// The answer to `CLUSTER SLOTS` with these ranges, each of one master.
fn slots(ranges: &[(&str, &str, &str)]) -> String {
    let range = |(first, last, port): &(&str, &str, &str)| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n")
    };
    format!("*{}\r\n{}", ranges.len(), ranges.iter().map(range).collect::<String>())
}

fn modes() -> Vec<Mode> {
    let all = ("0", "16383", "SELF");
    let maps = [
        ("no slots", slots(&[])),
        ("slots of nobody that answers", slots(&[("0", "16383", "1")])),
        ("slots beyond all bounds", slots(&[("0", "99999", "SELF")])),
        ("slots that end before they begin", slots(&[("16383", "0", "SELF")])),
        ("slots below zero", slots(&[("-5", "16383", "SELF")])),
        ("port zero", slots(&[("0", "16383", "0")])),
        ("a port beyond all bounds", slots(&[("0", "16383", "65536")])),
        ("ranges without a master", "*1\r\n*2\r\n:0\r\n:16383\r\n".to_owned()),
        ("a master without a port", "*1\r\n*3\r\n:0\r\n:16383\r\n*1\r\n$1\r\na\r\n".to_owned()),
        ("a host that drives terminals", {
            let host = format!("${}\r\n{ESCAPES}\r\n", ESCAPES.len());
            format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{host}:1\r\n$2\r\nid\r\n")
        }),
        ("another type", "+OK\r\n".to_owned()),
        ("ranges of other types", "*2\r\n:1\r\n*1\r\n_\r\n".to_owned()),
        ("slots a thousand times, then nothing", slots(&vec![all; 1000]).replace("*1000", "*1001")),
    ];
    let maps = maps.map(|(name, answer)| Mode::new(name, node("CLUSTER", answer)).slow());
    let mut modes: Vec<_> = maps.into_iter().collect();
    let no_cluster = "-ERR This instance has cluster support disabled\r\n".to_owned();
    modes.push(Mode::new("no cluster", node("CLUSTER", no_cluster)).says("`redis://`"));
    for answer in [
        "-MOVED 1 :SELF",
        "-MOVED 1 127.0.0.1:SELF",
        "-MOVED 1 127.0.0.1:1",
        "-MOVED 99999 127.0.0.1:SELF",
        "-MOVED -1 127.0.0.1:SELF",
        "-MOVED 1 127.0.0.1:99999",
        "-MOVED 1 nothing",
        "-MOVED 1",
        "-MOVED",
        "-ASK 1 :SELF",
        "-ASK 1 127.0.0.1:1",
        "-ASK",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN The cluster is down",
        "-READONLY You can't write against a read only replica.",
        "-CROSSSLOT Keys in request don't hash to the same slot",
        "-NOSCRIPT No matching script.",
    ] {
        modes.push(Mode::new(answer, node("EVALSHA", format!("{answer}\r\n"))).slow());
    }
    let escapes = format!("-MOVED 1 {ESCAPES}:1\r\n");
    modes.push(Mode::new("a redirect that drives terminals", node("EVALSHA", escapes)).slow());
    modes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_node_of_a_cluster_sends_ends_in_time_with_an_error() {
    let modes = redis::modes().into_iter().chain(redis::pretenders()).chain(modes()).collect();
    check_all(modes, 1, |fakes, timeout| {
        format!("redis+cluster://ann:{PASSWORD}@{}?timeout={timeout}ms", fakes[0].addr)
    })
    .await;
}
