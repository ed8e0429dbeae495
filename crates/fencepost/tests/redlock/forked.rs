//! Processes that were forked from one and connect each for itself.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};

use fencepost::blocking::Locks;
use fencepost_testkit::redis::Nodes;

#[test]
fn forked_processes_that_connect_have_channels_of_their_own() {
    let nodes = Nodes::start(3);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forked::parent", "--nocapture"])
        .env("FENCEPOST_FORKED", nodes.url())
        .env("FENCEPOST_NODE", nodes[0].addr().to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let channels: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("channel ")).collect();
    assert_eq!(channels.len(), 2, "{text}");
    assert_ne!(channels[0], channels[1]);
}

/// Not a test of its own: what the process does that forks.
#[test]
fn parent() {
    let Ok(url) = std::env::var("FENCEPOST_FORKED") else { return };
    // Draws what maps are keyed with, for the children as well.
    drop(HashMap::<u8, u8>::new());
    for _ in 0..2 {
        // SAFETY: this process has no other threads that hold anything, and the child ends below.
        #[allow(unsafe_code)]
        let child = unsafe { libc::fork() };
        if child == 0 {
            let shown = std::panic::catch_unwind(|| show_channel(&url));
            // SAFETY: ends the process without running anything else.
            #[allow(unsafe_code)]
            unsafe {
                libc::_exit(i32::from(shown.is_err()))
            };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        #[allow(unsafe_code)]
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
}

/// Connects, and prints where this process listens, as the node has it: nobody else is connected.
fn show_channel(url: &str) {
    let _locks = Locks::connect(url).unwrap();
    let mut node = TcpStream::connect(std::env::var("FENCEPOST_NODE").unwrap()).unwrap();
    node.write_all(b"PUBSUB CHANNELS *\r\n").unwrap();
    node.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    node.read_to_string(&mut said).unwrap();
    let mut channels: Vec<_> = said.lines().filter(|line| line.len() == 16).collect();
    channels.sort_unstable();
    // In one piece: the output is shared with whoever runs this.
    std::io::stdout().write_all(format!("\nchannel {}\n", channels.join(" ")).as_bytes()).unwrap();
}
