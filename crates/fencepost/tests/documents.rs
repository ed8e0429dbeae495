//! What the documents repeat of the code is what the code says. `make tables` writes it.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "all-stores")]

use std::path::Path;

use fencepost::StoreKind;

const MARKS: [&str; 2] = ["<!-- parameters -->\n", "<!-- /parameters -->"];

#[test]
fn every_store_has_a_page_with_its_parameters() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores");
    for store in fencepost::stores().iter().filter(|store| store.name != "memory") {
        let path = pages.join(format!("{}.md", store.name));
        let page =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (before, rest) = page.split_once(MARKS[0]).unwrap();
        let (there, after) = rest.split_once(MARKS[1]).unwrap();
        let table = table(store);
        if std::env::var_os("WRITE_TABLES").is_some() {
            std::fs::write(&path, [before, MARKS[0], &table, MARKS[1], after].concat()).unwrap();
        } else {
            assert_eq!(there, table, "{} is not up to date: run `make tables`", path.display());
        }
    }
}

fn table(store: &StoreKind) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let row = |(name, default, help): (&str, &str, &str)| {
        let default = if default.is_empty() { String::new() } else { cell(default) };
        format!("| `{name}` | {default} | {} |\n", cell(help))
    };
    let ttl = ("ttl", store.ttl, "the ttl of locks that name none");
    let own = store.parameters.iter().map(|one| (one.name, one.default, one.help));
    let rows: String = std::iter::once(ttl).chain(own).map(row).collect();
    format!("| parameter | default | what it sets |\n|---|---|---|\n{rows}")
}
