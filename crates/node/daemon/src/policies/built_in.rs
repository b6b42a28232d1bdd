//! The kinds that are linked in: the one list of them.

use std::sync::Arc;

use provost_engine::PolicyKind;
use provost_observe_log::AccessLogKind;
use provost_observe_metrics::MetricsKind;
use provost_observe_tap::TapKind;
use provost_observe_trace::TraceKind;
use provost_policy_access::AccessKind;
use provost_policy_fault::FaultKind;
use provost_policy_null::NullKind;
use provost_policy_qos::QosKind;
use provost_policy_rate_limit::RateLimitKind;

/// Each of them once.
pub(super) fn kinds() -> Vec<Arc<dyn PolicyKind>> {
    vec![
        Arc::new(NullKind),
        Arc::new(RateLimitKind::V1),
        Arc::new(RateLimitKind::V2),
        Arc::new(AccessKind),
        Arc::new(QosKind),
        Arc::new(FaultKind),
        Arc::new(TapKind::default()),
        Arc::new(AccessLogKind::default()),
        Arc::new(MetricsKind::default()),
        Arc::new(TraceKind::default()),
    ]
}
