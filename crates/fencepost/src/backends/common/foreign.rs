//! Holders that are clients of other make. They listen to nobody.

use crate::{Error, Name};

/// The error of asking one to let go. `instead` is what can be done at once.
pub(in crate::backends) fn cannot_be_asked(name: &Name, instead: &str) -> Error {
    Error::unsupported(
        format!("asking the foreign holder of lock `{name}` to let go"),
        format!("only {instead} at once works (`--now`); make sure that it does not work any more"),
    )
}
