//! Which store: flag, then environment, then the files of this machine.

use std::path::Path;

use crate::args::Global;
use crate::exit::Failure;

const VARIABLE: &str = "FENCEPOST_STORE";
const DEFAULT: &str = "file:";

/// The store's URL. It may hold a password: never print it.
pub(crate) fn url(global: &Global) -> Result<String, Failure> {
    find(global.store.as_deref(), global.store_file.as_deref())
}

/// The URL, of what the flags give.
pub(crate) fn find(url: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    let url = given(url, file)?;
    if url.starts_with("memory:") {
        return Err(Failure::Usage(
            "the locks of `memory:` are within one process, so they would exclude nobody; name a store that \
             processes share, such as `file:` (the default)"
                .to_owned(),
        ));
    }
    Ok(url)
}

fn given(url: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    match (url, file) {
        (Some(url), _) => return Ok(url.to_owned()),
        (None, Some(path)) => return from_file(path),
        (None, None) => {}
    }
    match std::env::var(VARIABLE) {
        Ok(url) if !url.is_empty() => Ok(url),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(DEFAULT.to_owned()),
        Err(std::env::VarError::NotUnicode(_)) => Err(Failure::Usage(format!("{VARIABLE} is not UTF-8"))),
    }
}

fn from_file(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("cannot read the store file `{shown}`: {error}")))?;
    let url = text.lines().map(str::trim).find(|line| !line.is_empty());
    url.map(str::to_owned).ok_or_else(|| {
        Failure::Usage(format!("the store file `{shown}` is empty; its first line must be a store URL"))
    })
}
