//! Asks for a greeting.
#![forbid(unsafe_code)]

use provost::Status;
use provost_hello::hello::GreetRequest;
use provost_hello::hello::greeter_client::GreeterClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Status> {
    let name = std::env::args().nth(1).unwrap_or("world".to_owned());
    let client = GreeterClient::connect("hello.Greeter").await?;
    let reply = client.greet(GreetRequest { name: name.into() }).await?;
    println!("{}", reply.get_ref().text);
    Ok(())
}
