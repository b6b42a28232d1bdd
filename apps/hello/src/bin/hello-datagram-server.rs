//! Greets whoever calls, over datagram, without a node's service.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use clap::Parser;
use provost::{Received, Request, Response, Status};
use provost_datagram_rpc::RpcThread;
use provost_hello::hello::greeter_server::{Greeter, GreeterServer};
use provost_hello::hello::{GreetReply, GreetRequest};
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

/// Says hello, as it does by the node's service.
struct Polite;

impl Greeter for Polite {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let text = format!("Hello, {}!", request.get_ref().name);
        Ok(Response::new(GreetReply { text: text.into() }))
    }
}

/// Greets whoever calls over datagram. Prints the address where it can be reached.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7411")]
    listen: SocketAddr,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let wire = UdpWire::bind(options.listen, PACKET_BYTES_ETHERNET)?;
    let thread = RpcThread::builder()
        .add_service(GreeterServer::new(Polite))
        .start(wire)?;
    println!("{}", thread.address());
    thread.join()?;
    Ok(())
}
