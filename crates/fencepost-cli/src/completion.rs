//! Completions that know the locks: the shell asks this command what may follow.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use fencepost::Locks;

use crate::args::Cli;
use crate::exit::quoted;
use crate::store;

/// Set by the shell when it asks.
const VARIABLE: &str = "_FENCEPOST_COMPLETE";

/// A shell waits no longer for names.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers a shell that asks, and ends then.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// Writes the script that makes a shell ask.
pub(crate) fn script(shell: &str, out: &mut impl Write) -> io::Result<()> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or(io::ErrorKind::Unsupported)?;
    shell.write_registration(VARIABLE, "fencepost", "fencepost", "fencepost", out)
}

/// The names of the locks that are held; none if the store does not answer soon. Left out are those that a
/// shell would take for more than a word: whoever makes a lock chooses its name.
pub(crate) fn names() -> Vec<CompletionCandidate> {
    let words: Vec<_> = std::env::args().collect();
    let (url, file) = (flag(&words, "--store"), flag(&words, "--store-file"));
    let Ok(url) = store::find(url, file.map(Path::new)) else { return Vec::new() };
    let Ok(runtime) = crate::cmd::runtime() else { return Vec::new() };
    let listed = runtime.block_on(async {
        let list = async { Locks::connect(&url).await?.list("").await };
        tokio::time::timeout(PATIENCE, list).await
    });
    let holders = listed.ok().and_then(Result::ok).map(|listing| listing.holders).unwrap_or_default();
    let names = holders.iter().map(|holder| holder.name.as_str());
    names.filter(|name| quoted(name) == *name).map(CompletionCandidate::new).collect()
}

/// The value of a flag in a line that is not finished.
fn flag<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let after = words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
    after.or_else(|| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_found_in_a_line_that_is_not_finished() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let store = |line: &str| flag(&words(line), "--store").map(str::to_owned);
        assert_eq!(store("fencepost show --store redis://a x").as_deref(), Some("redis://a"));
        assert_eq!(store("fencepost --store=file:x show").as_deref(), Some("file:x"));
        assert_eq!((store("fencepost show --store"), store("fencepost --store-file x show")), (None, None));
    }
}
