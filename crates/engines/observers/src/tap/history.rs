//! The samples that were taken from the data path's ring, for readers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_engine::{Sample, SampleBatch, SampledStep, WallClock};
use provost_shm::now_ns;

use crate::tap::config::TapBounds;
use crate::tap::json;
use crate::tap::pool::{RecordPool, RecordedStep, SampleRecord};

/// See the module. Only the control plane takes its lock.
pub(crate) struct SampleHistory {
    pool: Arc<RecordPool>,
    policy: Arc<str>,
    bounds: TapBounds,
    kept: Mutex<KeptSample>,
}

#[derive(Default)]
struct KeptSample {
    samples: VecDeque<Arc<Sample>>,
    bytes: usize,
    /// Number of the next sample.
    next: u64,
    /// As the pool counted it at the last look: those have numbers, too.
    overwritten: u64,
}

impl SampleHistory {
    pub(crate) fn new(pool: Arc<RecordPool>, policy: Arc<str>, bounds: TapBounds) -> SampleHistory {
        let kept = KeptSample {
            overwritten: pool.overwritten(),
            ..KeptSample::default()
        };
        SampleHistory {
            pool,
            policy,
            bounds,
            kept: Mutex::new(kept),
        }
    }

    /// Memory that holds samples which were read.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(crate) fn next(&self) -> u64 {
        let mut kept = self.lock();
        self.collect(&mut kept);
        kept.next
    }

    pub(crate) fn read(&self, from: u64, samples_max: usize) -> SampleBatch {
        let mut kept = self.lock();
        self.collect(&mut kept);
        let first = kept.samples.front().map_or(kept.next, |sample| sample.number);
        let wanted = kept.samples.iter().filter(|sample| sample.number >= from);
        let samples: Vec<_> = wanted.take(samples_max).cloned().collect();
        SampleBatch {
            next: samples
                .last()
                .map_or(kept.next.max(from), |sample| sample.number + 1),
            missed: first.saturating_sub(from),
            samples,
        }
    }

    /// Takes what the data path has finished. As much as the ring holds, at most: others may be coming meanwhile.
    fn collect(&self, kept: &mut KeptSample) {
        let overwritten = self.pool.overwritten();
        kept.next += overwritten - kept.overwritten;
        kept.overwritten = overwritten;
        let wall = WallClock::now(now_ns());
        for _ in 0..self.bounds.samples {
            let Some(record) = self.pool.take_full() else {
                break;
            };
            if let Some(sample) = self.sample(&record, kept.next, &wall) {
                kept.next += 1;
                kept.bytes += bytes_of(&sample);
                kept.samples.push_back(Arc::new(sample));
            }
            self.pool.give(record);
        }
        while (kept.samples.len() > self.bounds.samples || kept.bytes > self.bounds.bytes)
            && let Some(oldest) = kept.samples.pop_front()
        {
            kept.bytes -= bytes_of(&oldest);
        }
    }

    fn sample(&self, record: &SampleRecord, number: u64, wall: &WallClock) -> Option<Sample> {
        let tap = record.datapath_context.as_ref()?;
        let mut sample = Sample {
            number,
            policy: Arc::clone(&self.policy),
            datapath_context: Arc::clone(&tap.datapath_context),
            call: record.call,
            method: record.method,
            began_unix_ns: wall.unix_ns(record.began_at),
            duration_ns: record.ended_at.saturating_sub(record.began_at),
            status: record.status,
            steps: record.steps.iter().map(|step| sampled(step, record)).collect(),
            messages_left_out: record.messages_left_out,
            json: String::new(),
        };
        sample.json = json::of_sample(&sample, tap);
        Some(sample)
    }

    fn lock(&self) -> MutexGuard<'_, KeptSample> {
        // Whoever panicked with the lock has left samples that are whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sampled(step: &RecordedStep, record: &SampleRecord) -> SampledStep {
    let bytes = |place: &std::ops::Range<usize>| record.bytes.get(place.clone()).unwrap_or_default().to_vec();
    SampledStep {
        direction: step.direction,
        parts: step.parts,
        status: step.status,
        at_ns: step.at.saturating_sub(record.began_at),
        timeout_ns: match step.deadline {
            0 => 0,
            deadline => deadline.saturating_sub(record.began_at),
        },
        metadata: bytes(&step.metadata),
        message: bytes(&step.message),
        message_bytes: step.message_bytes,
        form: step.form,
        window_at: step.window_at,
    }
}

fn bytes_of(sample: &Sample) -> usize {
    let steps = sample
        .steps
        .iter()
        .map(|step| size_of::<SampledStep>() + step.metadata.len() + step.message.len());
    size_of::<Sample>() + sample.json.len() + steps.sum::<usize>()
}
