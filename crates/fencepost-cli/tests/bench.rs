//! `bench`: measures, says what, and leaves nothing behind.

mod common;

use common::{Store, assert_fails, code};
use fencepost_testkit::redis::Server;
use rustix::process::Signal;

#[test]
fn every_measure_has_its_figures_and_no_lock_stays() {
    for store in [Store::file(), Store::redis()] {
        let report = store.json(&["--json", "bench", "--each", "100ms"]);
        assert!(report["round_trip_us"].as_f64() > Some(0.0), "{report}");
        let measures = report["measures"].as_array().unwrap();
        assert_eq!(measures.len(), 7, "{report}");
        for measure in measures {
            for figure in ["per_second", "p50_us", "p99_us", "max_us", "round_trips"] {
                assert!(measure[figure].as_f64() > Some(0.0), "{figure}: {measure}");
            }
        }
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
