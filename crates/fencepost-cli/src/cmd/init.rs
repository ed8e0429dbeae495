//! `init`: declares a new deployment, or a change of one.

use fencepost::Locks;
use serde_json::json;

use crate::args::{Global, Init};
use crate::exit::Outcome;
use crate::output::Console;
use crate::store;

pub(super) fn run(args: &Init, global: &Global, console: Console) -> Outcome {
    let url = store::url(global)?;
    let runtime = super::runtime()?;
    let done = if args.reconfigure {
        runtime.block_on(Locks::reconfigure(&url))?
    } else {
        runtime.block_on(Locks::init(&url))?
    };
    console.result(&json!({ "nodes": done }), || {
        if done.is_empty() {
            "this store needs no init; nothing was done".to_owned()
        } else {
            done.join("\n")
        }
    })?;
    Ok(0)
}
