//! The bench runs, and leaves what other programs read.

use std::process::Command;

use fencepost_testkit::Folder;
use serde_json::Value;

fn bench(words: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_fencepost-bench")).args(words).output().expect("the bench")
}

#[test]
fn a_part_leaves_its_figures_and_a_picture() {
    let folder = Folder::new("results");
    let into = folder.path().to_str().expect("a plain name");
    let (mut text, mut file) = (String::new(), Value::Null);
    // On a busy machine a short measure may see no hand-over.
    for rounds in ["1", "5", "15"] {
        let output = bench(&["--rounds", rounds, "--into", into, "file"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        let figures = std::fs::read_to_string(folder.path().join("file.json")).expect("figures");
        file = serde_json::from_str(&figures).expect("JSON");
        let measured = |result: &Value| result["figure"].as_f64() > Some(0.0);
        if file["results"].as_array().is_some_and(|results| results.iter().all(measured)) {
            break;
        }
    }
    let results = file["results"].as_array().expect("results");
    assert_eq!(results.len(), 3, "{file:#}");
    for result in results {
        assert!(result["figure"].as_f64() > Some(0.0), "{result}");
        assert_eq!(result["goal"].is_null(), result["met"].is_null(), "{result}");
        assert!(text.contains(result["what"].as_str().expect("a name")), "{text}");
    }
    let picture = std::fs::read_to_string(folder.path().join("file.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
}

#[test]
fn a_part_that_does_not_exist_starts_nothing() {
    let output = bench(&["redis", "nonsense"]);
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("Parts: redis"), "{error}");
}
