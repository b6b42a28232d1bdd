//! The way to a node: its admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provostd::AdminConfig;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::failure::{Exit, Failure, is_being_replaced, is_broken, is_expired};

/// Where a node's admin socket is unless something else is said.
pub const SOCKET_DEFAULT: &str = "/run/provost/admin.sock";
/// Largest answer, in bytes: thousands of datapaths with their engines.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long a change waits for a node that is being replaced. What stands still then takes milliseconds, a new process on a slow
/// machine a second or two.
const REPLACEMENT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two questions to such a node.
const REPLACEMENT_PAUSE: Duration = Duration::from_millis(50);

/// Which node, and how long it may take.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The node's admin socket; without it, the one beside the socket that PROVOST_SOCKET names for apps
    #[arg(long, value_name = "PATH", env = set_variable("PROVOST_ADMIN_SOCKET"), default_value_os_t = default_socket())]
    pub socket: PathBuf,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub timeout: f64,
    /// Print JSON: the messages of the admin API (docs/admin-api.md)
    #[arg(long)]
    pub json: bool,
}

/// The name of a variable of the environment, unless it is there and empty, which is as if it were not.
pub fn set_variable(name: &'static str) -> Option<&'static str> {
    let is_empty = std::env::var_os(name).is_some_and(|value| value.is_empty());
    (!is_empty).then_some(name)
}

/// The admin socket of the node that apps of this environment attach to.
fn default_socket() -> PathBuf {
    match std::env::var_os("PROVOST_SOCKET") {
        Some(socket) if !socket.is_empty() => AdminConfig::default().socket_beside(Path::new(&socket)),
        _ => SOCKET_DEFAULT.into(),
    }
}

/// A length of time in seconds, above zero.
pub fn seconds(text: &str) -> Result<f64, String> {
    const DAY: f64 = 86_400.0;
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write seconds, such as 2 or 0.5".to_owned())?;
    if seconds > 0.0 && seconds <= DAY {
        Ok(seconds)
    } else {
        Err("give more than 0 seconds, and at most a day".to_owned())
    }
}

/// A connection to a node's admin API.
#[derive(Clone)]
pub struct Node {
    client: AdminClient<Channel>,
    timeout: Duration,
    socket: PathBuf,
    place: String,
}

impl Node {
    /// Connects to the node that the options name.
    pub async fn connect(target: &Target) -> Result<Node, Failure> {
        Node::connect_to(&target.socket, Duration::from_secs_f64(target.timeout)).await
    }

    /// Connects to a socket.
    pub async fn connect_to(socket: &Path, timeout: Duration) -> Result<Node, Failure> {
        let place = socket.display().to_string();
        let unusable = |error: &(dyn std::error::Error + 'static)| {
            let message = format!("cannot reach provostd at {place}: {}", reason(error, socket));
            Failure::new(Exit::Unreachable, message)
        };
        let endpoint = Endpoint::from_shared(format!("unix:{place}"))
            .map_err(|error| unusable(&error))?
            .connect_timeout(timeout);
        let channel = endpoint.connect().await.map_err(|error| unusable(&error))?;
        let client = AdminClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Node {
            client,
            timeout,
            socket: socket.to_owned(),
            place,
        })
    }

    /// Calls a method, with the deadline that the options give. A change that the node refuses because it is just being replaced is
    /// asked for again, until the new process serves.
    pub async fn call<M: Clone, T>(
        &mut self,
        message: M,
        method: impl AsyncFn(&mut AdminClient<Channel>, Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + self.timeout;
        let mut answer = self.call_once(message.clone(), &method, until).await;
        if answer.as_ref().is_err_and(is_being_replaced) {
            let again_until = until.min(Instant::now() + REPLACEMENT_WAIT_MAX);
            answer = ask_again(answer, again_until, async || {
                // The process that goes keeps the connections that it has.
                let node =
                    Node::connect_to(&self.socket, until.saturating_duration_since(Instant::now())).await;
                self.client = node.ok()?.client;
                Some(self.call_once(message.clone(), &method, until).await)
            })
            .await;
        }
        answer.map_err(|status| self.failure(&status))
    }

    async fn call_once<M, T>(
        &mut self,
        message: M,
        method: impl AsyncFnOnce(&mut AdminClient<Channel>, Request<M>) -> Result<Response<T>, Status>,
        until: Instant,
    ) -> Result<T, Status> {
        let mut request = Request::new(message);
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        let mut client = self.client.clone();
        let call = method(&mut client, request);
        self.in_time(until, call).await.map(Response::into_inner)
    }

    /// What is answered until then.
    async fn in_time<T>(
        &self,
        until: Instant,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        match tokio::time::timeout_at(until, call).await {
            Ok(Err(status)) if !is_expired(&status) => Err(status),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer within {:.1} s",
                self.timeout.as_secs_f64()
            ))),
        }
    }

    /// Calls a method that answers again and again, for as long as it takes, once the node has taken the call in the time that the
    /// options give.
    pub async fn stream<M, T>(
        &mut self,
        message: M,
        method: impl AsyncFnOnce(&mut AdminClient<Channel>, Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + self.timeout;
        let mut client = self.client.clone();
        let taken = self.in_time(until, method(&mut client, Request::new(message)));
        taken
            .await
            .map(Response::into_inner)
            .map_err(|status| self.failure(&status))
    }

    /// What a status of this node means for the command.
    pub fn failure(&self, status: &Status) -> Failure {
        Failure::answered(&self.place, status)
    }
}

/// Asks again and again, until there is another answer than that the service is being replaced or is ending, which the process that
/// goes says once it has handed over. `None`: nobody was there to be asked.
async fn ask_again<T>(
    mut answer: Result<T, Status>,
    until: Instant,
    mut ask: impl AsyncFnMut() -> Option<Result<T, Status>>,
) -> Result<T, Status> {
    let is_refused = |status: &Status| status.code() == Code::Unavailable && !is_broken(status);
    while answer.as_ref().is_err_and(is_refused) && Instant::now() + REPLACEMENT_PAUSE < until {
        tokio::time::sleep(REPLACEMENT_PAUSE).await;
        answer = ask().await.unwrap_or(answer);
    }
    answer
}

/// What the kernel says of a socket of another type (`EPROTOTYPE`).
const PROTOTYPE: i32 = 91;

/// Why a socket does not answer, and what to do.
fn reason(error: &(dyn std::error::Error + 'static), socket: &Path) -> String {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(system) = error.downcast_ref::<std::io::Error>() {
            let hint = match system.kind() {
                std::io::ErrorKind::NotFound => {
                    ": it does not run, or has its socket elsewhere; see --socket and PROVOST_ADMIN_SOCKET"
                }
                std::io::ErrorKind::ConnectionRefused => ": it does not run any more; start it",
                std::io::ErrorKind::PermissionDenied => {
                    ": you may not open the socket; ask for admin.mode and admin.view_uids in its configuration"
                }
                _ if system.raw_os_error() == Some(PROTOTYPE) => {
                    ": apps attach there; operators have a socket beside it, NAME.admin.sock"
                }
                _ => "",
            };
            return format!("{system}{hint}");
        }
        source = error.source();
    }
    if socket.exists() {
        error.to_string()
    } else {
        "there is no such socket; see --socket, PROVOST_ADMIN_SOCKET and PROVOST_SOCKET".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_named_with_what_to_do() {
        let path = Path::new("/nowhere/admin.sock");
        let failure = Node::connect_to(path, Duration::from_secs(1))
            .await
            .err()
            .unwrap();
        assert_eq!(failure.exit, Exit::Unreachable);
        for word in ["/nowhere/admin.sock", "--socket"] {
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    fn replaced<T>() -> Result<T, Status> {
        Err(Status::unavailable("the service is being replaced: ask again"))
    }

    #[tokio::test]
    async fn a_node_that_is_being_replaced_is_asked_until_the_new_process_answers() {
        let mut answers = vec![
            Some(Ok(7)),
            Some(Err(Status::unavailable("the service is ending"))),
            None,
            Some(replaced()),
        ];
        let until = Instant::now() + Duration::from_secs(60);
        let ask = async || answers.pop().unwrap();
        assert_eq!(ask_again(replaced(), until, ask).await.unwrap(), 7);
        assert!(answers.is_empty());
        // What the new process says is its answer, whatever it is.
        let ask = async || Some(Err::<(), _>(Status::not_found("no such policy")));
        let status = ask_again(replaced(), until, ask).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
    }

    #[tokio::test]
    async fn a_change_that_may_have_been_made_is_not_asked_for_again() {
        let mut asked = 0;
        let until = Instant::now() + Duration::from_secs(60);
        let broken = async || {
            asked += 1;
            let mut status = Status::unavailable("broken pipe");
            let cause = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
            status.set_source(std::sync::Arc::new(cause));
            Some(Err::<(), _>(status))
        };
        ask_again(replaced(), until, broken).await.unwrap_err();
        assert_eq!(asked, 1);
    }

    #[tokio::test]
    async fn a_node_that_goes_on_being_replaced_is_given_up() {
        let mut asked = 0;
        // Long enough for a first time on a busy machine.
        let until = Instant::now() + 40 * REPLACEMENT_PAUSE;
        let ask = async || {
            asked += 1;
            Some(replaced::<()>())
        };
        let status = ask_again(replaced(), until, ask).await.unwrap_err();
        assert!(is_being_replaced(&status));
        assert!((1..40).contains(&asked), "{asked}");
    }

    #[test]
    fn times_are_seconds_above_zero() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "x", "inf", "NaN"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
