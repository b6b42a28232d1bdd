//! Calls and sessions as futures, for tasks on other threads than the event loop's, of any executor.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use provost_datagram::{Address, Call, MsgBuf, SessionId};

use crate::context::OnConnected;
use crate::error::RpcError;
use crate::mailbox::{MailboxFull, Remote};
use crate::oneshot::{Receiver, Sender, oneshot};

/// What a call came to. Both buffers are the caller's again.
#[derive(Debug)]
pub struct Reply {
    /// The status that the handler gave.
    pub status: u16,
    /// The response.
    pub response: MsgBuf,
    /// The request, as it was handed in.
    pub request: MsgBuf,
}

/// A call on its way. Dropping it does not take the call back.
#[derive(Debug)]
pub struct Calling(Coming<Reply>);

/// A session that is being opened. Dropping it ends the session.
#[derive(Debug)]
pub struct Connecting(Coming<UnclaimedSession>);

/// A session that nobody has yet. Dropping it ends the session.
struct UnclaimedSession {
    session: SessionId,
    give_up: Option<Box<dyn FnOnce(SessionId) + Send>>,
}

/// A result that the event loop will send, or was not even asked for.
#[derive(Debug)]
enum Coming<T> {
    Refused(RpcError),
    Asked(Receiver<Result<T, RpcError>>),
}

impl<A: Address + Send + 'static, S: 'static> Remote<A, S> {
    /// Opens a session.
    pub fn connect(&self, to: A) -> Connecting {
        let (sender, receiver) = oneshot();
        let remote = self.clone();
        let asked = self.run(move |_, context| context.connect_for(sender, to, remote));
        Connecting(Coming::new(asked, receiver))
    }

    /// Makes a call, with room for so long a response. It goes out whether or not the future is polled.
    pub fn call(
        &self,
        session: SessionId,
        request_type: u16,
        request: MsgBuf,
        response_bytes_max: usize,
    ) -> Calling {
        let (sender, receiver) = oneshot();
        let asked = self.run(move |_, context| {
            let call = Call {
                method: request_type,
                tag: 0,
                request,
                response: context.buffer(response_bytes_max),
            };
            context.call_for(sender, session, call);
        });
        Calling(Coming::new(asked, receiver))
    }
}

impl<T> Coming<T> {
    fn new(asked: Result<(), MailboxFull>, receiver: Receiver<Result<T, RpcError>>) -> Self {
        match asked {
            Ok(()) => Coming::Asked(receiver),
            Err(MailboxFull::Full) => Coming::Refused(RpcError::MailboxFull),
            Err(MailboxFull::Gone) => Coming::Refused(RpcError::ShutDown),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, RpcError>> {
        match self {
            Coming::Refused(error) => Poll::Ready(Err(*error)),
            Coming::Asked(receiver) => {
                let result = ready!(receiver.poll(context));
                Poll::Ready(result.unwrap_or(Err(RpcError::ShutDown)))
            }
        }
    }
}

impl Future for Calling {
    type Output = Result<Reply, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl Future for Connecting {
    type Output = Result<SessionId, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map_ok(|mut unclaimed| unclaimed.claim())
    }
}

impl UnclaimedSession {
    fn new<A: Address + Send + 'static, S: 'static>(session: SessionId, remote: Remote<A, S>) -> Self {
        let give_up = move |session| remote.give_up(move |_, context| context.disconnect(session));
        Self {
            session,
            give_up: Some(Box::new(give_up)),
        }
    }

    fn claim(&mut self) -> SessionId {
        self.give_up = None;
        self.session
    }
}

impl Drop for UnclaimedSession {
    fn drop(&mut self) {
        if let Some(give_up) = self.give_up.take() {
            give_up(self.session);
        }
    }
}

impl std::fmt::Debug for UnclaimedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.session.fmt(f)
    }
}

impl<A: Address, S> crate::Context<'_, A, S> {
    fn connect_for(&mut self, sender: Sender<Result<UnclaimedSession, RpcError>>, to: A, remote: Remote<A, S>)
    where
        A: Send + 'static,
        S: 'static,
    {
        match self.connect(to) {
            Ok(session) => {
                let tell: OnConnected<A, S> = Box::new(move |_, _, result| {
                    sender.send(result.map(|session| UnclaimedSession::new(session, remote)));
                });
                self.tables.connecting.insert(session, tell);
            }
            Err(error) => {
                sender.send(Err(error));
            }
        }
    }

    fn call_for(&mut self, sender: Sender<Result<Reply, RpcError>>, session: SessionId, call: Call) {
        // The continuation does not run if the call is refused; then it is told here.
        let refusal = sender.again();
        let asked = self.enqueue_request(session, call, move |_, _, completion| {
            sender.send(completion.outcome.map(|status| Reply {
                status,
                response: completion.response,
                request: completion.request,
            }));
        });
        if let Err(refused) = asked {
            refusal.send(Err(refused.error));
        }
    }
}
