//! A fingerprint of all that happened, in order, and the last events themselves.

use std::collections::VecDeque;

/// Events that are kept for whoever reads about a failure.
const EVENTS_KEPT: usize = 200;

/// The fingerprint so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceDigest {
    fingerprint: u64,
    last: VecDeque<Vec<u64>>,
}

impl TraceDigest {
    pub(crate) fn new() -> TraceDigest {
        TraceDigest {
            fingerprint: 0xcbf2_9ce4_8422_2325,
            last: VecDeque::with_capacity(EVENTS_KEPT),
        }
    }

    /// Adds an event: its kind, its time, and what else there is to say of it.
    pub(crate) fn note(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.mix(*word));
        if self.last.len() == EVENTS_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(words.to_vec());
    }

    /// Adds what is too frequent to be told of: who has a turn, and when.
    pub(crate) fn note_turn(&mut self, actor: u64, at: u64) {
        self.mix(actor);
        self.mix(at);
    }

    fn mix(&mut self, word: u64) {
        self.fingerprint = provost_random::mix(self.fingerprint ^ word);
    }

    pub(crate) fn value(&self) -> u64 {
        self.fingerprint
    }

    /// The last events, the oldest first.
    pub(crate) fn last_events(&self) -> Vec<String> {
        self.last.iter().map(|words| describe(words)).collect()
    }
}

fn describe(words: &[u64]) -> String {
    const KINDS: [&str; 11] = [
        "",
        "submitted (connection, call, parts)",
        "received (connection, call, parts, status, bytes)",
        "closed at its app (connection)",
        "hot restart (node, outcome) or successor (connection)",
        "closed at its node (end)",
        "engine failed (end, tag)",
        "connected (connection)",
        "change asked for (end)",
        "fault",
        "migrates (end, connection)",
    ];
    let kind = words
        .first()
        .and_then(|kind| KINDS.get(*kind as usize))
        .unwrap_or(&"event");
    let at = words.get(1).copied().unwrap_or(0);
    format!("{:>12} ns {kind} {:?}", at, words.get(2..).unwrap_or_default())
}
