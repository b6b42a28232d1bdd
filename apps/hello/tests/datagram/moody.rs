//! A greeter that does what the name says, and what every transport's client has to see of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use provost::{Code, Received, Request, Response, Status};
use provost_hello::hello::greeter_client::GreeterClient;
use provost_hello::hello::greeter_server::Greeter;
use provost_hello::hello::{GreetReply, GreetRequest};

/// Its name's first word is what it does.
#[derive(Clone, Default)]
pub(crate) struct MoodyGreeter(pub(crate) Arc<SeenCalls>);

/// Calls that sleep: how many, how many of them were given up, and whether the last one had a deadline.
#[derive(Default)]
pub(crate) struct SeenCalls {
    pub(crate) asleep: AtomicUsize,
    pub(crate) dropped: AtomicUsize,
    pub(crate) had_deadline: AtomicBool,
}

struct SleepingCall<'s>(&'s SeenCalls);

impl Drop for SleepingCall<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Greeter for MoodyGreeter {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let name = request.get_ref().name.to_string();
        match name.split_once(' ').unwrap_or((&name, "")) {
            ("fail", why) => {
                let mut status = Status::with_details(Code::Aborted, why, vec![1, 2, 3]);
                status.metadata_mut().insert("mood", "bad").unwrap();
                Err(status)
            }
            ("panic", why) => std::panic::panic_any(why.to_owned()),
            ("sleep", _) => {
                let left = request.time_left();
                self.0.had_deadline.store(left.is_some(), Ordering::SeqCst);
                let _asleep = SleepingCall(&self.0);
                self.0.asleep.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
            ("repeat", count) => Ok(reply("ho ".repeat(count.parse().unwrap()))),
            ("echo", key) => {
                let value = request.metadata().get(key).unwrap_or("nothing").to_owned();
                let mut response = reply(&value);
                response.metadata_mut().insert("before", &value).unwrap();
                response.trailers_mut().insert("after", &value).unwrap();
                Ok(response)
            }
            _ => Ok(reply(format!("Hello, {name}!"))),
        }
    }
}

fn reply(text: impl AsRef<str>) -> Response<GreetReply> {
    Response::new(GreetReply {
        text: text.as_ref().into(),
    })
}

pub(crate) fn ask(name: impl AsRef<str>) -> GreetRequest {
    GreetRequest {
        name: name.as_ref().into(),
    }
}

/// Waits until this holds.
pub(crate) async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Calls of every outcome, with metadata; requests of these many bytes and responses of three times as many; and this many calls at once.
pub(crate) async fn calls_have_every_outcome(client: &GreeterClient, sizes: &[usize], at_once: usize) {
    assert_eq!(greeting(client, "Ann").await, "Hello, Ann!");

    let failed = client.greet(ask("fail out of spite")).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Aborted, "out of spite"));
    assert_eq!(
        (failed.details(), failed.metadata().get("mood")),
        (&[1, 2, 3][..], Some("bad"))
    );
    let panicked = client.greet(ask("panic now")).await.unwrap_err();
    assert_eq!(panicked.code(), Code::Internal);

    let mut request = Request::new(ask("echo user"));
    request.metadata_mut().insert("user", "ann").unwrap();
    let reply = client.greet(request).await.unwrap();
    assert_eq!(
        (reply.metadata().get("before"), reply.trailers().get("after")),
        (Some("ann"), Some("ann"))
    );
    assert_eq!(reply.get_ref().text, "ann");

    for &count in sizes {
        let reply = greeting(client, &format!("repeat {count}")).await;
        assert_eq!(reply.len(), 3 * count);
        let long = "x".repeat(count);
        assert_eq!(greeting(client, &long).await, format!("Hello, {long}!"));
    }

    let calls = (0..at_once).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let reply = greeting(&client, &format!("number {number}")).await;
            assert_eq!(reply, format!("Hello, number {number}!"));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// A call that its deadline ends, and one whose caller goes, have their handlers dropped; the next is answered.
pub(crate) async fn given_up_calls_drop_their_handlers(client: &GreeterClient, seen: &SeenCalls) {
    let mut request = Request::new(ask("sleep"));
    request.set_timeout(Duration::from_millis(100));
    let late = client.greet(request).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    until(|| seen.dropped.load(Ordering::SeqCst) == 1).await;
    assert!(seen.had_deadline.load(Ordering::SeqCst));

    let sleeping = tokio::spawn({
        let client = client.clone();
        async move { client.greet(ask("sleep")).await.map(drop) }
    });
    until(|| seen.asleep.load(Ordering::SeqCst) == 2).await;
    assert!(!seen.had_deadline.load(Ordering::SeqCst));
    sleeping.abort();
    until(|| seen.dropped.load(Ordering::SeqCst) == 2).await;
    assert_eq!(greeting(client, "Ann").await, "Hello, Ann!");
}

/// What a call is answered that must be.
async fn greeting(client: &GreeterClient, name: &str) -> String {
    let reply = client.greet(ask(name)).await.unwrap();
    reply.get_ref().text.to_string()
}
