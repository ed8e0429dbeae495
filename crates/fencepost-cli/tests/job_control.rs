//! `run` under an interactive shell on a real terminal: Ctrl-C, Ctrl-Z, `fg`, `bg`, pipelines, and the
//! waiting line.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{Running, Store, becomes, is_alive};
use fencepost_testkit::eventually;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// An interactive shell on a terminal of its own.
struct Shell {
    _shell: Running,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen was read.
    read: usize,
}

impl Shell {
    fn start(store: &Store) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = || -> OwnedFd {
            rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        // A session of its own, with this terminal.
        let mut shell = Command::new("setsid");
        shell.args(["--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"]);
        shell
            .current_dir(store.path(""))
            .env("FENCEPOST_STORE", &store.url)
            .env("PS1", "")
            .env("TERM", "dumb");
        shell.env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost"));
        shell.stdin(Stdio::from(terminal())).stdout(Stdio::from(terminal())).stderr(Stdio::from(terminal()));
        let shell = Running::start(shell);

        let screen = Arc::<Mutex<String>>::default();
        let (mut display, shared) = (File::from(master.try_clone().unwrap()), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(length @ 1..) = display.read(&mut buffer) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        let mut shell = Self { _shell: shell, keyboard: File::from(master), screen, read: 0 };
        shell.enter("stty -echo; PS1=");
        shell.enter("echo shell is $((40 + 2))");
        shell.expect("shell is 42");
        shell
    }

    /// Types a line.
    fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// Presses keys.
    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until text appears after what was read so far.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        let (screen, mut read) = (self.screen.clone(), None);
        let started = std::time::Instant::now();
        while read.is_none() && started.elapsed() < fencepost_testkit::LIMIT {
            read = screen.lock().unwrap()[self.read..].find(text).map(|at| self.read + at + text.len());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let unread = &screen.lock().unwrap()[self.read..];
        self.read = read.unwrap_or_else(|| panic!("no `{text}` on the screen: {unread:?}"));
    }
}

const INTERRUPT: &str = "\x03";
const SUSPEND: &str = "\x1a";

#[test]
fn the_command_owns_the_terminal_and_the_shell_gets_it_back() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- sh -c 'echo name?; read name; echo hello $name'");
    shell.expect("name?");
    shell.enter("fence");
    shell.expect("hello fence");
    shell.enter("echo code $?");
    shell.expect("code 0");
}

#[test]
fn interrupt_ends_the_command_and_its_lock() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- sh -c 'echo $$ > child; exec sleep 1000'");
    let child = store.pid("child");
    becomes(child, "sleep");
    shell.press(INTERRUPT);
    shell.enter("echo code $?");
    shell.expect("code 130");
    assert!(!is_alive(child));
    assert_eq!(store.succeed(&["list"]), "");
}

#[test]
fn suspend_stops_the_job_and_fg_goes_on_with_it() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- sh -c 'echo ready; read line; echo got $line'");
    shell.expect("ready");
    shell.press(SUSPEND);
    shell.expect("Stopped");
    shell.enter("jobs; echo prompt again");
    shell.expect("prompt again");
    shell.enter("fg");
    shell.enter("input");
    shell.expect("got input");
    shell.enter("echo code $?");
    shell.expect("code 0");
}

#[test]
fn a_command_that_does_not_exist_leaves_the_terminal_to_the_script() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("sh -c '$FENCEPOST run job -- ./nowhere; echo code $?; read line; echo got $line'");
    shell.expect("code 127");
    shell.enter("input");
    shell.expect("got input");
}

#[test]
fn a_job_that_was_stopped_past_its_lease_does_not_go_on() {
    let store = Store::redis();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run --ttl 8s job -- sh -c 'trap \"\" TERM; echo $$ > child; exec cat'");
    let child = store.pid("child");
    becomes(child, "cat");
    shell.press(SUSPEND);
    shell.expect("Stopped");
    // Another holder: so the lease is over.
    store.succeed(&["run", "job", "--", "true"]);
    assert!(!is_alive(child));
    shell.enter("fg");
    shell.expect("lock `job` was lost");
    shell.enter("echo code $?");
    shell.expect("code 70");
}

#[test]
fn a_script_around_it_stops_and_goes_on_as_one_job() {
    let store = Store::file();
    std::fs::write(
        store.path("script"),
        "$FENCEPOST run job -- sh -c 'echo ready; read line; echo got $line'\necho script ends\n",
    )
    .unwrap();
    let mut shell = Shell::start(&store);
    shell.enter("sh script");
    shell.expect("ready");
    shell.press(SUSPEND);
    shell.expect("Stopped");
    shell.enter("fg");
    shell.enter("input");
    shell.expect("got input");
    shell.expect("script ends");
}

#[test]
fn a_background_job_gets_the_terminal_when_it_comes_to_the_front() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- sh -c 'echo $$ > child; read line; echo got $line' &");
    store.pid("child");
    eventually("the job stops for want of the terminal", || {
        shell.enter("jobs");
        shell.screen.lock().unwrap().contains("Stopped")
    });
    shell.enter("fg");
    shell.enter("input");
    shell.expect("got input");
    shell.enter("echo code $?");
    shell.expect("code 0");
}

#[test]
fn a_neighbour_in_a_pipeline_keeps_the_terminal() {
    let store = Store::file();
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- echo question | sh -c 'read line < /dev/tty; cat; echo answer $line'");
    shell.enter("typed");
    shell.expect("question");
    shell.expect("answer typed");
    shell.enter("$FENCEPOST run job -- sh -c 'echo $$ > child; exec sleep 1000' | cat");
    let child = store.pid("child");
    becomes(child, "sleep");
    shell.press(INTERRUPT);
    eventually("the command has ended", || !is_alive(child));
}

#[test]
fn while_waiting_one_line_says_who_holds_the_lock() {
    let store = Store::file();
    let _holder = store.hold("job", &["--note", "nightly"]);
    let mut shell = Shell::start(&store);
    shell.enter("$FENCEPOST run job -- true");
    shell.expect("\r\x1b[Kwaiting ");
    shell.expect("held by host");
    shell.expect("\r\x1b[Kwaiting ");
    shell.press(SUSPEND);
    shell.expect("Stopped");
    shell.enter("fg");
    shell.expect("waiting ");
    shell.press(INTERRUPT);
    shell.enter("echo code $?");
    shell.expect("code 130");
}

#[test]
fn a_force_release_on_a_terminal_shows_the_holder_and_asks() {
    let store = Store::file();
    store.succeed(&["acquire", "--ttl", "1h", "--note", "nightly", "job"]);
    let token = store.json(&["--json", "show", "job"])["holder"]["token"].as_u64().unwrap();
    let mut shell = Shell::start(&store);
    let ask = "$FENCEPOST force-release job --reason why --now; echo exit $?";
    for (answer, then) in [("n", "exit 1"), ("", "exit 1"), ("y", "exit 0")] {
        shell.enter(ask);
        shell.expect(&format!("take lock `job` from token {token}, "));
        shell.expect("nightly");
        shell.expect("[y/N]");
        shell.enter(answer);
        shell.expect(then);
    }
    assert!(store.json(&["--json", "show", "job"])["holder"].is_null());
}
