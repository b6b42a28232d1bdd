//! Two ends, each in a thread of its own, over wires within the process and over UDP sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use provost_datagram_rpc::{
    CallError, EndReason, Handlers, MsgBuf, Refusal, Remote, Rpc, RpcConfig, RpcError, SessionEvent,
    SessionId, Wire,
};
use provost_packets::InProcess;
use provost_udp::UdpWire;

const ECHO: u16 = 1;
const LATER: u16 = 2;
const SLOW: u16 = 3;
const PANIC: u16 = 4;
const NOBODY: u16 = 5;
const SILENT: u16 = 6;

const CALLS: u64 = 400;
/// No test waits so long for anything unless it is about to fail.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
struct ServerState {
    stop: bool,
    kept: Vec<provost_datagram_rpc::RequestHandle>,
    ended: Vec<EndReason>,
}

fn handlers<A: provost_datagram::Address + Send + 'static>() -> Handlers<A, ServerState> {
    let mut handlers = Handlers::new();
    handlers
        .dispatch(ECHO, |_, context, request| {
            context.respond(request.handle(), 7, request.bytes()).unwrap();
        })
        // Answers every request when the next one arrives, and the last with it.
        .dispatch(LATER, |state: &mut ServerState, context, request| {
            state.kept.push(request.handle());
            if state.kept.len() == 4 {
                for (index, handle) in state.kept.drain(..).enumerate() {
                    context.respond(handle, 0, &[index as u8]).unwrap();
                }
            }
        })
        .worker(SLOW, |work| {
            let reversed: Vec<u8> = work.bytes().iter().rev().copied().collect();
            work.respond(&reversed);
            9
        })
        .worker(PANIC, |_| std::panic::panic_any("as told"))
        .dispatch(SILENT, |_, _, _| {})
        .on_session(|state, _, event| {
            if let SessionEvent::Ended(_, reason) = event {
                state.ended.push(reason);
            }
        });
    handlers
}

fn config() -> RpcConfig {
    RpcConfig::default()
}

/// Ends an event loop also when a test fails.
struct Stop<A: 'static, S: 'static>(Remote<A, S>, fn(&mut S));

impl<A: 'static, S: 'static> Drop for Stop<A, S> {
    fn drop(&mut self) {
        let stop = self.1;
        let _ = self.0.run(move |state, _| stop(state));
    }
}

/// Serves in a thread until `client` is through.
fn with_server<W>(server: W, config: RpcConfig, client: impl FnOnce(&Remote<W::Address, ServerState>))
where
    W: Wire<Address: Send + 'static> + Send,
{
    let mut rpc = Rpc::new(config, server, ServerState::default(), handlers()).unwrap();
    let remote = rpc.remote();
    std::thread::scope(|scope| {
        scope.spawn(move || rpc.run_until(|state| state.stop).unwrap());
        let _stop = Stop(remote.clone(), |state| state.stop = true);
        client(&remote);
    });
}

/// What a client knows of its calls: how each ended.
#[derive(Default)]
struct ClientState {
    outcomes: Vec<(u64, Result<u16, RpcError>, Vec<u8>)>,
    events: Vec<SessionEvent>,
}

type Client<W> = Rpc<W, ClientState>;

fn client<W: Wire>(wire: W, config: RpcConfig) -> Client<W> {
    let mut handlers = Handlers::new();
    handlers.on_session(|state: &mut ClientState, _, event| state.events.push(event));
    Rpc::new(config, wire, ClientState::default(), handlers).unwrap()
}

fn connect<W: Wire>(rpc: &mut Client<W>, to: W::Address) -> SessionId {
    rpc.parts().1.connect(to).unwrap()
}

fn call<W: Wire>(rpc: &mut Client<W>, session: SessionId, (request_type, tag): (u16, u64), bytes: &[u8]) {
    let (_, mut context) = rpc.parts();
    let mut call = context.call_of(request_type, bytes, bytes.len().max(16));
    call.tag = tag;
    let request = bytes.to_vec();
    context
        .enqueue_request(session, call, move |state, context, completion| {
            assert_eq!(*completion.request, *request, "the request comes back as it was");
            let response = completion.response.to_vec();
            state
                .outcomes
                .push((completion.tag, completion.outcome, response));
            context.recycle(completion.request);
            context.recycle(completion.response);
        })
        .unwrap();
}

/// Turns until so many calls have ended.
fn wait_for<W: Wire>(rpc: &mut Client<W>, calls: usize) {
    let late = std::time::Instant::now() + WAIT_MAX;
    rpc.run_until(|state| {
        assert!(
            std::time::Instant::now() < late,
            "{} of {calls} calls",
            state.outcomes.len()
        );
        state.outcomes.len() >= calls
    })
    .unwrap();
    assert_eq!(rpc.state().outcomes.len(), calls);
}

fn bytes_of(tag: u64) -> Vec<u8> {
    let length = if tag.is_multiple_of(50) {
        100_000
    } else {
        tag * 37 % 3000
    };
    (0..length).map(|index| (index + tag) as u8).collect()
}

fn every_kind_of_handler<W>(near: W, far: W)
where
    W: Wire<Address: Send + 'static> + Send,
{
    let to = far.address();
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, to);
        for tag in 0..CALLS {
            let request_type = if tag % 3 == 0 { SLOW } else { ECHO };
            call(&mut rpc, session, (request_type, tag), &bytes_of(tag));
        }
        wait_for(&mut rpc, CALLS as usize);
        for (tag, outcome, response) in &rpc.state().outcomes {
            let mut expected = bytes_of(*tag);
            if tag % 3 == 0 {
                expected.reverse();
            }
            assert_eq!(*outcome, Ok(if tag % 3 == 0 { 9 } else { 7 }));
            assert_eq!(*response, expected, "call {tag}");
        }
        let mut tags: Vec<u64> = rpc.state().outcomes.iter().map(|outcome| outcome.0).collect();
        tags.sort_unstable();
        assert!(tags.iter().copied().eq(0..CALLS), "each continuation ran once");
    });
}

fn udp() -> UdpWire {
    UdpWire::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1472).unwrap()
}

#[test]
fn dispatch_and_worker_handlers_answer_within_a_process() {
    let (near, far) = InProcess::pair(1500, 512);
    every_kind_of_handler(near, far);
}

#[test]
fn dispatch_and_worker_handlers_answer_over_udp() {
    every_kind_of_handler(udp(), udp());
}

#[test]
fn a_deferred_response_is_sent_when_the_handler_s_state_says_so() {
    let (near, far) = InProcess::pair(1500, 512);
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        for tag in 0..4 {
            call(&mut rpc, session, (LATER, tag), &[0; 8]);
        }
        wait_for(&mut rpc, 4);
        assert!(
            rpc.state()
                .outcomes
                .iter()
                .all(|(tag, outcome, response)| { *outcome == Ok(0) && **response == [*tag as u8] })
        );
    });
}

#[test]
fn what_no_handler_does_is_told_from_what_one_says() {
    let (near, far) = InProcess::pair(1500, 512);
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        call(&mut rpc, session, (NOBODY, 0), b"hello");
        wait_for(&mut rpc, 1);
        call(&mut rpc, session, (PANIC, 1), &[1; 5000]);
        wait_for(&mut rpc, 2);
        let outcomes: Vec<_> = rpc.state().outcomes.iter().map(|outcome| outcome.1).collect();
        assert_eq!(
            outcomes,
            [Err(RpcError::NoHandler), Err(RpcError::HandlerPanicked)]
        );
    });
}

#[test]
fn a_continuation_calls_on() {
    let (near, far) = InProcess::pair(1500, 512);
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        let (_, mut context) = rpc.parts();
        let first = context.call_of(ECHO, b"once", 100);
        context
            .enqueue_request(session, first, move |_, context, completion| {
                let text = [&*completion.response, b" more"].concat();
                let second = context.call_of(ECHO, &text, 100);
                context
                    .enqueue_request(session, second, |state, _, completion| {
                        state
                            .outcomes
                            .push((0, completion.outcome, completion.response.to_vec()));
                    })
                    .unwrap();
            })
            .unwrap();
        wait_for(&mut rpc, 1);
        assert_eq!(rpc.state().outcomes[0], (0, Ok(7), b"once more".to_vec()));
    });
}

/// A handler that asks a third end before it answers.
#[test]
fn a_handler_makes_a_call_of_its_own_before_it_answers() {
    let (back, third) = (udp(), udp());
    let third_at = third.address();
    let (front, back_at) = (udp(), back.address());
    with_server(third, config(), |_| {
        let mut handlers = Handlers::new();
        handlers.dispatch(
            ECHO,
            |(_, session): &mut (bool, Option<SessionId>), context, request| {
                let handle = request.handle();
                let call = context.call_of(SLOW, request.bytes(), 100);
                let session = session.expect("it was connected at the start");
                context
                    .enqueue_request(session, call, move |_, context, completion| {
                        let status = completion.outcome.unwrap();
                        context.respond(handle, status, &completion.response).unwrap();
                    })
                    .unwrap();
            },
        );
        let mut middle = Rpc::new(config(), back, (false, None), handlers).unwrap();
        let remote = middle.remote();
        let (state, mut context) = middle.parts();
        state.1 = Some(context.connect(third_at).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || middle.run_until(|state| state.0).unwrap());
            let _stop = Stop(remote, |state| state.0 = true);
            let mut rpc = client(front, config());
            let session = connect(&mut rpc, back_at);
            call(&mut rpc, session, (ECHO, 5), b"stressed");
            wait_for(&mut rpc, 1);
            assert_eq!(rpc.state().outcomes[0], (5, Ok(9), b"desserts".to_vec()));
        });
    });
}

#[test]
fn calls_fail_once_each_when_the_peer_has_died() {
    let (near, far) = (udp(), udp());
    let to = far.address();
    let mut config = config();
    config.datagram.peer_timeout_ns = 200_000_000;
    let mut rpc = client(near, config);
    let session = connect(&mut rpc, to);
    for tag in 0..20 {
        call(&mut rpc, session, (ECHO, tag), b"is anybody there?");
    }
    drop(far);
    wait_for(&mut rpc, 20);
    let gone = Err(RpcError::Call(CallError::Ended(EndReason::PeerTimeout)));
    assert!(rpc.state().outcomes.iter().all(|outcome| outcome.1 == gone));
    assert_eq!(
        rpc.state().events,
        [SessionEvent::Ended(session, EndReason::PeerTimeout)]
    );
}

#[test]
fn calls_fail_once_each_when_the_session_is_refused() {
    let (near, far) = InProcess::pair(1500, 512);
    let mut few = config();
    few.datagram.sessions_max = 1;
    with_server(far, few, |_| {
        let mut rpc = client(near, config());
        let first = connect(&mut rpc, 1);
        call(&mut rpc, first, (ECHO, 0), b"");
        wait_for(&mut rpc, 1);
        let second = connect(&mut rpc, 1);
        for tag in 1..10 {
            call(&mut rpc, second, (ECHO, tag), b"");
        }
        wait_for(&mut rpc, 10);
        let reason = EndReason::Refused(Refusal::TooManySessions);
        let refused = Err(RpcError::Call(CallError::Ended(reason)));
        assert!(
            rpc.state().outcomes[1..]
                .iter()
                .all(|outcome| outcome.1 == refused)
        );
    });
}

#[test]
fn a_disconnect_lets_calls_end_and_takes_no_more() {
    let (near, far) = InProcess::pair(1500, 512);
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        call(&mut rpc, session, (ECHO, 0), b"");
        wait_for(&mut rpc, 1);
        for tag in 1..30 {
            call(&mut rpc, session, (ECHO, tag), b"last words");
        }
        let (_, mut context) = rpc.parts();
        context.disconnect(session);
        let call = context.call_of(ECHO, b"too late", 0);
        let refused = context.enqueue_request(session, call, |_, _, _| panic!("it was refused"));
        let refused = refused.unwrap_err();
        assert_eq!(refused.error, RpcError::Call(CallError::NoSession));
        assert_eq!(&*refused.call.request, b"too late");
        wait_for(&mut rpc, 30);
        assert!(rpc.state().outcomes.iter().all(|outcome| outcome.1 == Ok(7)));
        rpc.run_until(|state| {
            state
                .events
                .contains(&SessionEvent::Ended(session, EndReason::Closed))
        })
        .unwrap();
    });
}

#[test]
fn a_shut_down_runs_every_continuation_and_tells_the_peer() {
    let (near, far) = InProcess::pair(1500, 512);
    with_server(far, config(), |server| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        call(&mut rpc, session, (ECHO, 0), b"");
        wait_for(&mut rpc, 1);
        for tag in 1..50 {
            call(&mut rpc, session, (SILENT, tag), &bytes_of(tag));
        }
        rpc.run_for(Duration::from_millis(5)).unwrap();
        let remote = rpc.remote();
        remote.run(|_, _| panic!("it is shut down before")).unwrap();
        rpc.shut_down();
        assert_eq!(rpc.state().outcomes.len(), 50);
        let here = Err(RpcError::Call(CallError::Ended(EndReason::ResetHere)));
        assert!(rpc.state().outcomes[1..].iter().all(|outcome| outcome.1 == here));
        assert_eq!(rpc.parts().1.connect(1), Err(RpcError::ShutDown));
        assert!(remote.run(|_, _| {}).is_err());
        let (told, is_told) = std::sync::mpsc::sync_channel(100);
        loop {
            let told = told.clone();
            server
                .run(move |state, _| told.send(state.ended.clone()).unwrap())
                .unwrap();
            if is_told.recv_timeout(WAIT_MAX).unwrap() == [EndReason::Reset] {
                break;
            }
        }
    });
}

#[test]
fn dropping_it_runs_every_continuation() {
    let (near, _far) = InProcess::pair(1500, 512);
    let (told, is_told) = std::sync::mpsc::sync_channel(100);
    let mut rpc = Rpc::new(config(), near, (), Handlers::new()).unwrap();
    let (_, mut context) = rpc.parts();
    let session = context.connect(1).unwrap();
    for _ in 0..100 {
        let told = told.clone();
        let call = context.call_of(ECHO, b"", 0);
        context
            .enqueue_request(session, call, move |_, context, completion| {
                let again = context.call_of(ECHO, b"", 0);
                let refused = context.enqueue_request(completion.session, again, |_, _, _| {});
                told.send(refused.unwrap_err().error).unwrap();
            })
            .unwrap();
    }
    drop(rpc);
    drop(told);
    assert!(is_told.iter().all(|error| error == RpcError::ShutDown));
    assert_eq!(is_told.try_iter().count(), 0);
}

#[test]
fn requests_that_a_program_keeps_return_their_memory_from_any_thread() {
    let (near, far) = InProcess::pair(1500, 512);
    let (keep, kept) = std::sync::mpsc::sync_channel(100);
    let mut handlers = Handlers::new();
    let mut config = config();
    config.datagram.assembly_bytes_max = 1 << 18;
    handlers.dispatch(ECHO, move |_: &mut bool, context, request| {
        let handle = request.handle();
        keep.send(request.take(context)).unwrap();
        context.respond(handle, 0, &[]).unwrap();
    });
    let mut server = Rpc::new(config.clone(), far, false, handlers).unwrap();
    let remote = server.remote();
    let (tell, returned) = std::sync::mpsc::sync_channel(100);
    std::thread::scope(|scope| {
        scope.spawn(move || server.run_until(|stop| *stop).unwrap());
        let _stop = Stop(remote, |stop| *stop = true);
        scope.spawn(move || {
            for request in kept {
                let first = request[0];
                let bytes: &[u8] = &request;
                assert!(bytes.iter().all(|byte| *byte == first));
                drop(request);
                tell.send(()).unwrap();
            }
        });
        let mut rpc = client(near, config);
        let session = connect(&mut rpc, 1);
        // Ten times what may be assembled at once, and small ones between.
        for tag in 0..40 {
            call(&mut rpc, session, (ECHO, tag), &vec![tag as u8; 65_536]);
            call(&mut rpc, session, (ECHO, tag), &[tag as u8; 10]);
            wait_for(&mut rpc, 2 * tag as usize + 2);
            (0..2).for_each(|_| returned.recv_timeout(WAIT_MAX).unwrap());
        }
    });
}

#[test]
fn more_than_the_workers_may_queue_is_refused_and_nothing_is_lost() {
    let (near, far) = InProcess::pair(1500, 1024);
    let gate = std::sync::Arc::new(std::sync::Barrier::new(2));
    let mut handlers = Handlers::new();
    let passage = gate.clone();
    handlers.worker(SLOW, move |work| {
        if work.bytes() == b"wait" {
            passage.wait();
        }
        0
    });
    let mut few = config();
    (few.workers, few.worker_requests_max) = (1, 1);
    few.datagram.slots = 16;
    let mut server = Rpc::new(few.clone(), far, false, handlers).unwrap();
    let remote = server.remote();
    std::thread::scope(|scope| {
        scope.spawn(move || server.run_until(|stop| *stop).unwrap());
        let _stop = Stop(remote, |stop| *stop = true);
        let mut rpc = client(near, few);
        // So many calls at once that neither the workers' queue nor the one behind it has room for all.
        let calls = 20 * 16;
        for session in 0..20 {
            let session_id = connect(&mut rpc, 1);
            for tag in 0..16 {
                let first = session == 0 && tag == 0;
                call(
                    &mut rpc,
                    session_id,
                    (SLOW, tag),
                    if first { b"wait" } else { b"pass" },
                );
            }
        }
        rpc.run_until(|state| state.outcomes.len() >= calls - 257 - 1)
            .unwrap();
        gate.wait();
        wait_for(&mut rpc, calls);
        let overloaded =
            |outcome: &&(u64, Result<u16, RpcError>, Vec<u8>)| outcome.1 == Err(RpcError::Overloaded);
        let refused = rpc.state().outcomes.iter().filter(overloaded).count();
        assert!((1..=calls - 257).contains(&refused), "{refused} were refused");
    });
}

#[test]
fn an_empty_message_is_one_too() {
    let (near, far) = InProcess::pair(1500, 64);
    with_server(far, config(), |_| {
        let mut rpc = client(near, config());
        let session = connect(&mut rpc, 1);
        let (_, mut context) = rpc.parts();
        let call = provost_datagram_rpc::Call {
            method: ECHO,
            tag: 3,
            request: MsgBuf::default(),
            response: MsgBuf::default(),
        };
        context
            .enqueue_request(session, call, |state, _, completion| {
                state
                    .outcomes
                    .push((completion.tag, completion.outcome, completion.response.to_vec()));
            })
            .unwrap();
        wait_for(&mut rpc, 1);
        assert_eq!(rpc.state().outcomes[0], (3, Ok(7), Vec::new()));
    });
}

#[test]
fn a_request_of_one_packet_is_handled_where_the_wire_put_it() {
    let (near, far) = InProcess::pair(1500, 64);
    let mut server = Rpc::new(config(), far, ServerState::default(), handlers()).unwrap();
    let mut rpc = client(near, config());
    let session = connect(&mut rpc, 1);
    for tag in 0..100 {
        let bytes = [tag as u8; 1000];
        call(&mut rpc, session, (ECHO, tag), &bytes);
        while rpc.state().outcomes.len() <= tag as usize {
            let _ = (rpc.run_once().unwrap(), server.run_once().unwrap());
        }
    }
    let statistics = server.statistics();
    assert_eq!(
        (statistics.requests_received, statistics.requests_borrowed),
        (100, 100)
    );
}
