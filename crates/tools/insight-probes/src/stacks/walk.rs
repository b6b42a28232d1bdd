//! Walking up a stack by what a program's file says, whoever wrote the file.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Module, Unwinder};

use super::code::FRAMES_MAX;
use super::program::ProgramCode;
use super::sample::StackSample;

/// How many frames are found from an instruction of a program on, with these bytes as the stack; at most as many as a sample
/// is walked.
#[must_use]
pub fn frames_walked(mut code: ProgramCode, instruction: u64, stack: &[u8]) -> usize {
    /// Where the stack is taken to be.
    const STACK: u64 = 0x7fff_0000_0000;
    let sample = StackSample {
        time_ns: 0,
        thread: 0,
        instruction,
        stack: STACK,
        frame: STACK + stack.len() as u64 / 2,
        bytes: stack.to_vec(),
    };
    let mut unwinder = UnwinderX86_64::new();
    unwinder.add_module(Module::new(String::new(), 0..STACK, 0, code.take_frames()));
    let mut cache = CacheX86_64::<framehop::MayAllocateDuringUnwind>::new();
    let registers = UnwindRegsX86_64::new(sample.instruction, sample.stack, sample.frame);
    let mut read_stack = |address| sample.word(address).ok_or(());
    let mut frames = unwinder.iter_frames(sample.instruction, registers, &mut cache, &mut read_stack);
    (0..FRAMES_MAX)
        .take_while(|_| matches!(frames.next(), Ok(Some(_))))
        .count()
}
