//! `show`: who holds one lock.

use fencepost::Locks;
use serde_json::json;

use crate::args::Show;
use crate::exit::{FREE, Outcome};
use crate::output::{Console, details, shown};

pub(super) async fn run(args: &Show, locks: &Locks, console: Console) -> Outcome {
    let name = args.target.name(locks)?;
    let name = name.as_str();
    let holder = locks.show(name).await?;
    console.result(&json!({ "name": name, "holder": &holder }), || match &holder {
        Some(holder) => details(holder),
        None => format!("lock `{}` is free", shown(name)),
    })?;
    Ok(if holder.is_some() { 0 } else { FREE })
}
