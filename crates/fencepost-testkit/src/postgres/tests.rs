use super::*;

#[test]
fn a_server_answers_stands_still_and_comes_back_with_its_data() {
    let mut server = Server::config().fsync().start();
    let database = server.create_database();
    server.psql(&database, "CREATE TABLE kept (word text); INSERT INTO kept VALUES ('here')");
    server.pause();
    let mut stuck = server.psql_command(&database).args(["-c", "SELECT 1"]).spawn().unwrap();
    assert!(stuck.try_wait().unwrap().is_none());
    server.resume();
    assert!(stuck.wait().unwrap().success());
    server.restart();
    assert_eq!(server.psql(&database, "SELECT word FROM kept"), "here");
}

#[test]
fn a_pooler_gives_one_backend_to_several_clients() {
    let server = Server::shared();
    let database = server.create_database();
    let bouncer = Bouncer::start(server, Pooling::Transaction);
    let port = bouncer.addr().port().to_string();
    let ask = || {
        let mut command = Command::new("psql");
        command.args(["-XAtq", "-U", "postgres", "-h", "127.0.0.1", "-p", &port, "-d", &database]);
        String::from_utf8(done(command.args(["-c", "SELECT pg_backend_pid()"])).stdout).unwrap()
    };
    assert_eq!(ask(), ask());
}

#[test]
fn a_standby_follows_and_takes_over() {
    let mut server = Server::config().replicated().start();
    let database = server.create_database();
    let standby = Server::start_standby(server.addr());
    server.psql(&database, "CREATE TABLE kept AS SELECT 'here' AS word");
    let word = || standby.try_psql(&database, "SELECT word FROM kept");
    eventually("the standby has it, too", || word().as_deref() == Ok("here"));
    server.kill();
    standby.promote();
    standby.psql(&database, "UPDATE kept SET word = 'changed'");
    assert_eq!(word().as_deref(), Ok("changed"));
}
