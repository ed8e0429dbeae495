//! `bench`: measures, says what, and leaves nothing behind.

mod common;

use common::{Store, assert_fails, code};
use fencepost_testkit::redis::Server;
use rustix::process::Signal;
use serde_json::Value;

/// Measures for as long as it takes until each measure has all its figures: on a busy machine a hand-over may
/// take longer than a short one.
fn measured(store: &Store) -> Value {
    let figures = ["per_second", "p50_us", "p99_us", "max_us", "round_trips"];
    let mut report = Value::Null;
    for each in ["100ms", "1s", "10s"] {
        report = store.json(&["--json", "bench", "--each", each]);
        let measures = report["measures"].as_array().expect("a list of measures");
        if measures.iter().all(|measure| figures.iter().all(|figure| measure[figure].as_f64() > Some(0.0))) {
            return report;
        }
    }
    panic!("a figure is missing: {report}");
}

#[test]
fn every_measure_has_its_figures_and_no_lock_stays() {
    for store in [Store::file(), Store::redis()] {
        let report = measured(&store);
        assert!(report["round_trip_us"].as_f64() > Some(0.0), "{report}");
        let measures = report["measures"].as_array().unwrap();
        assert_eq!(measures.len(), 7, "{report}");
        for measure in &measures[4..] {
            let contended = &measure["contended"];
            assert!(contended["most_by_least_turns"].as_f64() >= Some(1.0), "{report}");
            assert!(contended["wait_max_us"].as_f64() >= contended["wait_p50_us"].as_f64(), "{report}");
        }
        let text = store.succeed(&["-q", "bench", "--each", "50ms"]);
        assert!(text.contains("round trip") && text.contains("8 processes for one name"), "{text}");
        assert_eq!(store.succeed(&["list"]), "");
    }
}

#[test]
fn a_signal_ends_it_with_all_its_processes() {
    let store = Store::redis();
    let mut running = store.start(&["bench", "--each", "10m"]);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(running.stderr()), &mut line).unwrap();
    assert!(line.contains("measuring"), "{line}");
    running.signal(Signal::TERM);
    assert_eq!(code(&running.end()), 143);
    assert_eq!(store.succeed(&["list"]), "");
}

#[test]
fn a_store_out_of_reach_is_69() {
    let mut server = Server::start();
    server.kill();
    assert_fails(&Store::on(server).output(&["bench"]), 69, &["out of reach"]);
}
