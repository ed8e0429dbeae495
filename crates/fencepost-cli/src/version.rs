//! What `--version` says.

use std::sync::LazyLock;

use fencepost::StoreKind;

/// `0.1.0 (abcdef012 2026-11-19; file, redis, tls)`: the version, the commit that it is built from, the
/// features.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("FENCEPOST_COMMIT").map(|commit| format!("{commit}; ")).unwrap_or_default();
        format!("{} ({commit}{})", env!("CARGO_PKG_VERSION"), features().join(", "))
    });
    &LONG
}

fn features() -> Vec<&'static str> {
    let stores = fencepost::stores().into_iter().map(|store| store.name).filter(|name| *name != "memory");
    let tls = StoreKind::of("rediss:").is_ok().then_some("tls");
    let torture = cfg!(feature = "torture").then_some("torture");
    stores.chain(tls).chain(torture).collect()
}
