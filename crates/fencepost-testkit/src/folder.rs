//! A temporary folder of a test.

use crate::eventually::{LIMIT, within};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that is gone with its value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder; what it is for is part of its name.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(what: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("fencepost-{what}-")).tempdir();
        Self(folder.expect("a temporary folder").keep())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    /// A process that was just killed or a release in the background may write a file between the removal of
    /// the others and that of the folder, so that one try is not enough.
    fn drop(&mut self) {
        let mut error = None;
        let gone = within(LIMIT, &mut || {
            error = fs::remove_dir_all(&self.0).err();
            error.is_none() || !self.0.exists()
        });
        if !gone && !std::thread::panicking() {
            panic!("{} cannot be removed: {error:?}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_though_somebody_writes_there_for_a_moment() {
        let folder = Folder::new("folder");
        let path = folder.path().to_owned();
        let inside = path.clone();
        let writer = std::thread::spawn(move || {
            (0..10_000).take_while(|number| fs::write(inside.join(number.to_string()), "").is_ok()).count()
        });
        crate::eventually("it writes", || path.join("100").exists());
        drop(folder);
        writer.join().unwrap();
        assert!(!path.exists());
    }
}
