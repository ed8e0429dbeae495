//! A temporary folder that goes when the example ends, also by Ctrl-C or a kill.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// Of a program that is killed, the kernel closes the pipe a moment before it kills the processes that die
/// with it, and until then those write files.
const REMOVER: &str = r#"
read -r word
if [ "$word" != now ]; then
  while [ -d "/proc/$2" ] && ! grep -qs '^State:.Z' "/proc/$2/status"; do sleep 0.05; done
  rm -rf "$1"
  sleep 0.5
fi
rm -rf "$1"
"#;

/// A folder that is removed with what is in it, by a shell that waits for the end of a pipe which only we
/// hold.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    remover: Child,
}

impl Folder {
    /// Makes one.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn make() -> Result<Self> {
        let path = tempfile::Builder::new().prefix("fencepost-example-").tempdir()?.keep();
        let remover = Command::new("sh")
            .args(["-c", REMOVER, "remover"])
            .arg(&path)
            .arg(std::process::id().to_string())
            // Ctrl-C at a terminal goes to our group; the remover has to survive it.
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(Self { path, remover })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.remover.stdin.take() {
            let _ = pipe.write_all(b"now\n");
        }
        // Until the folder is gone.
        let _ = self.remover.wait();
    }
}
