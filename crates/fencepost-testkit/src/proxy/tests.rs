//! A link in front of a server that sends everything back.

use super::*;

fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    addr
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<u8> {
    let mut byte = [7];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

#[test]
fn a_link_passes_stalls_and_is_cut() {
    let proxy = Proxy::start(echo());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(exchange(&mut stream).unwrap(), 7);
    assert_eq!(proxy.harm(), 0);

    proxy.stall();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(exchange(&mut stream).is_err());
    stream.set_read_timeout(None).unwrap();
    proxy.pass();
    assert_eq!(stream.read(&mut [0]).unwrap(), 1);
    let stalled = proxy.harm();
    assert!(stalled > 0);

    proxy.cut();
    assert!(proxy.harm() > stalled);
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    let refused = TcpStream::connect(proxy.addr()).and_then(|mut stream| exchange(&mut stream));
    assert!(refused.is_err());

    proxy.pass();
    assert_eq!(exchange(&mut TcpStream::connect(proxy.addr()).unwrap()).unwrap(), 7);
}

#[test]
fn old_connections_are_held_back_and_new_ones_pass() {
    let proxy = Proxy::start(echo());
    let mut old = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(exchange(&mut old).unwrap(), 7);
    proxy.strand();
    old.write_all(&[8]).unwrap();
    assert_eq!(exchange(&mut TcpStream::connect(proxy.addr()).unwrap()).unwrap(), 7);
    old.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(old.read(&mut [0]).is_err());
    old.set_read_timeout(None).unwrap();
    proxy.pass();
    let mut byte = [0];
    old.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [8]);
}

#[test]
fn an_answer_is_cut_in_the_middle_and_the_next_one_is_not() {
    let proxy = Proxy::start(echo());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(exchange(&mut stream).unwrap(), 7);
    proxy.cut_next_answer();
    stream.write_all(&[1, 2, 3]).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    // A reset may overtake the byte.
    assert!([&[][..], &[1]].contains(&&heard[..]), "{heard:?}");
    assert_eq!(exchange(&mut TcpStream::connect(proxy.addr()).unwrap()).unwrap(), 7);
}

#[test]
fn every_third_piece_is_lost_with_its_connection() {
    let proxy = Proxy::start(echo());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(exchange(&mut stream).unwrap(), 7);
    proxy.lose_every(3);
    assert_eq!(exchange(&mut stream).unwrap(), 7);
    assert!(exchange(&mut stream).is_err());
}

#[test]
fn a_request_is_delivered_twice_and_answered_once() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    proxy.repeat(Duration::ZERO);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.write_all(&[9]).unwrap();
    for _ in 0..2 {
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [9]);
    }
}

#[test]
fn either_way_can_be_held_back_alone() {
    let proxy = Proxy::start(echo());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(exchange(&mut stream).unwrap(), 7);
    for hold in [Proxy::hold_requests, Proxy::hold_answers] {
        hold(&proxy);
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(exchange(&mut stream).is_err());
        stream.set_read_timeout(None).unwrap();
        proxy.pass();
        assert_eq!(stream.read(&mut [0]).unwrap(), 1);
    }
}
