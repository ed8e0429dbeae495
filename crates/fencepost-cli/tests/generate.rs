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
    for hidden in ["-generate", "-bench-worker", "-torture-worker", "-torture-command", "-help"] {
        assert!(!store.path(&format!("man/fencepost{hidden}.1")).exists(), "{hidden}");
    }
}

/// The text of a page's source, without its escapes.
fn plain(source: &str) -> String {
    let escapes =
        [(r"\-", "-"), (r"\*(Aq", "'"), (r"\fB", ""), (r"\fI", ""), (r"\fR", ""), (r"\&", ""), (r"\\", r"\")];
    escapes.iter().fold(source.to_owned(), |text, (escape, meaning)| text.replace(escape, meaning))
}

/// The option that a line describes; lines of descriptions are deeper.
fn option(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let long = text.split([' ', ',']).find(|word| word.starts_with("--"))?;
    (text.starts_with('-') && line.len() - text.len() <= 6).then(|| long.trim_end_matches('.'))
}

#[test]
fn man_pages_have_usage_options_and_examples_as_the_help_has_them() {
    let store = Store::file();
    store.succeed(&["generate", "man", "man"]);
    for page in std::fs::read_dir(store.path("man")).unwrap() {
        let page = page.unwrap();
        let name = page.file_name().into_string().unwrap();
        let source = plain(&std::fs::read_to_string(page.path()).unwrap());
        let subcommand = name.trim_start_matches("fencepost").trim_end_matches(".1").trim_start_matches('-');
        let help = match subcommand {
            "" => store.succeed(&["--help"]),
            subcommand => store.succeed(&[subcommand, "--help"]),
        };

        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
        let synopsis = source.split_once(".SH SYNOPSIS\n").unwrap().1.lines().next().unwrap();
        let arguments = |usage: &str| usage.replace("[OPTIONS] ", "");
        assert_eq!(arguments(synopsis), arguments(usage), "{name}");

        let tags = source.split(".TP\n").skip(1).filter_map(|tag| tag.lines().next());
        let options: Vec<_> = tags.filter_map(option).collect();
        let (described, examples) = help.split_once("\nExample").unwrap_or((&help, ""));
        let mut expected: Vec<_> = described.lines().filter_map(option).collect();
        if !subcommand.is_empty() {
            // The help of a subcommand only names them. A page is read by itself.
            expected.extend(["--store", "--store-file", "--json", "--verbose", "--quiet"]);
        }
        assert_eq!(options, expected, "{name}");

        if examples.is_empty() {
            continue;
        }
        let (_, verbatim) = source.split_once(".nf\n").unwrap();
        let verbatim = verbatim.split(".fi\n").next().unwrap();
        for line in examples.split("\n\n").next().unwrap().lines().skip(1) {
            let line = line.strip_prefix("  ").unwrap();
            assert!(verbatim.contains(line), "{name}: `{line}` is not as written in {verbatim}");
            assert!(line.chars().count() <= 73, "{name}: `{line}` is too wide for 80 columns");
        }
    }
}
