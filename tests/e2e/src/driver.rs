//! The test's end of an agent: asks it things and waits for the answers.

use std::collections::HashMap;
use std::io::Write;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use provost::Code;

use crate::lines::Lines;
use crate::program::Program;
use crate::script::{Answer, AnswerLine, Ask, AskLine, Done, Echo, StatusParts};

/// How long a program may take to get ready, and an agent to answer when the test says nothing else.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// A client that the test drives. Killed when dropped.
#[derive(Debug)]
pub struct Agent {
    pub program: Program,
    input: ChildStdin,
    lines: Lines,
    early: HashMap<u64, Vec<Answer>>,
    last_ticket: u64,
}

/// An ask that was made. Its answers can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Agent {
    pub(crate) fn new(mut program: Program) -> Agent {
        let (input, output) = program.take_pipes();
        Agent {
            program,
            input,
            lines: Lines::of(output),
            early: HashMap::new(),
            last_ticket: 0,
        }
    }

    /// Makes an ask, and waits for nothing.
    pub fn begin(&mut self, ask: Ask) -> Ticket {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let mut line = serde_json::to_string(&AskLine { ticket, ask }).expect("asks can be written as JSON");
        line.push('\n');
        let written = self.input.write_all(line.as_bytes());
        written.unwrap_or_else(|error| panic!("{} does not listen: {error}", self.program.name()));
        Ticket(ticket)
    }

    /// The next answer to an ask.
    ///
    /// # Panics
    ///
    /// When there is none within [`WAIT_MAX`].
    pub fn answer(&mut self, ticket: Ticket) -> Answer {
        self.answer_within(ticket, WAIT_MAX)
            .unwrap_or_else(|| panic!("{} does not answer ask {}", self.program.name(), ticket.0))
    }

    /// The next answer to an ask, if it comes within `limit`.
    pub fn answer_within(&mut self, ticket: Ticket, limit: Duration) -> Option<Answer> {
        let end = Instant::now() + limit;
        loop {
            let early = self.early.entry(ticket.0).or_default();
            if !early.is_empty() {
                return Some(early.remove(0));
            }
            let line = self
                .lines
                .next_within(end.saturating_duration_since(Instant::now()))?;
            let got: AnswerLine =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            self.early.entry(got.ticket).or_default().push(got.answer);
        }
    }

    /// How many of these asks were answered before what was waited for last.
    #[must_use]
    pub fn answered_before(&self, tickets: &[Ticket]) -> usize {
        let is_answered = |ticket: &&Ticket| self.early.get(&ticket.0).is_some_and(|early| !early.is_empty());
        tickets.iter().filter(is_answered).count()
    }

    /// What the agent says when it has got its first connection, or not.
    pub fn first_answer(&mut self) -> Answer {
        self.answer(Ticket(0))
    }

    /// Makes an ask and waits until a call of it is at this place.
    ///
    /// # Panics
    ///
    /// When something else comes first.
    pub fn stops_at(&mut self, place: &str, ask: Ask) -> Ticket {
        let ticket = self.begin(ask);
        assert_eq!(self.answer(ticket), Answer::At(place.to_owned()));
        ticket
    }

    /// Makes an ask and waits for its success.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn succeeds(&mut self, ask: Ask) -> Done {
        let ticket = self.begin(ask.clone());
        match self.answer(ticket) {
            Answer::Done(done) => done,
            other => panic!("{ask:?} came to {other:?}"),
        }
    }

    /// Makes an ask and waits for its failure.
    ///
    /// # Panics
    ///
    /// When it succeeds.
    pub fn fails(&mut self, ask: Ask) -> Failure {
        let ticket = self.begin(ask);
        self.failure(ticket)
    }

    /// Waits for the failure of an ask.
    ///
    /// # Panics
    ///
    /// When it succeeds.
    pub fn failure(&mut self, ticket: Ticket) -> Failure {
        match self.answer(ticket) {
            Answer::Failed(parts) => Failure::from(parts),
            other => panic!("a failure was expected, not {other:?}"),
        }
    }

    /// Makes one small call.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn calls_well(&mut self) {
        self.succeeds(Ask::Echo(Echo::default()));
    }
}

/// A status that is not OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    pub details: Vec<u8>,
}

impl From<StatusParts> for Failure {
    fn from(parts: StatusParts) -> Failure {
        Failure {
            code: Code::from_number(parts.code),
            message: parts.message,
            details: parts.details,
        }
    }
}
