//! The part of an agent that needs no future: it uses the blocking client.

use provost::Status;

use crate::agent::{check_payload, count_drip, echo_message, failed};
use crate::probe::PourRequest;
use crate::probe::probe_client::blocking::ProbeClient;
use crate::script::{Answer, Ask, Done};
use crate::server::drip;

/// Carries out some asks on the thread that makes them.
#[derive(Clone)]
pub(crate) struct BlockingAgent {
    client: ProbeClient,
}

impl BlockingAgent {
    pub(crate) fn connect() -> Result<BlockingAgent, Status> {
        let client = ProbeClient::connect("probe.Probe")?;
        Ok(BlockingAgent { client })
    }

    pub(crate) fn answer(&self, ask: Ask) -> Answer {
        match self.carry_out(ask) {
            Ok(done) => Answer::Done(done),
            Err(status) => failed(&status),
        }
    }

    fn carry_out(&self, ask: Ask) -> Result<Done, Status> {
        let mut done = Done::default();
        match ask {
            Ask::Echo(echo) => {
                for _ in 0..echo.calls {
                    let reply = self.client.echo(echo_message(echo.bytes))?;
                    check_payload(&reply.get_ref().payload, echo.bytes)?;
                    done.count += 1;
                }
            }
            Ask::Pour(pour) => {
                let request = PourRequest {
                    count: pour.messages,
                    bytes: pour.bytes,
                    ..PourRequest::default()
                };
                for drip in self.client.pour(request)?.into_inner() {
                    count_drip(&mut done, &*drip?, pour.bytes as usize)?;
                }
            }
            Ask::Fill(fill) => {
                let drips = (1..=fill.messages).map(move |number| drip(number, fill.bytes));
                let reply = self.client.fill(drips)?;
                done.count = reply.get_ref().count;
                done.bytes = reply.get_ref().bytes;
            }
            other => {
                return Err(Status::unimplemented(format!(
                    "{other:?} is not for a blocking agent"
                )));
            }
        }
        Ok(done)
    }
}
