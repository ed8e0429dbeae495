//! One way to misbehave, and what must come of it.

use std::io;
use std::sync::{Arc, Once};
use std::time::Duration;

use fencepost::{Error, Locks};
use fencepost_testkit::LIMIT;
use tokio::sync::{Mutex, MutexGuard};

use crate::fake::{Fake, Peer, Serve};

/// The password of every URL here.
pub(crate) const PASSWORD: &str = "hunter2-and-more";

/// What kernels keep of a connection, on both sides.
const BUFFERED: usize = 8 << 20;

/// Bytes that are no protocol's.
pub(crate) fn garbage() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(9000).collect()
}

/// Text that would drive a terminal, forge a line of a log and turn the direction of writing.
pub(crate) const ESCAPES: &str = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m\u{202e}boo\u{9b}31m";

pub(crate) const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A fatal alert: `unexpected_message`.
pub(crate) const TLS_ALERT: &[u8] = b"\x15\x03\x01\x00\x02\x02\x0a";

/// The URL of fakes, with a timeout in milliseconds.
type Url = fn(&[Fake], u128) -> String;

/// One way to misbehave.
#[derive(Clone)]
pub(crate) struct Mode {
    pub(crate) name: String,
    pub(crate) serve: Serve,
    /// How long the client waits for an answer.
    pub(crate) timeout: Duration,
    /// Of its error.
    says: &'static str,
    /// Bytes that it takes from one connection.
    most: Option<usize>,
}

impl Mode {
    /// It ends as soon as the client sees what comes; the timeout is that of a slow machine.
    pub(crate) fn new(
        name: impl Into<String>,
        serve: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (timeout, most) = (Duration::from_secs(30), Some(0));
        Self { name: name.into(), serve: Arc::new(serve), timeout, says: "", most }
    }

    /// It ends with the client's patience, which is longer if there is something to hear.
    pub(crate) fn slow(self) -> Self {
        let timeout = Duration::from_millis(if self.says.is_empty() { 500 } else { 5000 });
        Self { timeout, ..self }
    }

    pub(crate) fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    /// The client takes so many bytes, and not many more.
    pub(crate) fn takes(self, most: usize) -> Self {
        Self { most: Some(most), ..self }
    }

    /// The client takes what comes until its patience ends, and keeps nothing of it.
    pub(crate) fn takes_all(self) -> Self {
        Self { most: None, ..self }.slow()
    }

    /// Whether it ends before much was sent.
    pub(crate) fn is_short(&self) -> bool {
        self.most == Some(0)
    }

    /// Connects to fakes that do this, and acquires a lock if that succeeds.
    async fn check(self, count: usize, url: Url) {
        let fakes: Vec<_> = (0..count).map(|_| Fake::start(self.serve.clone())).collect();
        let (url, name) = (url(&fakes, self.timeout.as_millis()), self.name);
        let attempt = async {
            let locks = Locks::connect(&url).await?;
            let outcome = locks.lock("a").try_acquire().await.map(drop);
            locks.close().await;
            outcome
        };
        let outcome = tokio::time::timeout(LIMIT, attempt).await;
        let error = match outcome {
            Err(_) => panic!("{name}: no end"),
            Ok(Ok(())) => panic!("{name}: the lock was acquired"),
            Ok(Err(error)) => error,
        };
        check_error(&name, &error);
        assert!(error.to_string().contains(self.says), "{name}: {error}");
        if let Some(most) = self.most {
            let taken = fakes.iter().map(Fake::most).max();
            assert!(taken <= Some(most + BUFFERED), "{name}: {taken:?} bytes were taken");
        }
    }
}

/// One test at a time: those that flood would be all that the others see.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    collect_panics();
    TURN.lock().await
}

/// All at once, since most of them wait; each has `count` fakes.
pub(crate) async fn check_all(modes: Vec<Mode>, count: usize, url: Url) {
    let _turn = turn().await;
    let tasks: Vec<_> = modes.into_iter().map(|mode| tokio::spawn(mode.check(count, url))).collect();
    let mut failed = Vec::new();
    for task in tasks {
        failed.extend(task.await.err().map(|error| error.to_string()));
    }
    failed.extend(panics());
    assert!(failed.is_empty(), "{failed:#?}");
    let peak = peak_memory();
    assert!(peak < MOST_MEMORY, "{peak} bytes of memory");
}

/// One after the other, each with one fake, and with no more memory than this beyond what is there already.
pub(crate) async fn check_memory(modes: Vec<Mode>, most: usize, url: Url) {
    let _turn = turn().await;
    for mode in modes {
        let name = mode.name.clone();
        // The peak starts anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak_memory();
        mode.check(1, url).await;
        let taken = peak_memory() - before;
        assert!(taken < most, "{name}: {taken} bytes of memory");
    }
    assert_eq!(panics(), [""; 0]);
}

/// An error that can be shown to anybody, on a terminal or in a log.
pub(crate) fn check_error(name: &str, error: &Error) {
    // Invalid: a server may offer what does not go with a ttl.
    let expected = matches!(
        error,
        Error::Unavailable { .. }
            | Error::Uncertain { .. }
            | Error::Config { .. }
            | Error::Backend { .. }
            | Error::Invalid { .. }
    );
    assert!(expected, "{name}: {error:?}");
    for text in [format!("{error}"), format!("{error:?}")] {
        let shown = |c: char| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c);
        assert!(text.chars().all(shown), "{name}: {text:?}");
        assert!(!text.contains(PASSWORD), "{name}: {text}");
        assert!(text.len() < 3000, "{name}: {} bytes of an error", text.len());
    }
}

/// Of all modes of one process at once.
const MOST_MEMORY: usize = 1 << 30;

fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

static PANICS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Tasks of the library panic in silence: nobody looks at their outcome.
fn collect_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Those of the tests themselves are seen anyway.
            if panic.location().is_some_and(|location| !location.file().contains("tests/")) {
                PANICS.lock().unwrap().push(panic.to_string());
            }
            before(panic);
        }));
    });
}

/// All since the last look.
pub(crate) fn panics() -> Vec<String> {
    std::mem::take(&mut PANICS.lock().unwrap())
}
