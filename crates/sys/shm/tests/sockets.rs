//! Packets, descriptors, doorbells and the poller.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use provost_shm::{
    AppRings, DESCRIPTORS_MAX, Doorbell, Interest, Memfd, PacketListener, PacketSocket, Poller, Ringer,
    ServiceRings, Wait, now_ns, wait_for,
};

const PACKET_BYTES_MAX: usize = 1024;

#[test]
fn packets_and_descriptors_arrive_whole_and_in_order() {
    let (one, other) = PacketSocket::pair().unwrap();
    let memfd = Memfd::create("test", 4096).unwrap();
    memfd.write_at(0, b"hello").unwrap();
    one.send(b"first", &[memfd.as_fd(), memfd.as_fd()]).unwrap();
    one.send(b"second", &[]).unwrap();

    let packet = other.receive(PACKET_BYTES_MAX).unwrap().unwrap();
    assert_eq!(
        (packet.bytes.as_slice(), packet.descriptors.len()),
        (&b"first"[..], 2)
    );
    for descriptor in &packet.descriptors {
        let mut bytes = [0; 5];
        rustix::io::pread(descriptor, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"hello");
        assert!(
            rustix::io::fcntl_getfd(descriptor)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
    }
    let packet = other.receive(PACKET_BYTES_MAX).unwrap().unwrap();
    assert_eq!(
        (packet.bytes.as_slice(), packet.descriptors.len()),
        (&b"second"[..], 0)
    );
    assert_eq!(
        other.receive(PACKET_BYTES_MAX).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    drop(one);
    assert!(other.receive(PACKET_BYTES_MAX).unwrap().is_none());
}

#[test]
fn what_is_cut_short_is_an_error_and_leaks_no_descriptor() {
    let (one, other) = PacketSocket::pair().unwrap();
    let (closed_when_dropped, passed) = std::os::unix::net::UnixStream::pair().unwrap();
    one.send(&[1; PACKET_BYTES_MAX + 1], &[passed.as_fd()]).unwrap();
    assert_eq!(
        other.receive(PACKET_BYTES_MAX).unwrap_err().kind(),
        ErrorKind::InvalidData
    );

    send_many(&one, &[passed.as_fd(); DESCRIPTORS_MAX + 1]);
    assert_eq!(
        other.receive(PACKET_BYTES_MAX).unwrap_err().kind(),
        ErrorKind::InvalidData
    );
    drop(passed);
    let hung_up = wait_for(&closed_when_dropped, Interest::Readable, Wait::Now).unwrap();
    assert!(hung_up, "a copy of the descriptor stayed open");
}

/// As `PacketSocket::send`, without its limit.
fn send_many(socket: &PacketSocket, descriptors: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); 256];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    rustix::net::sendmsg(
        socket,
        &[std::io::IoSlice::new(b"x")],
        &mut ancillary,
        SendFlags::empty(),
    )
    .unwrap();
}

#[test]
fn a_packet_takes_no_more_descriptors_than_it_can() {
    let (one, _other) = PacketSocket::pair().unwrap();
    let too_many = vec![one.as_fd(); DESCRIPTORS_MAX + 1];
    assert_eq!(
        one.send(b"x", &too_many).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[test]
fn a_listener_knows_its_peers_and_replaces_only_dead_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("provostd.sock");
    let listener = PacketListener::bind(&path, 0o660).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o660
    );
    assert_eq!(
        PacketListener::bind(&path, 0o660).unwrap_err().kind(),
        ErrorKind::AddrInUse
    );

    assert!(
        listener.accept().unwrap().receive(1).unwrap().is_none(),
        "the second listener's probe"
    );
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let client = PacketSocket::connect(&path).unwrap();
    let server = loop {
        match listener.accept() {
            Ok(server) => break server,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    let peer = server.peer_credentials().unwrap();
    assert_eq!(peer.process as u32, std::process::id());
    assert_eq!(peer.user, rustix::process::getuid().as_raw());
    client.send(b"hello", &[]).unwrap();
    assert_eq!(server.receive(PACKET_BYTES_MAX).unwrap().unwrap().bytes, b"hello");

    drop(listener);
    let listener = PacketListener::bind(&path, 0o600).unwrap();
    who_connects_waits_for_a_place(&path, &listener);
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"not a socket").unwrap();
    assert_eq!(
        PacketListener::bind(&path, 0o600).unwrap_err().kind(),
        ErrorKind::AddrInUse
    );
}

/// As many connect as may wait to be accepted: the next is told so, or waits until one of them is.
fn who_connects_waits_for_a_place(path: &Path, listener: &PacketListener) {
    let mut waiting = Vec::new();
    let error = loop {
        match PacketSocket::connect(path) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000, "the listener has no bound");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let late = PacketSocket::connect_within(path, Duration::from_millis(5));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::WouldBlock);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| PacketSocket::connect_within(path, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(5));
        listener.accept().unwrap();
        newcomer.join().unwrap().unwrap();
    });
}

#[test]
fn a_doorbell_wakes_a_poller_and_a_hostile_holder_cannot_block_a_ringer() {
    let (ringer, doorbell) = Doorbell::create().unwrap();
    let mut poller = Poller::create().unwrap();
    poller.add(&doorbell, 7, Interest::Readable).unwrap();
    assert_eq!(poller.wait(Wait::Now).unwrap().count(), 0);
    let before = now_ns();
    assert_eq!(poller.wait(Wait::AtMost(2_000_000)).unwrap().count(), 0);
    assert!(now_ns() - before >= 2_000_000, "woke before its time");

    ringer.ring().unwrap();
    let events: Vec<_> = poller.wait(Wait::Forever).unwrap().collect();
    assert_eq!(
        (
            events.len(),
            events[0].token,
            events[0].readable,
            events[0].hung_up
        ),
        (1, 7, true, false)
    );
    assert!(doorbell.drain().unwrap());
    assert!(!doorbell.drain().unwrap());

    // The holder of the other end makes it blocking, and never drains.
    rustix::fs::fcntl_setfl(&doorbell, rustix::fs::OFlags::empty()).unwrap();
    for _ in 0..200_000 {
        ringer.ring().unwrap();
    }
    poller.remove(&doorbell).unwrap();
    drop(doorbell);
    assert!(ringer.ring().is_err(), "nobody hears it");
}

#[test]
fn a_ringer_that_is_closed_does_not_keep_its_doorbell_ringing() {
    let (ringer, doorbell) = Doorbell::create().unwrap();
    drop(ringer);
    assert!(!wait_for(&doorbell, Interest::Readable, Wait::Now).unwrap());
    assert!(!doorbell.drain().unwrap());
}

#[test]
fn descriptors_slots_and_wake_ups_pass_between_an_app_and_its_service() {
    let (service_socket, app_socket) = PacketSocket::pair().unwrap();
    let (mut service, [submission, completion]) = ServiceRings::create(16, 32).unwrap();
    let (ringer, doorbell) = Doorbell::create().unwrap();
    let passed = [submission.as_fd(), completion.as_fd(), ringer.as_fd()];
    service_socket.send(b"attached", &passed).unwrap();

    let app = std::thread::spawn(move || {
        let packet = app_socket.receive(PACKET_BYTES_MAX).unwrap().unwrap();
        let [submission, completion, ringer] = <[_; 3]>::try_from(packet.descriptors).unwrap();
        let ringer = Ringer::from(ringer);
        let mut app = AppRings::from_descriptors(submission, 16, completion, 32).unwrap();
        for number in 0..1000 {
            while app.submissions.push(&[number; 8]).is_err() {
                provost_shm::yield_now();
            }
            app.submissions.publish();
            if app.service.needed() {
                ringer.ring().unwrap();
            }
        }
        loop {
            if let Some(slot) = app.completions.pop().unwrap() {
                break slot;
            }
            provost_shm::yield_now();
        }
    });
    let mut expected = 0;
    while expected < 1000 {
        while let Some(slot) = service.submissions.pop().unwrap() {
            assert_eq!(slot, [expected; 8]);
            expected += 1;
        }
        service.submissions.release();
        service.sleeper.arm();
        if expected < 1000 && service.submissions.is_empty().unwrap() {
            wait_for(&doorbell, Interest::Readable, Wait::Forever).unwrap();
        }
        service.sleeper.disarm();
        doorbell.drain().unwrap();
    }
    service.completions.push(&[9; 8]).unwrap();
    service.completions.publish();
    assert_eq!(app.join().unwrap(), [9; 8]);
    assert_eq!(service.indices().submission_head, 1000);
}

#[test]
fn rings_and_regions_of_wrong_sizes_are_refused() {
    for slots in [0, 8, 17, 1 << 20] {
        assert!(ServiceRings::create(slots, 16).is_err());
        assert!(ServiceRings::create(16, slots).is_err());
    }
    let (_service, [submission, completion]) = ServiceRings::create(16, 16).unwrap();
    assert!(
        AppRings::map(submission, 4096, completion, 16).is_err(),
        "more slots than the region holds"
    );
}

#[test]
fn a_successor_goes_on_with_the_rings_and_its_app_sees_that_once_it_has_the_new_region() {
    let (mut old, [submission, completion]) = ServiceRings::create(16, 16).unwrap();
    let mut app = AppRings::map(submission, 16, completion, 16).unwrap();
    for number in 0..3 {
        app.submissions.push(&[number; 8]).unwrap();
        old.completions.push(&[10 + number; 8]).unwrap();
    }
    app.submissions.publish();
    old.completions.publish();
    assert_eq!(old.submissions.pop().unwrap(), Some([0; 8]));
    old.submissions.release();
    assert_eq!(app.completions.pop().unwrap(), Some([10; 8]));
    app.completions.release();

    let memory = old.memory().each_ref().map(|memfd| memfd.try_clone().unwrap());
    let mut new = ServiceRings::resume(memory, 16, 16, old.indices()).unwrap();
    assert_eq!(new.submissions.pop().unwrap(), Some([1; 8]));
    new.submissions.release();
    new.completions.push(&[13; 8]).unwrap();
    new.completions.publish();
    assert_eq!(app.completions.pop().unwrap(), Some([11; 8]));
    assert_eq!(app.completions.pop().unwrap(), Some([12; 8]));
    assert_eq!(
        app.completions.pop().unwrap(),
        None,
        "the new region is not mapped yet"
    );

    app.completion_region().replace(&new.memory()[1]).unwrap();
    assert_eq!(app.completions.pop().unwrap(), Some([13; 8]));
    app.completions.release();
    assert_eq!(new.completions.room().unwrap(), 16);
    new.sleeper.arm();
    assert!(app.service.needed());
    let other_size = provost_shm::Memfd::create("test", 1 << 20).unwrap();
    assert!(app.completion_region().replace(&other_size).is_err());
}

#[test]
fn a_batch_of_descriptors_passes_whole_and_a_doorbell_with_both_its_ends() {
    let (one, other) = PacketSocket::pair().unwrap();
    let (ringer, doorbell) = Doorbell::create().unwrap();
    let mut passed = vec![ringer.as_fd(); 251];
    passed.extend(doorbell.ends().unwrap());
    one.send_batch(b"batch", &passed).unwrap();
    assert!(one.send_batch(b"batch", &[ringer.as_fd(); 254]).is_err());
    let mut packet = other.receive_batch(PACKET_BYTES_MAX).unwrap().unwrap();
    assert_eq!(packet.descriptors.len(), 253);
    let ends = [packet.descriptors.remove(251), packet.descriptors.remove(251)];
    let successor = Doorbell::from_ends(ends);
    ringer.ring().unwrap();
    drop((doorbell, ringer, packet));
    assert!(successor.drain().unwrap());
    assert!(!successor.drain().unwrap(), "its other end is kept open");
}
