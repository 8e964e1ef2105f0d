//! The test double, and what it does beside its role.

use libloading::Library;
use std::{
    env,
    ffi::{CString, c_char},
    path::PathBuf,
    sync::LazyLock,
};

/// Loaded once more, beside the engine's own handle; both are the same library.
static DOUBLE: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the double runs nothing when it is loaded.
    unsafe { Library::new(path()) }.expect("cargo builds examples for tests")
});

/// Where cargo puts the test double, which is an example.
pub(crate) fn path() -> PathBuf {
    let binary = env::current_exe().expect("a test knows its binary");
    let target = binary.ancestors().nth(2).expect("a test lies in target/debug/deps");
    let path = target.join("examples").join("libascend_double.so");
    assert!(
        path.exists(),
        "no {}: `cargo test --test` builds no examples, so build it before, with `cargo build -p \
         dmuon-hccl --features hccl --example ascend_double`",
        path.display()
    );
    path
}

functions! { of DOUBLE:
    fn refuse_all_to_all(device: i32, number: u32) = b"testdouble_refuse_all_to_all";
    fn notice(device: i32, status: i32) = b"testdouble_notice";
    fn never_open(device: i32) = b"testdouble_never_open";
    fn never_start(device: i32) = b"testdouble_never_start";
    fn stall(device: i32) = b"testdouble_stall";
    fn lose_patience(device: i32, millis: u64) = b"testdouble_lose_patience";
    fn run_out_of_memory(device: i32) = b"testdouble_run_out_of_memory";
    fn num_live(device: i32) -> i64 = b"testdouble_num_live";
}

/// How often a function of HCCL was called on a device.
pub(crate) fn num_calls(device: i32, call: &str) -> u64 {
    let call = CString::new(call).expect("names have no zeros");
    type Function = unsafe extern "C" fn(i32, *const c_char) -> u64;
    // SAFETY: the double has this signature for this name.
    let function = unsafe { DOUBLE.get::<Function>(b"testdouble_num_calls") };
    let function = function.expect("the double has it");
    // SAFETY: the name ends in a zero.
    unsafe { function(device, call.as_ptr()) }
}

/// The collectives that were issued on a device, in order; alike ones have one number on all ranks.
pub(crate) fn issued(device: i32) -> Vec<u64> {
    let mut issued = vec![0; 10_000];
    type Function = unsafe extern "C" fn(i32, *mut u64, usize) -> usize;
    // SAFETY: the double has this signature for this name.
    let function = unsafe { DOUBLE.get::<Function>(b"testdouble_issued") };
    let function = function.expect("the double has it");
    // SAFETY: there is room for so many.
    let count = unsafe { function(device, issued.as_mut_ptr(), issued.len()) };
    issued.truncate(count);
    issued
}
