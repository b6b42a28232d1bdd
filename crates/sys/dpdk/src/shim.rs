//! The C shim's functions (`shim/shim.c`), which say what each does.

use std::ffi::{c_char, c_int, c_void};

/// DPDK's buffers and pools, of which nothing but their address is known here.
pub(crate) type Buffer = *mut c_void;
pub(crate) type Pool = *mut c_void;

/// Frames of one call at most.
pub(crate) const BURST_MAX: usize = 64;

/// A buffer, and the packet in it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) buffer: Buffer,
    pub(crate) data: *mut u8,
    pub(crate) bytes: u32,
    pub(crate) room: u32,
}

impl Frame {
    pub(crate) const NONE: Frame = Frame {
        buffer: std::ptr::null_mut(),
        data: std::ptr::null_mut(),
        bytes: 0,
        room: 0,
    };
}

unsafe extern "C" {
    pub(crate) fn provost_dpdk_init(count: c_int, words: *mut *mut c_char) -> c_int;
    pub(crate) fn provost_dpdk_add_device(name: *const c_char, arguments: *const c_char) -> c_int;
    pub(crate) fn provost_dpdk_add_pair(one: *const c_char, other: *const c_char, packets: u32) -> c_int;
    pub(crate) fn provost_dpdk_pool(
        name: *const c_char,
        buffers: u32,
        frame_bytes: u16,
        pool: *mut Pool,
    ) -> c_int;
    pub(crate) fn provost_dpdk_port(device: *const c_char, port: *mut u16) -> c_int;
    pub(crate) fn provost_dpdk_start(
        port: u16,
        pool: Pool,
        receive: *mut u16,
        send: *mut u16,
        mtu: u16,
    ) -> c_int;
    pub(crate) fn provost_dpdk_close(port: u16);
    pub(crate) fn provost_dpdk_facts(port: u16, mac: *mut [u8; 6], mtu: *mut u16) -> c_int;
    pub(crate) fn provost_dpdk_link_is_up(port: u16) -> c_int;
    pub(crate) fn provost_dpdk_receive(port: u16, frames: *mut Frame, count: u16) -> u16;
    pub(crate) fn provost_dpdk_send(port: u16, frames: *const Frame, count: u16) -> u16;
    pub(crate) fn provost_dpdk_take(pool: Pool, frame: *mut Frame) -> c_int;
    pub(crate) fn provost_dpdk_give_back(buffer: Buffer);
}
