//! What happens on the data path: the steps of sampled calls are copied.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use provost_datapath::BodyForm;
use provost_engine::{CallState, Contents, DatapathContext, Ended, Filter, Parts, StepView, Verdict, Watch};
use provost_random::SeededRandom;

use crate::tap::config::{SampleSelection, WantedValue};
use crate::tap::pool::{OpenSample, RecordPool, RecordedStep};
use crate::tap::redaction::CompiledRedaction;

/// Steps that are seen; windows are not for people.
const SEEN: Parts = Parts::BEGIN
    .with(Parts::HEADERS)
    .with(Parts::MESSAGE)
    .with(Parts::END)
    .with(Parts::STATUS)
    .with(Parts::CANCEL);

/// Samples the calls of one datapath.
pub struct TapFilter {
    pool: Arc<RecordPool>,
    selection: SampleSelection,
    datapath_context: Arc<TapContext>,
    /// For each method whether its calls may be sampled.
    methods: Box<[bool]>,
    /// Nobody gains from guessing which calls are sampled.
    random: SeededRandom,
}

/// A datapath, with what is hidden of its messages.
#[derive(Debug)]
pub(crate) struct TapContext {
    pub(crate) datapath_context: Arc<DatapathContext>,
    pub(crate) redaction: CompiledRedaction,
}

/// What is kept of a call in flight: a record, if it is sampled. (A call that is in flight when the policy is changed
/// is not sampled to its end.)
#[derive(Default)]
pub struct TappedCall {
    sampling: Option<OpenSample>,
}

impl CallState for TappedCall {}

impl TapFilter {
    pub(crate) fn new(
        pool: Arc<RecordPool>,
        selection: SampleSelection,
        datapath_context: &DatapathContext,
        redaction: CompiledRedaction,
    ) -> TapFilter {
        TapFilter {
            pool,
            methods: selection.methods_of(datapath_context),
            selection,
            datapath_context: Arc::new(TapContext {
                datapath_context: Arc::new(datapath_context.clone()),
                redaction,
            }),
            random: SeededRandom::new(RandomState::new().hash_one(0u64)),
        }
    }

    fn begin(&mut self, step: &mut StepView<'_>) -> Option<OpenSample> {
        let method = step.method_index();
        if !*self.methods.get(usize::from(method))? || self.random.number() > self.selection.below {
            return None;
        }
        let matches = |(key, wanted): &(String, WantedValue)| match (step.metadata(key), wanted) {
            (Some(_), WantedValue::Any) => true,
            (Some(value), WantedValue::Exactly(wanted)) => value == wanted.as_bytes(),
            (None, _) => false,
        };
        if !self.selection.metadata.iter().all(matches) {
            return None;
        }
        let mut sampling = self.pool.take()?;
        sampling.begin(&self.datapath_context, step.call(), method, step.begun_at());
        Some(sampling)
    }
}

impl Filter for TapFilter {
    type Call = TappedCall;

    fn watch(&self) -> Watch {
        Watch {
            requests: SEEN,
            responses: SEEN,
            calls: true,
        }
    }

    fn judge(&mut self, call: &mut TappedCall, step: &mut StepView<'_>) -> Verdict {
        if step.parts().contains(Parts::BEGIN) {
            call.sampling = self.begin(step);
        }
        if let Some(sampling) = &mut call.sampling {
            copy(sampling, step);
        }
        Verdict::Pass
    }

    fn ended(&mut self, call: TappedCall, ended: &Ended) {
        if let Some(sampling) = call.sampling
            && self.selection.statuses[ended.code as usize]
        {
            sampling.finish(ended.code, ended.at);
        }
    }
}

fn copy(sampling: &mut OpenSample, step: &mut StepView<'_>) {
    let (parts, message_bytes) = (step.parts(), step.message_bytes());
    let mut recorded = RecordedStep {
        direction: step.direction(),
        parts,
        status: step.status(),
        at: step.now(),
        deadline: step.deadline(),
        metadata: 0..0,
        message: 0..0,
        message_bytes: if parts.contains(Parts::MESSAGE) {
            message_bytes
        } else {
            0
        },
        form: BodyForm::Native,
        window_at: 0,
    };
    // Protobuf is kept as it is: who looks at the sample decodes it.
    if step.is_split() && !step.is_protobuf() {
        let metadata_bytes = step.contents().metadata.len();
        if !sampling.has_room(metadata_bytes + message_bytes as usize) {
            let metadata = step.contents().metadata;
            sampling.add(recorded, Contents::without_message(metadata));
            return;
        }
        // What is still in the app's memory is copied now; what is shown is what is sent.
        step.make_whole();
    } else {
        // One that came compressed; what is damaged, or too large for the sample, is left out of it.
        let _ = step.decompress_within(sampling.bytes_left());
    }
    let contents = step.contents();
    if let Some(protobuf) = contents.protobuf
        && parts.contains(Parts::MESSAGE)
    {
        // Of one that came compressed, what it has plain.
        recorded.message_bytes = protobuf.len() as u32;
    }
    sampling.add(recorded, contents);
}
