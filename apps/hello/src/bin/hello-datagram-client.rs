//! Asks for a greeting over datagram, without a node's service.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use clap::Parser;
use provost::Status;
use provost_datagram_rpc::RpcThread;
use provost_hello::hello::GreetRequest;
use provost_hello::hello::greeter_client::{GreeterClient, SERVICE};
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

/// Asks for a greeting over datagram.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Where the server listens
    #[arg(long, default_value = "127.0.0.1:7411")]
    server: SocketAddr,
    /// Where to send from
    #[arg(long, default_value = "0.0.0.0:0")]
    bind: SocketAddr,
    /// Whom to greet
    #[arg(default_value = "world")]
    name: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let wire = UdpWire::bind(options.bind, PACKET_BYTES_ETHERNET)?;
    let thread = RpcThread::builder().start(wire)?;
    println!("{}", greet(&thread, &options).await?);
    Ok(())
}

async fn greet(thread: &RpcThread<SocketAddr>, options: &Options) -> Result<String, Status> {
    let client = GreeterClient::new(thread.channel(&SERVICE, options.server).await?);
    let name = options.name.as_str().into();
    let reply = client.greet(GreetRequest { name }).await?;
    Ok(reply.get_ref().text.to_string())
}
