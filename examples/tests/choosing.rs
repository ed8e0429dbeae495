//! The SQL in `docs/guide/choosing.md` does what the page says.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::Stdio;

use fencepost_testkit::postgres::Server;

/// The SQL of the page, block by block.
fn sql() -> String {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/choosing.md")).unwrap();
    let blocks = page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.collect()
}

/// What PostgreSQL is to answer, by the comments behind the statements: `-- UPDATE 0: too late`.
fn answers(sql: &str) -> Vec<String> {
    let comments = sql.lines().filter_map(|line| Some(line.split_once(" -- ")?.1));
    comments.map(|comment| comment.split(':').next().unwrap().to_owned()).collect()
}

#[test]
fn every_statement_changes_as_many_rows_as_the_page_says() {
    let server = Server::shared();
    let sql = sql();
    let mut psql = server.psql_command(&server.create_database());
    // Not quiet: the answers are what is looked at.
    psql.args(["-v", "QUIET=0"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut psql = psql.spawn().unwrap();
    psql.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    let output = psql.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let out = String::from_utf8(output.stdout).unwrap();
    let changes = |line: &&str| line.starts_with("INSERT ") || line.starts_with("UPDATE ");
    let changed: Vec<_> = out.lines().filter(changes).collect();
    let expected = answers(&sql);
    assert!(expected.len() > 10, "{expected:?}");
    assert_eq!(changed, expected, "{out}");
}
