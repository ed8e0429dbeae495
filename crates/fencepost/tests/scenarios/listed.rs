//! That docs/scenarios.md lists what there is, and that everything it lists is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cells of the table, a row each.
fn rows() -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join("docs/scenarios.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The files of a folder with such an ending, by name, with their text.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let wanted = entries.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    wanted
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn every_row_has_its_tests_and_every_test_its_row() {
    let numbered: Vec<_> = rows().iter().filter_map(|row| row[0].parse::<u32>().ok()).collect();
    assert_eq!(numbered, (1..=52).collect::<Vec<_>>());
    let listed: BTreeSet<String> = rows()
        .iter()
        .flat_map(|row| {
            quoted(&row[4]).filter(|name| name.contains("::s")).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let mut found = BTreeSet::new();
    for (file, text) in files("crates/fencepost/tests/scenarios", "rs") {
        let names = text.lines().filter_map(|line| line.split_once("fn s").map(|(_, name)| name));
        let numbers = names.filter_map(|name| name.get(..2).filter(|number| number.parse::<u32>().is_ok()));
        found.extend(numbers.map(|number| format!("{file}::s{number}")));
    }
    assert_eq!(listed, found);
}

#[test]
fn every_mutant_is_listed_with_the_row_that_it_breaks() {
    let listed: BTreeSet<String> =
        rows().iter().flat_map(|row| quoted(&row[6]).map(str::to_owned).collect::<Vec<_>>()).collect();
    let mutants = files("scripts/mutants", "mutant");
    assert_eq!(listed, mutants.iter().map(|(name, _)| name.clone()).collect());
    for (mutant, text) in mutants {
        for scenario in text.lines().filter_map(|line| line.strip_prefix("scenario: ")) {
            let number: u32 = scenario.trim_start_matches("lib:")[1..3].parse().unwrap();
            let row = rows().into_iter().find(|row| row[0] == number.to_string()).unwrap();
            assert!(row[6].contains(&mutant), "row {number} does not name {mutant}");
        }
    }
}

/// Otherwise a change of the code leaves a mutant behind that changes nothing, and nobody notices before
/// `make mutants`.
#[test]
fn every_mutant_finds_what_it_takes_out() {
    for (mutant, text) in files("scripts/mutants", "mutant") {
        let mut changed = BTreeMap::new();
        for change in text.split("\nfile: ").skip(1) {
            let (file, change) = change.split_once("\n--- old\n").unwrap();
            let (old, new) = change.split_once("\n--- new\n").unwrap();
            let code = changed.entry(file).or_insert_with(|| fs::read_to_string(root().join(file)).unwrap());
            assert_eq!(code.matches(old).count(), 1, "{mutant}: its old text must be in {file} once");
            *code = code.replace(old, new);
        }
        assert!(!changed.is_empty(), "{mutant} changes nothing");
    }
}
