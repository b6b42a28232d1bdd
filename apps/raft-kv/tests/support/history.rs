//! What clients asked and were answered, in order, and whether a single store that does one thing at a time could have
//! answered so (linearizability), as stateright's checker finds it.

use std::collections::BTreeMap;

use provost_raft_kv::operation::{Operation, RequestAnswer};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// One key of a store that does one thing at a time.
#[derive(Clone, Debug, Default)]
struct OneKey(Option<Vec<u8>>);

impl SequentialSpec for OneKey {
    type Op = Operation;
    type Ret = RequestAnswer;

    fn invoke(&mut self, operation: &Operation) -> RequestAnswer {
        match operation {
            Operation::Get { .. } => RequestAnswer::Value(self.0.clone()),
            Operation::Put { value, .. } => {
                self.0 = Some(value.clone());
                RequestAnswer::Done
            }
            Operation::CompareAndSet { expected, value, .. } if self.0 == *expected => {
                self.0 = Some(value.clone());
                RequestAnswer::Done
            }
            Operation::CompareAndSet { .. } => RequestAnswer::Differs,
            Operation::OpenSession => RequestAnswer::Invalid,
        }
    }
}

#[derive(Clone, Debug)]
enum HistoryMoment {
    Asked(usize, Operation),
    Answered(usize, RequestAnswer),
}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallHistory {
    moments: Vec<HistoryMoment>,
    answered: usize,
}

impl CallHistory {
    pub(crate) fn ask(&mut self, client: usize, operation: &Operation) {
        self.moments.push(HistoryMoment::Asked(client, operation.clone()));
    }

    pub(crate) fn answer(&mut self, client: usize, answer: &RequestAnswer) {
        self.moments.push(HistoryMoment::Answered(client, answer.clone()));
        self.answered += 1;
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered
    }

    /// How many answers are like this.
    pub(crate) fn count(&self, is_so: impl Fn(&RequestAnswer) -> bool) -> usize {
        let answered =
            |moment: &&HistoryMoment| matches!(moment, HistoryMoment::Answered(_, answer) if is_so(answer));
        self.moments.iter().filter(answered).count()
    }

    /// The keys whose history no single store could have. Keys do not touch each other, so each is looked at alone.
    pub(crate) fn not_linearizable(&self) -> Vec<Vec<u8>> {
        let mut testers: BTreeMap<Vec<u8>, LinearizabilityTester<usize, OneKey>> = BTreeMap::new();
        let mut asked: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for moment in &self.moments {
            match moment {
                HistoryMoment::Asked(client, operation) => {
                    let key = key_of(operation);
                    asked.insert(*client, key.clone());
                    let tester = testers
                        .entry(key)
                        .or_insert_with(|| LinearizabilityTester::new(OneKey::default()));
                    tester
                        .on_invoke(*client, operation.clone())
                        .expect("a client asks one thing at a time");
                }
                HistoryMoment::Answered(client, answer) => {
                    let tester = asked.get(client).and_then(|key| testers.get_mut(key));
                    let tester = tester.expect("what is answered was asked");
                    tester
                        .on_return(*client, answer.clone())
                        .expect("what is answered was asked");
                }
            }
        }
        let wrong = testers.into_iter().filter(|(_, tester)| !tester.is_consistent());
        wrong.map(|(key, _)| key).collect()
    }
}

fn key_of(operation: &Operation) -> Vec<u8> {
    match operation {
        Operation::OpenSession => Vec::new(),
        Operation::Get { key } | Operation::Put { key, .. } | Operation::CompareAndSet { key, .. } => {
            key.clone()
        }
    }
}
