//! A compiled model of a module, and its ports.
//!
//! The model is C++ that Verilator wrote. Each port is a field of it: a little-endian number of one to many bytes, at an address that
//! stays the same for as long as the model lives.

use std::ffi::c_void;

/// Why there is no model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelUnavailable {
    /// The crate was built without Verilator.
    #[error(
        "provost-nic-model was built without its feature `verilator`, which needs Verilator (Debian: apt-get install verilator)"
    )]
    Feature,
    /// No model of this module is compiled.
    #[error("build.rs compiles no model of this module")]
    Module,
}

type New = unsafe extern "C" fn() -> *mut c_void;
type Act = unsafe extern "C" fn(*mut c_void);
type Port = unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut usize) -> *mut c_void;

struct ModelFunctions {
    name: &'static str,
    new: New,
    delete: Act,
    eval: Act,
    port: Port,
}

#[cfg(feature = "verilator")]
include!(concat!(env!("OUT_DIR"), "/models.rs"));
#[cfg(not(feature = "verilator"))]
const MODELS: &[ModelFunctions] = &[];
#[cfg(not(feature = "verilator"))]
const SITUATIONS: &[(&str, &str)] = &[];

/// A port of a model. It belongs to the model that gave it.
#[derive(Clone, Copy, Debug)]
pub struct PortHandle {
    at: *mut u8,
    bytes: usize,
    model: *mut c_void,
}

/// A model of a module.
pub struct RtlModel {
    functions: &'static ModelFunctions,
    model: *mut c_void,
    clock: Option<PortHandle>,
}

// SAFETY: a model and its context belong to this value alone (each model has a context of its own), it has no thread of its own, and
// whoever uses it needs the value: so it may be used by one thread after another.
unsafe impl Send for RtlModel {}

// SAFETY: a handle is a name; the memory behind it is reached through its model only, which checks that it is its own.
unsafe impl Send for PortHandle {}

impl RtlModel {
    /// A model of this module, as it is when power comes.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(module: &str) -> Result<RtlModel, ModelUnavailable> {
        if MODELS.is_empty() {
            return Err(ModelUnavailable::Feature);
        }
        let functions = MODELS.iter().find(|functions| functions.name == module);
        let functions = functions.ok_or(ModelUnavailable::Module)?;
        // SAFETY: the function makes a model and nothing else.
        let model = unsafe { (functions.new)() };
        let mut made = RtlModel {
            functions,
            model,
            clock: None,
        };
        made.clock = made.find("clk");
        Ok(made)
    }

    fn find(&self, name: &str) -> Option<PortHandle> {
        let mut bytes = 0;
        // SAFETY: the model lives as long as `self`, and the name is as long as is said.
        let at = unsafe { (self.functions.port)(self.model, name.as_ptr(), name.len(), &raw mut bytes) };
        (!at.is_null()).then_some(PortHandle {
            at: at.cast(),
            bytes,
            model: self.model,
        })
    }

    /// A port.
    ///
    /// # Panics
    /// If the module has none of this name.
    #[must_use]
    pub fn port(&self, name: &str) -> PortHandle {
        self.find(name)
            .unwrap_or_else(|| panic!("the module {} has no port {name}", self.functions.name))
    }

    /// The bytes of a port, the lowest first.
    #[must_use]
    pub fn bytes(&self, port: PortHandle) -> &[u8] {
        assert_eq!(port.model, self.model, "a port of another model");
        // SAFETY: the port is so many bytes of this model, which lives as long as `self`; nothing writes it while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(port.at, port.bytes) }
    }

    /// The same, to write.
    pub fn bytes_mut(&mut self, port: PortHandle) -> &mut [u8] {
        assert_eq!(port.model, self.model, "a port of another model");
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(port.at, port.bytes) }
    }

    /// The value of a port of up to 64 bits; of a wider one, the lowest 64.
    #[must_use]
    pub fn get(&self, port: PortHandle) -> u64 {
        let bytes = self.bytes(port);
        let mut value = [0; 8];
        let kept = bytes.len().min(8);
        value[..kept].copy_from_slice(&bytes[..kept]);
        u64::from_le_bytes(value)
    }

    /// Sets a port of up to 64 bits.
    pub fn set(&mut self, port: PortHandle, value: u64) {
        let bytes = self.bytes_mut(port);
        let kept = bytes.len().min(8);
        bytes[..kept].copy_from_slice(&value.to_le_bytes()[..kept]);
    }

    /// Sets a port by its name.
    pub fn set_named(&mut self, name: &str, value: u64) {
        self.set(self.port(name), value);
    }

    /// The value of a port by its name.
    #[must_use]
    pub fn get_named(&self, name: &str) -> u64 {
        self.get(self.port(name))
    }

    /// The situations that the port `covered` has a bit for, from the lowest: of which module, and what.
    #[must_use]
    pub fn situations(&self) -> &'static [(&'static str, &'static str)] {
        let looks = self.find("covered").is_some();
        if looks { SITUATIONS } else { &[] }
    }

    /// Lets outputs follow from inputs.
    pub fn eval(&mut self) {
        // SAFETY: the model lives as long as `self`.
        unsafe { (self.functions.eval)(self.model) }
    }

    /// The first half of a cycle: the clock falls, and outputs follow from inputs as the next edge will see them.
    ///
    /// # Panics
    /// If the module has no clock.
    pub fn settle(&mut self) {
        self.drive_clock(0);
    }

    /// The second half: a rising edge, and what follows from it.
    ///
    /// # Panics
    /// If the module has no clock.
    pub fn edge(&mut self) {
        self.drive_clock(1);
    }

    fn drive_clock(&mut self, level: u64) {
        let clock = self.clock.expect("the module has a clock");
        self.set(clock, level);
        self.eval();
    }

    pub fn tick(&mut self) {
        self.settle();
        self.edge();
    }

    pub fn reset(&mut self) {
        self.set_named("rst", 1);
        self.tick();
        self.tick();
        self.set_named("rst", 0);
        self.eval();
    }
}

impl Drop for RtlModel {
    fn drop(&mut self) {
        // SAFETY: nothing uses the model after this.
        unsafe { (self.functions.delete)(self.model) }
    }
}
