//! What people see on a terminal of 80 and of 120 columns, read from tmux.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

use common::Store;
use fencepost_testkit::eventually;

/// A terminal with a shell in it.
struct Screen {
    socket: String,
    columns: usize,
}

impl Screen {
    fn open(store: &Store, columns: usize) -> Self {
        let screen = Self { socket: store.path("tmux").display().to_string(), columns };
        let shell = format!("env PS1='$ ' FENCEPOST_STORE='{}' sh", store.url);
        let size = columns.to_string();
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &size, "-y", "24", &shell]);
        screen.shows("the shell asks", |lines| lines == ["$"]);
        screen
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux").args(["-S", &self.socket]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        common::text(&output.stdout)
    }

    fn enter(&self, line: &str) {
        let us = env!("CARGO_BIN_EXE_fencepost");
        self.tmux(&["send-keys", "-l", &line.replace("fencepost", us)]);
        self.tmux(&["send-keys", "Enter"]);
    }

    /// Waits for lines, without those that are empty at the end; returns them.
    fn shows(&self, what: &str, wanted: impl Fn(&[&str]) -> bool) -> Vec<String> {
        let mut screen = String::new();
        eventually(what, || {
            screen = self.tmux(&["capture-pane", "-p"]);
            wanted(&screen.trim_end().lines().map(str::trim_end).collect::<Vec<_>>())
        });
        screen.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).output();
    }
}

/// Text of one line with what differs from run to run replaced: numbers, and the name of the machine.
fn plain(line: &str) -> String {
    let (mut out, mut in_number) = (String::new(), false);
    for character in line.chars() {
        let is_number = character.is_ascii_digit() || in_number && character == '.';
        if !is_number {
            out.push(character);
        } else if !in_number {
            out.push('#');
        }
        in_number = is_number;
    }
    out
}

#[test]
fn waiting_takes_one_line_that_is_gone_after_an_interrupt() {
    for columns in [80, 120] {
        let store = Store::file();
        let name = "n".repeat(300);
        let _holder = store.hold(&name, &["--note", "nightly"]);
        let screen = Screen::open(&store, columns);
        screen.enter(&format!("clear; fencepost run {name} true"));
        let is_waiting = |lines: &[&str]| lines.len() == 1 && lines[0].starts_with("waiting ");
        let line = screen.shows("it waits", is_waiting).remove(0);
        assert!(plain(&line).starts_with("waiting #s: held by host `"), "{line}");
        assert!(line.ends_with('…') && (columns < 120 || line.contains("note `nightly`")), "{line}");
        assert!(line.chars().count() < screen.columns - 1, "no room for `^C`: {line}");
        let narrow = (columns - 20).to_string();
        screen.tmux(&["resize-window", "-x", &narrow]);
        let fits = |line: &str| line.chars().count() == columns - 20 - 3;
        screen.shows("it fits", |lines| is_waiting(lines) && fits(lines[0]));
        screen.tmux(&["send-keys", "C-c"]);
        screen.shows("the line is gone", |lines| lines == ["$"]);
    }
}

#[test]
fn a_list_with_a_long_name_stays_a_table() {
    for columns in [80, 120] {
        let store = Store::file();
        let long = "n".repeat(300);
        for (name, note) in [("job", "short"), (&*long, ""), ("order:1", "")] {
            store.succeed(&["acquire", "--ttl", "1h", "--note", note, name]);
        }
        let screen = Screen::open(&store, columns);
        screen.enter("clear; fencepost list");
        let lines = screen.shows("the list", |lines| lines.last() == Some(&"$") && lines.len() > 3);
        let host = lines[1].split_whitespace().nth(2).unwrap();
        let rows: Vec<_> = lines.iter().map(|line| plain(&line.replace(host, "HOST"))).collect();
        assert!(rows[0].starts_with("NAME     TOKEN             HOST"), "{lines:#?}");
        assert!(rows[1].starts_with("job      #  HOST"), "{lines:#?}");
        assert!(rows.iter().any(|row| row.starts_with("order:#  #  HOST")), "{lines:#?}");
        assert!(rows.contains(&"n".repeat(columns)), "the whole name: {lines:#?}");
    }
}
