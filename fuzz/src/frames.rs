//! The target of `provost-frames`: frames as they come from a network.

use std::net::SocketAddrV4;

use provost_frames::{Checksum, Ends, HEADER_BYTES, Mac, Writer, read};

/// Any frame is read or refused, and what is read fits what was there. A frame that is read is written again as it was, but
/// for what a writer sets to its own liking.
pub(crate) fn frames(input: &[u8]) {
    let checked = read(input, Checksum::Checked);
    let Ok(datagram) = read(input, Checksum::Unchecked) else {
        assert!(checked.is_err(), "a check that is not made cannot refuse");
        return;
    };
    assert!(datagram.payload.len() + HEADER_BYTES <= input.len());
    let ends = Ends {
        from_mac: datagram.from_mac,
        from: datagram.from,
        to_mac: Mac::default(),
        to: datagram.to,
    };
    let mut frame = vec![0; HEADER_BYTES + datagram.payload.len()];
    let (head, rest) = datagram.payload.split_at(datagram.payload.len() / 2 / 4 * 4);
    let written = Writer::new(ends, Checksum::Checked).write(&mut frame, head, rest);
    assert_eq!(written, Some(frame.len()));
    let again = read(&frame, Checksum::Checked).map(|again| (again.from, again.to, again.payload));
    assert_eq!(again, Ok((datagram.from, datagram.to, datagram.payload)));
}

pub(crate) fn frames_seeds() -> Vec<Vec<u8>> {
    let end = |last: u8| SocketAddrV4::new([10, 0, 0, last].into(), 4000);
    let ends = Ends {
        from_mac: Mac([2, 0, 0, 0, 0, 1]),
        from: end(1),
        to_mac: Mac([2, 0, 0, 0, 0, 2]),
        to: end(2),
    };
    let seed = |payload: &[u8], checksum| {
        let mut frame = vec![0; HEADER_BYTES + payload.len()];
        Writer::new(ends, checksum).write(&mut frame, payload, b"");
        frame.extend([0; 4]);
        frame
    };
    vec![
        seed(b"", Checksum::Checked),
        seed(b"payload", Checksum::Checked),
        seed(&[7; 1400], Checksum::Unchecked),
    ]
}
