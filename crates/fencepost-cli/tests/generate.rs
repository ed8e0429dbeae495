//! Man pages come out of the binary itself.

mod common;

use common::Store;

#[test]
fn every_public_subcommand_has_a_man_page() {
    let store = Store::file();
    store.succeed(&["generate", "man", "man"]);
    for page in ["", "-run", "-acquire", "-extend", "-release", "-list", "-show", "-force-release"] {
        let page = std::fs::read_to_string(store.path(&format!("man/fencepost{page}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"));
    }
    assert!(!store.path("man/fencepost-generate.1").exists());
}
