//! Values in files: killed writers, stopped ones, damaged files.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use fencepost::fence::{Error, Fence};
use fencepost_testkit::{Folder, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{bounded, token};

/// Tells a child of this test to write there.
const FOLDER: &str = "FENCEPOST_TEST_FENCE_FOLDER";
const TOKEN: &str = "FENCEPOST_TEST_FENCE_TOKEN";
const SIZE: usize = 50_000;

async fn open(folder: &Path) -> Fence {
    Fence::connect(&format!("file://{}?timeout=20s", folder.display())).await.unwrap()
}

/// A value that shows whether it is whole.
fn value(number: u64) -> Vec<u8> {
    format!("{number} ").into_bytes().into_iter().cycle().take(SIZE).collect()
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    let number = text.split(' ').next().unwrap().parse().unwrap();
    assert!(value == self::value(number), "half of a value: {}", &text[..40]);
    number
}

/// Runs in a process of its own: writes larger and larger numbers, and says which it has written.
#[tokio::test]
async fn child_writes_until_it_is_killed() {
    let (Ok(folder), Ok(number)) = (std::env::var(FOLDER), std::env::var(TOKEN)) else { return };
    let resource = open(Path::new(&folder)).await.resource("a");
    let active = resource.activate(token(number.parse().unwrap())).await.unwrap();
    let mut next = active.read().await.unwrap().map_or(1, |value| self::number(&value) + 1);
    loop {
        active.write(value(next)).await.unwrap();
        println!("\nwrote {next}");
        next += 1;
    }
}

struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(folder: &Path, token: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::child_writes_until_it_is_killed", "--nocapture"])
            .env(FOLDER, folder)
            .env(TOKEN, token.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next number that it says it has written.
    fn wrote(&mut self) -> Option<u64> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| line.strip_prefix("wrote ")?.parse().ok())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Kills it; returns the last number that it says it has written.
    fn kill(mut self, mut last: u64) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while let Some(number) = self.wrote() {
            last = number;
        }
        last
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_leaves_a_whole_value_and_its_token() {
    let folder = Folder::new("file");
    let place = folder.path().join("values");
    let fence = open(&place).await;
    for round in 1..=8u64 {
        let mut writer = Writer::start(&place, 2 * round);
        let mut last = 0;
        for _ in 0..3 + round {
            last = writer.wrote().expect("it writes");
        }
        let last = writer.kill(last);
        let late = fence.resource("a").activate(token(2 * round - 1)).await.unwrap_err();
        assert_eq!(late.stale().unwrap().highest, token(2 * round));
        let active = fence.resource("a").activate(token(2 * round + 1)).await.unwrap();
        let found = number(&active.read().await.unwrap().unwrap());
        assert!(found == last || found == last + 1, "said {last}, found {found}");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name != "a.new");
    names.sort();
    assert_eq!(names, ["a.guard", "a.value"], "kills leave nothing that piles up");
}

/// A kill leaves what everybody sees at that moment. So this is hundreds of kills.
#[test]
fn whoever_looks_at_any_moment_sees_a_whole_value_that_never_goes_back() {
    let folder = Folder::new("file");
    let mut writer = Writer::start(folder.path(), 7);
    writer.wrote().expect("it writes");
    let (mut last, mut changes) = (0, 0);
    while changes < 25 {
        let bytes = std::fs::read(folder.path().join("a.value")).expect("it is always there");
        let line = format!("fencepost-fence 1 7 {SIZE}\n");
        let seen = number(bytes.strip_prefix(line.as_bytes()).expect("a whole record"));
        assert!(seen >= last, "{seen} behind {last}");
        changes += u32::from(seen > last);
        last = seen;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_writer_holds_others_up_for_a_bounded_time_and_is_refused_later() {
    let folder = Folder::new("file");
    let mut writer = Writer::start(folder.path(), 7);
    writer.wrote().expect("it writes");
    // Again until it was stopped with the flock in its hands.
    let url = format!("file://{}?timeout=50ms", folder.path().display());
    let impatient = Fence::connect(&url).await.unwrap();
    let error = loop {
        writer.signal(Signal::STOP);
        match impatient.resource("a").activate(token(7)).await {
            Err(error) => break error,
            Ok(_) => writer.signal(Signal::CONT),
        }
        writer.wrote().expect("it writes");
    };
    assert!(matches!(error, Error::Failed(fencepost::Error::Unavailable { .. })), "{error:?}");
    assert!(error.to_string().contains("stopped"), "{error}");
    let (fence, path) = (open(folder.path()).await, folder.path().to_owned());
    let waiting = tokio::spawn(async move { fence.resource("a").activate(token(8)).await.map(drop) });
    writer.signal(Signal::CONT);
    bounded("the write ends, and the next holder gets in", waiting).await.unwrap().unwrap();
    let mut writer = writer;
    eventually("the first holder is refused", || matches!(writer.child.try_wait(), Ok(Some(_))));
    let active = open(&path).await.resource("a").activate(token(8)).await.unwrap();
    number(&active.read().await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_reported_and_not_touched() {
    let folder = Folder::new("file");
    let fence = open(folder.path()).await;
    fence.resource("a").activate(token(7)).await.unwrap().write("money").await.unwrap();
    let path = folder.path().join("a.value");
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole, b"fencepost-fence 1 7 5\nmoney", "other languages read this");
    for damaged in
        [&whole[..whole.len() - 1], b"", b"fencepost-fence 2 7 5\nmoney", b"fencepost-fence 1 0 5\nmoney"]
    {
        std::fs::write(&path, damaged).unwrap();
        let error = fence.resource("a").activate(token(9)).await.unwrap_err();
        assert!(matches!(error, Error::Failed(fencepost::Error::Backend { .. })), "{error:?}");
        assert!(error.to_string().contains("a.value"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
    }
    std::fs::write(&path, whole).unwrap();
    assert!(fence.resource("a").activate(token(6)).await.is_err());
}

/// Lets go of whoever waits in the opening of a pipe, so that a test that fails comes to its end.
struct Unblock(std::path::PathBuf);

impl Drop for Unblock {
    fn drop(&mut self) {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let _ = rustix::fs::open(&self.0, flags, rustix::fs::Mode::empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_plain_file_or_larger_than_any_value_is_refused_at_once() {
    let folder = Folder::new("file");
    let fence = open(folder.path()).await;
    let path = |name: &str| folder.path().join(name);
    let pipe = |name: &str| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, path(name), mode).unwrap();
    };
    pipe("pipe.value");
    pipe("turn.guard");
    let _unblock = Unblock(path("pipe.value"));
    std::fs::create_dir(path("folder.value")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path("link.value")).unwrap();
    std::fs::File::create(path("huge.value")).unwrap().set_len(6 << 30).unwrap();
    for (name, why) in [
        ("pipe", "no plain file"),
        ("turn", "not a plain file"),
        ("folder", "no plain file"),
        ("link", "symbolic link"),
        ("huge", "larger"),
    ] {
        let resource = fence.resource(name);
        let error = bounded(name, resource.activate(token(7))).await.unwrap_err();
        assert!(matches!(error, Error::Failed(_)) && error.to_string().contains(why), "{name}: {error}");
    }
    // Who can write a value can read it.
    let active = fence.resource("a").activate(token(7)).await.unwrap();
    let error = active.write(vec![0; (256 << 20) + 1]).await.unwrap_err();
    assert!(matches!(error, Error::Failed(fencepost::Error::Invalid { .. })), "{error}");
    active.write("money").await.unwrap();
}
