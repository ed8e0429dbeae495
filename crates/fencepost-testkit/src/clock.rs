//! A process's wall clock, moved by the test: a small library (`clock.c`) that the process loads before all
//! others and that adds the offset it finds in a file. Linux only.
//!
//! `redis-server` reads the wall clock with `gettimeofday` and `time`, the libraries it loads with
//! `clock_gettime`, too; all its timers are monotonic and stay as they are.

use crate::Folder;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = include_str!("clock.c");

/// A wall clock for processes that are started with its [`environment`](Self::environment).
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Clock {
    /// Puts the library and the file into `folder`. The clock shows the true time.
    ///
    /// # Panics
    /// If the library cannot be compiled, or the folder is not writable.
    pub fn make(folder: &Path) -> Self {
        let (library, path) = (folder.join("clock.so"), folder.join("clock"));
        fs::write(&library, compiled()).expect("the folder is writable");
        let file = File::create(&path).expect("the folder is writable");
        let clock = Self { library, path, file };
        clock.set(0);
        clock
    }

    /// Sets it ahead of the true time by so many seconds, or behind it if negative. Takes effect at once.
    ///
    /// # Panics
    /// If its folder is gone.
    pub fn set(&self, offset: i64) {
        // The reader takes the offset only together with its complement, so never one half of it.
        let bytes = [offset.to_ne_bytes(), (!offset).to_ne_bytes()].concat();
        self.file.write_all_at(&bytes, 0).expect("the folder is writable");
    }

    /// The variables that make a process read this clock.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("FENCEPOST_CLOCK", &self.path)]
    }

    /// Whether the process has loaded the library. The loader goes on without one that it cannot use.
    pub(crate) fn is_loaded_in(pid: u32) -> bool {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().any(|line| line.ends_with("/clock.so"))
    }
}

/// The library, compiled at first use.
fn compiled() -> &'static [u8] {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = Folder::new("clock");
        let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        fs::write(&source, SOURCE).expect("the folder is writable");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&library, &source])
            .output()
            .expect("`cc` runs; `make deps` installs it");
        assert!(output.status.success(), "clock.c: {}", String::from_utf8_lossy(&output.stderr));
        fs::read(&library).expect("cc writes the library")
    })
}
