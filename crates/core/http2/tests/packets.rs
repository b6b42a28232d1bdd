//! How much of long bodies leaves at once.

mod kit;

use provost_http2::config::DATA_OUTPUT_BYTES_MAX;
use provost_http2::frame::FrameKind;
use provost_http2::{StreamEnd, setting, setting_bytes};

use kit::{chunk, ok_head};

const BODY_BYTES: usize = 1 << 20;

/// What comes next, each time that the carrier has taken all of it, fills one packet of segmentation offload and begins no second one.
#[test]
fn long_bodies_leave_in_full_packets() {
    for streams in [1, 7] {
        let mut server = kit::server();
        let wide = setting_bytes(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff);
        server.say(FrameKind::Settings, 0, 0, &wide).unwrap();
        let wide = 0x7000_0000_u32.to_be_bytes();
        server.say(FrameKind::WindowUpdate, 0, 0, &wide).unwrap();
        for stream in (1..).step_by(2).take(streams) {
            server.say_request(stream);
            let answer = server
                .connection
                .respond(stream, &ok_head(), StreamEnd::Continues, 0);
            answer.unwrap();
            let body = chunk(&[0; BODY_BYTES]);
            server
                .connection
                .send_data(stream, body, StreamEnd::Ends, 0)
                .unwrap();
        }
        let (mut outputs, mut bytes) = (Vec::new(), 0);
        while bytes < streams * BODY_BYTES {
            server.connection.fill(0);
            let output = server.connection.output_bytes();
            server.connection.advance(output, 0);
            outputs.push(output);
            bytes += output;
        }
        let last = outputs.pop();
        let is_full =
            |output: &usize| (DATA_OUTPUT_BYTES_MAX - 1_024..=DATA_OUTPUT_BYTES_MAX).contains(output);
        assert!(outputs.iter().all(is_full), "{outputs:?}, {last:?}");
    }
}
