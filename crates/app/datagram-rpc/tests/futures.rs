//! Calls as futures, from tokio's tasks; event loops in threads of their own, and as a task.

use std::time::{Duration, Instant};

use provost_datagram_rpc::{
    CallError, EndReason, Handlers, MailboxFull, MsgBuf, Remote, Rpc, RpcConfig, RpcError, SessionEvent, Wire,
};
use provost_packets::InProcess;

const ECHO: u16 = 1;
const CALLS: u64 = 500;

fn echo() -> Handlers<u8, bool> {
    let mut handlers = Handlers::new();
    handlers.dispatch(ECHO, |_, context, request| {
        context.respond(request.handle(), 0, request.bytes()).unwrap();
    });
    handlers
}

fn rpc(wire: InProcess) -> Rpc<InProcess, bool> {
    Rpc::new(RpcConfig::default(), wire, false, echo()).unwrap()
}

/// Ends event loops also when a test fails.
struct Stop<'r>(&'r [Remote<u8, bool>]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        for remote in self.0 {
            let _ = remote.run(|stop, _| *stop = true);
        }
    }
}

/// Two ends whose event loops run in threads of their own, while `test` runs.
fn with_threads<F: Future<Output = ()>>(test: impl FnOnce([Remote<u8, bool>; 2]) -> F) {
    let (near, far) = InProcess::pair(1500, 512);
    let mut loops = [rpc(near), rpc(far)];
    let remotes = [loops[0].remote(), loops[1].remote()];
    std::thread::scope(|scope| {
        for rpc in &mut loops {
            scope.spawn(|| rpc.run_until(|stop| *stop).unwrap());
        }
        let _stop = Stop(&remotes);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        runtime.block_on(test(remotes.clone()));
    });
}

#[test]
fn tasks_of_any_thread_call_at_once() {
    with_threads(|[near, _]| async move {
        let session = near.connect(1).await.unwrap();
        let calls: Vec<_> = (0..CALLS)
            .map(|tag| {
                let near = near.clone();
                tokio::spawn(async move {
                    let request = MsgBuf::from_slice(&tag.to_le_bytes().repeat(1 + tag as usize % 900));
                    let bytes = request.len();
                    let reply = near.call(session, ECHO, request, bytes).await.unwrap();
                    assert_eq!(*reply.response, *reply.request);
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
}

#[test]
fn what_fails_says_so() {
    with_threads(|[near, far]| async move {
        let session = near.connect(1).await.unwrap();
        let nobody = near.call(session, 99, MsgBuf::from_slice(b"?"), 10).await;
        assert_eq!(nobody.unwrap_err(), RpcError::NoHandler);
        let small = near.call(session, ECHO, MsgBuf::from_slice(&[1; 5000]), 2).await;
        assert_eq!(small.unwrap_err(), RpcError::Call(CallError::ResponseTooLarge));
        let back = far.connect(0).await.unwrap();
        far.run(move |_, context| context.reset(back)).unwrap();
        let over = far.call(back, ECHO, MsgBuf::default(), 2).await;
        assert_eq!(over.unwrap_err(), RpcError::Call(CallError::NoSession));
    });
}

#[test]
fn nothing_waits_for_an_event_loop_that_is_gone() {
    let (near, _far) = InProcess::pair(1500, 512);
    let mut config = RpcConfig::default();
    config.datagram.peer_timeout_ns = 50_000_000;
    config.mailbox_max = 4;
    let mut rpc = Rpc::new(config, near, false, echo()).unwrap();
    let remote = rpc.remote();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let connecting = remote.connect(1);
    rpc.run_for(std::time::Duration::from_millis(300)).unwrap();
    let silent = RpcError::Call(CallError::Ended(EndReason::PeerTimeout));
    assert_eq!(runtime.block_on(connecting), Err(silent));
    let (asked, not_begun) = (remote.connect(1), remote.connect(1));
    let _ = rpc.run_once().unwrap();
    let too_many: Vec<_> = (0..5).map(|_| remote.connect(1)).collect();
    drop(rpc);
    let here = RpcError::Call(CallError::Ended(EndReason::ResetHere));
    assert_eq!(runtime.block_on(asked), Err(here));
    assert_eq!(runtime.block_on(not_begun), Err(here));
    let mut errors: Vec<_> = Vec::new();
    for connecting in too_many {
        errors.push(runtime.block_on(connecting).unwrap_err());
    }
    assert_eq!(errors[..4], [RpcError::ShutDown; 4]);
    assert_eq!(errors[4], RpcError::MailboxFull);
    assert_eq!(runtime.block_on(remote.connect(1)), Err(RpcError::ShutDown));
}

#[test]
fn an_event_loop_is_a_task_like_any_other() {
    let (near, far) = InProcess::pair(1500, 512);
    let (mut near, mut far) = (rpc(near), rpc(far));
    let remote = near.remote();
    assert_eq!((near.address(), far.wire().address()), (0, 1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let talk = async {
            let session = remote.connect(1).await.unwrap();
            for _ in 0..20 {
                let reply = remote
                    .call(session, ECHO, MsgBuf::from_slice(b"hello"), 5)
                    .await
                    .unwrap();
                assert_eq!((&*reply.response, reply.status), (&b"hello"[..], 0));
            }
        };
        tokio::select! {
            biased;
            () = talk => {}
            error = near.drive() => panic!("{error:?}"),
            error = far.drive() => panic!("{error:?}"),
        }
    });
}

/// An end that counts its sessions, and may have one of them and one errand.
fn counting(wire: InProcess) -> Rpc<InProcess, usize> {
    let mut handlers = Handlers::new();
    handlers.on_session(|open: &mut usize, _, event| match event {
        SessionEvent::Connected(_) | SessionEvent::Accepted(_) => *open += 1,
        SessionEvent::Ended(..) => *open -= 1,
    });
    let mut config = RpcConfig::default();
    config.datagram.sessions_max = 1;
    config.mailbox_max = 1;
    Rpc::new(config, wire, 0, handlers).unwrap()
}

/// Turns until both have so many sessions.
fn turn_until([near, far]: [&mut Rpc<InProcess, usize>; 2], open: usize) {
    let late = Instant::now() + Duration::from_secs(30);
    while (*near.state(), *far.state()) != (open, open) {
        assert!(
            Instant::now() < late,
            "{} and {} sessions",
            near.state(),
            far.state()
        );
        let _ = (near.run_once().unwrap(), far.run_once().unwrap());
    }
}

#[test]
fn a_session_that_nobody_waits_for_any_more_is_closed() {
    let (near, far) = InProcess::pair(1500, 512);
    let (mut near, mut far) = (counting(near), counting(far));
    let remote = near.remote();
    // Given up before it is there: the next one finds room when that is gone.
    drop(remote.connect(1));
    turn_until([&mut near, &mut far], 1);
    turn_until([&mut near, &mut far], 0);

    // Given up when it is there and was not taken, while the event loop takes nothing else.
    let connecting = remote.connect(1);
    turn_until([&mut near, &mut far], 1);
    remote.run(|_, _| ()).unwrap();
    assert_eq!(remote.run(|_, _| ()), Err(MailboxFull::Full));
    drop(connecting);
    turn_until([&mut near, &mut far], 0);

    // One that was taken stays.
    let connecting = remote.connect(1);
    turn_until([&mut near, &mut far], 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let session = runtime.block_on(connecting).unwrap();
    for _ in 0..100 {
        let _ = (near.run_once().unwrap(), far.run_once().unwrap());
    }
    assert_eq!((*near.state(), *far.state()), (1, 1));
    near.parts().1.disconnect(session);
    turn_until([&mut near, &mut far], 0);
}
