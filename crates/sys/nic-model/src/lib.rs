//! The NIC's RTL (`hw/rtl`) as a model that is evaluated cycle by cycle, compiled with Verilator at build time when the feature
//! `verilator` is on. [`RtlModel`] is any module's model; [`SimulatedNic`] is the whole NIC with host memory and a wire around it.
//!
//! Everything that is measured with it is simulated: it says how many cycles the RTL takes, not how fast a board is.

mod clocked;
mod model;
mod simulated;

pub use clocked::ClockPeriods;
pub use model::{ModelUnavailable, PortHandle, RtlModel};
pub use simulated::{BusWrite, HostTiming, NicShape, SimulatedNic, WirePacket};
