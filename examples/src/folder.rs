//! A temporary folder that goes when the example ends, also by Ctrl-C or a kill.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// A folder that is removed with what is in it, by a shell that waits for the end of a pipe which only we hold.
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
            .args(["-c", r#"read -r _; rm -rf "$1""#, "remover"])
            .arg(&path)
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
        // Closes the pipe, and waits until the folder is gone.
        let _ = self.remover.wait();
    }
}
