//! Greets whoever calls.
#![forbid(unsafe_code)]

use provost::{Received, Request, Response, Status};
use provost_hello::hello::greeter_server::{Greeter, GreeterServer};
use provost_hello::hello::{GreetReply, GreetRequest};

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let text = format!("Hello, {}!", request.get_ref().name);
        Ok(Response::new(GreetReply { text: text.into() }))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Status> {
    provost::Server::builder()
        .add_service(GreeterServer::new(Polite))
        .serve()
        .await
}
